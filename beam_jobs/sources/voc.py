"""Pascal VOC: one XML file per image, and lists of images by split.

    <source>/JPEGImages/2007_000027.jpg
    <source>/Annotations/2007_000027.xml
    <source>/ImageSets/Main/train.txt     one name per line, `2007_000027`

The lists train.txt, val.txt and test.txt are optional. Image and annotation belong together by
name. VOC's own development kit counts pixels from 1. Coordinates are taken as they stand, without
subtracting that 1, as TensorFlow's converters do and as most tools that write VOC mean them.
"""

from __future__ import annotations

import posixpath
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping

from beam_jobs.io.raw import RawReader, read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, ListedFiles, SourceRecords
from beam_jobs.sources.parsing import CORNERS, make_box, parse_size
from beam_jobs.sources.xml_parsing import parse_xml
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import ImageSets, VocSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, to_raw_key

_IMAGES, _ANNOTATIONS, _LISTS = "JPEGImages/", "Annotations/", "ImageSets/Main/"
_MAX_XML_BYTES = 16 << 20


def read_records(source: VocSource, listing: Listing) -> SourceRecords:
    """Raises DataError: there is neither an image nor an annotation where they have to be."""
    images = _index_by_name(listing, _IMAGES)
    annotations = {
        name: files[0] for name, files in _index_by_name(listing, _ANNOTATIONS, ".xml").items()
    }
    if not images or not annotations:
        raise DataError(
            f"{listing.folder}: a VOC source needs the folders JPEGImages and Annotations "
            "with files in them. Correct preprocess.source.path."
        )
    lists = _read_lists(source.image_sets, listing)
    collector, names = Collector(source.class_names), {*images, *annotations, *(lists or ())}
    if lists is not None and source.unlisted == "ignore":
        names &= lists.keys()
    read_names = sorted(names & annotations.keys() & (names if lists is None else lists.keys()))
    reader = RawReader((annotations[name] for name in read_names), listing.folder)
    for name in sorted(names):
        candidates, annotation = images.get(name, []), annotations.get(name)
        file = candidates[0] if candidates else annotation
        with collector.catch_reject(file.key if file else f"{_IMAGES}{name}"):
            split = None if lists is None else _select_split(name, lists)
            collector.add(_make_record(reader, candidates, annotation, split), name)
    return collector.to_source_records()


def _index_by_name(listing: Listing, folder: str, suffix: str = "") -> dict[str, list[RawFile]]:
    """The files of a folder by their names without suffix."""
    found: dict[str, list[RawFile]] = defaultdict(list)
    for file in listing.files:
        if file.key.startswith(folder) and file.key.endswith(suffix):
            found[posixpath.splitext(file.key.removeprefix(folder))[0]].append(file)
    return found


def _read_lists(names: ImageSets | None, listing: Listing) -> dict[str, list[str]] | None:
    """The splits that each image is listed for, or None if there are no lists."""
    if names is None:
        return None
    files = ListedFiles(listing)
    found: dict[str, list[str]] = defaultdict(list)
    present = {split: file for split, name in names if (file := files.get(f"{_LISTS}{name}.txt"))}
    for split, file in present.items():
        for line in read_raw(file, listing.folder).splitlines():
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


def _make_record(
    reader: RawReader, images: list[RawFile], annotation: RawFile | None, split: str | None
) -> Record:
    if not images:
        raise Reject("missing_image", "there is no image of this name in JPEGImages")
    if annotation is None:
        raise Reject("no_annotation", "there is no XML file of this name in Annotations")
    if len(images) > 1:
        raise Reject(
            "ambiguous_image",
            f"the annotation may be for each of {', '.join(image.key for image in images)}",
        )
    boxes, frame = parse_annotation(reader.read(annotation))
    return Record(images[0], boxes=boxes, split=split, frame=frame)


def parse_annotation(content: bytes) -> tuple[tuple[Box, ...], Size | None]:
    """The boxes of one XML file, and the height and width that it gives the image.

    Raises:
      Reject: malformed.
    """
    if len(content) > _MAX_XML_BYTES:
        raise Reject(
            "too_large", f"an annotation of {len(content)} bytes, allowed are {_MAX_XML_BYTES}"
        )
    root = parse_xml(content, "annotation")
    size = parse_size(root.findtext("size/height"), root.findtext("size/width"))
    return tuple(map(_parse_box, root.findall("object"))), size


def _parse_box(element: ElementTree.Element) -> Box:
    """The box of an object.

    The parts of a person, which have boxes of their own inside the object, are ignored.
    """
    label = element.findtext("name")
    corners = [element.findtext(f"bndbox/{corner}") for corner in CORNERS]
    if label is None or None in corners:
        raise Reject(
            "malformed",
            "an <object> without <name>, or without a <bndbox> of xmin, ymin, xmax and ymax",
        )
    return make_box(corners, label, (element.findtext("difficult") or "").strip())
