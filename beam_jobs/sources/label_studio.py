"""Label Studio's export as JSON or JSON-MIN.

    [{"data": {"image": "/data/upload/1/1a2b3c4d-photo.jpg"}, "annotations": [{"result": [
        {"type": "rectanglelabels", "original_width": 640, "original_height": 480, "value":
         {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0,
          "rectanglelabels": ["cat"]}}]}]}]                             JSON
    [{"image": "/data/upload/1/1a2b3c4d-photo.jpg", "label": [
        {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["cat"],
         "original_width": 640, "original_height": 480}]}]              JSON-MIN

Coordinates are percentages of the upright image, as browsers show it. A rotated rectangle turns
around its upper left corner, and becomes the smallest upright box around it, like a polygon. An
annotation without results is an example without boxes. Predictions and drafts are not used.
`label_studio_export.py` reads the file, this module converts its results.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, ListedFiles, SourceRecords
from beam_jobs.sources.label_studio_export import ExportedTask, Results, read_tasks
from beam_jobs.sources.outlines import Point, clip_outline, enclose, enclose_rotated
from beam_jobs.sources.parsing import make_box, parse_number, parse_size, parse_text
from beam_jobs.stages.boxes import UPRIGHT_FRACTIONS, Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.labelling_sources import LabelStudioSource
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile

_MAX_REFERENCE_CHARACTERS = 4096
_NO_SHAPES = frozenset(
    ("choices", "taxonomy", "textarea", "rating", "number", "datetime", "pairwise", "relation")
)
"""Types of results that are not about a part of the image."""
_UPLOAD = re.compile(r"[0-9a-f]{8}-")
"""Label Studio puts this before the name of an uploaded file."""


def read_records(source: LabelStudioSource, listing: Listing) -> SourceRecords:
    """Raises DataError: the file is missing, or is no export of Label Studio."""
    collector, files = Collector(source.class_names), ListedFiles(listing)
    for task in read_tasks(files.read(source.export, "export"), source, collector):
        if not task.annotations and source.unannotated == "ignore":
            continue
        image = _find_image(task.reference, source, files)
        with collector.catch_reject(task.location if isinstance(image, Reject) else image.key):
            results = _choose_results(task, source)
            collector.set_current_labels([label for r in results for label in _list_labels(r)])
            if isinstance(image, Reject):
                raise image
            make_record = _make_classified if source.task == "classification" else _make_boxed
            collector.add(make_record(image, results), task.location)
    return collector.to_source_records()


def _find_image(reference: Any, source: LabelStudioSource, files: ListedFiles) -> RawFile | Reject:
    """The image that a task refers to, or the reason for which there is none."""
    try:
        if not isinstance(reference, str) or len(reference) > _MAX_REFERENCE_CHARACTERS:
            raise Reject(
                "malformed",
                f"the image under the key {source.image_key} must be a path or a URI, as text of "
                f"at most {_MAX_REFERENCE_CHARACTERS} characters",
            )
        fitting = [entry for entry in source.prefixes if reference.startswith(entry.prefix)]
        if fitting:
            longest = max(fitting, key=lambda entry: len(entry.prefix))
            rest = reference.removeprefix(longest.prefix)
            is_url = reference.startswith(("/", "http://", "https://"))
            return files.find_image(longest.folder, unquote(rest) if is_url else rest)
        return _find_by_path_end(reference, files)
    except Reject as reject:
        return reject


def _find_by_path_end(reference: str, files: ListedFiles) -> RawFile:
    """Raises Reject: malformed, missing_image."""
    scheme, separator, path = reference.partition("://")
    if not separator or scheme in ("http", "https"):
        try:
            url = urlsplit(reference)
        except ValueError as error:
            raise Reject("malformed", f"{reference:.80} is not a URL: {error}") from None
        is_local = url.path.endswith("/data/local-files/")
        path = parse_qs(url.query).get("d", [""])[0] if is_local else unquote(url.path)
    folder, name = posixpath.split(path)
    try:
        return files.find_image_from_elsewhere(".", path)
    except Reject as reject:
        if reject.reason != "missing_image" or not _UPLOAD.match(name):
            raise
    return files.find_image_from_elsewhere(".", f"{folder}/{_UPLOAD.sub('', name, count=1)}")


def _choose_results(task: ExportedTask, source: LabelStudioSource) -> Results:
    """The results of the annotation that counts. Raises Reject: no_annotation, contradictory."""
    if not task.annotations:
        raise Reject(
            "no_annotation",
            "the task has no annotation that is neither cancelled nor skipped. Annotate it, or "
            "set preprocess.source.unannotated: ignore",
        )
    if len(task.annotations) > 1 and source.annotation == "only":
        raise Reject(
            "contradictory",
            f"the task has {len(task.annotations)} annotations. "
            "Set preprocess.source.annotation to first or last",
        )
    return task.annotations[-1 if source.annotation == "last" else 0]


def _list_labels(result: Mapping[str, Any]) -> list[str]:
    """The labels of a result that are text."""
    labels = result["value"].get(result["type"])
    return [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else []


def _make_classified(image: RawFile, results: Results) -> Record:
    """Raises Reject: no_label, contradictory. Choices for a part of the image do not count."""
    labels = {
        label
        for result in results
        if result["type"] == "choices" and not result["value"].keys() & {"x", "points"}
        for label in _list_labels(result)
    }
    if not labels:
        raise Reject("no_label", "the annotation has no choice")
    if len(labels) > 1:
        raise Reject("contradictory", f"the choices are {', '.join(sorted(labels))}")
    return Record(image, parse_text(labels.pop()))


def _make_boxed(image: RawFile, results: Results) -> Record:
    shapes = [result for result in results if result["type"] not in _NO_SHAPES]
    sizes = {parse_size(s.get("original_height"), s.get("original_width")) for s in shapes}
    if len(sizes) > 1:
        raise Reject("contradictory", "the results give different sizes of the image")
    size = sizes.pop() if sizes else None
    boxes = tuple(_parse_box(shape, size) for shape in shapes)
    return Record(image, boxes=boxes, frame=size or UPRIGHT_FRACTIONS)


def _parse_box(result: Mapping[str, Any], size: Size | None) -> Box:
    """The box of a result, in pixels if the size of the image is known, otherwise in fractions."""
    kind, value = result["type"], result["value"]
    if kind not in ("rectanglelabels", "polygonlabels"):
        raise Reject(
            "unknown_shape",
            f"a result of the type {kind:.40}. Rectanglelabels and polygonlabels can become boxes. "
            "Remove the shape in Label Studio",
        )
    if parse_number(result.get("image_rotation") or 0) % 360:
        raise Reject(
            "rotated_image",
            "the image was rotated in Label Studio. Rotate it back there, and update the "
            "annotation",
        )
    labels = value.get(kind)
    if not isinstance(labels, list) or len(labels) != 1:
        raise Reject("malformed", f"a shape needs one label, and this one has {labels!r:.80}")
    height, width = size or (1.0, 1.0)
    if kind == "polygonlabels":
        corners = enclose(_parse_points(value.get("points"), height, width))
        return make_box(corners, labels[0])
    x, y, w, h = (parse_number(value.get(name)) for name in ("x", "y", "width", "height"))
    xmin, ymin, xmax, ymax = (
        x * width / 100,
        y * height / 100,
        (x + w) * width / 100,
        (y + h) * height / 100,
    )
    corners = ymin, xmin, ymax, xmax
    degrees = parse_number(value.get("rotation") or 0)
    if not degrees:
        return make_box(corners, labels[0])
    if size is None:
        raise Reject("malformed", "a rotated rectangle needs original_width and original_height")
    turned = enclose_rotated(corners, degrees, (xmin, ymin))
    return clip_outline(make_box(turned, labels[0]), size)


def _parse_points(points: Any, height: float, width: float) -> list[Point]:
    if not isinstance(points, list) or not all(
        isinstance(point, list) and len(point) == 2 for point in points
    ):
        raise Reject("malformed", "a polygon needs a list of points, [x, y]")
    return [(parse_number(x) * width / 100, parse_number(y) * height / 100) for x, y in points]
