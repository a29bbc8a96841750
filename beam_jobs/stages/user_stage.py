"""Loads a user stage, which is a stage from another package.

`pipeline_ops/user_code/stages.py` adds its code to fingerprints.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from typing import Any

from beam_jobs.stages.stage import Stage
from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.stages import find_module_path


@functools.lru_cache
def load_stage(name: str) -> Stage | None:
    """The stage behind a module path or an entry point, or None if the name is neither.

    Raises:
      ConfigError: the module cannot be imported, or the named object is no stage.
    """
    path = find_module_path(name)
    if path is None:
        return None
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise ConfigError(
            f"cannot import the module {module_name}: {type(error).__name__}: {error}. Install its "
            "package, or add its folder to PYTHONPATH, for both Airflow and the job."
        ) from error
    found = getattr(module, attribute, None)
    if isinstance(found, Stage):
        return found
    if not inspect.isfunction(found):
        raise ConfigError(
            f"the module {module_name} has no function {attribute!r}. "
            "Name a stage as `module:function`."
        )
    parameters = find_parameters_class(found)
    if parameters is None:
        raise ConfigError(
            f"{path} must take an Example and its parameters, "
            "`def stage(example: Example, parameters: MyParameters)`, "
            "where MyParameters is a class with the decorator @parameters of beam_jobs.stages.stage"
        )
    return Stage(parameters, found)


def find_parameters_class(function: Any) -> Any:
    """The class with @parameters that the second argument is annotated with, or None."""
    try:
        arguments = list(inspect.signature(function).parameters)
        parameters = typing.get_type_hints(function).get(arguments[1])
    except (IndexError, NameError, TypeError, ValueError):
        parameters = None
    return parameters if hasattr(parameters, "__pydantic_config__") else None
