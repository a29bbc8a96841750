"""COCO's JSON for object detection: a file with lists `images`, `categories` and `annotations`.

A box is x, y, width, height in pixels. An annotation with `iscrowd` is kept and marked as a crowd.
Ids need not be contiguous. Images that the file does not name are not part of the data set. An
image without annotations is an example without boxes. The whole file is parsed at once, in memory.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, Files, Found, make_box, number, size_of
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import CocoPart, CocoSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing

_LISTS = ("images", "categories", "annotations")


def read_records(source: CocoSource, listing: Listing) -> Found:
    """Raises DataError: a file is missing, or is no COCO file."""
    collector, files = Collector(source.class_names), Files(listing)
    for index, part in enumerate(source.parts):
        content = files.read(part.annotations, f"parts.{index}.annotations")
        _read_part(part, parse_lists(content, part.annotations), collector, files)
    return collector.found()


def parse_lists(content: bytes, name: str) -> dict[str, list[Any]]:
    """The three lists of a COCO file. Raises DataError."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{name}: not JSON: {error}; it is named by preprocess.source.parts"
        ) from None
    lists = {key: value.get(key) for key in _LISTS} if isinstance(value, dict) else {}
    if not lists or not all(isinstance(items, list) for items in lists.values()):
        raise DataError(
            f"{name}: not a COCO file for detection: "
            "it must be a mapping with the lists images, categories and annotations"
        )
    return lists


def _read_part(
    part: CocoPart, lists: Mapping[str, list[Any]], collector: Collector, files: Files
) -> None:
    names = {
        _id_of(entry, "id"): entry.get("name")
        for entry in lists["categories"]
        if isinstance(entry, dict)
    }
    images = [
        (f"{part.annotations}#images-{index}", entry) for index, entry in enumerate(lists["images"])
    ]
    times = Counter(_id_of(entry, "id") for _, entry in images)
    by_image = defaultdict(list)
    for index, annotation in enumerate(lists["annotations"]):
        image_id = _id_of(annotation, "image_id")
        if image_id is None or image_id not in times:
            collector.reject(
                f"{part.annotations}#annotations-{index}",
                "unknown_image",
                f"its image_id is {image_id!r}, which no image has",
            )
        else:
            by_image[image_id].append(annotation)
    for place, entry in images:
        with collector.rejects(_key_of(entry, part, files) or place):
            image_id = _id_of(entry, "id")
            if image_id is None:
                raise Reject("malformed", "an image without an id")
            if times[image_id] > 1:
                raise Reject("duplicate", f"{times[image_id]} images have the id {image_id!r}")
            boxes = tuple(_box_of(annotation, names) for annotation in by_image[image_id])
            collector.note_labels([box.label for box in boxes])
            frame = size_of(entry.get("height"), entry.get("width"))
            collector.add(
                Record(
                    files.image(part.images, entry.get("file_name")),
                    boxes=boxes,
                    split=part.split,
                    frame=frame,
                ),
                place,
            )


def _id_of(entry: Any, key: str) -> int | str | None:
    """The id under a key of an entry, or None if there is no valid one."""
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _key_of(entry: Any, part: CocoPart, files: Files) -> str | None:
    try:
        return files.key(part.images, entry.get("file_name")) if isinstance(entry, dict) else None
    except Reject:
        return None


def _box_of(annotation: Mapping[str, Any], names: Mapping[Any, Any]) -> Box:
    category = _id_of(annotation, "category_id")
    if category not in names:
        raise Reject(
            "unknown_class",
            f"an annotation has the category_id {category!r}, which no category has",
        )
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4:
        raise Reject(
            "malformed", "an annotation whose bbox is not a list of x, y, width and height"
        )
    x, y, width, height = map(number, box)
    return make_box(
        (y, x, y + height, x + width), names[category], is_crowd=annotation.get("iscrowd", 0)
    )
