"""Inputs of the same kinds as those of public reports that no report has.

The number in a name is that of the kind:

1. a guess that nothing checks, 2. the format of boxes, 3. pictures that EXIF turns, 4. crowds,
5. repeated annotations, 6. images with very many boxes, 7. boxes that leave their image, 8. names
of splits, 9. what `init` recognises and the reader reads, 10. values as tools write them, 11. many
classes of few images, 12. formats, 13. messages, 14. images without boxes, 15. similar names.
"""

from __future__ import annotations

import json
import tarfile
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from reports.drawing import (
    HEIGHT,
    PAINTS,
    WIDTH,
    Box,
    draw_blob,
    in_fractions,
    iterate_scenes,
    make_exif,
    paint,
    save,
    save_turned,
    write,
)
from reports.formats import (
    SIZE,
    TWO,
    change_annotations,
    make_box_rows,
    make_cvat_image,
    make_data_yaml,
    make_parquet_row,
    make_rows,
    make_voc,
    png,
    save_labelled,
    write_classes,
    write_coco,
    write_rows,
    write_table,
    write_voc,
    write_yolo,
)

CASES: dict[str, Callable[[Path], None]] = {}


def case(function: Callable[[Path], None]) -> Callable[[Path], None]:
    CASES[function.__name__] = function
    return function


def _write_blobs(out: Path, count: int = 30) -> list[tuple[str, str]]:
    """Saves pictures of cats and dogs by turns. Returns their file names and classes."""
    rows = []
    for number in range(count):
        label = "cat" if number % 2 else "dog"
        save(draw_blob(number, label), out / "images" / f"p{number:02}.jpg")
        rows.append((f"p{number:02}.jpg", label))
    return rows


# 1. A guess that nothing checks


@case
def k01_species(out):
    """Boxes of x, y, w, h, and a class called species."""
    rows = make_box_rows(out, lambda i, box: (png(i), *box.xywh, box.label))
    write_table(out / "boxes.csv", ("image", "x", "y", "w", "h", "species"), rows)


@case
def k01_left_top(out):
    """Corners called left, top, right, bottom."""
    rows = make_box_rows(out, lambda i, box: (png(i), box.label, *box.corners))
    write_table(out / "t.csv", ("file", "class", "left", "top", "right", "bottom"), rows)


@case
def k01_own_names(out):
    """The column name has the name of each animal, and label its class."""
    rows = [(file, f"pet {file[1:3]}", label) for file, label in _write_blobs(out)]
    write_table(out / "pets.csv", ("file_name", "name", "label"), rows)


@case
def k01_age_first(out):
    """A column of numbers before that of the class."""
    rows = [(file, 3 + int(file[1:3]) % 5, label) for file, label in _write_blobs(out)]
    write_table(out / "pets.csv", ("image", "target_age", "label"), rows)


# 2. The format of boxes


def _write_parquet(out: Path, make: Callable[[Box], Sequence[float]]) -> None:
    rows = [
        make_parquet_row(
            image, png(i), (map(float, make(box)) for box in boxes), [b.label for b in boxes]
        )
        for i, image, boxes in iterate_scenes(40)
    ]
    write_rows(out / "data" / "train-00000-of-00001.parquet", rows)


@case
def k02_centre_pixels(out):
    _write_parquet(out, lambda box: box.centre)


@case
def k02_corners(out):
    _write_parquet(out, lambda box: box.corners)


@case
def k02_xywh_fractions(out):
    _write_parquet(out, lambda box: in_fractions(box.xywh))


@case
def k02_centre_in_a_table(out):
    rows = make_box_rows(out, lambda i, box: (png(i), *in_fractions(box.centre), box.label))
    header = ("filename", "x_center", "y_center", "width", "height", "class")
    write_table(out / "boxes.csv", header, rows)


# 3. Pictures that EXIF turns


@case
def k03_coco_upside_down(out):
    """Both sizes are equal, and COCO's tools draw on either picture."""
    write_coco(out, name=lambda number: f"im{number:02}.jpg")
    for number, image, _ in iterate_scenes():
        save_turned(image, out / "images" / f"im{number:02}.jpg", 3)
        (out / "images" / png(number)).unlink()


@case
def k03_table_without_sizes(out):
    rows = []
    for number, image, boxes in iterate_scenes():
        save_turned(image, out / "images" / f"im{number:02}.jpg", 6)
        rows += [(f"im{number:02}.jpg", *box.corners, box.label) for box in boxes]
    write_table(out / "b.csv", ("path", "xmin", "ymin", "xmax", "ymax", "label"), rows)


@case
def k03_voc_stored(out):
    """Boxes and sizes of the stored picture, as TensorFlow's decoders show it."""
    for number, image, boxes in iterate_scenes():
        path = out / f"im{number:02}.jpg"
        save(image, path, exif=make_exif(8))
        write(path.with_suffix(".xml"), make_voc(boxes))


@case
def k03_cvat_mirrored(out):
    text = ""
    for number, image, boxes in iterate_scenes():
        save_turned(image, out / "images" / f"im{number:02}.jpg", 2)
        text += make_cvat_image(number, f"im{number:02}.jpg", SIZE, boxes)
    write(out / "annotations.xml", f"<annotations><version>1.1</version>{text}</annotations>")


# 4. Crowds


def _mark_crowds(is_crowd: Callable[[dict[str, Any]], bool]) -> Callable[[dict], None]:
    return change_annotations(lambda a: a.update(iscrowd=int(is_crowd(a))))


@case
def k04_a_class_of_crowds(out):
    write_coco(out, _mark_crowds(lambda annotation: annotation["category_id"] == 2))


@case
def k04_some_crowds(out):
    write_coco(out, _mark_crowds(lambda annotation: annotation["image_id"] % 4 == 0))


@case
def k04_crowds_as_text(out):
    write_coco(out, change_annotations(lambda annotation: annotation.update(iscrowd="1")))


# 5. Repeated annotations


@case
def k05_coco_twice(out):
    def change(data):
        more = [{**each, "id": each["id"] + 1000} for each in data["annotations"]]
        data["annotations"] += more

    write_coco(out, change)


@case
def k05_rows_twice(out):
    rows = make_box_rows(out, lambda i, box: (png(i), *box.corners, box.label))
    write_table(out / "b.csv", ("path", "xmin", "ymin", "xmax", "ymax", "label"), rows * 2)


@case
def k05_objects_twice(out):
    write_voc(out, lambda number, boxes: make_voc([*boxes, boxes[number % 2]]))


# 6. Images with very many boxes


def _draw_many(count: int, spacing: int = 8) -> tuple[Image.Image, list[Box]]:
    image, boxes, columns = Image.new("RGB", SIZE, (90, 90, 90)), [], WIDTH // spacing
    for index in range(count):
        x, y = index % columns * spacing, index // columns * spacing
        boxes.append(Box("cat", x, y, x + spacing - 2, y + spacing - 2))
        image.paste(PAINTS["cat"], boxes[-1].corners)
    return image, boxes


@case
def k06_yolo_150(out):
    write_yolo(out)
    image, boxes = _draw_many(150)
    save(image, out / "train" / "images" / "many.png")
    write(out / "train" / "labels" / "many.txt", make_rows(boxes))


@case
def k06_voc_101(out):
    write_voc(out)
    image, boxes = _draw_many(101)
    save(image, out / "many.png")
    write(out / "many.xml", make_voc(boxes))


@case
def k06_table_300(out):
    image, many = _draw_many(300, 6)
    rows = make_box_rows(out, lambda i, box: (png(i), *box.corners, box.label))
    save(image, out / "images" / "many.png")
    rows += [("many.png", *box.corners, box.label) for box in many]
    write_table(out / "b.csv", ("path", "xmin", "ymin", "xmax", "ymax", "label"), rows)


# 7. Boxes that leave their image


@case
def k07_voc_negative(out):
    for number, image, _ in iterate_scenes():
        box = Box("cat" if number % 2 else "dog", -4, 20, 30, 60)
        image = paint(Image.new("RGB", image.size, (90, 90, 90)), box)
        save(image, out / png(number))
        write(out / f"im{number:02}.xml", make_voc([box]))


@case
def k07_coco_below(out):
    """The last box of some images ends 5 pixels below the image."""
    write_coco(out)
    data = json.loads((out / "instances.json").read_text())
    for number, _, _ in iterate_scenes():
        box = Box("cat" if number % 2 else "dog", 30, 70, 60, HEIGHT + 5)
        image = paint(Image.new("RGB", SIZE, (90, 90, 90)), box)
        save(image, out / "images" / png(number))
        one = {"id": number, "image_id": number + 1, "category_id": 2 - number % 2}
        data["annotations"] += [{**one, "bbox": box.xywh}]
    data["annotations"] = [each for each in data["annotations"] if "area" not in each]
    write(out / "instances.json", json.dumps(data))


@case
def k07_table_far_outside(out):
    """One box leaves the image by almost a half of its width."""
    rows = make_box_rows(out, lambda i, box: (png(i), *box.corners, box.label))
    rows[3] = (*rows[3][:3], WIDTH + 60, *rows[3][4:])
    write_table(out / "b.csv", ("path", "xmin", "ymin", "xmax", "ymax", "label"), rows)


# 8. Names of splits


@case
def k08_dev(out):
    for name, count, start in (("train", 15, 0), ("dev", 6, 20), ("holdout", 6, 30)):
        write_classes(out / name, count, start=start)


@case
def k08_deep(out):
    for name, count, start in (("training", 15, 0), ("testing", 6, 20)):
        write_classes(out / "archive" / "pets" / name, count, start=start)


@case
def k08_voc_sets(out):
    """VOC in training_set and test_set."""
    for number, image, boxes in iterate_scenes():
        folder = out / ("training_set" if number < 16 else "test_set")
        save(image, folder / png(number))
        write(folder / f"im{number:02}.xml", make_voc(boxes))


@case
def k08_inside_of_classes(out):
    """cat/train, cat/test."""
    for label, more in (("cat", 0), ("dog", 50)):
        for number in range(21):
            folder = out / label / ("train" if number < 15 else "test")
            save(draw_blob(number + more, label), folder / f"p{number:02}.jpg")


# 9. What `init` recognises and the reader reads


@case
def k09_comment(out):
    """A comment before the root, and the root on lines of its own."""
    head = '<?xml version="1.0"?>\n<!-- <annotations> made by hand -->\n\n'
    write_voc(out, head=head, root="<annotation\n>")


@case
def k09_root_with_attributes(out):
    """CVAT's root on a second line, with an attribute."""
    text = ""
    for number, image, boxes in iterate_scenes():
        save(image, out / "images" / png(number))
        text += make_cvat_image(number, png(number), SIZE, boxes)
    head = '<?xml version="1.0" encoding="utf-8"?>\n<annotations\n  source="cvat">'
    write(out / "annotations.xml", f"{head}<version>1.1</version>{text}</annotations>")


@case
def k09_blanks_in_json(out):
    """COCO with a byte order mark, indented, and a blank before each colon."""
    write_coco(out)
    path = out / "instances.json"
    text = json.dumps(json.loads(path.read_text()), indent=4, separators=(",", " : "))
    write(path, text, "utf-8-sig")


@case
def k09_suffix_jpe(out):
    for label, more in (("cat", 0), ("dog", 50)):
        for number in range(15):
            image = draw_blob(number + more, label)
            save(image, out / label / f"p{number:02}.jpe", format="JPEG")


# 10. Values as tools write them


@case
def k10_ids_as_text(out):
    """Ids of images are numbers, and annotations name them as text."""
    write_coco(out, change_annotations(lambda a: a.update(image_id=str(a["image_id"]))))


@case
def k10_utf16_json(out):
    write_coco(out)
    path = out / "instances.json"
    write(path, path.read_text(), "utf-16")


@case
def k10_latin1_xml(out):
    head = '<?xml version="1.0" encoding="iso-8859-1"?>'
    names = {"cat": "Kätzchen", "dog": "Hündchen"}

    def make(number, boxes):
        boxes = [box._replace(label=names[box.label]) for box in boxes]
        return make_voc(boxes, head=head).encode("iso-8859-1")

    write_voc(out, make)


@case
def k10_case_of_paths(out):
    rows = make_box_rows(out, lambda i, box: (f"IMAGES/{png(i)}".upper(), *box.corners, box.label))
    write_table(out / "b.csv", ("path", "xmin", "ymin", "xmax", "ymax", "label"), rows)


# 11. Many classes of few images


def _write_species(out: Path, counts: Sequence[int]) -> None:
    number = 0
    for index, count in enumerate(counts):
        for image in range(count):
            save(draw_blob(number), out / f"species_{index:03}" / f"p{image:02}.png")
            number += 1


@case
def k11_forty_of_two(out):
    _write_species(out, [2] * 40)


@case
def k11_long_tail(out):
    _write_species(out, [30] * 5 + [2] * 10)


@case
def k11_table_of_hundred(out):
    rows = []
    for number in range(400):
        save(draw_blob(number), out / "images" / f"p{number:03}.png")
        rows.append((f"p{number:03}.png", f"species_{number % 100:03}"))
    write_table(out / "labels.csv", ("image", "label"), rows)


# 12. Formats


@case
def k12_darknet(out):
    """obj.names, obj.data, and train.txt with paths of another folder."""
    lines = []
    for number, image, boxes in iterate_scenes():
        save(image, out / "obj" / png(number))
        write(out / "obj" / f"im{number:02}.txt", make_rows(boxes))
        lines.append(f"data/obj/{png(number)}")
    write(out / "obj.names", "cat\ndog\n")
    write(out / "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n")
    write(out / "train.txt", "\n".join(lines))


@case
def k12_folders_and_classes(out):
    """Folders images and labels with classes.txt, as Label Studio exports YOLO."""
    for number, image, boxes in iterate_scenes():
        save(image, out / "images" / png(number))
        write(out / "labels" / f"im{number:02}.txt", make_rows(boxes))
    write(out / "classes.txt", "cat\ndog\n")


@case
def k12_labelme_polygons(out):
    for number, image, boxes in iterate_scenes():
        save(image, out / "images" / png(number))
        shapes = [
            {
                "label": box.label,
                "points": [[box.x0, box.y0], [box.x1, box.y0], [box.x1, box.y1], [box.x0, box.y1]],
                "shape_type": "polygon",
            }
            for box in boxes
        ]
        data = {"version": "5.3.1", "flags": {}, "shapes": shapes, "imageData": None}
        more = {"imagePath": png(number), "imageHeight": HEIGHT, "imageWidth": WIDTH}
        write(out / "images" / f"im{number:02}.json", json.dumps({**data, **more}))


@case
def k12_archive(out):
    folder = out / "pets"
    write_classes(folder, 3)
    with tarfile.open(out / "pets.tar.gz", "w:gz") as archive:
        archive.add(folder, "pets")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def _draw_arrays(count: int) -> dict[str, np.ndarray]:
    images = [draw_blob(number, "cat" if number % 2 else "dog") for number in range(count)]
    labels = np.array(["cat" if number % 2 else "dog" for number in range(count)])
    return {"images": np.stack(images), "labels": labels}


@case
def k12_arrays(out):
    """As medMNIST has them."""
    out.mkdir(exist_ok=True)
    arrays = {f"{part}_{k}": v for part in ("train", "val") for k, v in _draw_arrays(20).items()}
    np.savez_compressed(out / "pets.npz", **arrays)


@case
def k12_fractions(out):
    out.mkdir(exist_ok=True)
    for name, array in _draw_arrays(30).items():
        np.save(out / f"{name}.npy", array / np.float32(255) if name == "images" else array)


@case
def k12_pickled_arrays(out):
    out.mkdir(exist_ok=True)
    arrays = _draw_arrays(20)
    np.savez(out / "pets.npz", images=arrays["images"], labels=arrays["labels"].astype(object))


# 13. Messages


@case
def k13_no_names(out):
    """Each object has an empty name."""
    write_voc(out, lambda number, boxes: make_voc([box._replace(label="") for box in boxes]))


@case
def k13_coco_swapped(out):
    """Width and height are swapped."""

    def change(data):
        for image in data["images"]:
            image["width"], image["height"] = image["height"], image["width"]

    write_coco(out, change)


@case
def k13_negative_class(out):
    write_yolo(out, lambda i, rows, _: [f"-1{rows[0][1:]}", rows[1]] if i == 4 else rows)


# 14. Images without boxes


@case
def k14_coco_partly(out):
    """A third of the images has no annotations."""

    def change(data):
        data["annotations"] = [each for each in data["annotations"] if each["image_id"] % 3]

    write_coco(out, change)


@case
def k14_voc_partly(out):
    """A third of the images has no XML."""
    write_voc(out)
    for path in sorted(out.glob("*.xml"))[::3]:
        path.unlink()


@case
def k14_other_stems(out):
    """No label file has the name of an image."""
    write_yolo(out)
    for path in sorted(out.rglob("*.txt")):
        path.rename(path.with_name(path.name.replace("im", "frame_")))


@case
def k14_some_other_stems(out):
    """Half of the label files have other names than their images."""
    write_yolo(out, None, TWO, make_data_yaml(train="train/images", val="valid/images"))
    for path in sorted(out.rglob("*.txt"))[::2]:
        path.rename(path.with_name(path.name.replace("im", "frame_")))


# 15. Similar names


@case
def k15_folders(out):
    write_classes(out)
    for number in range(4):
        save(draw_blob(80 + number), out / "Cat" / f"q{number}.jpg")


@case
def k15_underscore(out):
    rows = [
        (file, "red_cat" if label == "cat" and file[2] in "13" else f"red {label}")
        for file, label in _write_blobs(out, 60)
    ]
    write_table(out / "labels.csv", ("path", "label"), rows)


@case
def k15_forms_of_umlauts(out):
    rows = [
        (file, unicodedata.normalize("NFD" if file[1] == "1" else "NFC", label))
        for file, label in save_labelled(out)
    ]
    write_table(out / "labels.csv", ("path", "label"), rows)


@case
def k15_yolo_names(out):
    """Two classes of data.yaml differ in case."""

    def change(number, rows, boxes):
        cat, dog = (row[1:] for row in rows)
        return [f"{0 if number % 4 else 1}{cat}", f"2{dog}"]

    data = "train: train/images\nval: valid/images\nnames: [cat, Cat, dog]\n"
    write_yolo(out, change, TWO, data)


# Found later: 1 and 2 once more, and 5, 8 and 10


def _write_lines(out: Path, make: Callable[[Box], str]) -> None:
    """YOLO data whose lines have other numbers behind the class."""

    def change(number, rows, boxes):
        return [f"{row.split()[0]} {make(box)}" for row, box in zip(rows, boxes, strict=True)]

    write_yolo(out, change)


def _join(numbers: Sequence[float]) -> str:
    return " ".join(f"{value:.5f}" for value in in_fractions(tuple(numbers)))


@case
def k02_yolo_corners(out):
    _write_lines(out, lambda box: _join(box.corners))


@case
def k02_yolo_upper_left(out):
    _write_lines(out, lambda box: _join(box.xywh))


@case
def k02_yolo_key_points(out):
    """Ultralytics' pose without kpt_shape."""

    def make(box: Box) -> str:
        x, y, width, height = box.xywh
        points = ((x + a * width, y + b * height) for a, b in ((0.2, 0.3), (0.5, 0.5), (0.7, 0.9)))
        pairs = (f"{x / WIDTH:.5f} {y / HEIGHT:.5f}" for x, y in points)
        return f"{_join(box.centre)} {' '.join(pairs)}"

    _write_lines(out, make)


@case
def k02_boxes_of_halves(out):
    """The pictures were enlarged after they were annotated."""
    rows = make_box_rows(
        out, lambda i, box: (png(i), *(value // 2 for value in box.corners), box.label)
    )
    write_table(out / "boxes.csv", ("filename", "xmin", "ymin", "xmax", "ymax", "class"), rows)


@case
def k01_numbered_columns(out):
    rows = make_box_rows(out, lambda i, box: (png(i), box.label, *box.corners))
    write_table(out / "boxes.csv", ("path", "label", "1", "2", "3", "4"), rows)


@case
def k01_masks(out):
    """Pictures and masks of the same names."""
    for number in range(30):
        save(draw_blob(number, "cat"), out / "images" / png(number))
        save(Image.new("L", (48, 48)), out / "masks" / png(number))


@case
def k01_copies(out):
    """PlantVillage: the same pictures in colour and in grey, in folders around the classes."""
    for folder in ("color", "grayscale"):
        write_classes(out / folder)


@case
def k08_misspelt(out):
    write_classes(out / "trian", 20)
    write_classes(out / "test", 10, start=20)


@case
def k10_words_for_nothing(out):
    """Pandas writes nan for the cells of a picture without objects."""
    rows = make_box_rows(
        out, lambda i, box: (png(i), *(["nan"] * 5 if i % 4 == 0 else [*box.corners, box.label]))
    )
    write_table(out / "boxes.csv", ("filename", "xmin", "ymin", "xmax", "ymax", "class"), rows)
