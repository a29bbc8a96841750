"""Label Studio's export as JSON or JSON-MIN.

    [{"data": {"image": "/data/upload/1/1a2b3c4d-photo.jpg"}, "annotations": [{"result": [
        {"type": "rectanglelabels", "original_width": 640, "original_height": 480, "value":
         {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0,
          "rectanglelabels": ["cat"]}}]}]}]                             JSON
    [{"image": "/data/upload/1/1a2b3c4d-photo.jpg", "label": [
        {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["cat"],
         "original_width": 640, "original_height": 480}]}]              JSON-MIN

Coordinates are percentages of the upright image, as browsers show it. A rotated rectangle turns
around its upper left corner.
"""

from __future__ import annotations

import collections
import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import beam_jobs.sources.parsing as parsing
from beam_jobs.sources.box_formats import to_corners
from beam_jobs.sources.folder_view import MAX_CANDIDATES, FolderView, SourceMatch
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import get_task
from beam_jobs.stages.boxes import FRACTIONS, Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import LabelStudioSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import MAX_PATH_CHARACTERS
from pipeline_ops.raw_data.raw_file import RawFile

_NO_SHAPES = frozenset(
    ("choices", "taxonomy", "textarea", "rating", "number", "datetime", "pairwise", "relation")
)
"""Types of results that are not about a part of the image."""
_SHAPE_KINDS = ("rectanglelabels", "polygonlabels", "ellipselabels")
_UPLOAD = re.compile(r"[0-9a-f]{8}-")
"""Label Studio puts this before the name of an uploaded file."""
_Results = Sequence[Mapping[str, Any]]
"""Results of one annotation. `type` is text, `value` a mapping. The rest is as the file has it."""


class _Annotation(NamedTuple):
    created_at: Any
    results: _Results


class _Task(NamedTuple):
    """One image: its place in the file, the reference to it, and the annotations that may count."""

    where: str
    reference: Any
    annotations: list[_Annotation]


def read_entries(files: SourceFiles, source: LabelStudioSource) -> Iterator[SourceEntry]:
    for task in _read_tasks(files, source):
        if not task.annotations and source.unannotated == "ignore":
            continue
        with files.entry(task.where) as entry:
            try:
                image = _find_image(task.reference, source, files)
                entry.key = image.key
            finally:  # a missing annotation is named before a missing image
                results = _choose_results(task, source)
                entry.labels = [label for result in results for label in _list_labels(result)]
            make_entry = _make_classified if source.task == "classification" else _make_boxed
            yield make_entry(image, results)


def _read_tasks(files: SourceFiles, source: LabelStudioSource) -> Iterable[_Task]:
    """JSON-MIN has an entry for each annotation, with the results next to the data of the task."""
    tasks: dict[str, _Task] = {}
    entries = files.read_json(source.export, "export", _reject_duplicate_keys)
    if not isinstance(entries, list):
        kind = "an export of Label Studio as JSON or JSON-MIN, which is a list of tasks"
        raise DataError(f"{source.export}: not {kind}.")
    for index, entry in enumerate(entries):
        where = f"{source.export}#task-{index}"
        with files.entry(where):
            if not isinstance(entry, dict):
                raise Reject("malformed", f"must be an object, got {type(entry).__name__}")
            is_min = not entry.keys() & {"data", "annotations"}
            data = entry if is_min else entry.get("data")
            if not isinstance(data, dict):
                raise Reject("malformed", "a task needs an object under the key data")
            reference = data.get(source.image_key)
            annotations = (_read_json_min if is_min else _read_json)(entry, source)
            key = f"{entry['id']} {reference}" if is_min and "id" in entry else where
            tasks.setdefault(key, _Task(where, reference, [])).annotations.extend(annotations)
    return tasks.values()


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        [(twice, _)] = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {twice[:80]!a} more than once")
    return found


def _read_json(entry: Mapping[str, Any], source: LabelStudioSource) -> list[_Annotation]:
    """`completions` and `skipped` are the words of old versions."""
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
        used = [{"value": {}, **result} for result in used]  # a relation of two shapes has none
        for result in used:
            if not isinstance(result.get("type"), str) or not isinstance(result["value"], dict):
                raise Reject("malformed", "a result needs a type and an object under the key value")
        found.append(_Annotation(annotation.get("created_at"), used))
    return found


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


def _find_image(reference: Any, source: LabelStudioSource, files: SourceFiles) -> RawFile:
    """The image that a task refers to. Raises Reject."""
    if not isinstance(reference, str) or len(reference) > MAX_PATH_CHARACTERS:
        kind = f"a path or a URI, as text of at most {MAX_PATH_CHARACTERS} characters"
        raise Reject("malformed", f"the image under the key {source.image_key} must be {kind}")
    scheme, separator, path = reference.partition("://")
    if prefix := max(filter(reference.startswith, source.prefixes), key=len, default=""):
        rest = reference.removeprefix(prefix)
        is_quoted = reference.startswith(("/", "http://", "https://"))
        return _find_uploaded(unquote(rest) if is_quoted else rest, source.prefixes[prefix], files)
    if not separator or scheme in ("http", "https"):
        try:
            url = urlsplit(reference)
        except ValueError as error:
            raise Reject("malformed", f"{reference:.80} is not a URL: {error}") from None
        is_local = url.path.endswith("/data/local-files/")
        path = parse_qs(url.query).get("d", [""])[0] if is_local else unquote(url.path)
    return _find_uploaded(path, ".", files)


def _find_uploaded(path: str, folder: str, files: SourceFiles) -> RawFile:
    """The image of a path, or of the path without the code of an upload, or of its name."""
    before, name = posixpath.split(path)
    names = dict.fromkeys((path, posixpath.join(before, _UPLOAD.sub("", name, count=1))))
    for search in (files.search_path, files.search_name):
        for each in names:
            if image := search(each, folder):
                return image
    detail = f"no file below {folder} has the path {path}, an end of it, or its name. Name"
    raise Reject("missing_image", f"{detail} the folder in preprocess.source.prefixes")


def _choose_results(task: _Task, source: LabelStudioSource) -> _Results:
    annotations = task.annotations
    if not annotations:
        fault = "the task has no annotation that is neither cancelled nor skipped"
        cure = "Annotate it, or set preprocess.source.unannotated: ignore"
        raise Reject("no_annotation", f"{fault}. {cure}")
    if len(annotations) > 1 and source.annotation == "only":
        cure = "Set preprocess.source.annotation to first or last"
        raise Reject("contradictory", f"the task has {len(annotations)} annotations. {cure}")
    # Without a time as text for each, the order of the file counts.
    if all(isinstance(annotation.created_at, str) for annotation in annotations):
        annotations = sorted(annotations, key=lambda annotation: annotation.created_at)
    return annotations[-1 if source.annotation == "last" else 0].results


def _list_labels(result: Mapping[str, Any]) -> list[str]:
    labels = result["value"].get(result["type"])
    return [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else []


def _make_classified(image: RawFile, results: _Results) -> SourceEntry:
    """Choices for a part of the image do not count."""
    choices = [result for result in results if result["type"] == "choices"]
    whole = [choice for choice in choices if not choice["value"].keys() & {"x", "points"}]
    labels = {label for choice in whole for label in _list_labels(choice)}
    if not labels:
        raise Reject("no_label", "the annotation has no choice")
    if len(labels) > 1:
        raise Reject("contradictory", f"the choices are {', '.join(sorted(labels))}")
    return SourceEntry(image, labels.pop())


def _make_boxed(image: RawFile, results: _Results) -> SourceEntry:
    shapes = [result for result in results if result["type"] not in _NO_SHAPES]
    sizes = {parsing.parse_size(s.get("original_height"), s.get("original_width")) for s in shapes}
    if len(sizes) > 1:
        raise Reject("contradictory", "the results give different sizes of the image")
    size = sizes.pop() if sizes else None
    boxes = [_parse_box(shape, size) for shape in shapes]
    return SourceEntry(image, boxes=boxes, frame=size or FRACTIONS, drawn_on="upright")


def _parse_box(result: Mapping[str, Any], size: Size | None) -> Box:
    """In pixels if the size of the image is known, otherwise in fractions."""
    kind, value = result["type"], result["value"]
    if kind not in _SHAPE_KINDS:
        detail = f"a result of the type {kind:.40}. {', '.join(_SHAPE_KINDS)} can become boxes"
        cure = "Remove the shape in Label Studio, or export brush labels as COCO"
        raise Reject("unknown_shape", f"{detail}. {cure}")
    if parsing.parse_number(result.get("image_rotation") or 0) % 360:
        cure = "Rotate it back there, and update the annotation"
        raise Reject("rotated_image", f"the image was rotated in Label Studio. {cure}")
    labels = value.get(kind)
    if not isinstance(labels, list) or len(labels) != 1:
        raise Reject("malformed", f"a shape needs one label, and this one has {labels!r:.80}")
    height, width = size or (1.0, 1.0)
    degrees = 0.0
    if kind == "polygonlabels":
        points = parsing.parse_points(value.get("points"))
        corners = parsing.enclose([(x * width, y * height) for x, y in points])
    elif kind == "ellipselabels":
        names = ("x", "y", "radiusX", "radiusY", "rotation")
        x, y, a, b, angle = (parsing.parse_number(value.get(name, 0)) for name in names)
        corners = parsing.enclose_ellipse(
            x * width, y * height, a * width, b * height, math.radians(angle)
        )
    else:
        box = [value.get(name) for name in ("x", "y", "width", "height")]
        ymin, xmin, ymax, xmax = to_corners(box, "xywh")
        corners = ymin * height, xmin * width, ymax * height, xmax * width
        degrees = parsing.parse_number(value.get("rotation") or 0)
    if degrees and size is None:
        raise Reject("malformed", "a rotated rectangle needs original_width and original_height")
    ymin, xmin, ymax, xmax = (percent / 100 for percent in corners)
    return parsing.make_rotated_box(
        (ymin, xmin, ymax, xmax), degrees, labels[0], size, pivot=(xmin, ymin)
    )


_KEYS = ({"data"}, {"annotations", "completions"}), ({"annotator"}, {"annotation_id"})
"""Keys of a task of an export, one of each set: of the full JSON, and of JSON-MIN."""
_MAX_TASKS = 200


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds JSON files that are a list of tasks."""
    for file in view.list_candidates(".json")[:MAX_CANDIDATES]:
        tasks = view.read_json(file)
        if not isinstance(tasks, list) or not tasks or not isinstance(tasks[0], dict):
            continue
        if any(all(names & tasks[0].keys() for names in keys) for keys in _KEYS):
            text = json.dumps(tasks[:_MAX_TASKS])
            has_shapes = any(f'"{kind}"' in text for kind in _SHAPE_KINDS)
            keys = {"export": file.key, **get_task(has_shapes)}
            reason = f"{file.key} is a list of tasks as Label Studio exports them"
            yield SourceMatch("label_studio", reason, keys)
