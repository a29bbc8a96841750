"""Models, losses and metrics of the user's own: the place and the fingerprint of their code.

    train:
      model: my_package.my_module:build

A module is found as Python finds any module, or next to the config file. If it is in a package,
every source file of that package counts, because a model is seldom in one file. This module does
not run that code, except for the packages around a module. `pipeline_ops/models/own.py` runs it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import digest_code, versions_of
from pipeline_ops.config.model_catalogue import is_own
from pipeline_ops.config.train import Train
from pipeline_ops.config.yaml_source import nearest
from pipeline_ops.errors import ConfigError

_FRAMEWORKS = ("tf-slim", "tf-keras")
"""Packages besides Keras that a model may be made with."""


def code_of(train: Train, folder: Path) -> dict[str, str]:
    """Returns digests of the source files of the user's own modules.

    The key is the path below the folder in which Python finds the module.

    Args:
      train: the training section.
      folder: the folder of the config file.

    Raises:
      ConfigError: there is no such module.
    """
    digests: dict[str, str] = {}
    for key, module in _modules(train).items():
        origin = find(module, folder)
        if origin is None:
            raise ConfigError(
                f"{key}: there is no module {module}; install its package, put its folder into "
                f"PYTHONPATH for Airflow and for the job, or put it beside the config in {folder}"
            )
        depth = module.count(".") + (origin.name == "__init__.py")
        root = origin.parents[depth]
        try:
            digests |= digest_code(
                [str(origin.parent.relative_to(root)) if depth else origin.name], root=root
            )
        except SyntaxError as error:
            raise ConfigError(
                f"{key}: the package of {origin} has a file that is not valid Python: {error}"
            ) from None
    return digests


def validate_names(train: Train, folder: Path) -> None:
    """Checks that the modules define the names in `train`, without running them.

    A module that is not found passes. Other checks report it.

    Raises:
      ConfigError: there is no such name in the module, or the module is not valid Python.
    """
    for key, path in _named(train).items():
        module, _, name = path.partition(":")
        origin = find(module, folder)
        known = origin and _names_in(origin, key)
        if known and name not in known:
            raise ConfigError(
                f"{key}: {path}: {origin} defines no {name!r}; {nearest(name, known)}"
            )


def _names_in(file: Path, key: str) -> set[str] | None:
    """Returns the names that a module binds at its top level.

    None if they are not known without running the module.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{key}: {file}:{getattr(error, 'lineno', 0)}: not valid Python: {error}"
        ) from None
    names: set[str] = set()
    for node in ast.walk(
        tree
    ):  # includes inner scopes: an additional name is better than a wrong refusal
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    return None if names & {"*", "__getattr__"} else names


def versions_of_own(train: Train) -> dict[str, str]:
    """Returns the versions of the installed distributions that the modules come with.

    The packages that the modules may be made with are included.
    """
    modules = _modules(train)
    if not modules:
        return {}
    distributions = importlib.metadata.packages_distributions()
    found = {
        name
        for module in modules.values()
        for name in distributions.get(module.partition(".")[0], ())
    }
    return versions_of(sorted({*found, *_FRAMEWORKS}))


def find(module: str, folder: Path) -> Path | None:
    """Returns the source file of a module, or None."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package around it can't be imported, or there is none
        spec = None
    if spec and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    beside = folder.joinpath(*module.split("."))
    return next(
        (file for file in (beside.with_suffix(".py"), beside / "__init__.py") if file.is_file()),
        None,
    )


def _modules(train: Train) -> dict[str, str]:
    """The modules of models, losses and metrics, by the key of the config that names each."""
    return {
        key: path.partition(":")[0]
        for key, path in _named(train).items()
        if not key.startswith("train.callbacks")
    }


def _named(train: Train) -> dict[str, str]:
    """The paths `module:name` by the key of the config."""
    paths = {"train.model": train.model if is_own(train.model) else None, "train.loss": train.loss}
    for name in ("metrics", "callbacks"):
        paths |= {f"train.{name}.{index}": path for index, path in enumerate(getattr(train, name))}
    return {key: path for key, path in paths.items() if path}
