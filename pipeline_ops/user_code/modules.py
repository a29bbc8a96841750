"""Modules of the user's own: where they are, what they import, and the packages they belong to.

Only `import_module` and `load_object` run their code. Finding a module runs the packages around it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline_ops.artifacts.source_code import digest_sources
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.errors import ConfigError

_INSTALLED = {Path(path) for path in sysconfig.get_paths().values()}


def find_module(module: str, folder: Path | None = None) -> Path | None:
    """Returns the source file of a module, or None.

    Args:
      module: the dotted name.
      folder: a folder to look in after Python's own path, usually that of the config file.
    """
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package around it cannot be imported, or there is none
        spec = None
    if spec and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    if folder is None:
        return None
    path = folder.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def import_module(module: str, remedy: str) -> ModuleType:
    """Imports a module. Whatever its code raises is a ConfigError that ends with the remedy."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        # Without a file, the module itself was not found.
        line = "" if last.filename.startswith("<") else f" ({last.filename}:{last.lineno})"
        raise ConfigError(
            f"cannot import the module {module}: {type(error).__name__}: {error}{line}. {remedy}"
        ) from error


@contextlib.contextmanager
def hide_modules(names: Iterable[str]) -> Iterator[None]:
    """Has modules not found by an import of Beam, which warns of others that are not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name in hidden:
            del sys.modules[name]


def load_object(path: str, key: str, remedy: str) -> Any:
    """Returns the object behind a path `module:name`.

    Messages begin with the key of the config. The remedy is for a module that cannot be imported.
    """
    module_name, _, name = path.partition(":")
    try:
        module = import_module(module_name, remedy)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not hasattr(module, name):
        known = [
            each
            for each, value in vars(module).items()
            if getattr(value, "__module__", None) == module_name
        ]
        known = known or [each for each, value in vars(module).items() if callable(value)]
        raise ConfigError(
            f"{key}: the module {module_name} has no function {name!r}; {suggest_name(name, known)}"
        )
    return getattr(module, name)


def locate_error(error: BaseException) -> str:
    """Returns `file:line` of the error in the file of the function that raised it.

    The function is the one that was called where the error is caught. The line is the last in its
    file at which the error passed, and that of the call if the function has not begun.
    """
    caller, *frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == frames[0].filename] or [caller]
    return f"{own[-1].filename}:{own[-1].lineno}"


def digest_module(module: str, origin: Path, whole_package: bool = False) -> dict[str, str]:
    """Returns digests of a module and of the user's modules that it imports.

    The key is the path below the folder in which Python finds the module. Imports of an
    installed package are followed only within it.

    Args:
      module: the dotted name.
      origin: its file, as `find_module` returned it.
      whole_package: covers all files of the package around the module that can be imported, and
          their imports.

    Raises:
      ConfigError: a file is not valid Python.
    """
    depth = module.count(".") + (origin.name == "__init__.py")
    root = origin.parents[depth]
    modules = [module]
    if whole_package and depth:
        paths = [
            file.relative_to(root).with_suffix("").parts for file in origin.parent.rglob("*.py")
        ]
        # Others, such as those of `.ipynb_checkpoints`, are no modules.
        modules += [".".join(parts) for parts in paths if all(map(str.isidentifier, parts))]
    packages = {module.partition(".")[0]} if root in _INSTALLED else None
    try:
        return digest_sources(modules, root, packages)
    except (SyntaxError, ValueError) as error:  # a null byte is a ValueError
        raise ConfigError(
            f"{module}, or a module that it imports, is not valid Python: {error}. Correct it."
        ) from None


def find_distributions(modules: Iterable[str]) -> set[str]:
    """Returns the installed distributions that modules come from."""
    modules = list(modules)
    by_package = _map_packages(tuple(map(_stamp, sys.path))) if modules else {}
    return {name for module in modules for name in by_package.get(module.partition(".")[0], ())}


@functools.lru_cache(maxsize=4)
def _map_packages(_stamps: tuple[tuple[str, int], ...]) -> Mapping[str, list[str]]:
    """Returns the distributions by top-level package. Reading what each installed takes long."""
    return importlib.metadata.packages_distributions()


def _stamp(folder: str) -> tuple[str, int]:
    """Returns what changes when a distribution is installed there, or removed."""
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:
        return folder, 0
