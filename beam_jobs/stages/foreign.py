"""Loads a stage from another package.

`pipeline_ops/user_code/stages.py` says how its code takes part in fingerprints.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from typing import Any

from beam_jobs.stages.stage import Stage
from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.stages import module_path


@functools.lru_cache
def load_stage(name: str) -> Stage | None:
    """The stage behind a module path or an entry point, or None if the name is neither.

    Raises:
      ConfigError: the module can't be imported, or the named object is no stage.
    """
    path = module_path(name)
    if path is None:
        return None
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        raise ConfigError(
            f"the module {module_name} can't be imported: {type(error).__name__}: {error}; "
            "is its package installed, or its folder in PYTHONPATH, for Airflow and for the job?"
        ) from error
    found = getattr(module, attribute, None)
    if isinstance(found, Stage):
        return found
    if not inspect.isfunction(found):
        raise ConfigError(
            f"the module {module_name} has no function {attribute!r}; "
            "a stage is named as `module:function`"
        )
    return Stage(_parameters_of(found, path), found)


def _parameters_of(function: Any, path: str) -> Any:
    """The class that the second argument is annotated with."""
    try:
        arguments = list(inspect.signature(function).parameters)
        parameters = typing.get_type_hints(function).get(arguments[1])
    except (IndexError, NameError, TypeError, ValueError):
        parameters = None
    if not hasattr(parameters, "__pydantic_config__"):
        raise ConfigError(
            f"{path} must take an Example and its parameters, "
            "`def stage(example: Example, parameters: MyParameters)`, "
            "where MyParameters is a class with the decorator @parameters of beam_jobs.stages.stage"
        )
    return parameters
