"""Annotations of drawn pictures as tools write them: the text of a format, and whole small sets."""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from reports.drawing import (
    HEIGHT,
    WIDTH,
    Box,
    draw_blob,
    encode_png,
    in_fractions,
    iterate_scenes,
    save,
    save_turned,
    write,
)

from pipeline_ops.storage.tfrecord import frame_record

SIZE = (WIDTH, HEIGHT)
NUMBERS = {"cat": 0, "dog": 1}
CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
LABEL_MAP = "item {\n  id: 1\n  name: 'cat'\n}\nitem {\n  id: 2\n  name: 'dog'\n}\n"
Boxes = Sequence[Box]


def png(number: int) -> str:
    return f"im{number:02}.png"


# Pascal VOC


def make_bndbox(box: Box) -> str:
    names = ("xmin", "ymin", "xmax", "ymax")
    tags = (f"<{n}>{value}</{n}>" for n, value in zip(names, box.corners, strict=True))
    return f"<bndbox>{''.join(tags)}</bndbox>"


def make_voc(
    boxes: Boxes,
    size: tuple[int, int] | None = SIZE,
    name: str = "x.png",
    root: str = "<annotation>",
    head: str = "",
    difficult: str = "<difficult>0</difficult>",
    shape: Callable[[Box], str] = make_bndbox,
) -> str:
    objects = "".join(
        f"<object><name>{box.label}</name><pose>Unspecified</pose><truncated>0</truncated>"
        f"{difficult}{shape(box)}</object>"
        for box in boxes
    )
    sides = ""
    if size:
        width, height = size
        sides = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return (
        f"{head}{root}<folder>shots</folder><filename>{name}</filename>"
        rf"<path>D:\work\shots\{name}</path>{sides}<segmented>0</segmented>{objects}</annotation>"
    )


def write_voc(
    out: Path, make: Callable[[int, Boxes], str | bytes] | None = None, count: int = 24, **options
) -> None:
    """Pictures, and beside each its XML."""
    for number, image, boxes in iterate_scenes(count):
        save(image, out / png(number))
        text = make(number, boxes) if make else make_voc(boxes, name=png(number), **options)
        write(out / f"im{number:02}.xml", text)


# COCO


def make_annotation(number: int, image_id: int, category: int, box: Box) -> dict[str, Any]:
    x0, y0, x1, y1 = box.corners
    return {
        "id": number,
        "image_id": image_id,
        "category_id": category,
        "bbox": [*box.xywh],
        "area": (x1 - x0) * (y1 - y0),
        "iscrowd": 0,
        "segmentation": [[x0, y0, x1, y0, x1, y1, x0, y1]],
    }


def write_coco(
    out: Path,
    change: Callable[[dict[str, Any]], object] | None = None,
    count: int = 24,
    start: int = 0,
    categories: Sequence[dict[str, Any]] = CATEGORIES,
    name: Callable[[int], str] = png,
    file: str = "instances.json",
    images: str = "images",
) -> None:
    data: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
    ids = {category["name"]: category["id"] for category in categories}
    for number, image, boxes in iterate_scenes(count, start):
        save(image, out / images / png(number))
        entry = {"id": number + 1, "file_name": name(number), "width": WIDTH, "height": HEIGHT}
        data["images"].append(entry)
        for box in boxes:
            next_id = len(data["annotations"]) + 1
            one = make_annotation(next_id, number + 1, ids[box.label], box)
            data["annotations"].append(one)
    if change:
        change(data)
    write(out / file, json.dumps(data))


def change_annotations(change: Callable[[dict[str, Any]], object]) -> Callable[[dict], None]:
    def apply(data: dict[str, Any]) -> None:
        for annotation in data["annotations"]:
            change(annotation)

    return apply


# YOLO


def make_row(box: Box, width: int = WIDTH, height: int = HEIGHT) -> str:
    numbers = in_fractions(box.centre, width, height)
    return " ".join([str(NUMBERS[box.label]), *(f"{value:.6f}" for value in numbers)])


def make_rows(boxes: Boxes, width: int = WIDTH, height: int = HEIGHT) -> str:
    return "".join(f"{make_row(box, width, height)}\n" for box in boxes)


def make_data_yaml(**splits: str) -> str:
    lines = [f"{split}: {path}" for split, path in splits.items()]
    return "\n".join([*lines, "", "nc: 2", "names: ['cat', 'dog']", ""])


ROBOFLOW = make_data_yaml(train="../train/images", val="../valid/images", test="../test/images")
THREE = (("train", 20), ("valid", 6), ("test", 6))
TWO = (("train", 20), ("valid", 6))


def write_yolo(
    out: Path,
    change: Callable[[int, list[str], Boxes], list[str]] | None = None,
    folders: Sequence[tuple[str, int]] = THREE,
    data: str = ROBOFLOW,
    file: str = "data.yaml",
    images: str = "{}/images",
    labels: str = "{}/labels",
) -> None:
    start = 0
    for split, count in folders:
        for number, image, boxes in iterate_scenes(count, start):
            save(image, out / images.format(split) / png(number))
            rows = [make_row(box) for box in boxes]
            rows = change(number, rows, boxes) if change else rows
            write(out / labels.format(split) / f"im{number:02}.txt", "\n".join(rows) + "\n")
        start += count
    write(out / file, data)


# Tables and lines


def write_table(
    path: Path,
    header: Sequence[str] | None,
    rows: Iterable[Sequence[Any]],
    encoding: str = "utf-8",
    delimiter: str = ",",
    newline: str = "\n",
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline)
    writer.writerows(([header] if header else []) + [*rows])
    write(path, text.getvalue(), encoding)


def save_scenes(out: Path, folder: str = "images", count: int = 24) -> list[tuple[int, list[Box]]]:
    found = []
    for number, image, boxes in iterate_scenes(count):
        save(image, out / folder / png(number))
        found.append((number, boxes))
    return found


def make_box_rows(
    out: Path, make: Callable[[int, Box], Sequence[Any]], limit: int = 2
) -> list[Sequence[Any]]:
    """Saves pictures. Returns a row for each of the first boxes of each."""
    return [make(i, box) for i, boxes in save_scenes(out) for box in boxes[:limit]]


def save_labelled(out: Path, count: int = 30, folder: str = "images") -> list[tuple[str, str]]:
    """Saves pictures of cats and dogs. Returns file names and classes, with umlauts."""
    rows = []
    for number in range(count):
        label, name = ("cat", "Kätzchen") if number % 2 else ("dog", "Hündchen")
        save(draw_blob(number, label), out / folder / f"p{number:02}.jpg")
        rows.append((f"p{number:02}.jpg", name))
    return rows


# Class folders


def write_classes(
    out: Path, count: int = 15, labels: Sequence[str] = ("cat", "dog"), suffix: str = "jpg",
    start: int = 0,
) -> None:  # fmt: skip
    for label in labels:
        for number in range(start, start + count):
            image = draw_blob(number + (50 if label == "dog" else 0), label)
            save(image, out / label / f"p{number:02}.{suffix}")


# TFRecord and Parquet


def _make_varint(number: int) -> bytes:
    result = b""
    while number > 127:
        result += bytes([number & 127 | 128])
        number >>= 7
    return result + bytes([number])


def _make_field(number: int, data: bytes) -> bytes:
    return _make_varint(number << 3 | 2) + _make_varint(len(data)) + data


def _make_feature(values: Sequence[bytes] | Sequence[float]) -> bytes:
    if isinstance(values[0], bytes):
        return _make_field(1, b"".join(_make_field(1, value) for value in values))
    if isinstance(values[0], float):
        packed = b"".join(struct.pack("<f", value) for value in values)
        return _make_field(2, _make_field(1, packed))
    return _make_field(3, _make_field(1, b"".join(map(_make_varint, values))))


def make_example(features: dict[str, Sequence[Any]]) -> bytes:
    """A tf.train.Example, without TensorFlow."""
    entries = (
        _make_field(1, _make_field(1, name.encode()) + _make_field(2, _make_feature(values)))
        for name, values in features.items()
    )
    return _make_field(1, b"".join(entries))


def make_od_example(
    image: Image.Image,
    boxes: Boxes,
    name: str,
    labels: Sequence[int] = (),
    with_text: bool = True,
    encoded: bytes = b"",
) -> bytes:
    """A record as the TensorFlow Object Detection API has it. `encoded` is the file of `image`."""
    sides = {"x": image.width, "y": image.height}
    features: dict[str, Sequence[Any]] = {
        "image/height": [image.height],
        "image/width": [image.width],
        "image/filename": [name.encode()],
        "image/source_id": [name.encode()],
        "image/encoded": [encoded or encode_png(image)],
        "image/format": [b"jpeg" if encoded.startswith(b"\xff\xd8") else b"png"],
        "image/object/class/label": labels or [NUMBERS[box.label] + 1 for box in boxes],
    }
    for axis, side in sides.items():
        for end, suffix in (("min", "0"), ("max", "1")):
            values = [float(getattr(box, axis + suffix)) / side for box in boxes]
            features[f"image/object/bbox/{axis}{end}"] = values
    if with_text:
        features["image/object/class/text"] = [box.label.encode() for box in boxes]
    return make_example(features)


def write_records(path: Path, examples: Iterable[bytes]) -> None:
    write(path, b"".join(part for data in examples for part in frame_record(data)))


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def make_parquet_row(image: Image.Image, name: str, boxes: Iterable[Any], labels: Iterable[Any]):
    return {
        "image": {"bytes": encode_png(image), "path": name},
        "objects": {"bbox": [[*box] for box in boxes], "category": [*labels]},
    }


# CVAT and Label Studio


def make_cvat_image(number: int, name: str, size: tuple[int, int], boxes: Boxes) -> str:
    shapes = "".join(
        f'<box label="{box.label}" occluded="0" xtl="{box.x0}" ytl="{box.y0}" xbr="{box.x1}" '
        f'ybr="{box.y1}" z_order="0"/>'
        for box in boxes
    )
    width, height = size
    place = f'id="{number}" name="{name}" width="{width}" height="{height}"'
    return f"<image {place}>{shapes}</image>"


def write_cvat(out: Path, orientation: int, width: int, height: int) -> None:
    """Turned pictures. CVAT shows them upright, and its sizes and boxes are of what it shows."""
    text = ""
    for number, image, boxes in iterate_scenes(width=width, height=height):
        name = f"im{number:02}.jpg"
        save_turned(image, out / "images" / name, orientation)
        text += make_cvat_image(number, name, (width, height), boxes)
    write(out / "annotations.xml", f"<annotations><version>1.1</version>{text}</annotations>")


def make_task(number: int, reference: str, size: tuple[int, int], boxes: Boxes) -> dict[str, Any]:
    """A task of Label Studio with one annotation."""
    width, height = size
    results = []
    for index, box in enumerate(boxes):
        x, y, w, h = (100 * value for value in in_fractions(box.xywh, width, height))
        value = {"x": x, "y": y, "width": w, "height": h, "rotation": 0}
        results.append(
            {
                "id": f"r{index}",
                "type": "rectanglelabels",
                "from_name": "label",
                "to_name": "image",
                "image_rotation": 0,
                "original_width": width,
                "original_height": height,
                "value": {**value, "rectanglelabels": [box.label]},
            }
        )
    annotation = {"id": number, "created_at": "2026-01-01", "was_cancelled": False}
    return {
        "id": number,
        "data": {"image": reference},
        "annotations": [{**annotation, "result": results}],
        "predictions": [],
    }


def write_label_studio(
    out: Path, orientation: int, width: int = WIDTH, height: int = HEIGHT, folder: str = "."
) -> None:
    tasks = []
    for number, image, boxes in iterate_scenes(width=width, height=height):
        save_turned(image, out / folder / f"im{number:02}.jpg", orientation)
        reference = f"/data/upload/1/cb0618f6-im{number:02}.jpg"
        tasks.append(make_task(number, reference, (width, height), boxes))
    write(out / "project-1.json", json.dumps(tasks))
