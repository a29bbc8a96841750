"""LabelMe: a JSON file for each image, with its path, its size, and shapes in pixels.

LabelMe shows the upright image. An image without a file is no part of the data set.
"""

from __future__ import annotations

import math
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import beam_jobs.sources.parsing as parsing
from beam_jobs.io.raw import RawReader
from beam_jobs.sources.folder_view import MAX_CANDIDATES, FolderView, SourceMatch
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import LabelmeSource
from pipeline_ops.raw_data.limits import MAX_LABELME_BYTES

_RECTANGLES = ("rectangle", "mask")
"""Shapes with two opposite corners. Some versions write all four."""
_OUTLINES = ("polygon", "rotation", "linestrip")


def read_entries(files: SourceFiles, _: LabelmeSource) -> Iterator[SourceEntry]:
    found = [file for key, file in files.by_key.items() if key.endswith(".json")]
    splits = parsing.find_splits_of_keys(file.key for file in found)
    reader = RawReader(found, files.listing.folder)
    for file in found:
        with files.entry(file.key) as entry:
            parsing.check_size(file.num_bytes, MAX_LABELME_BYTES, "a file")
            content = parsing.parse_json_object(reader.read(file))
            folder, name = posixpath.split(posixpath.splitext(file.key)[0])
            image = files.find_image_anywhere(content.get("imagePath"), folder, name)
            entry.key = image.key
            size = parsing.parse_size(content.get("imageHeight"), content.get("imageWidth"))
            boxes, split = _read_boxes(content.get("shapes")), splits.get(file.key)
            yield SourceEntry(image, boxes=boxes, split=split, frame=size, drawn_on="upright")


def _read_boxes(shapes: Any) -> list[Box]:
    """A box around each shape, or around all shapes of a label and a group: parts of an object."""
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise Reject("malformed", "not a file of LabelMe, which has a list of shapes")
    objects: dict[tuple[str, Any], list[parsing.Point]] = defaultdict(list)
    for index, shape in enumerate(shapes):
        group = parsing.parse_id(shape.get("group_id"))
        part = parsing.parse_text(shape.get("label")), index if group is None else group
        objects[part] += _outline(shape)
    return [
        parsing.make_box(parsing.enclose(points), label) for (label, _), points in objects.items()
    ]


def _outline(shape: Mapping[str, Any]) -> list[parsing.Point]:
    kind, points = shape.get("shape_type") or "polygon", parsing.parse_points(shape.get("points"))
    if kind == "circle" and len(points) == 2:  # its center, and a point on the rim
        (x, y), radius = points[0], math.dist(*points)
        return [(x - radius, y - radius), (x + radius, y + radius), (x, y)]
    if kind in _RECTANGLES and len(points) > 1:
        return [*points, points[0]]
    if kind not in _OUTLINES:
        detail = f"a shape of the type {kind!s:.40} with {count(len(points), 'point')}"
        raise Reject("unknown_shape", f"{detail} is no box. Remove it in LabelMe")
    parsing.enclose(points)  # an outline has three
    return points


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds JSON files with shapes and the path of an image."""
    files = [] if view.named_file else view.list_candidates(".json")
    contents = map(view.read_json, files[:MAX_CANDIDATES])
    found = [each for each in contents if isinstance(each, dict) and "shapes" in each]
    names = [str(each["imagePath"]) for each in found if "imagePath" in each]
    if view.count_images_named(names):
        reason = f"{count(len(files), 'JSON file')}, with shapes as LabelMe writes them"
        yield SourceMatch("labelme", f"{reason}, and {count(len(view.images), 'image')}", {})
    elif names:
        yield f"{files[0].key} is of LabelMe, but its image {names[0]} is not below this folder"
