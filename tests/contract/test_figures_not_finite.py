"""A figure that is not finite is a text in JSON, which reads back as the same float."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

import beam_jobs
import pipeline_ops
from pipeline_ops.config.fields import Section
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import NAME, Manifest, read_manifest, write_manifest
from pipeline_ops.contract.results import Epoch
from pipeline_ops.storage.local_files import format_json

VALUES = (math.nan, math.inf, -math.inf)
_WITH_AIRFLOW = ("pipeline_ops.orchestration",)
"""Their models hold no figures, and their import starts Airflow."""


def find_models() -> list[type[BaseModel]]:
    """Finds all models of the project that are written as JSON, which the config is not."""
    for package in (pipeline_ops, beam_jobs):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            parts = module.name.rpartition(".")[2]
            if not module.name.startswith(_WITH_AIRFLOW) and not parts.startswith("__"):
                try:
                    importlib.import_module(module.name)
                except ImportError:  # needs a distribution that only some processes have
                    continue
    found: set[type[BaseModel]] = set()
    waiting = [BaseModel]
    while waiting:
        for child in waiting.pop().__subclasses__():
            waiting.append(child)
            if child.__module__.startswith(("pipeline_ops", "beam_jobs")):
                found.add(child)
    kept = (each for each in found if not issubclass(each, Section))
    return sorted(kept, key=lambda each: f"{each.__module__}.{each.__qualname__}")


def list_values(annotation: Any, value: float) -> Iterator[Any]:
    """Yields values of a type that hold the float at some place."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is float or annotation is Any:
        yield value
    elif origin is typing.Annotated:
        yield from list_values(arguments[0], value)
    elif origin is dict:
        yield from ({"key": inner} for inner in list_values(arguments[1], value))
    elif origin is list or (origin is tuple and arguments[-1] is ...):
        yield from (origin([inner]) for inner in list_values(arguments[0], value))
    elif origin is tuple:
        parts = [next(list_values(each, value), None) for each in arguments]
        if None not in parts:
            yield tuple(parts)
    elif arguments:
        for each in arguments:
            yield from list_values(each, value)


def allows(model: type[BaseModel], name: str) -> bool:
    """Returns whether a field takes floats that are not finite."""
    field = model.model_fields[name]
    is_finite = model.model_config.get("allow_inf_nan") is False or any(
        getattr(each, "allow_inf_nan", None) is False or getattr(each, "ge", None) is not None
        for each in field.metadata
    )
    return not is_finite


def collect_floats(value: Any) -> list[str]:
    """Returns the floats in a value, and the texts that stand for one, as texts."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in collect_floats(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in collect_floats(each)]
    return [str(value if value is None else float(value))]


def test_every_model_reads_its_figures_as_they_were_written():
    models, problems, count = find_models(), [], 0
    for model in models:
        for name, field in model.model_fields.items():
            for value in VALUES if allows(model, name) else ():
                for given in list_values(field.annotation, value):
                    made = model.model_construct(**{name: given})
                    for text in (
                        format_json(made.model_dump(mode="json", include={name})),
                        made.model_dump_json(include={name}),
                    ):
                        content = json.loads(text)[name]
                        with contextlib.suppress(ValidationError):
                            content = TypeAdapter(field.annotation).validate_python(content)
                        count += 1
                        if collect_floats(content) != collect_floats(given):
                            problems.append(f"{model.__module__}.{model.__name__}.{name}: {text!r}")
    assert not problems, "\n".join(problems)
    assert len(models) > 50 and count > 200, (len(models), count)


def test_a_manifest_with_such_figures_is_read_as_it_was_written(tmp_path):
    """Also its config, which the fingerprint covers."""
    fingerprint = Fingerprint(config={"clip": math.inf}, inputs={}, code={}, versions={})
    epoch = Epoch(epoch=0, step=1, learning_rate=0.1, metrics={"loss": math.nan, "a": -math.inf})
    manifest = Manifest(
        job="train",
        pipeline="p",
        fingerprint=fingerprint,
        fingerprint_digest=fingerprint.digest,
        files=[],
        figures=epoch.model_dump(mode="json"),
    )
    write_manifest(tmp_path, manifest)
    found = read_manifest(tmp_path / NAME)
    assert found.fingerprint.digest == fingerprint.digest
    assert found.fingerprint.describe_changes_since(fingerprint) == []
    metrics = Epoch.model_validate(found.figures).metrics
    assert math.isnan(metrics["loss"]) and metrics["a"] == -math.inf
