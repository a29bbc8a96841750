"""Random small data sets as tools may write them, with boxes and classes that the pixels show.

A `Combination` is a format, habits of its writer, EXIF, splits and an encoding of text. What the
product makes of it without an error must be right: `find_faults`.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image
from reports.drawing import (
    Box,
    draw_blob,
    draw_scene,
    encode_png,
    in_fractions,
    make_exif,
    paint,
    save,
    store_turned,
    write,
)
from reports.formats import (
    LABEL_MAP,
    NUMBERS,
    make_annotation,
    make_bndbox,
    make_cvat_image,
    make_od_example,
    make_parquet_row,
    make_rows,
    make_task,
    make_voc,
    write_records,
    write_rows,
)
from reports.reading import Result

WIDTH, HEIGHT = 64, 48
SPLITS = ("train", "validation", "test")
COUNTS = (8, 4, 4)
TURNED = (3, 6, 8)


@dataclass(frozen=True)
class Combination:
    """How one data set is written.

    `exif` are orientations that the pictures have by turns, and `drawn` says on which of the two
    pictures, "upright" or "stored", boxes were drawn. `layout` are folders of the three splits, or
    empty, and `outer` is a folder around them.
    """

    seed: int
    format: str
    exif: tuple[int, ...]
    drawn: str
    has_sizes: bool
    names: str
    reference: str
    layout: tuple[str, ...]
    outer: str
    text: str
    habits: frozenset[str]
    columns: tuple[str, ...]

    @property
    def is_classification(self) -> bool:
        return self.format in ("image_folder", "csv_labels")


@dataclass(frozen=True)
class Picture:
    """A picture as a file, and its boxes on the picture that the tool showed.

    `key` is its path below the folder, and `reference` this path as the tool writes it.
    """

    number: int
    split: str
    key: str
    reference: str
    image: Image.Image
    orientation: int
    boxes: tuple[Box, ...]
    size: tuple[int, int]

    @property
    def stem(self) -> str:
        return self.key.rpartition("/")[2].rpartition(".")[0]

    @property
    def label(self) -> str:
        return self.boxes[0].label


FORMATS = [
    "voc",
    "coco",
    "yolo",
    "yolo_flat",
    "csv",
    "csv",
    "csv_labels",
    "jsonl",
    "metadata",
    "cvat",
    "label_studio",
    "image_folder",
    "parquet",
    "tfrecord",
    "webdataset",
    "labelme",
]
NAMES = {
    "plain": "im{}",
    "blanks": "my shot {} (1)",
    "nfc": unicodedata.normalize("NFC", "Über {}"),
    "nfd": unicodedata.normalize("NFD", "Über {}"),
    "percent": "a%20b.c#{}",
    "capital": "IMG_{}",
}
REFERENCES: dict[str, Callable[[str], str]] = {
    "key": lambda key: key,
    "dot": lambda key: f"./{key}",
    "backslash": lambda key: key.replace("/", "\\"),
    "windows": lambda key: "C:\\Users\\anna\\set\\" + key.replace("/", "\\"),
    "unix": lambda key: f"/home/anna/set/{key}",
    "name": lambda key: key.rpartition("/")[2],
    "case": str.upper,
    "nfc": lambda key: unicodedata.normalize("NFC", key),
    "nfd": lambda key: unicodedata.normalize("NFD", key),
    "blanks": lambda key: f" {key} ",
}
LAYOUTS = (
    ("train", "val", "test"),
    ("Train", "Valid", "Test"),
    ("training", "validation", "testing"),
    ("train2017", "val2017", "test2017"),
    ("training_set", "validation_set", "test_set"),
    ("pets_train", "pets_val", "pets_test"),
    ("train", "dev", "test"),
    ("train", "eval", "holdout"),
)
TEXTS = ("utf-8", "utf-8", "utf-8-sig", "crlf", "utf-16")
HABITS = {
    "voc": "flag_text flag_bool verified several twice polygon beyond floats no_flags numbers",
    "coco": "flag_null flag_bool ids_text twice polygon rle beyond numbers floats",
    "yolo": "twice polygon beyond float_class tabs",
    "yolo_flat": "twice polygon beyond float_class tabs",
    "csv": "twice beyond semicolon tab more_columns blanks numbers no_header",
    "csv_labels": "semicolon tab more_columns blanks numbers two_labels",
    "jsonl": "twice beyond flag_bool numbers",
    "metadata": "twice beyond numbers",
    "cvat": "twice polygon beyond",
    "label_studio": "twice polygon beyond upload",
    "image_folder": "hidden_files jfif",
    "parquet": "twice beyond numbers",
    "tfrecord": "twice beyond",
    "webdataset": "twice beyond numbers",
    "labelme": "twice polygon beyond corners_swapped",
}
ONLY_UPRIGHT = ("yolo", "yolo_flat", "cvat", "label_studio", "labelme")
ONLY_STORED = ("tfrecord",)
PATHS = ("path", "filename", "image", "file_name", "image_path", "img")
LABELS = ("label", "class", "category", "name", "class_name")
COORDINATES = {
    "xmin ymin xmax ymax": "corners",
    "x1 y1 x2 y2": "corners",
    "x_min y_min x_max y_max": "corners",
    "left top right bottom": "corners",
    "x y width height": "xywh",
    "x y w h": "xywh",
    "bbox_x bbox_y bbox_width bbox_height": "xywh",
    "x_center y_center width height": "centre",
    "cx cy w h": "centre",
    "bbox": "xywh",
}


def make_combination(seed: int) -> Combination:
    rng = random.Random(seed)
    format_ = rng.choice(FORMATS)
    habits = HABITS[format_].split()
    drawn = rng.choice(("upright", "stored"))
    drawn = "upright" if format_ in ONLY_UPRIGHT else drawn
    drawn = "stored" if format_ in ONLY_STORED else drawn
    turned = rng.choice(TURNED)
    has_splits = rng.random() < 0.4
    return Combination(
        seed=seed,
        format=format_,
        exif=rng.choice(((1,), (1,), (1,), (turned,), (1, turned), TURNED)),
        drawn=drawn,
        has_sizes=rng.random() < 0.7,
        names=rng.choice([*NAMES]),
        reference=rng.choice(["key", "key", *REFERENCES]),
        layout=rng.choice(LAYOUTS) if has_splits else (),
        outer=rng.choice(("", "", "archive")),
        text=rng.choice(TEXTS),
        habits=frozenset(rng.sample(habits, rng.choice((0, 1, 1, 2, 3)) % (len(habits) + 1))),
        columns=(rng.choice(PATHS), rng.choice(LABELS), rng.choice([*COORDINATES]))
        + (rng.choice(("pixels", "pixels", "fractions")),),
    )


# Pictures


def turn_box(box: Box, orientation: int, width: int, height: int) -> Box:
    """A box on the upright picture of this size, on the stored one."""
    label, x0, y0, x1, y1 = box
    if orientation == 3:
        return Box(label, width - x1, height - y1, width - x0, height - y0)
    if orientation == 6:
        return Box(label, y0, width - x1, y1, width - x0)
    if orientation == 8:
        return Box(label, height - y1, x0, height - y0, x1)
    return box


def draw_picture(combination: Combination, number: int) -> tuple[Image.Image, tuple[Box, ...]]:
    """The upright picture with its boxes. One may leave the picture by 5 % of its width."""
    if combination.is_classification:
        label = "cat" if number % 2 else "dog"
        return draw_blob(combination.seed + number, label, HEIGHT), (Box(label, 0, 0, 1, 1),)
    image, boxes = draw_scene(combination.seed + number, WIDTH, HEIGHT)
    if "several" in combination.habits or "beyond" in combination.habits:
        cat, dog = boxes
        image = Image.new("RGB", (WIDTH, HEIGHT), (90, 90 + number, 90))
        far = 3 if "beyond" in combination.habits and number % 3 == 0 else 0
        cat = Box("cat", 3, 4 + number % 5, 19 + number % 4, 20 + number % 3)
        more = Box("cat", 4, 30, 18 + number % 6, 44)
        dog = Box("dog", 40 - number % 3, 6, WIDTH + far, 24 + number % 7)
        boxes = [cat, dog, more]
        for box in boxes:
            image = paint(image, box)
    return image, tuple(boxes)


def find_folder(combination: Combination, split: str, label: str) -> str:
    """The folder of a picture in each format, below `outer`."""
    folder = combination.layout[SPLITS.index(split)] if combination.layout else ""
    inner = {"image_folder": label, "yolo": "images"}.get(combination.format, "")
    if not folder and combination.format in ("csv", "csv_labels", "coco", "cvat"):
        inner = "images"
    parts = (combination.outer, folder, inner)
    return "/".join(part for part in parts if part)


def make_pictures(combination: Combination) -> list[Picture]:
    pictures, number = [], 0
    for split, count in zip(SPLITS, COUNTS, strict=True):
        for _ in range(count):
            image, boxes = draw_picture(combination, number)
            orientation = combination.exif[number % len(combination.exif)]
            stored = store_turned(image, orientation)
            size = image.size
            if combination.drawn == "stored":
                boxes = tuple(turn_box(box, orientation, *image.size) for box in boxes)
                size = stored.size
            suffix = ".jpg" if orientation != 1 or number % 2 else ".png"
            suffix = ".JPG" if combination.names == "capital" and suffix == ".jpg" else suffix
            if "jfif" in combination.habits and suffix == ".jpg":
                suffix = ".jfif"
            name = NAMES[combination.names].format(number) + suffix
            folder = find_folder(combination, split, boxes[0].label)
            key = f"{folder}/{name}".lstrip("/")
            below_outer = key.removeprefix(f"{combination.outer}/")
            pictures.append(
                Picture(
                    number,
                    split,
                    key,
                    REFERENCES[combination.reference](below_outer),
                    stored,
                    orientation,
                    boxes,
                    size,
                )
            )
            number += 1
    return pictures


def save_pictures(out: Path, pictures: Sequence[Picture]) -> None:
    for each in pictures:
        path = out / each.key
        if path.suffix == ".png":
            save(each.image, path)
        else:
            save(each.image, path, format="JPEG", exif=make_exif(each.orientation))


# Text and boxes as the writer has them


def encode(text: str, combination: Combination) -> bytes:
    if combination.text == "crlf":
        return text.replace("\n", "\r\n").encode()
    return text.encode(combination.text)


def name_class(label: str, combination: Combination) -> str:
    return str(NUMBERS[label]) if "numbers" in combination.habits else label


def list_boxes(picture: Picture, combination: Combination) -> list[Box]:
    boxes = [box._replace(label=name_class(box.label, combination)) for box in picture.boxes]
    if "twice" in combination.habits and picture.number % 2:
        boxes += boxes[:1]
    if "floats" in combination.habits:
        boxes = [Box(box.label, *map(float, box.corners)) for box in boxes]
    return boxes


def write_voc(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    habits = combination.habits
    flags = ["<difficult>0</difficult>"]
    flags = ["<difficult>Unspecified</difficult>"] if "flag_text" in habits else flags
    flags = ["<difficult>False</difficult>"] if "flag_bool" in habits else flags
    flags = [""] if "no_flags" in habits else flags
    root = '<annotation verified="yes">' if "verified" in habits else "<annotation>"
    head = '<?xml version="1.0" encoding="utf-16"?>\n' if combination.text == "utf-16" else ""
    for each in pictures:
        boxes = list_boxes(each, combination)
        shape = make_polygon if "polygon" in habits else make_bndbox
        more = ""
        if "several" in habits:
            first, second = (box for box in each.boxes if box.label == "cat")
            boxes = [box for box in boxes if box.corners != second.corners]
            more = shape(second)
        size = each.size if combination.has_sizes else (0, 0)
        name = each.key.rpartition("/")[2]
        text = make_voc(boxes, size, name, root, head, flags[0], shape)
        text = text.replace("</object>", f"{more}</object>", 1)
        write(out / f"{each.key.rpartition('.')[0]}.xml", encode(text, combination))


def make_polygon(box: Box) -> str:
    x0, y0, x1, y1 = box.corners
    points = enumerate(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), 1)
    return (
        f"<polygon>{''.join(f'<x{i}>{x}</x{i}><y{i}>{y}</y{i}>' for i, (x, y) in points)}</polygon>"
    )


def write_by_split(
    out: Path,
    combination: Combination,
    pictures: Sequence[Picture],
    make: Callable[[Sequence[Picture]], str],
    name: str,
) -> None:
    """One file of annotations, or one for each split, beside its pictures."""
    base = out / combination.outer
    if not combination.layout:
        write(base / name, encode(make(pictures), combination))
        return
    for split, folder in zip(SPLITS, combination.layout, strict=True):
        part = [each for each in pictures if each.split == split]
        write(base / folder / name, encode(make(part), combination))


def make_coco_text(combination: Combination, pictures: Sequence[Picture]) -> str:
    habits = combination.habits
    labels = {"cat": 1, "dog": 2}
    as_id = str if "ids_text" in habits else int
    names = {label: NUMBERS[label] if "numbers" in habits else label for label in labels}
    data: dict[str, Any] = {"images": [], "annotations": []}
    data["categories"] = [{"id": labels[label], "name": names[label]} for label in labels]
    for each in pictures:
        entry: dict[str, Any] = {"id": as_id(each.number + 1), "file_name": each.reference}
        if combination.has_sizes:
            entry["width"], entry["height"] = each.size
        data["images"].append(entry)
        plain = list_boxes(each, combination)
        for box, original in zip(plain, [*each.boxes, each.boxes[0]], strict=False):
            number = len(data["annotations"]) + 1
            one = make_annotation(number, each.number + 1, labels[original.label], box)
            one["category_id"] = as_id(one["category_id"])
            if "flag_null" in habits:
                one["iscrowd"] = None
            elif "flag_bool" in habits:
                one["iscrowd"] = False
            if "polygon" in habits:
                del one["bbox"]
            elif "rle" in habits and combination.has_sizes:
                one["segmentation"] = make_rle(original, each.size)
                del one["bbox"]
            data["annotations"].append(one)
    return json.dumps(data, ensure_ascii=combination.seed % 2 == 0)


def make_rle(box: Box, size: tuple[int, int]) -> dict[str, Any]:
    """The mask of a box as run lengths, column by column, which begin with zeros."""
    width, height = size
    x0, y0, x1, y1 = (int(value) for value in box.corners)
    x1, y1 = min(x1, width), min(y1, height)
    x0, y0 = max(x0, 0), max(y0, 0)
    counts, zeros = [], x0 * height + y0
    for _ in range(x1 - x0):
        counts += [zeros, y1 - y0]
        zeros = height - (y1 - y0)
    counts.append(width * height - sum(counts))
    return {"counts": counts, "size": [height, width]}


def make_label_file(combination: Combination, picture: Picture) -> str:
    habits = combination.habits
    boxes = [*picture.boxes]
    if "twice" in habits and picture.number % 2:
        boxes += boxes[:1]
    rows = make_rows(boxes, *picture.size).splitlines()
    if "polygon" in habits:
        rows = [make_polygon_row(box, picture.size) for box in boxes]
    if "float_class" in habits:
        rows = [f"{row[0]}.0{row[1:]}" for row in rows]
    if "tabs" in habits:
        rows = [row.replace(" ", "\t") for row in rows]
    return "".join(f"{row}\n" for row in rows)


def make_polygon_row(box: Box, size: tuple[int, int]) -> str:
    x0, y0, x1, y1 = in_fractions(box.corners, *size)
    points = (x0, y0, x1, y0, x1, y1, x0, y1)
    return " ".join([str(NUMBERS[box.label]), *(f"{value:.6f}" for value in points)])


def write_yolo(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    base = out / combination.outer
    for each in pictures:
        stem = each.key.rpartition(".")[0]
        place = "/".join("labels" if part == "images" else part for part in stem.split("/"))
        write(out / f"{place}.txt", encode(make_label_file(combination, each), combination))
    names = "nc: 2\nnames: [cat, dog]\n"
    if combination.layout:
        keys = zip(("train", "val", "test"), combination.layout, strict=True)
        lines = "".join(f"{key}: {folder}/images\n" for key, folder in keys)
    else:
        lines = "train: images\nval:\n"
    write(base / "data.yaml", encode(lines + names, combination))


def write_yolo_flat(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    for each in pictures:
        text = make_label_file(combination, each)
        write(out / f"{each.key.rpartition('.')[0]}.txt", encode(text, combination))
    write(out / combination.outer / "classes.txt", encode("cat\ndog\n", combination))


def make_table(
    combination: Combination, header: Sequence[str], rows: Sequence[Sequence[Any]]
) -> str:
    habits = combination.habits
    delimiter = ";" if "semicolon" in habits else "\t" if "tab" in habits else ","
    if "blanks" in habits:
        delimiter += " "
    lines = [header, *rows][1 if "no_header" in habits else 0 :]

    def protect(value: Any) -> str:
        text = str(value)
        return f'"{text}"' if "," in text or ";" in text else text

    return "".join(delimiter.join(map(protect, line)) + "\n" for line in lines)


def find_numbers(box: Box, kind: str, size: tuple[int, int], units: str) -> list[float]:
    numbers = {"corners": box.corners, "xywh": box.xywh, "centre": box.centre}[kind]
    return in_fractions(numbers, *size) if units == "fractions" else [*numbers]


def make_csv_text(combination: Combination, pictures: Sequence[Picture]) -> str:
    path, label, names, units = combination.columns
    kind, rows = COORDINATES[names], []
    more = "more_columns" in combination.habits
    for each in pictures:
        for box in list_boxes(each, combination):
            numbers: list[Any] = find_numbers(box, kind, each.size, units)
            numbers = [str(numbers)] if names == "bbox" else numbers
            sizes = [*each.size] if combination.has_sizes else []
            extra = ["rater 1", each.number] if more else []
            rows.append([each.reference, *numbers, *sizes, box.label, *extra])
    sizes = ["image_width", "image_height"] if combination.has_sizes else []
    extra = ["annotator", "row"] if more else []
    return make_table(combination, [path, *names.split(), *sizes, label, *extra], rows)


def make_labels_text(combination: Combination, pictures: Sequence[Picture]) -> str:
    path, label, *_ = combination.columns
    more = "more_columns" in combination.habits
    two = "two_labels" in combination.habits
    header = [path, *(["group"] if two else []), label, *(["y", "width"] if more else [])]
    rows = []
    for each in pictures:
        coarse = ["indoor" if each.number % 3 else "outdoor"] if two else []
        extra = [each.number % 7, WIDTH] if more else []
        rows.append([each.reference, *coarse, name_class(each.label, combination), *extra])
    return make_table(combination, header, rows)


def make_lines_text(combination: Combination, pictures: Sequence[Picture]) -> str:
    lines = []
    for each in pictures:
        keys = ("xmin", "ymin", "xmax", "ymax")
        flag = {"is_difficult": False} if "flag_bool" in combination.habits else {}
        boxes = [
            {**dict(zip(keys, box.corners, strict=True)), "label": box.label, **flag}
            for box in list_boxes(each, combination)
        ]
        width, height = each.size
        sizes = {"width": width, "height": height} if combination.has_sizes else {}
        lines.append(json.dumps({"path": each.reference, "boxes": boxes, **sizes}))
    return "".join(f"{line}\n" for line in lines)


def make_metadata_text(combination: Combination, pictures: Sequence[Picture]) -> str:
    """Hugging Face's ImageFolder."""
    lines = []
    for each in pictures:
        boxes = list_boxes(each, combination)
        objects = {"bbox": [box.xywh for box in boxes], "categories": [b.label for b in boxes]}
        name = each.key.rpartition("/")[2]
        lines.append(json.dumps({"file_name": name, "objects": objects}))
    return "\n".join(lines)


def write_cvat(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    text = ""
    for each in pictures:
        boxes = list_boxes(each, combination)
        one = make_cvat_image(each.number, each.reference, each.size, boxes)
        if "polygon" in combination.habits:
            shapes = "".join(
                f'<polygon label="{b.label}" points="{b.x0},{b.y0};{b.x1},{b.y0};{b.x1},{b.y1}"/>'
                for b in boxes
            )
            one = f"{one.partition('>')[0]}>{shapes}</image>"
        text += one
    head = '<?xml version="1.0" encoding="utf-16"?>\n' if combination.text == "utf-16" else ""
    text = f"{head}<annotations><version>1.1</version>{text}</annotations>"
    write(out / combination.outer / "annotations.xml", encode(text, combination))


def write_label_studio(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    tasks = []
    for each in pictures:
        key = each.key.removeprefix(f"{combination.outer}/")
        reference = f"/data/local-files/?d={quote(key)}"
        if "upload" in combination.habits:
            reference = f"/data/upload/1/cb0618f6-{quote(key.rpartition('/')[2])}"
        task = make_task(each.number, reference, each.size, list_boxes(each, combination))
        if "polygon" in combination.habits:
            change_to_polygons(task)
        tasks.append(task)
    write(out / combination.outer / "export.json", encode(json.dumps(tasks), combination))


def change_to_polygons(task: dict[str, Any]) -> None:
    for result in task["annotations"][0]["result"]:
        value = result["value"]
        x, y, w, h = (value.pop(key) for key in ("x", "y", "width", "height"))
        value["points"] = [[x, y], [x + w, y], [x + w, y + h], [x, y + h]]
        value["polygonlabels"] = value.pop("rectanglelabels")
        result["type"] = "polygonlabels"


def write_labelme(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    for each in pictures:
        shapes = []
        for box in list_boxes(each, combination):
            x0, y0, x1, y1 = box.corners
            points = [[x0, y0], [x1, y1]]
            kind = "rectangle"
            if "polygon" in combination.habits:
                points, kind = [[x0, y0], [x1, y0], [x1, y1], [x0, y1]], "polygon"
            elif "corners_swapped" in combination.habits:
                points.reverse()
            shapes.append({"label": box.label, "points": points, "shape_type": kind, "flags": {}})
        width, height = each.size
        data = {"version": "5.3.1", "shapes": shapes, "imagePath": each.key.rpartition("/")[2]}
        data = {**data, "imageData": None, "imageHeight": height, "imageWidth": width}
        path = out / f"{each.key.rpartition('.')[0]}.json"
        write(path, encode(json.dumps(data), combination))


def group_splits(
    combination: Combination, pictures: Sequence[Picture]
) -> dict[str, Sequence[Picture]]:
    """The pictures by the name of their split, or all under `data`."""
    if not combination.layout:
        return {"data": pictures}
    names = zip(SPLITS, combination.layout, strict=True)
    return {name: [each for each in pictures if each.split == split] for split, name in names}


def encode_picture(picture: Picture) -> bytes:
    if picture.orientation == 1:
        return encode_png(picture.image)
    buffer = io.BytesIO()
    exif = make_exif(picture.orientation)
    picture.image.save(buffer, "JPEG", quality=95, subsampling=0, exif=exif)
    return buffer.getvalue()


def write_parquet(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    _, _, names, units = combination.columns
    for name, part in group_splits(combination, pictures).items():
        rows = []
        for each in part:
            boxes = list_boxes(each, combination)
            numbers = (
                map(float, find_numbers(box, COORDINATES[names], each.size, units)) for box in boxes
            )
            row = make_parquet_row(each.image, each.key, numbers, [box.label for box in boxes])
            row["image"]["bytes"] = encode_picture(each)
            if combination.has_sizes:
                row["width"], row["height"] = each.size
            rows.append(row)
        write_rows(out / combination.outer / f"{name}-00000-of-00001.parquet", rows)


def write_tfrecord(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    for name, part in group_splits(combination, pictures).items():
        examples = []
        for each in part:
            boxes = list_boxes(each, combination)
            encoded = encode_picture(each)
            examples.append(make_od_example(each.image, boxes, each.key, encoded=encoded))
        write_records(out / combination.outer / f"{name}.record", examples)
    write(out / combination.outer / "label_map.pbtxt", LABEL_MAP)


def write_webdataset(out: Path, combination: Combination, pictures: Sequence[Picture]) -> None:
    for name, part in group_splits(combination, pictures).items():
        path = out / combination.outer / f"{name}-000000.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for each in part:
                keys = ("xmin", "ymin", "xmax", "ymax")
                boxes = [
                    {**dict(zip(keys, box.corners, strict=True)), "label": box.label}
                    for box in list_boxes(each, combination)
                ]
                width, height = each.size
                sizes = {"width": width, "height": height} if combination.has_sizes else {}
                text = json.dumps({"boxes": boxes, **sizes}).encode()
                suffix = "png" if each.orientation == 1 else "jpg"
                members = {suffix: encode_picture(each), "json": text}
                for end, content in members.items():
                    info = tarfile.TarInfo(f"{each.number:06}.{end}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


TEXT_MAKERS: dict[str, tuple[Callable[[Combination, Sequence[Picture]], str], str]] = {
    "coco": (make_coco_text, "annotations.json"),
    "csv": (make_csv_text, "boxes.csv"),
    "csv_labels": (make_labels_text, "labels.csv"),
    "jsonl": (make_lines_text, "boxes.jsonl"),
    "metadata": (make_metadata_text, "metadata.jsonl"),
}
WRITERS: dict[str, Callable[[Path, Combination, Sequence[Picture]], None]] = {
    "voc": write_voc,
    "yolo": write_yolo,
    "yolo_flat": write_yolo_flat,
    "cvat": write_cvat,
    "label_studio": write_label_studio,
    "labelme": write_labelme,
    "parquet": write_parquet,
    "tfrecord": write_tfrecord,
    "webdataset": write_webdataset,
}
MERGED = "merged from the folders"
"""So `init` says that folders of splits have become none."""
PACKED = ("parquet", "tfrecord", "webdataset")


def write_combination(out: Path, combination: Combination) -> list[Picture]:
    pictures = make_pictures(combination)
    if combination.format not in PACKED:
        save_pictures(out, pictures)
    if combination.format in WRITERS:
        WRITERS[combination.format](out, combination, pictures)
    elif combination.format in TEXT_MAKERS:
        make, name = TEXT_MAKERS[combination.format]
        write_by_split(out, combination, pictures, lambda part: make(combination, part), name)
    if "hidden_files" in combination.habits:
        for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
            write(out / combination.outer / name, b"\0\5\x16\7" + b"\0" * 80)
    return pictures


def find_faults(combination: Combination, pictures: Sequence[Picture], result: Result) -> list[str]:
    """What is wrong in what the product accepted. An error is no fault."""
    if result.error:
        return []
    found, faults = result.findings, []
    faults += [f"{count} {what}" for what, count in found.wrong.items()]
    if found.missed:
        faults.append(f"{found.missed} objects without a box")
    if found.doubled:
        faults.append(f"{found.doubled} boxes twice")
    lost = len(pictures) - found.splits.total() - found.num_rejected_images
    if lost > 0:
        faults.append(f"{lost} images lost without a reject")
    says_splits = combination.format not in ("cvat", "label_studio")
    if combination.layout and says_splits and not found.rejected and MERGED not in result.output:
        expected = Counter(each.split for each in pictures)
        if found.splits != expected:
            faults.append(f"splits {dict(found.splits)} instead of {dict(expected)}")
    return faults
