"""The trigger form: the fields that a run may set, from the config's own classes.

A field is named by its dotted path in the YAML, as in the conf of a run. A version is a free text,
for which the form proposes what needs no reading: a list of versions or data sets would be part of
the serialized DAG, each new one would change it, and each parse of the file would read the store.

A wrong value is refused by the form's server, which keeps what was typed and starts no run that
fails. So a pattern stands alone in its schema: jsonschema's message for that is one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from pipeline_ops.config.fields import (
    ConfigField,
    Section,
    collect_fields,
    get_value,
    is_folder,
    read_descriptions,
)
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_conf import list_settable_keys
from pipeline_ops.config.schema import read_properties

_SCALARS = ("integer", "number", "boolean", "string")
_COPIED_KEYWORDS = ("enum", "pattern", "minLength", "maxLength")
_LIMIT_FORMATS = {
    "minimum": "at least {:.10g}",
    "exclusiveMinimum": "more than {:.10g}",
    "maximum": "at most {:.10g}",
    "exclusiveMaximum": "less than {:.10g}",
}
_ADVANCED = "Advanced"
_TASKS = ("train", "preprocess", "evaluate", "export")
"""The order of the form's sections, the most frequently changed one first."""
_TITLE_OVERRIDES = {
    "train.warm_start": "Initial weights",
    "train.epochs": "Epochs",
    "train.optimizer.learning_rate": "Learning rate",
    "train.global_batch_size": "Batch size",
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
}
_NULL = re.compile(r"\b[Nn]ull\b")
"""In help texts: `null` in the YAML is an empty field in the form."""
_WORD_LABELS = {
    "xla": "XLA",
    "tpu": "TPU",
    "js": "Jensen-Shannon",
    "linf": "L-infinity",
    "min": "minimum",
    "max": "maximum",
}


def make_form_params(config: PipelineConfig) -> dict[str, Param]:
    """Makes the params for the fields that a run may set, by key.

    Frequent fields, and those in `per_run`, come first. They have no section, so Airflow shows them
    in the open part. Fields of a section that is null in the YAML are left out.
    """

    def sort_key(field: ConfigField) -> tuple[bool, bool, int, int]:
        rank = field.rank or len(_TITLE_OVERRIDES) + 1
        task = _TASKS.index(field.key.partition(".")[0])
        return not _is_open(config, field), field.is_advanced, rank, task

    fields = collect_fields(type(config))
    settable = sorted((fields[key] for key in list_settable_keys(config)), key=sort_key)
    params = {field.key: _make_param(config, field) for field in settable}
    return {key: param for key, param in params.items() if param}


def _is_open(config: PipelineConfig, field: ConfigField) -> bool:
    return bool(field.rank) or field.key in config.per_run


def _make_param(config: PipelineConfig, field: ConfigField) -> Param | None:
    """Makes the param of a field, or returns None if Airflow's form cannot show or send it."""
    parent, _, name = field.key.rpartition(".")
    section, value = get_value(config, parent), get_value(config, field.key)
    if not isinstance(section, Section) or name not in type(section).model_fields:
        return None
    if value == "" or isinstance(value, Section):
        return None
    schema = _extract_scalar_schema(read_properties(type(section))[name])
    if field.key in config.per_run and not _allows_folders(config, field):
        others = [allowed for allowed in config.per_run[field.key] if allowed != value]
        schema["enum"] = [value, *others]
    choices = field.run_pattern.split("|")
    if field.key not in config.per_run and all(map(str.isidentifier, choices)):
        schema["enum"] = [value, *(choice for choice in choices if choice != value)]
    elif field.run_pattern and field.key not in config.per_run:
        own = [re.escape(value)] if isinstance(value, str) else []
        schema["pattern"] = f"^({'|'.join([field.run_pattern, *own])})$"
        schema["examples"] = [choice for choice in choices if choice.isidentifier()]
    title = _TITLE_OVERRIDES.get(field.key) or _format_title(name)
    if not _is_open(config, field):
        task, _, rest = parent.replace("_", " ").partition(".")
        heading = task.capitalize() + (f": {rest.replace('.', ', ')}" if rest else "")
        schema["section"] = _ADVANCED if field.is_advanced else heading
        title = f"{heading}: {title}" if field.is_advanced else title
    text = read_descriptions(type(section)).get(name, "")
    help_text = _format_help(config, field, text, schema)
    return Param(value, title=title, description=help_text, **schema)


def _allows_folders(config: PipelineConfig, field: ConfigField) -> bool:
    """Returns whether `per_run` has folders, which a list of choices cannot show."""
    return field.is_path and any(map(is_folder, map(str, config.per_run.get(field.key, []))))


def _extract_scalar_schema(field: dict[str, Any]) -> dict[str, Any]:
    types = {
        kind: choice
        for choice in ([field] if "type" in field else field.get("anyOf", []))
        for kind in _list_types(choice)
    }
    scalars = [kind for kind in types if kind in _SCALARS]
    if len(scalars) != 1:
        return {}
    [kind] = scalars
    return {"type": ["null", kind] if "null" in types else kind} | _extract_constraints(types[kind])


def _list_types(schema: Mapping[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


def _extract_constraints(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Copies the constraints of a scalar schema.

    The limits go into `allOf`. There, Airflow's form does not clamp the typed value silently, and
    the server refuses it with the reason.
    """
    limits = {key: schema[key] for key in _LIMIT_FORMATS if key in schema}
    return {key: schema[key] for key in _COPIED_KEYWORDS if key in schema} | (
        {"allOf": [limits]} if limits else {}
    )


def _format_help(
    config: PipelineConfig, field: ConfigField, text: str, schema: Mapping[str, Any]
) -> str | None:
    """Joins the help of a field, its limits and its values for a run."""
    bounds = schema.get("allOf", [{}])[0]
    limits = [words.format(bounds[key]) for key, words in _LIMIT_FORMATS.items() if key in bounds]
    allowed = "" if field.key in config.per_run else field.run_pattern_description
    if _allows_folders(config, field):
        allowed = ", ".join(map(str, config.per_run[field.key]))
    sentences = [
        text,
        f"{', '.join(limits).capitalize()}." if limits else "",
        f"For a run: {allowed}." if allowed else "",
    ]
    help_text = " ".join(filter(None, sentences)).replace("`", "")
    return _NULL.sub(lambda found: "Empty" if found[0] == "Null" else "empty", help_text) or None


def _format_title(name: str) -> str:
    """Converts `patience_epochs` to `Patience (epochs)`, and `max_workers` to `Maximum workers`."""
    words = name.split("_")
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    label = " ".join(_WORD_LABELS.get(word, word) for word in (words[:-1] if unit else words))
    return label[0].upper() + label[1:] + (f" ({unit})" if unit else "")
