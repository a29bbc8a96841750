"""Modules of the user's own: where they are, what they import, and the packages they belong to.

Only `import_module` and `load_object` run their code. Finding a module runs the packages around it.
Each file is read once, so the digest in a fingerprint is that of the content that travels.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline_ops.config.reading import suggest_name
from pipeline_ops.contract.planned_training import UserCode
from pipeline_ops.contract.source_code import (
    PACKAGES,
    SourceFile,
    digest_bytes,
    read_sources,
)
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_files import (
    UnsafePath,
    describe_os_error,
    parse_relative_path,
)
from pipeline_ops.user_code.planned_imports import raise_fault

_LIBRARIES = [
    Path(os.path.realpath(sysconfig.get_path(name)))
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
]
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
_MAX_MIB = 16
"""The limit for each section of a config. A request has up to three of them, as base64."""


def check_size(code: UserCode, key: str, folder: Path) -> UserCode:
    """Returns the code. Raises ConfigError if it is too large to travel with a request."""
    total = sum(map(len, code.files.values()))
    if total > _MAX_MIB << 20:
        largest = max(code.files, key=lambda path: len(code.files[path]))
        raise _make_size_error(key, folder / largest, total)
    return code


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
        found = importlib.import_module(module)
        raise_fault()
        return found
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        # Without a file, the module itself was not found.
        line = "" if last.filename.startswith("<") else f" ({last.filename}:{last.lineno})"
        raise ConfigError(
            f"cannot import the module {module}: {type(error).__name__}: {error}{line}", remedy
        ) from error


@contextlib.contextmanager
def hide_modules(names: Iterable[str]) -> Iterator[None]:
    """Hides modules from the import of Beam, and silences its warnings of missing ones."""
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
        error.add_location(key)
        raise
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
    """Returns the digests of `read_module`."""
    return read_module(module, origin, whole_package=whole_package).digests


def read_module(
    module: str, origin: Path, folder: Path | None = None, whole_package: bool = False
) -> UserCode:
    """Reads a module and all of the user's modules that it imports.

    These are the modules in the folder of the config and those that Python finds in any folder
    other than its own libraries. Imports of an installed package are followed only within it.

    Args:
      module: the dotted name.
      origin: its file, as `find_module` returned it.
      folder: that of the config.
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
    return _read_modules(modules, root, folder)


def _read_modules(modules: Sequence[str], root: Path, folder: Path | None) -> UserCode:
    own = modules[0].partition(".")[0]

    @functools.cache
    def find_roots(top: str) -> Sequence[Path]:
        if is_installed(root):
            return [root] if top == own else []
        return _find_roots(top, [root, *([folder] if folder else [])]) or [root][: top == own]

    try:
        return _collect(read_sources(modules, find_roots), folder)
    except (SyntaxError, ValueError) as error:  # a null byte is a ValueError
        raise ConfigError(
            f"{modules[0]}, or a module that it imports, is not valid Python: {error}. Correct it."
        ) from None


def _collect(sources: Mapping[str, SourceFile], folder: Path | None) -> UserCode:
    here = folder and os.path.realpath(folder)
    # Templates belong to packages. Pages beside the config may be of anything.
    sources = {path: each for path, each in sources.items() if "/" in path or path[-3:] == ".py"}
    return UserCode(
        digests={path: source.digest for path, source in sources.items()},
        files={
            path: source.content
            for path, source in sources.items()
            if os.path.realpath(source.folder) == here
        },
    )


def _find_roots(top: str, others: Iterable[Path]) -> list[Path]:
    """Returns the folders of a user in which Python finds a top-level module or package.

    Python looks into `others` after all folders of its path.
    """
    if top in PACKAGES or top in sys.stdlib_module_names:
        return []
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # __main__ has none
        spec = None
    if spec and spec.has_location and spec.origin:
        found = [Path(spec.origin).parents[bool(spec.submodule_search_locations)]]
    else:  # it is a package without a file, whose parts may be in several folders, or unknown
        found = [Path(part).parent for part in (spec and spec.submodule_search_locations) or ()]
        found += [each for each in others if _has_module(each, top)]
    return [each for each in dict.fromkeys(found) if not is_installed(each)]


def _has_module(root: Path, top: str) -> bool:
    return (root / f"{top}.py").is_file() or (root / top).is_dir()


def is_installed(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file or folder belongs to Python or to an installed package.

    The versions in a fingerprint stand for these.
    """
    found = Path(os.path.realpath(path))
    if not _PACKAGE_FOLDERS.isdisjoint(found.parts):
        return True
    return any(found.is_relative_to(library) for library in _LIBRARIES)


def read_files(patterns: Sequence[str], key: str, folder: Path) -> UserCode:
    """Reads the files that match patterns relative to the folder of the config.

    A Python file counts as a module, with its imports.

    Raises:
      ConfigError: a pattern matches no file, or a file cannot travel.
    """
    found, num_bytes = UserCode(), 0
    for index, pattern in enumerate(patterns):
        matches = sorted(file for file in folder.glob(pattern) if file.is_file())
        if not matches:
            hint = f" Write {pattern}/**/* for all files below it." * (folder / pattern).is_dir()
            raise ConfigError(f"{key}.{index}: {pattern} matches no file in {folder}.{hint}")
        for file in matches:
            path = file.relative_to(folder).as_posix()
            parts = file.relative_to(folder).with_suffix("").parts
            try:
                parse_relative_path(path)
                if file.suffix == ".py" and all(map(str.isidentifier, parts)):
                    module = ".".join(parts).removesuffix(".__init__")
                    found |= _read_modules([module], folder, folder)
                    continue
                num_bytes += file.stat().st_size
                if num_bytes > _MAX_MIB << 20:
                    raise _make_size_error(f"{key}.{index}", file, num_bytes)
                content = file.read_bytes()
            except UnsafePath as error:
                raise ConfigError(f"{key}.{index}: {error}. Rename the file.") from None
            except OSError as error:
                reason = describe_os_error(error)
                raise ConfigError(f"{key}.{index}: cannot read {file}: {reason}.") from None
            found |= UserCode(digests={path: digest_bytes(content)}, files={path: content})
    return found


def _make_size_error(key: str, file: Path, num_bytes: int) -> ConfigError:
    return ConfigError(
        f"{key}: the files beside the config that travel with each request have "
        f"{num_bytes / (1 << 20):.1f} MiB, and at most {_MAX_MIB} are allowed. The largest one is "
        f"{file}. Weights to begin with are for train.warm_start. Put other large "
        "files into an installed package."
    )


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
    """Returns a value that changes when a package is installed or removed in the folder."""
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:
        return folder, 0
