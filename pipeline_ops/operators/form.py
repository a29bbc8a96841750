"""The trigger form: the fields that a run may set, from the config's own classes.

The classes give the names, types, bounds and help. A field is named by its dotted path in the YAML,
so the form sends a conf as `config/overrides.py` checks it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from pipeline_ops.config.base import Section
from pipeline_ops.config.fields import ConfigField, leaves_of, value_at
from pipeline_ops.config.overrides import settable_keys
from pipeline_ops.config.per_run import is_glob
from pipeline_ops.config.pipeline import PipelineConfig

_SCALARS = ("integer", "number", "boolean", "string")
_SHOWN = ("enum", "pattern", "minLength", "maxLength")
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}
_TASKS = ("train", "preprocess", "evaluate", "export")
"""The order of the form's sections. The most frequently changed ones come first."""
_TITLES = {
    "train.warm_start": "Begin with the weights of",
    "train.epochs": "Epochs",
    "train.optimizer.learning_rate": "Learning rate",
    "train.global_batch": "Batch size",
    "preprocess.dataset": "Data set (version)",
}
_UNITS = {
    "seconds": "seconds",
    "epochs": "epochs",
    "steps": "steps",
    "bytes": "bytes",
    "mib": "MiB",
    "gib": "GiB",
    "megabytes": "MB",
    "bits": "bits",
}
_NULL = re.compile(r"\b[Nn]ull\b")
"""Finds `null` in help texts: a value that is `null` in the YAML is an empty field in the form."""
_SPELLINGS = {
    "xla": "XLA",
    "tpu": "TPU",
    "js": "Jensen-Shannon distance",
    "linf": "largest change",
    "min": "minimum",
    "max": "maximum",
}


def form_params(config: PipelineConfig) -> dict[str, Param]:
    """Params for the fields that a run may set, by key.

    Frequent fields and the fields that the author opens come first. They have no section, so
    Airflow shows them in the open part. Fields of a section that is null in the YAML are left out.
    So are empty texts, which Airflow's form refuses to send.
    """
    leaves = leaves_of(type(config))
    params = {key: param for key in settable_keys(config) if (param := _param(config, leaves[key]))}
    return {
        key: params[key] for key in sorted(params, key=lambda key: _position(config, leaves[key]))
    }


def _position(config: PipelineConfig, leaf: ConfigField) -> tuple[bool, int, int]:
    return (
        not _is_open(config, leaf),
        leaf.rank or len(_TITLES) + 1,
        _TASKS.index(leaf.key.partition(".")[0]),
    )


def _is_open(config: PipelineConfig, leaf: ConfigField) -> bool:
    return bool(leaf.rank) or leaf.key in config.per_run


def _param(config: PipelineConfig, leaf: ConfigField) -> Param | None:
    """The form field of a leaf; None if the leaf cannot have one."""
    parent, _, name = leaf.key.rpartition(".")
    section, value = value_at(config, parent), value_at(config, leaf.key)
    if not isinstance(section, Section) or name not in type(section).model_fields or value == "":
        return None
    field = _properties(type(section))[name]
    schema = _scalar_schema(field)
    if leaf.key in config.per_run and not _globs(config, leaf):
        schema["enum"] = [
            value,
            *(allowed for allowed in config.per_run[leaf.key] if allowed != value),
        ]
    if leaf.run_pattern and leaf.key not in config.per_run:
        schema["allOf"] = [
            {"anyOf": [{"pattern": f"^({leaf.run_pattern})$"}, {"enum": [value, None]}]}
        ]
    section_name = {} if _is_open(config, leaf) else {"section": _heading(parent)}
    return Param(
        value,
        title=_TITLES.get(leaf.key) or _title(name),
        description=_help(config, leaf, field, schema),
        **section_name,
        **schema,
    )


def _globs(config: PipelineConfig, leaf: ConfigField) -> list[str]:
    """The globs that the author allows. A list of choices cannot show them."""
    return [value for value in config.per_run.get(leaf.key, []) if leaf.is_path and is_glob(value)]


@functools.cache  # the same for all pipelines, and a hundredth of a second each time
def _properties(section: type[Section]) -> dict[str, Any]:
    return section.model_json_schema()["properties"]


def _scalar_schema(field: dict[str, Any]) -> dict[str, Any]:
    """The part of a field's JSON schema that a form field needs."""
    if field.get("type") in _SCALARS:
        return {"type": field["type"]} | _limited(field)
    choices = field.get("anyOf", [])
    scalars = [choice for choice in choices if choice.get("type") in _SCALARS]
    if len(scalars) == 1 and {"type": "null"} in choices:
        schema = {"type": ["null", scalars[0]["type"]]} | _limited(scalars[0])
        return schema | {"enum": [*schema["enum"], None]} if "enum" in schema else schema
    return {}


def _limited(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a scalar schema that a form field needs.

    The limits go where Airflow's form does not look, because it would silently clamp the value that
    a person has typed. The server looks there, refuses the value and gives the reason.
    """
    limits = {key: schema[key] for key in _LIMITS if key in schema}
    return {key: schema[key] for key in _SHOWN if key in schema} | (
        {"allOf": [limits]} if limits else {}
    )


def _help(
    config: PipelineConfig, leaf: ConfigField, field: Mapping[str, Any], schema: Mapping[str, Any]
) -> str | None:
    """The field's docstring, its limits and the values for a run: `At least 1, at most 1024.`

    The backticks of code are removed.
    """
    bounds = schema.get("allOf", [{}])[0]
    limits = [
        words.format(_plain_number(bounds[key])) for key, words in _LIMITS.items() if key in bounds
    ]
    opened = config.per_run.get(leaf.key)
    allowed = (
        leaf.run_words
        if opened is None
        else ", ".join(map(str, opened))
        if _globs(config, leaf)
        else ""
    )
    sentences = [
        field.get("description", ""),
        f"{', '.join(limits).capitalize()}." if limits else "",
        f"For a run: {allowed}." if allowed else "",
    ]
    text = " ".join(filter(None, sentences)).replace("`", "")
    return _NULL.sub(lambda found: "Empty" if found[0] == "Null" else "empty", text) or None


def _plain_number(value: float) -> str:
    """Formats a number like `1000000`, not like `1e+06`."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _title(name: str) -> str:
    """Converts `patience_epochs` to `Patience (epochs)`, and `max_workers` to `Maximum workers`."""
    words = name.split("_")
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    spelt = " ".join(_SPELLINGS.get(word, word) for word in (words[:-1] if unit else words))
    return spelt[0].upper() + spelt[1:] + (f" ({unit})" if unit else "")


def _heading(path: str) -> str:
    """Converts `train.early_stopping` to `Train: early stopping`."""
    task, _, rest = path.replace("_", " ").partition(".")
    return f"{task.capitalize()}: {rest.replace('.', ', ')}" if rest else task.capitalize()
