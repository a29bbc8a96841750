"""VGG Image Annotator, versions 1 and 2: its project, or its annotations as JSON or CSV.

    {"1.jpg9876": {"filename": "1.jpg", "size": 9876, "regions": [
        {"shape_attributes": {"name": "rect", "x": 1, "y": 2, "width": 30, "height": 40},
         "region_attributes": {"class": "cat"}}]}}

The JSON of the project has this under `_via_img_metadata`. A row of the CSV is a region, with both
kinds of attributes as JSON. Regions are in pixels of the upright image, as browsers show it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import beam_jobs.sources.parsing as parsing
from beam_jobs.sources.box_formats import to_corners
from beam_jobs.sources.columns import list_names
from beam_jobs.sources.folder_view import (
    MAX_CANDIDATES,
    MAX_JSON_BYTES,
    FolderView,
    Question,
    SourceMatch,
)
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import join_names
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import ViaSource
from pipeline_ops.errors import DataError


def read_entries(files: SourceFiles, source: ViaSource) -> Iterator[SourceEntry]:
    for index, part in enumerate(source.parts):
        text = files.read_text(part.manifest, f"parts.{index}.manifest")
        try:
            entries = _list_entries(text)
        except ValueError as error:
            raise DataError(f"{part.manifest}: not of VGG Image Annotator: {error}.") from None
        for key, fields in entries.items():
            with files.entry(f"{part.manifest}#{key}") as entry:
                if not isinstance(fields, dict):
                    raise Reject("malformed", f"must be an object, got {fields!r:.80}")
                image = files.find_image_anywhere(fields.get("filename"), part.images)
                entry.key = image.key
                boxes = [_parse_region(region, source) for region in _list_regions(fields)]
                yield SourceEntry(image, boxes=boxes, split=part.split, drawn_on="upright")


def _list_entries(text: str) -> dict[str, Any]:
    """The images by key, each with its `filename` and `regions`. Raises ValueError."""
    try:
        if text.lstrip().startswith("{"):
            content = json.loads(text)
            found = content.get("_via_img_metadata", content)
        else:
            found = {}
            for row in csv.DictReader(io.StringIO(text.lstrip("#"), newline="")):
                name, shape = row["filename"], row["region_shape_attributes"]
                image = found.setdefault(name, {"filename": name, "regions": []})
                region = {"shape_attributes": shape, "region_attributes": row["region_attributes"]}
                image["regions"] += [region] if shape not in ("{}", "") else []
    except (csv.Error, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if not isinstance(found, dict) or not any(
        isinstance(each, dict) and {"filename", "regions"} <= each.keys() for each in found.values()
    ):
        raise ValueError("no image has a filename and regions")
    return found


def _list_regions(fields: Mapping[str, Any]) -> list[Any]:
    """The regions of an image. Version 1 numbers them."""
    regions = fields.get("regions")
    regions = list(regions.values()) if isinstance(regions, dict) else regions
    if not isinstance(regions, list):
        raise Reject("malformed", f"regions must be a list, got {regions!r:.80}")
    return regions


def _get_attributes(region: Any, name: str) -> Mapping[str, Any]:
    """An object of a region, as text in a cell of the CSV."""
    value = region.get(name) if isinstance(region, dict) else None
    if isinstance(value, str):
        return parsing.parse_json_object(value.encode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise Reject("malformed", f"a region needs an object {name}, got {value!r:.80}")
    return value


def _parse_region(region: Any, source: ViaSource) -> Box:
    label = source.single_class or _find_label(region, source.attribute)
    return parsing.make_box(_enclose(_get_attributes(region, "shape_attributes")), label)


def _find_label(region: Any, attribute: str | None) -> Any:
    """The value of an attribute, or of the only one. Of check boxes, one must be checked."""
    attributes = _get_attributes(region, "region_attributes")
    values = [attributes.get(attribute)] if attribute else [*attributes.values()]
    if len(values) == 1 and isinstance(values[0], dict):
        values = [name for name, is_checked in values[0].items() if is_checked]
    if len(values) != 1 or values[0] is None:
        detail = f"a region has the attributes {join_names([*attributes])}"
        raise Reject("no_label", f"{detail}. Name one in preprocess.source.attribute")
    return values[0]


def _enclose(shape: Mapping[str, Any]) -> parsing.Corners:
    kind = shape.get("name")
    if kind == "rect":
        return to_corners([shape.get(n) for n in ("x", "y", "width", "height")], "xywh")
    if kind in ("circle", "ellipse"):
        names = ("cx", "cy", "rx", "ry", "theta")
        shape = {"rx": shape.get("r"), "ry": shape.get("r"), "theta": 0, **shape}
        return parsing.enclose_ellipse(*(parsing.parse_number(shape.get(name)) for name in names))
    xs, ys = shape.get("all_points_x"), shape.get("all_points_y")
    if isinstance(xs, list) and isinstance(ys, list) and len(xs) == len(ys):
        points = [list(pair) for pair in zip(xs, ys, strict=True)]
        return parsing.enclose(parsing.parse_points(points))
    raise Reject("unknown_shape", f"{shape!s:.80} is no shape with an area")


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
    """Finds the files, and the attribute of the regions that holds the class."""
    parts, regions = dict[frozenset[str], dict[str, Any]](), list[Mapping[str, Any]]()
    for file in view.list_candidates(".json", ".csv")[:MAX_CANDIDATES]:
        try:
            text = parsing.decode_text(view.read_start(file, MAX_JSON_BYTES))
            entries = [each for each in _list_entries(text).values() if isinstance(each, dict)]
        except ValueError:
            continue
        images = [str(each.get("filename")) for each in entries]
        if not view.count_images_named(images):
            yield f"{file.key} is of VGG Image Annotator, but {images[0]} is not below this folder"
            continue
        part = parsing.name_part("manifest", file.key, view.find_images_folder(images, file.key)[0])
        parts.setdefault(frozenset(images), part)  # two files may have the same images
        for each in entries:
            with contextlib.suppress(Reject):
                regions += [_get_attributes(r, "region_attributes") for r in _list_regions(each)]
    found = [*parts.values()]
    reason = f"{join_names([part['manifest'] for part in found])} of VGG Image Annotator"
    names = list_names(regions)
    fit = [name for name in names if all(name in each for each in regions)]
    keys = {"attribute": fit[0]} if len(fit) == 1 else {} if names else {"single_class": "object"}
    if parts and (keys or {"attribute", "single_class"} & view.chosen.keys()):
        notes = [f"{name} {value} for all regions" for name, value in keys.items()]
        yield SourceMatch("via", reason, {"parts": found, **keys}, notes=notes)
    elif parts:
        reason += f": which of the attributes {join_names(names)} has the classes is not clear"
        yield Question(reason, [{"attribute": name} for name in names], "via")
