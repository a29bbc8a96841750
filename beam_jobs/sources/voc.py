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
from typing import NoReturn

from beam_jobs.io.raw import RawReader, read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, Files, Found, flag, make_box, size_of
from beam_jobs.stages.given_boxes import Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import ImageSets, VocSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, key_of

_IMAGES, _ANNOTATIONS, _LISTS = "JPEGImages/", "Annotations/", "ImageSets/Main/"
_CORNERS = ("ymin", "xmin", "ymax", "xmax")
_MAX_XML_BYTES = 16 << 20


def read_records(source: VocSource, listing: Listing) -> Found:
    """Raises DataError: there is neither an image nor an annotation where they have to be."""
    images, annotations = _by_name(listing, _IMAGES), _by_name(listing, _ANNOTATIONS, ".xml")
    if not images or not annotations:
        raise DataError(
            f"{listing.folder}: a VOC source has the folders JPEGImages and Annotations "
            "with files in them; "
            "correct preprocess.source.path"
        )
    lists = _read_lists(source.image_sets, listing)
    collector, names = (
        Collector(source.class_names),
        sorted({*images, *annotations, *(lists or ())}),
    )
    reader = RawReader(
        (
            annotations[name][0]
            for name in names
            if name in annotations and (lists is None or name in lists)
        ),
        listing.folder,
    )
    for name in names:
        candidates, [annotation] = images.get(name, []), annotations.get(name, [None])
        is_listed = lists is None or name in lists
        if not is_listed and source.unlisted == "ignore":
            continue
        with collector.rejects(
            candidates[0].key
            if candidates
            else annotation.key
            if annotation
            else f"{_IMAGES}{name}"
        ):
            if not is_listed:
                raise Reject(
                    "unlisted",
                    f"{name} is in none of the lists in {_LISTS}; "
                    "add it to one, or see preprocess.source.unlisted",
                )
            split = _only(lists[name]) if lists is not None else None
            collector.add(_make_record(reader, candidates, annotation, split), name)
    return collector.found()


def _by_name(listing: Listing, folder: str, suffix: str = "") -> dict[str, list[RawFile]]:
    """The files of a folder by their names without suffix."""
    found = defaultdict(list)
    for file in listing.files:
        if file.key.startswith(folder) and file.key.endswith(suffix):
            found[posixpath.splitext(file.key.removeprefix(folder))[0]].append(file)
    return dict(found)


def _read_lists(names: ImageSets | None, listing: Listing) -> dict[str, list[str]] | None:
    """The splits that each image is listed for, or None if there are no lists."""
    if names is None:
        return None
    files, found, splits = Files(listing), defaultdict(list), dict(names)
    present = {
        split: file for split, name in splits.items() if (file := files.get(f"{_LISTS}{name}.txt"))
    }
    for split, file in present.items():
        for line in read_raw(file, listing.folder).splitlines():
            if line.strip():
                found[key_of(line.strip())].append(split)
    return dict(found) if present else None


def _only(splits: list[str]) -> str:
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
            "too_large", f"an annotation of {len(content)} bytes; allowed are {_MAX_XML_BYTES}"
        )
    try:
        parser = ElementTree.XMLParser(target=_WithoutDoctype())  # noqa: S314 (entities need a document type)
        root = ElementTree.fromstring(content, parser)  # noqa: S314
    except (
        ElementTree.ParseError,
        ValueError,
        LookupError,
    ) as error:  # the latter two: an encoding that does not exist
        raise Reject("malformed", f"no well-formed XML: {error}") from None
    if root.tag != "annotation":
        raise Reject("malformed", f"the XML is a <{root.tag}> and not an <annotation>")
    return tuple(map(_box_of, root.findall("object"))), size_of(
        root.findtext("size/height"), root.findtext("size/width")
    )


class _WithoutDoctype(ElementTree.TreeBuilder):
    """Refuses a document type in any encoding: it may declare entities, which are not needed."""

    def doctype(self, name: str, public: str | None, system: str | None) -> NoReturn:
        raise Reject("malformed", "declares a document type, which no annotation needs")


def _box_of(element: ElementTree.Element) -> Box:
    """The box of an object.

    The parts of a person, which have boxes of their own inside the object, are ignored.
    """
    label, corners = (
        element.findtext("name"),
        [element.findtext(f"bndbox/{corner}") for corner in _CORNERS],
    )
    if label is None or None in corners:
        raise Reject(
            "malformed",
            "an <object> without <name>, or without a <bndbox> of xmin, ymin, xmax and ymax",
        )
    return make_box(
        corners, label, is_difficult=flag((element.findtext("difficult") or "0").strip())
    )
