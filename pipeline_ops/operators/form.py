"""The trigger form, generated from the config's own classes: same names, types, bounds and help.

A field is named by its dotted path in the YAML, so what the form sends is a set of overrides, as `--set` makes them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import Param

from pipeline_ops.contracts.config import PipelineConfig
from pipeline_ops.contracts.model_catalogue import CATALOGUE
from pipeline_ops.contracts.section import Section, TaskSection

_SCALARS = ("integer", "number", "boolean", "string")
_SHOWN = ("enum", "pattern", "minLength", "maxLength")
_LIMITS = {"minimum": "at least {}", "exclusiveMinimum": "more than {}", "maximum": "at most {}", "exclusiveMaximum": "less than {}"}
_TASKS = ("train", "preprocess", "evaluate", "export")
"""The order of the form's sections: what people change most comes first."""
_LEFT_OUT = frozenset(TaskSection.model_fields)
"""How patient a task is belongs into the YAML: Airflow reads the number of retries from there, not from a run."""
_OPERATIONAL = "where and how patiently"
"""The last section of a task: what can't change what comes out."""
_START = {"train.warm_start": "Begin with the weights of", "preprocess.dataset": "Data set (version)"}
_START_SECTION = "Start from"
"""Versions of what is there already; a section of their own, the second one. They are free texts, which the first task checks: choices would
make a new version of the DAG with every data set and every model."""
_UNITS = {"seconds": "seconds", "epochs": "epochs", "steps": "steps", "bytes": "bytes", "mib": "MiB", "gib": "GiB", "megabytes": "MB", "bits": "bits"}
_NULL = re.compile(r"\b[Nn]ull\b")
"""What is `null` in the YAML is a field that is left empty in the form."""
_SPELLINGS = {"xla": "XLA", "tpu": "TPU", "js": "Jensen-Shannon distance", "linf": "largest change", "min": "minimum", "max": "maximum"}


def form_params(config: PipelineConfig) -> dict[str, Param]:
    """Params for every scalar in the tasks' sections, but for texts that are empty: Airflow's form can't be sent with one of them."""
    params: dict[str, Param] = {}
    suggestions = {"train.model": {"examples": sorted(CATALOGUE)}, "train.warm_start": {"examples": ["champion"]},
                   "train.hosts": _choice_of_hosts(config)}
    for task in _TASKS:
        params |= _fields(getattr(config, task), task, suggestions)
    first = {key for key, param in params.items() if param.schema["section"] == _heading(_TASKS[0])}
    return {key: params[key] for key in sorted(params, key=lambda key: (key not in first, key not in _START))}


def _fields(section: Section, path: str, suggestions: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Param]]:
    """Key and param of a section's own fields, of the sections in it, and of a task at last of what is operational."""
    properties = _properties(type(section))
    inner, operational = [], []
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{path}.{name}"
        is_operational = isinstance(section, TaskSection) and (field.json_schema_extra or {}).get("operational", False)
        if isinstance(value, Section):
            inner.append((value, key))
        elif name not in _LEFT_OUT and value != "" and (schema := _scalar_schema(properties[name])):
            schema |= suggestions.get(key, {})
            heading = _START_SECTION if key in _START else _heading(f"{path}.{_OPERATIONAL}" if is_operational else path)
            title = _START.get(key) or _title(name)
            param = Param(value, title=title, description=_help(properties[name], schema), section=heading, **schema)
            if is_operational:
                operational.append((key, param))
            else:
                yield key, param
    for value, key in inner:
        yield from _fields(value, key, suggestions)
    yield from operational


@functools.cache  # the same for all pipelines, and a hundredth of a second each time
def _properties(section: type[Section]) -> dict[str, Any]:
    return section.model_json_schema()["properties"]


def _choice_of_hosts(config: PipelineConfig) -> dict[str, Any]:
    """The files in `hosts/`, and this machine; where there are none, a field that is free."""
    names = sorted(file.stem for file in config.path("hosts").glob("*.yaml"))
    names += [config.train.hosts] if config.train.hosts and config.train.hosts not in names else []
    return {"enum": [None, *names]} if names else {}


def _scalar_schema(field: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a field's JSON schema that a form field needs; None for lists and sections."""
    if "const" in field:
        return {"const": field["const"]}
    if field.get("type") in _SCALARS:
        return {"type": field["type"]} | _limited(field)
    choices = field.get("anyOf", [])
    scalars = [choice for choice in choices if choice.get("type") in _SCALARS]
    if len(scalars) == 1 and {"type": "null"} in choices:
        schema = {"type": ["null", scalars[0]["type"]]} | _limited(scalars[0])
        return schema | {"enum": [*schema["enum"], None]} if "enum" in schema else schema
    return None


def _limited(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a form field needs of a schema. The limits go where Airflow's form does not look: it would silently clamp what
    a person has typed, while the server, which does look there, refuses it and says why."""
    limits = {key: schema[key] for key in _LIMITS if key in schema}
    return {key: schema[key] for key in _SHOWN if key in schema} | ({"allOf": [limits]} if limits else {})


def _help(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """The field's docstring, and its limits: `At least 1, at most 1024.` The form shows it as it is, so without the marks of code."""
    limits = [_LIMITS[key].format(_plain_number(value)) for key, value in schema.get("allOf", [{}])[0].items()]
    sentences = [field.get("description", "").replace("`", ""), f"{', '.join(limits).capitalize()}." if limits else ""]
    text = " ".join(filter(None, sentences))
    return _NULL.sub(lambda found: "Empty" if found[0] == "Null" else "empty", text) or None


def _plain_number(value: float) -> str:
    """`1000000`, not `1e+06`."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _title(name: str) -> str:
    """`patience_epochs` becomes `Patience (epochs)`, and `max_workers` `Maximum workers`."""
    words = name.split("_")
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    spelt = " ".join(_SPELLINGS.get(word, word) for word in (words[:-1] if unit else words))
    return spelt[0].upper() + spelt[1:] + (f" ({unit})" if unit else "")


def _heading(path: str) -> str:
    """`train.early_stopping` becomes `Train: early stopping`."""
    task, _, rest = path.replace("_", " ").partition(".")
    return f"{task.capitalize()}: {rest.replace('.', ', ')}" if rest else task.capitalize()
