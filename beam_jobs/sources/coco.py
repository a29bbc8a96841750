"""COCO's JSON for object detection, parsed at once, in memory.

Only the values that are used are kept, so that outlines take no memory, and an annotation only
until its image is an entry.

A box is x, y, width, height in pixels. Images that the file does not name are not part of the data
set. An image without annotations is an example without boxes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs.sources.parsing import make_box, parse_number
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import CocoPart, CocoSource
from pipeline_ops.errors import DataError

_LISTS = ("images", "categories", "annotations")
_USED_KEYS = frozenset(
    (
        *_LISTS,
        *("id", "name", "file_name", "height", "width"),
        *("image_id", "category_id", "bbox", "iscrowd"),
    )
)


def read_entries(files: SourceFiles, source: CocoSource) -> Iterator[SourceEntry]:
    for index, part in enumerate(source.parts):
        lists = files.read_json(part.annotations, f"parts.{index}.annotations", _keep_used)
        if not isinstance(lists, dict) or not all(isinstance(lists.get(k), list) for k in _LISTS):
            raise DataError(
                f"{part.annotations}: not a COCO file for detection. "
                f"It must be a mapping with the lists {', '.join(_LISTS)}."
            )
        yield from _read_part(files, part, lists)


def _keep_used(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if key in _USED_KEYS}


def _read_part(
    files: SourceFiles, part: CocoPart, lists: dict[str, list[Any]]
) -> Iterator[SourceEntry]:
    names = {
        _read_id(entry, "id"): entry.get("name")
        for entry in lists["categories"]
        if isinstance(entry, dict)
    }
    images = [
        (f"{part.annotations}#images-{index}", entry) for index, entry in enumerate(lists["images"])
    ]
    id_counts = Counter(_read_id(entry, "id") for _, entry in images)
    by_image: dict[int | str, list[Any]] = defaultdict(list)
    for index, annotation in enumerate(lists.pop("annotations")):
        image_id = _read_id(annotation, "image_id")
        if image_id is None or image_id not in id_counts:
            with files.entry(f"{part.annotations}#annotations-{index}"):
                raise Reject("unknown_image", f"no image has the image_id {image_id!r}")
        else:
            by_image[image_id].append(annotation)
    for place, entry in images:
        path: Any = entry.get("file_name") if isinstance(entry, dict) else None
        with files.entry(place, key=files.find_key(path, part.images)):
            image_id = _read_id(entry, "id")
            if image_id is None:
                raise Reject("malformed", "an image without an id")
            if id_counts[image_id] > 1:
                raise Reject("duplicate", f"{id_counts[image_id]} images have the id {image_id!r}")
            annotations = by_image.pop(image_id, [])  # frees them
            boxes = [_parse_box(annotation, names) for annotation in annotations]
            frame = entry.get("height"), entry.get("width")
            yield SourceEntry(path, boxes=boxes, split=part.split, frame=frame, folder=part.images)


def _read_id(entry: Any, key: str) -> int | str | None:
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _parse_box(annotation: Mapping[str, Any], names: Mapping[Any, Any]) -> Box:
    category = _read_id(annotation, "category_id")
    if category not in names:
        raise Reject("unknown_class", f"no category has the category_id {category!r}")
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4:
        raise Reject("malformed", "the bbox must be a list of x, y, width and height")
    x, y, width, height = map(parse_number, box)
    corners = y, x, y + height, x + width
    return make_box(corners, names[category], is_crowd=annotation.get("iscrowd", 0))
