"""Reads the file that Label Studio exports, as JSON or JSON-MIN, into one form.

JSON-MIN has an entry for each annotation of a task, and puts the results next to the task's own
data under the names of the labelling interface's tags. Used only by `label_studio.py`.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.sources.collect import Collector
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.labelling_sources import LabelStudioSource
from pipeline_ops.errors import DataError

Results = Sequence[Mapping[str, Any]]
"""Results of one annotation. `type` is text, `value` a mapping. The rest is as the file has it."""


class ExportedTask(NamedTuple):
    """One image: its place in the file, the reference to it, and its annotations, oldest first.

    Annotations that were cancelled or skipped are left out.
    """

    location: str
    reference: Any
    annotations: tuple[Results, ...]


class _Annotation(NamedTuple):
    created_at: Any
    results: Results


def read_tasks(
    content: bytes, source: LabelStudioSource, collector: Collector
) -> list[ExportedTask]:
    """The tasks of an export. Entries that are no task are rejected.

    Raises:
      DataError: the file is no export of Label Studio.
    """
    tasks: dict[str, tuple[Any, str, list[_Annotation]]] = {}
    for index, entry in enumerate(_parse(content, source.export)):
        location = f"{source.export}#task-{index}"
        with collector.catch_reject(location):
            if not isinstance(entry, dict):
                raise Reject("malformed", f"must be an object, got {type(entry).__name__}")
            if "data" in entry or "annotations" in entry:
                data = entry.get("data")
                if not isinstance(data, dict):
                    raise Reject("malformed", "a task needs an object under the key data")
                reference, annotations = data.get(source.image_key), _read_json(entry, source)
                key = location
            else:
                reference, annotations = entry.get(source.image_key), _read_json_min(entry, source)
                key = f"{entry.get('id')} {reference}" if "id" in entry else location
            tasks.setdefault(key, (reference, location, []))[2].extend(annotations)
    return [
        ExportedTask(location, reference, _sort_by_time(annotations))
        for reference, location, annotations in tasks.values()
    ]


def _parse(content: bytes, name: str) -> list[Any]:
    try:
        entries = json.loads(content, object_pairs_hook=_reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{name}: not JSON: {error}. preprocess.source.export names this file."
        ) from None
    if not isinstance(entries, list):
        raise DataError(
            f"{name}: not an export of Label Studio as JSON or JSON-MIN, which is a list of tasks."
        )
    return entries


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        [(twice, _)] = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {twice[:80]!a} more than once")
    return found


def _read_json(entry: Mapping[str, Any], source: LabelStudioSource) -> list[_Annotation]:
    """The annotations of a task. `completions` and `skipped` are the words of old versions."""
    annotations = entry.get("annotations", entry.get("completions", []))
    if not isinstance(annotations, list) or not all(isinstance(a, dict) for a in annotations):
        raise Reject("malformed", "annotations must be a list of objects")
    found = []
    for annotation in annotations:
        if annotation.get("was_cancelled") or annotation.get("skipped"):
            continue
        results = annotation.get("result")
        if not isinstance(results, list) or not all(isinstance(r, dict) for r in results):
            raise Reject("malformed", "the result of an annotation must be a list of objects")
        used = [r for r in results if source.control in (None, r.get("from_name"))]
        found.append(_Annotation(annotation.get("created_at"), list(map(_check_result, used))))
    return found


def _check_result(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result with a value. A relation of two shapes has none."""
    kind, value = result.get("type"), result.get("value", {})
    if not isinstance(kind, str) or not isinstance(value, dict):
        raise Reject("malformed", "a result needs a type and an object under the key value")
    return {**result, "value": value}


def _read_json_min(entry: Mapping[str, Any], source: LabelStudioSource) -> list[_Annotation]:
    """The annotation of an entry, or none if it stands for a task without annotations."""
    if entry.get("annotation_id", "") is None:
        return []
    results: list[Mapping[str, Any]] = []
    choice = source.control or "choice"
    for name, values in entry.items():
        if name == choice and isinstance(values, str):
            results.append({"type": "choices", "value": {"choices": [values]}})
        elif isinstance(values, list) and source.control in (None, name):
            results += [
                {**value, "type": kind, "value": value}
                for value in values
                if isinstance(value, dict) and (kind := _find_kind(value))
            ]
    return [_Annotation(entry.get("created_at"), results)]


def _find_kind(value: Mapping[str, Any]) -> str | None:
    """The type of a result, which is the key of its labels. None for other data of a task."""
    return next((k for k in value if k == "choices" or k.endswith("labels")), None)


def _sort_by_time(annotations: list[_Annotation]) -> tuple[Results, ...]:
    """The results of all annotations, oldest first.

    The order of the file counts if a time is missing or is not ISO 8601 as text.
    """
    if all(isinstance(annotation.created_at, str) for annotation in annotations):
        annotations = sorted(annotations, key=lambda annotation: annotation.created_at)
    return tuple(annotation.results for annotation in annotations)
