"""The trigger form, generated from the config's own classes: same names, types, bounds and help.

A field is named by its dotted path in the YAML, so what the form sends is a set of overrides, as `--set` makes them.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from pipeline_ops.contracts.config import PipelineConfig
from pipeline_ops.contracts.section import Section, TaskSection

_SCALARS = ("integer", "number", "boolean", "string")
_BOUNDS = ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "minLength", "maxLength")
_TASKS = ("train", "preprocess", "evaluate", "export")
"""The order of the form's sections: what people change most comes first."""
_LEFT_OUT = frozenset(TaskSection.model_fields)
"""How patient a task is belongs into the YAML: Airflow reads the number of retries from there, not from a run."""


def form_params(config: PipelineConfig) -> dict[str, Param]:
    """Params for every scalar in the tasks' sections."""
    params: dict[str, Param] = {}
    for task in _TASKS:
        _add_section(params, getattr(config, task), task)
    return params


def _add_section(params: dict[str, Param], section: Section, path: str) -> None:
    properties = type(section).model_json_schema()["properties"]
    for name in (name for name in type(section).model_fields if name not in _LEFT_OUT):
        value, key = getattr(section, name), f"{path}.{name}"
        if isinstance(value, Section):
            _add_section(params, value, key)
        elif schema := _scalar_schema(properties[name]):
            params[key] = Param(value, title=_title(name), description=properties[name].get("description"), section=_title(path), **schema)


def _scalar_schema(field: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a field's JSON schema that a form field needs; None for lists and sections."""
    if "const" in field:
        return {"const": field["const"]}
    if field.get("type") in _SCALARS:
        return {"type": field["type"]} | {key: field[key] for key in _BOUNDS if key in field}
    choices = field.get("anyOf", [])
    scalars = [choice for choice in choices if choice.get("type") in _SCALARS]
    if len(scalars) == 1 and {"type": "null"} in choices:
        schema = {"type": ["null", scalars[0]["type"]]} | {key: scalars[0][key] for key in _BOUNDS if key in scalars[0]}
        return schema | {"enum": [*schema["enum"], None]} if "enum" in schema else schema
    return None


def _title(name: str) -> str:
    """`train.early_stopping` becomes `Train: early stopping`."""
    task, _, rest = name.replace("_", " ").partition(".")
    return f"{task.capitalize()}: {rest.replace('.', ', ')}" if rest else task.capitalize()
