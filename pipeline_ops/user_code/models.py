"""Models, losses and metrics of the user's own: the place and the fingerprint of their code.

    train:
      model: my_package.my_module:build

A module is found as Python finds any module, or next to the config file. If it is in a package,
every source file of that package counts, because a model is seldom in one file. This module does
not run that code, except for the packages around a module. `pipeline_ops.models` runs it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.config.model_catalogue import is_user_function
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.config.train import Train
from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.contract.planned_training import UserCode
from pipeline_ops.errors import ConfigError
from pipeline_ops.system.host import parse_python
from pipeline_ops.user_code.modules import (
    check_size,
    find_distributions,
    find_module,
    read_files,
    read_module,
)

_FRAMEWORKS = ("tf-slim", "tf-keras")
"""Packages besides Keras that a model may be made with."""


def digest_user_code(section: Train | Evaluate, folder: Path) -> dict[str, str]:
    """Returns the digests of `read_user_code`."""
    return read_user_code(section, folder).digests


def read_user_code(section: Train | Evaluate, folder: Path) -> UserCode:
    """Reads the source files of models, losses, metrics and callbacks, and the section's `files`.

    All files of the packages around the modules count, and all that they import there.

    Args:
      section: the section of the config, `train` or `evaluate`.
      folder: the folder of the config file.

    Raises:
      ConfigError: there is no such module, or a file is not valid Python, or they are too large.
    """
    name = type(section).__name__.lower()
    code = read_files(section.files, f"{name}.files", folder)
    for key, path in collect_paths(section).items():
        module = path.partition(":")[0]
        origin = find_module(module, folder)
        if origin is None:
            raise ConfigError(
                f"{key}: there is no module {module}. Install its package, put its folder into "
                f"PYTHONPATH for Airflow and for the job, or put it next to the config in {folder}."
            )
        try:
            code |= read_module(module, origin, folder, whole_package=True)
        except ConfigError as error:
            error.add_location(key)
            raise
    return check_size(code, f"{name}.files", folder)


def check_names(section: Train | Evaluate, folder: Path) -> None:
    """Checks that the modules define the names in the section, without running them.

    A module that is not found passes. Other checks report it.

    Raises:
      ConfigError: there is no such name in the module, or the module is not valid Python.
    """
    for key, path in collect_paths(section).items():
        module, _, name = path.partition(":")
        origin = find_module(module, folder)
        known = origin and _find_names(origin, key)
        if known and name not in known:
            raise ConfigError(
                f"{key}: {path}: {origin} defines no {name!r}; {suggest_name(name, known)}"
            )


def _find_names(file: Path, key: str) -> Collection[str] | None:
    """Returns the names that a module binds, or None if only running it would show them."""
    try:
        return _collect_bindings(parse_python(file))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{key}: {file}:{getattr(error, 'lineno', 0)}: not valid Python: {error}"
        ) from None


def find_user_versions(section: Train | Evaluate) -> dict[str, str]:
    """Returns the versions of the installed distributions that the modules come from.

    The packages that a model may be made with are included.
    """
    modules = [path.partition(":")[0] for path in collect_paths(section).values()]
    return find_versions(sorted({*find_distributions(modules), *_FRAMEWORKS})) if modules else {}


def collect_paths(section: Train | Evaluate) -> dict[str, str]:
    """The paths `module:name` by the key of the config."""
    if isinstance(section, Evaluate):
        rules = enumerate(section.gate)
        return {
            f"evaluate.gate.{i}.metric": rule.own_metric for i, rule in rules if rule.own_metric
        }
    train = section
    paths = {
        "train.model": train.model if is_user_function(train.model) else None,
        "train.loss": train.loss,
        "train.step": train.step,
        "train.optimizer": train.optimizer.name if train.optimizer.is_own else None,
        "train.optimizer.schedule": getattr(train.optimizer.schedule, "function", None),
        "train.input.augment.own": train.input.augment.own,
        "train.dataset": train.dataset,
    }
    callbacks = [path for path, _ in train.callback_arguments]
    for name, own in (("metrics", [*train.own_metrics]), ("callbacks", callbacks)):
        paths |= {f"train.{name}.{index}": path for index, path in enumerate(own)}
    # Keras's version is part of every fingerprint.
    return {key: path for key, path in paths.items() if path and not path.startswith("keras.")}


def _collect_bindings(tree: ast.Module) -> dict[str, ast.AST] | None:
    """The names that a module binds, each with its outermost statement.

    Names of inner scopes are included, because an additional name is better than a wrong refusal.
    None if the names are not known without running the module.
    """
    found: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                found.setdefault(name, node)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    found.setdefault((alias.asname or alias.name).partition(".")[0], node)
    return None if {"*", "__getattr__"} & found.keys() else found
