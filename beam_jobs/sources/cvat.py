"""CVAT's export "CVAT for images 1.1": one XML file for all images of a task or a project.

    <image id="0" name="photo.jpg" subset="Train" width="640" height="480">
      <box label="cat" xtl="1.00" ytl="2.00" xbr="30.00" ybr="40.00" rotation="12.00" .../>
      <polygon label="cat" points="1.00,2.00;30.00,2.00;30.00,40.00" .../>
      <mask label="cat" left="1" top="2" width="30" height="40" rle="..." .../>
      <tag label="indoors" .../>
    </image>

Beside the text of the file, memory holds only its boxes.
"""

from __future__ import annotations

import math
import posixpath
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import beam_jobs.sources.parsing as parsing
from beam_jobs.sources.box_formats import to_corners
from beam_jobs.sources.folder_view import FolderView, SourceMatch
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import get_task
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import CvatSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import MAX_CVAT_BYTES
from pipeline_ops.raw_data.raw_file import RawFile

_SHAPES = ("box", "polygon", "mask", "ellipse")


def read_entries(files: SourceFiles, source: CvatSource) -> Iterator[SourceEntry]:
    name, is_classification = source.annotations, source.task == "classification"
    content = files.read(name, "annotations", MAX_CVAT_BYTES)
    for index, element in enumerate(_iterate_images(content, name)):
        with files.entry(f"{name}#image-{index}") as entry:
            shapes = (shape for shape in element if (shape.tag == "tag") is is_classification)
            entry.labels = [shape.get("label", "").strip() for shape in shapes]
            image = _find_image(element, source, files)
            entry.key = image.key
            yield _make_entry(element, image, source)


def _iterate_images(content: bytes, name: str) -> Iterator[ElementTree.Element]:
    try:
        for element in parsing.iterate_children(content, "annotations"):
            if element.tag == "track":
                cure = "Export the task as CVAT for images 1.1."
                raise DataError(f"{name}: is an export of CVAT for video. {cure}")
            if element.tag == "image":
                yield element
    except Reject as reject:
        cure = "Export the task from CVAT again, as CVAT for images 1.1."
        raise DataError(f"{name}: {reject.detail}. {cure}") from None


def _find_image(element: ElementTree.Element, source: CvatSource, files: SourceFiles) -> RawFile:
    """Projects have a folder for each subset, and the frames of a video get the suffix .PNG."""
    name, subset = element.get("name"), element.get("subset", "")
    for folder in dict.fromkeys((posixpath.join(source.images, subset), source.images)):
        for path in (name, f"{name}.PNG"):
            if image := files.get(files.to_key(path, folder)):
                return image
    return files.find_image(name, source.images)


def _make_entry(element: ElementTree.Element, image: RawFile, source: CvatSource) -> SourceEntry:
    subset = element.get("subset", "")
    is_default = subset.lower() == "default"  # CVAT's name for no subset
    split = None if is_default else parsing.parse_split(subset)
    if source.task == "classification":
        labels = sorted({parsing.parse_text(tag.get("label")) for tag in element.findall("tag")})
        if not labels:
            raise Reject("no_label", "the image has no tag")
        if len(labels) > 1:
            raise Reject("contradictory", f"the image has the tags {', '.join(labels)}")
        return SourceEntry(image, labels[0], split=split)
    frame = parsing.parse_size(element.get("height"), element.get("width"))
    boxes = [_parse_shape(shape, frame) for shape in element if shape.tag != "tag"]
    return SourceEntry(image, boxes=boxes, split=split, frame=frame, drawn_on="upright")


def _parse_shape(element: ElementTree.Element, frame: Size | None) -> Box:
    label, degrees = element.get("label"), element.get("rotation", "0")
    match element.tag:
        case "box":
            corners = to_corners(_parse_numbers(element, "xtl", "ytl", "xbr", "ybr"), "xyxy")
            return parsing.make_rotated_box(corners, parsing.parse_number(degrees), label, frame)
        case "polygon":
            points = _parse_points(element.get("points", ""))
            return parsing.make_box(parsing.enclose(points), label)
        case "mask":
            box = _parse_numbers(element, "left", "top", "width", "height")
            return parsing.make_box(to_corners(box, "xywh"), label)
        case "ellipse":
            x, y, a, b = _parse_numbers(element, "cx", "cy", "rx", "ry")
            angle = math.radians(parsing.parse_number(degrees))
            return parsing.make_box(parsing.enclose_ellipse(x, y, a, b, angle), label)
    detail = f"a {element.tag}. Shapes that can become boxes are {', '.join(_SHAPES)}"
    raise Reject("unknown_shape", f"{detail}. Convert or remove it in CVAT")


def _parse_points(text: str) -> list[parsing.Point]:
    """The points of `1.00,2.00;30.00,2.00`."""
    points = []
    for pair in text.split(";"):
        x, comma, y = pair.partition(",")
        if not comma:
            raise Reject("malformed", f"{pair[:40]!r} is not a point, x,y")
        points.append((parsing.parse_number(x), parsing.parse_number(y)))
    return points


def _parse_numbers(element: ElementTree.Element, *names: str) -> list[float]:
    if missing := [name for name in names if name not in element.attrib]:
        raise Reject("malformed", f"a shape lacks {', '.join(missing)}")
    return [parsing.parse_number(element.get(name)) for name in names]


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds XML files of the format "CVAT for images"."""
    for file, start in view.iterate_starts(".xml"):
        elements = parsing.read_xml_starts(start)
        names = [values.get("name", "") for tag, values in elements if tag == "image"]
        if not names or elements[0][0] != "annotations":
            continue
        folder, found = view.find_images_folder(names, file.key)
        if found:
            has_shapes = any(tag in _SHAPES for tag, _ in elements)
            keys = {"annotations": file.key, "images": folder, **get_task(has_shapes)}
            reason = f"{file.key} is an export of CVAT with images in {folder}"
            yield SourceMatch("cvat", reason, keys)
        else:
            yield f"{file.key} is an export of CVAT without its images. Export it with images"
