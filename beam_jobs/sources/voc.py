"""Pascal VOC: one XML file per image, and lists of images or folders by split.

An image and its annotation have the same name. The name of a file is its path without the suffix
and without the folder of the images or of the annotations, wherever this folder stands in the path.
So `train/images/1.jpg` belongs to `train/annotations/1.xml`, and its name begins with the split.

VOC's own development kit counts pixels from 1. Coordinates are taken as they stand, without
subtracting that 1, as TensorFlow's converters do and as most tools that write VOC mean them.
"""

from __future__ import annotations

import posixpath
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator, Mapping

from beam_jobs.io.raw import RawReader
from beam_jobs.sources.parsing import (
    CORNERS,
    find_split_names,
    is_image_name,
    iterate_children,
    make_box,
    parse_size,
)
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import SplitName, VocSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, match_without_case, to_raw_key

_LISTS = "ImageSets/Main/"
_LIST_NAMES: Mapping[SplitName, str] = {"train": "train", "validation": "val", "test": "test"}
_MAX_XML_BYTES = 16 << 20


def read_entries(files: SourceFiles, source: VocSource) -> Iterator[SourceEntry]:
    listing = files.listing
    images, annotations = find_voc_files(listing, source)
    if not images or not annotations:
        raise DataError(
            f"{listing.folder}: a VOC source needs images in the folder {source.images} and XML "
            f"files in {source.annotations}. Correct path, images or annotations of "
            "preprocess.source."
        )
    lists = _read_lists(source.image_sets, files)
    others = match_without_case(images.keys() - annotations, annotations.keys() - images)
    for name, other in others.items():
        annotations[name] = annotations.pop(other)
        if lists is not None and other in lists and name not in lists:
            lists[name] = lists.pop(other)
    folders = find_split_names({name.partition("/")[0] for name in images.keys() & annotations})
    names = {*images, *annotations, *(lists or ())}
    if lists is not None and source.unlisted == "ignore":
        names &= lists.keys()
    read_names = sorted(names & annotations.keys() & (names if lists is None else lists.keys()))
    reader = RawReader((annotations[name] for name in read_names), listing.folder)
    for name in sorted(names):
        candidates, annotation = images.get(name, []), annotations.get(name)
        file = candidates[0] if candidates else annotation
        with files.entry(name, file.key if file else posixpath.join(source.images, name)):
            split = folders.get(name.partition("/")[0])
            if lists is not None:
                split = _select_split(name, lists)
            if not candidates:
                raise Reject("missing_image", f"there is no image of this name in {source.images}")
            if annotation is None:
                detail = f"there is no XML file of this name in {source.annotations}"
                raise Reject("no_annotation", detail)
            if len(candidates) > 1:
                keys = ", ".join(image.key for image in candidates)
                raise Reject("ambiguous_image", f"the annotation may be for each of {keys}")
            boxes, frame = parse_annotation(reader.read(annotation))
            yield SourceEntry(candidates[0], boxes=boxes, split=split, frame=frame)


def find_voc_files(
    listing: Listing, source: VocSource
) -> tuple[dict[str, list[RawFile]], dict[str, RawFile]]:
    """The images and the annotations by name. In one folder, suffixes tell which is which."""
    images: dict[str, list[RawFile]] = defaultdict(list)
    annotations: dict[str, RawFile] = {}
    is_shared = "." in (source.images, source.annotations) or source.images == source.annotations
    for file in listing.files:
        is_image = is_image_name(file.key) or not is_shared
        if is_image and (name := _find_name(file.key, source.images)):
            images[name].append(file)
        is_annotation = file.key.lower().endswith(".xml")
        if is_annotation and (name := _find_name(file.key, source.annotations)):
            annotations.setdefault(name, file)
    return images, annotations


def _find_name(key: str, folder: str) -> str:
    """The name of a file, or "" if the folder is no part of its path."""
    before, _, after = f"/{key}".partition("/" if folder == "." else f"/{folder}/")
    return posixpath.splitext(posixpath.join(before.lstrip("/"), after))[0] if after else ""


def _read_lists(
    names: Mapping[SplitName, str] | None, files: SourceFiles
) -> dict[str, list[str]] | None:
    """The splits that each image is listed for, or None if there are no lists."""
    names = {} if names is None else {**_LIST_NAMES, **names}
    paths = {split: f"{_LISTS}{name}.txt" for split, name in names.items()}
    found: dict[str, list[str]] = defaultdict(list)
    present = {split: path for split, path in paths.items() if path in files}
    for split, path in present.items():
        for line in files.read(path).splitlines():
            if line.strip():
                found[to_raw_key(line.strip())].append(split)
    return dict(found) if present else None


def _select_split(name: str, lists: Mapping[str, list[str]]) -> str:
    if not (splits := lists.get(name, [])):
        raise Reject(
            "unlisted",
            f"{name} is in none of the lists in {_LISTS}. "
            "Add it to a list, or set preprocess.source.unlisted: ignore.",
        )
    if len(splits) > 1:
        raise Reject("contradictory_split", f"listed more than once: for {', '.join(splits)}")
    return splits[0]


def parse_annotation(content: bytes) -> tuple[list[Box], Size | None]:
    """The boxes of one XML file, and the size that it gives the image."""
    if len(content) > _MAX_XML_BYTES:
        raise Reject(
            "too_large", f"an annotation of {len(content)} bytes, allowed are {_MAX_XML_BYTES}"
        )
    frame, objects = None, []
    for element in iterate_children(content, "annotation"):
        if element.tag == "size":
            frame = parse_size(element.findtext("height"), element.findtext("width"))
        elif element.tag == "object":
            objects.append(element)
    return list(map(_parse_box, objects)), frame


def _parse_box(element: ElementTree.Element) -> Box:
    """The box of an object. The boxes of its parts, which lie inside of it, are ignored."""
    label = element.findtext("name")
    corners = [element.findtext(f"bndbox/{corner}") for corner in CORNERS]
    if label is None or None in corners:
        detail = "an <object> without <name>, or without a <bndbox> of xmin, ymin, xmax and ymax"
        raise Reject("malformed", detail)
    return make_box(corners, label, (element.findtext("difficult") or "").strip())
