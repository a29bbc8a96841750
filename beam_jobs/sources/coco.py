"""COCO's JSON for object detection, parsed at once, in memory.

Only the values that are used are kept, so that outlines take no memory, and an annotation only
until its image is an entry.

A box is x, y, width, height in pixels. CVAT adds the degrees by which it is turned. An annotation
without a box has that around its polygons or its mask. Images that the file does not name are not
part of the data set. An image without annotations is an example without boxes.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import beam_jobs.sources.parsing as parsing
from beam_jobs.sources.box_formats import find_better, to_corners
from beam_jobs.sources.folder_view import MAX_CANDIDATES, MAX_JSON_BYTES, FolderView, SourceMatch
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import CocoPart, CocoSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

_LISTS = ("images", "categories", "annotations")
_USED_KEYS = frozenset(
    (*_LISTS, "id", "name", "file_name", "height", "width", "image_id", "category_id", "bbox")
    + ("iscrowd", "attributes", "rotation", "segmentation", "size", "counts")
)


def read_entries(files: SourceFiles, source: CocoSource) -> Iterator[SourceEntry]:
    for index, part in enumerate(source.parts):
        lists = files.read_json(part.annotations, f"parts.{index}.annotations", _keep_used)
        if not _is_coco(lists):
            need = f"It must be a mapping with the lists {', '.join(_LISTS)}."
            raise DataError(f"{part.annotations}: not a COCO file for detection. {need}")
        yield from _read_part(files, part, lists, source.box_format)


def _is_coco(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(content.get(k), list) for k in _LISTS)


def _keep_used(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {key: value for key, value in pairs if key in _USED_KEYS}
    if found.get("bbox"):
        found.pop("segmentation", None)
    return found


def _read_part(
    files: SourceFiles, part: CocoPart, lists: dict[str, list[Any]], box_format: str
) -> Iterator[SourceEntry]:
    ids = Counter(_read_id(entry, "id") for entry in lists["categories"])
    if twice := [each for each, number in ids.items() if number > 1]:
        fault = f"{ids[twice[0]]} categories have the id {twice[0]}"
        raise DataError(f"{part.annotations}: {fault}. Correct them.")
    entries = [entry for entry in lists["categories"] if isinstance(entry, dict)]
    names = {parsing.parse_id(entry.get("id")): entry.get("name") for entry in entries}
    id_counts = Counter(_read_id(entry, "id") for entry in lists["images"])
    by_image: dict[str, list[Any]] = defaultdict(list)
    for index, annotation in enumerate(lists.pop("annotations")):
        image_id = _read_id(annotation, "image_id")
        if image_id is None or image_id not in id_counts:
            with files.entry(f"{part.annotations}#annotations-{index}"):
                raise Reject("unknown_image", f"no image has the image_id {image_id}")
        else:
            by_image[image_id].append(annotation)
    for index, entry in enumerate(lists["images"]):
        path: Any = entry.get("file_name") if isinstance(entry, dict) else None
        with files.entry(f"{part.annotations}#images-{index}", files.find_key(path, part.images)):
            image_id = _read_id(entry, "id")
            if image_id is None:
                raise Reject("malformed", "an image without an id")
            if id_counts[image_id] > 1:
                raise Reject("duplicate", f"{id_counts[image_id]} images have the id {image_id}")
            frame = entry.get("height"), entry.get("width")
            boxes = [
                _parse_box(each, names, parsing.parse_size(*frame), box_format)
                for each in by_image.pop(image_id, [])  # frees them
            ]
            yield SourceEntry(path, boxes=boxes, split=part.split, frame=frame, folder=part.images)


def _read_id(entry: Any, key: str) -> str | None:
    return parsing.parse_id(entry.get(key)) if isinstance(entry, dict) else None


def _parse_box(
    annotation: Mapping[str, Any], names: Mapping[Any, Any], size: Size | None, box_format: str
) -> Box:
    category, bbox = _read_id(annotation, "category_id"), annotation.get("bbox")
    if category not in names:
        raise Reject("unknown_class", f"no category has the category_id {category}")
    label, is_crowd = names[category], parsing.parse_flag(annotation.get("iscrowd"), "iscrowd")
    if not bbox and (outline := annotation.get("segmentation")):
        return parsing.make_box(_enclose(outline), label, is_crowd=is_crowd)
    if not isinstance(bbox, list) or len(bbox) != 4:
        raise Reject("malformed", "the bbox must be a list of x, y, width and height")
    corners, attributes = to_corners(bbox, box_format), annotation.get("attributes")
    rotation = attributes.get("rotation") if isinstance(attributes, dict) else None
    degrees = parsing.parse_number(rotation or 0)
    return parsing.make_rotated_box(corners, degrees, label, size, is_crowd=is_crowd)


def _enclose(outline: Any) -> parsing.Corners:
    """The corners around a mask, or around all polygons of an object, each x1, y1, x2, y2, ..."""
    if isinstance(outline, dict):
        return parsing.enclose_mask(outline.get("size"), outline.get("counts"))
    parts = outline if isinstance(outline[0], list) else [outline]
    if not all(isinstance(part, list) and len(part) % 2 == 0 for part in parts):
        raise Reject("malformed", "the segmentation must be polygons, x1, y1, x2, ..., or a mask")
    points = [(*map(parsing.parse_number, part),) for part in parts]
    pairs = [pair for part in points for pair in zip(part[::2], part[1::2], strict=True)]
    return parsing.enclose(pairs)


_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\\n]|\\.){1,1000}")')


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds JSON files for detection whose images are below the folder."""
    candidates = [file for file in view.list_candidates(".json") if "captions" not in file.key]
    if instances := [file for file in candidates if "instances" in posixpath.basename(file.key)]:
        candidates = instances  # COCO's own files of key points name the same images
    parts, reasons, boxes = [], [], list[tuple[Any, Size | None]]()
    for file in candidates[:MAX_CANDIDATES]:
        content = view.read_json(file)
        if fault := view.json_faults.get(file.key):
            yield f"{file.key} is {fault}"
        if (names := _read_image_names(view, file, content)) is None:
            continue
        folder, found = view.find_images_folder(names, file.key)
        if not found:
            example = f" ({names[0]})" if names else ""
            fault = f"is like a COCO file, but none of its images{example} is below this folder"
            yield f"{file.key} {fault}. Name the folder that holds both"
            continue
        parts.append(parsing.name_part("annotations", file.key, folder))
        reasons.append(f"{file.key} is a COCO file with images in {folder}")
        boxes += _list_boxes(content) if content else []
    keys: dict[str, Any] = {"parts": parts}
    notes = []
    if better := find_better(boxes, "xywh"):
        keys["box_format"], notes = better[0], [better[1]]
    if parts:
        yield SourceMatch("coco", "; ".join(reasons), keys, notes=notes)


def _list_boxes(content: Mapping[str, Any]) -> Iterator[tuple[list[float], Size | None]]:
    """The `bbox` of each annotation, with the size that the file gives its image."""
    sizes: dict[str | None, Size | None] = {}
    for image in content["images"]:
        with contextlib.suppress(Reject, AttributeError):
            size = image.get("height"), image.get("width")
            sizes[_read_id(image, "id")] = parsing.parse_size(*size)
    for annotation in content["annotations"]:
        with contextlib.suppress(Reject, AttributeError, TypeError):
            box = list(map(parsing.parse_number, annotation.get("bbox")))
            if len(box) == 4:
                yield box, sizes.get(_read_id(annotation, "image_id"))


def _read_image_names(view: FolderView, file: RawFile, content: Any) -> list[str] | None:
    """The names of images in a COCO file, or None if it is none. Of a large one, its two ends."""
    if file.num_bytes > MAX_JSON_BYTES:
        found = []
        for quoted in _FILE_NAME.findall(view.read_ends(file)):
            with contextlib.suppress(ValueError):  # not UTF-8, or a wrong escape
                found.append(json.loads(quoted))
        return found or None
    if not _is_coco(content):
        return None
    names = [entry.get("file_name") for entry in content["images"] if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]
