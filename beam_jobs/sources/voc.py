"""Pascal VOC: one XML file per image, and lists of images or folders by split.

An image and its annotation have the same name. The name of a file is its path without the suffix
and without the folder of the images or of the annotations, wherever this folder stands in the path.
So `train/images/1.jpg` belongs to `train/annotations/1.xml`, and its name begins with the split.

VOC's own development kit counts pixels from 1. Coordinates are taken as they stand, without
subtracting that 1, as TensorFlow's converters do and as most tools that write VOC mean them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import posixpath
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import beam_jobs.sources.parsing as parsing
from beam_jobs.io.raw import RawReader
from beam_jobs.sources.box_formats import to_corners
from beam_jobs.sources.folder_view import MAX_CANDIDATES, FolderView, SourceMatch
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, join_names, say_folder, say_splits, unless
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import SplitName, VocSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import MAX_SAMPLE_ANNOTATION_BYTES
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, loosen, match_without_case, to_raw_key

_LISTS = "ImageSets/Main/"
_LIST_NAMES: Mapping[SplitName, str] = {"train": "train", "validation": "val", "test": "test"}
_ROTATION = "attributes/attribute[name='rotation']/value"
"""The degrees of a box that CVAT writes."""


def read_entries(files: SourceFiles, source: VocSource) -> Iterator[SourceEntry]:
    listing = files.listing
    images, annotations = find_voc_files(listing, source)
    if not images or not annotations:
        need = f"needs images in the folder {source.images} and XML files in {source.annotations}"
        cure = "Correct path, images or annotations of preprocess.source."
        raise DataError(f"{listing.folder}: a VOC source {need}. {cure}")
    _pair_by_file_name(images, annotations, listing)
    lists = _read_lists(source.image_sets, files)
    others = match_without_case(images.keys() - annotations, annotations.keys() - images)
    for name, other in others.items():
        annotations[name] = annotations.pop(other)
        if lists is not None and other in lists and name not in lists:
            lists[name] = lists.pop(other)
    both = images.keys() & annotations
    folders = parsing.find_split_names({name.partition("/")[0] for name in both})
    names = {*images, *annotations, *(lists or ())}
    if lists is not None and source.unlisted == "ignore":
        names &= lists.keys()
    read_names = sorted(names & annotations.keys() & (names if lists is None else lists.keys()))
    reader = RawReader((annotations[name] for name in read_names), listing.folder)
    for name in sorted(names):
        candidates, annotation = images.get(name, []), annotations.get(name)
        file = candidates[0] if candidates else annotation
        with files.entry(name, file.key if file else posixpath.join(source.images, name)):
            folder = folders.get(name.partition("/")[0])
            split = folder if lists is None else _select_split(name, lists)
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
        is_image = parsing.is_image_name(file.key) or not is_shared
        if is_image and (name := _find_name(file.key, source.images)):
            images[name].append(file)
        is_annotation = file.key.lower().endswith(".xml")
        if is_annotation and (name := _find_name(file.key, source.annotations)):
            annotations.setdefault(name, file)
    return images, annotations


def _pair_by_file_name(
    images: Mapping[str, Any], annotations: dict[str, RawFile], listing: Listing
) -> None:
    """Gives annotations without an image of their name that of the image in `<filename>`."""
    by_end: dict[str, list[str]] = defaultdict(list)
    for name in images.keys() - annotations:
        by_end[loosen(posixpath.basename(name))].append(name)
    others = sorted(annotations.keys() - images) if by_end else []
    reader = RawReader((annotations[name] for name in others), listing.folder)
    for name in others:
        file_name = find_file_name(reader.read(annotations[name]))
        found = by_end.pop(loosen(posixpath.splitext(to_raw_key(file_name.encode()))[0]), [])
        if len(found) == 1:
            annotations[found[0]] = annotations.pop(name)


def find_file_name(content: bytes) -> str:
    """The name of the image in an annotation, without folders. "" if there is none."""
    with contextlib.suppress(Reject):
        for element in parsing.iterate_children(content, "annotation"):
            if element.tag == "filename":
                return re.split(r"[/\\]", (element.text or "").strip())[-1]
    return ""


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
    present = {split: path for split, path in paths.items() if path in files}
    found: dict[str, list[str]] = defaultdict(list)
    for split, path in present.items():
        for line in filter(None, map(bytes.strip, files.read(path).splitlines())):
            name = to_raw_key(line)
            found[posixpath.splitext(name)[0] if parsing.is_image_name(name) else name].append(
                split
            )
    return dict(found) if present else None


def _select_split(name: str, lists: Mapping[str, list[str]]) -> str:
    if not (splits := lists.get(name, [])):
        cure = "Add it to a list, or set preprocess.source.unlisted: ignore."
        raise Reject("unlisted", f"{name} is in none of the lists in {_LISTS}. {cure}")
    if len(splits) > 1:
        raise Reject("contradictory_split", f"listed more than once: for {', '.join(splits)}")
    return splits[0]


def parse_annotation(content: bytes) -> tuple[list[Box], Size | None]:
    """The boxes of one XML file, and the size that it gives the image."""
    parsing.check_size(len(content), MAX_SAMPLE_ANNOTATION_BYTES, "an annotation")
    frame, objects = None, []
    for element in parsing.iterate_children(content, "annotation"):
        if element.tag == "size":
            frame = parsing.parse_size(element.findtext("height"), element.findtext("width"))
        elif element.tag == "object":
            objects.append(element)
    return [box for each in objects for box in _parse_object(each, frame)], frame


def _parse_object(element: ElementTree.Element, frame: Size | None) -> list[Box]:
    """The boxes of an object, of which some tools write several: all boxes of a class.

    The boxes of its parts, which lie inside of it, are ignored. An object without a box has that
    around its polygon, or around its rotated box: roLabelImg's center, width, height, and radians.
    """
    label, difficult = element.findtext("name"), element.findtext("difficult")
    is_difficult = parsing.parse_flag(difficult, "difficult")
    found = []
    for each in element.findall("bndbox"):
        degrees = parsing.parse_number(element.findtext(_ROTATION) or "0")
        corners = _read_numbers(each, parsing.CORNERS)
        found.append(parsing.make_rotated_box(corners, degrees, label, frame))
    for each in () if found else element.findall("robndbox"):
        *box, angle = _read_numbers(each, ("cx", "cy", "w", "h", "angle"))
        corners, degrees = to_corners(box, "center_xywh"), math.degrees(angle)
        found.append(parsing.make_rotated_box(corners, degrees, label, frame, (box[0], box[1])))
    for each in () if found else element.findall("polygon"):
        found.append(parsing.make_box(parsing.enclose(_read_points(each)), label))
    if label is None or not found:
        detail = "an <object> without <name>, or without a <bndbox> of xmin, ymin, xmax and ymax"
        raise Reject("malformed", detail)
    return [dataclasses.replace(box, is_difficult=is_difficult) for box in found]


def _read_numbers(element: ElementTree.Element, names: Iterable[str]) -> Any:
    """The numbers in the elements of these names. Raises Reject if one is missing or is none."""
    texts = {name: element.findtext(name) for name in names}
    if missing := [name for name in texts if texts[name] is None]:
        raise Reject("malformed", f"a <{element.tag}> without <{'>, <'.join(missing)}>")
    return tuple(parsing.parse_number((text or "").strip()) for text in texts.values())


def _read_points(polygon: ElementTree.Element) -> list[parsing.Point]:
    """The points of `<x1>`, `<y1>`, `<x2>`, ..., or of elements `<pt>` with `<x>` and `<y>`."""
    if pairs := [each for each in polygon if each.find("x") is not None]:
        return [_read_numbers(each, ("x", "y")) for each in pairs]
    numbers = sorted(int(each.tag[1:]) for each in polygon if re.fullmatch("x[0-9]{1,5}", each.tag))
    return [_read_numbers(polygon, (f"x{number}", f"y{number}")) for number in numbers]


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds images with an XML file of the same name, in the same folder or in another one."""
    files = [] if view.named_file else view.list_candidates(".xml")
    starts = (parsing.read_xml_starts(view.read_start(file)) for file in files[:MAX_CANDIDATES])
    if not any(start and start[0][0] == "annotation" for start in starts):
        return
    best: dict[str, tuple[Any, ...]] = {}
    for below, images, texts in _pair_voc_folders(view, files):
        source = VocSource(type="voc", path=".", images=images, annotations=texts)
        pictures, annotated = find_voc_files(view.enter(below), source)
        found = (pictures.keys() & annotated.keys(), source, pictures, annotated)
        best[below] = max(best.get(below, found), found, key=lambda each: len(each[0]))
    names = [find_file_name(view.read_start(file)) for file in files[:MAX_CANDIDATES]]
    if not best and view.count_images_named(names):
        reason = f"{count(len(files), 'XML file')}, whose <filename> names the images"
        yield SourceMatch("voc", reason, {"images": ".", "annotations": "."})
    elif not best:
        first = posixpath.splitext(posixpath.basename(files[0].key))[0]
        fault = f"is an annotation of Pascal VOC, but there is no image {first}.jpg"
        yield f"{files[0].key} {fault}. Add the images, or name the folder that holds both"
    for below in sorted(best):
        both, source, pictures, annotated = best[below]
        keys, remark = _read_voc_lists(view, below, pictures.keys() | annotated.keys())
        keys |= unless("images", source.images, "JPEGImages")
        keys |= unless("annotations", source.annotations, "Annotations")
        splits = parsing.find_split_names({name.partition("/")[0] for name in both})
        texts = f"{count(len(annotated), 'XML file')}{say_folder(source.annotations)}"
        shown = f"{count(len(pictures), 'image')}{say_folder(source.images)}"
        with_both = f"{len(both):,} have annotations{say_splits(splits) or remark}"
        yield SourceMatch("voc", f"{texts}, and {shown}, of which {with_both}", keys, below)


def _pair_voc_folders(view: FolderView, files: Iterable[RawFile]) -> set[tuple[str, str, str]]:
    """Lists where an image and an XML file of the same name are.

    Each item is the folder of the source, and below it the folders of the images and of the
    annotations. A folder of a split is around both, or inside. If every XML file is beside its
    image, the folder around all of them is the only item.
    """
    images, found = defaultdict[str, set[str]](set), set[tuple[str, str]]()
    for file in view.images:
        folder, name = posixpath.split(posixpath.splitext(file.key)[0])
        images[name].add(folder)
    for file in files:
        folder, name = posixpath.split(posixpath.splitext(file.key)[0])
        around = {folder} if folder in images[name] else images[name]
        found.update((image, folder) for image in around)
    if found and all(image == folder for image, folder in found):
        common = posixpath.commonpath(image for image, _ in found)
        found = {(common, common)}
    folders = set()
    for pair in found:
        image, xml = ([part for part in folder.split("/") if part] for folder in pair)
        shared = len(posixpath.commonprefix([image, xml]))
        before, image, xml = image[:shared], image[shared:], xml[shared:]
        while image and xml and image[-1] == xml[-1]:
            image, xml = image[:-1], xml[:-1]
        folders.add((tuple(before), "/".join(image) or ".", "/".join(xml) or "."))
    splits = parsing.find_split_names({before[-1] for before, _, _ in folders if before})
    return {
        ("/".join(before[:-1] if {*before[-1:]} & splits.keys() else before), image, xml)
        for before, image, xml in folders
    }


def _read_voc_lists(view: FolderView, below: str, names: set[str]) -> tuple[dict[str, Any], str]:
    """Returns the keys of the source for its lists, and a remark on them."""
    prefix = posixpath.join(below, _LISTS)
    lists = {
        file.key.removeprefix(prefix).removesuffix(".txt"): file
        for file in view.files
        if file.key.startswith(prefix) and file.key.endswith(".txt")
    }
    used = [name for name in lists if name in _LIST_NAMES.values()]
    keys: dict[str, Any] = {}
    if "trainval" in lists and not {"train", "val"} & lists.keys():
        used.append("trainval")
        keys["image_sets"] = {"train": "trainval"}
    if not used:
        return {}, ""
    content = b"\n".join(view.read_start(lists[name], 1 << 26) for name in used)
    listed = content.decode("utf-8", "replace").split()
    listed += [posixpath.splitext(name)[0] for name in listed if parsing.is_image_name(name)]
    if unlisted := len(names.difference(listed)):
        remark = f"; {unlisted:,} of them are in none of the lists {join_names(used)}"
        return {**keys, "unlisted": "ignore"}, remark
    return keys, f"; the lists {join_names(used)} name all of them"
