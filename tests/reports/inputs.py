"""Small inputs like those of public bug reports about image data sets, drawn anew.

The docstring of a case names the reports. `reports.yaml` says what should come of each.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from reports.drawing import (
    HEIGHT,
    WIDTH,
    Box,
    draw_blob,
    in_fractions,
    iterate_scenes,
    paint,
    save,
    save_turned,
    write,
)
from reports.formats import (
    CATEGORIES,
    LABEL_MAP,
    NUMBERS,
    SIZE,
    THREE,
    TWO,
    Boxes,
    change_annotations,
    make_bndbox,
    make_box_rows,
    make_data_yaml,
    make_od_example,
    make_parquet_row,
    make_rows,
    make_voc,
    png,
    save_labelled,
    save_scenes,
    write_classes,
    write_coco,
    write_cvat,
    write_label_studio,
    write_records,
    write_rows,
    write_table,
    write_voc,
    write_yolo,
)

CASES: dict[str, Callable[[Path], None]] = {}


def case(function: Callable[[Path], None]) -> Callable[[Path], None]:
    CASES[function.__name__] = function
    return function


# Pascal VOC


@case
def v01_verified(out):
    """labelImg #117, #86, #66: the key Space."""
    write_voc(out, root='<annotation verified="yes">')


@case
def v02_many_bndbox(out):
    """drainingsun/ybat #6: one <object> with a <bndbox> for each box of its class."""
    for number, image, boxes in iterate_scenes():
        more = Box("cat", 54, 2, 64, 12)
        cat = boxes[0]
        if cat.x1 > 50 and cat.y0 < 14:
            more = Box("cat", 2, 84, 14, 94)
        save(paint(image, more), out / png(number))
        text = make_voc(boxes).replace("</object>", f"{make_bndbox(more)}</object>", 1)
        write(out / f"im{number:02}.xml", text)


@case
def v03_zero_size(out):
    """labelImg #59, #160, #309: sizes of 0, no suffix in filename, JPEG named .png."""
    for number, image, boxes in iterate_scenes():
        save(image, out / png(number), format="JPEG")
        write(out / f"im{number:02}.xml", make_voc(boxes, (0, 0), name=f"im{number:02}"))


@case
def v04_wrong_size(out):
    """labelImg #445, md-121/yellow-sticky-traps-dataset #1: the size is not that of the image."""
    sizes = {5: (WIDTH + 3, HEIGHT - 2), 9: (WIDTH * 2, HEIGHT * 2)}
    write_voc(out, lambda number, boxes: make_voc(boxes, sizes.get(number, SIZE)))


@case
def v05_boxes_of_larger(out):
    """labelImg #278: boxes lie beyond the image."""

    def make(number, boxes):
        factor = 2 if number == 7 else 1
        return make_voc([Box(b.label, *(factor * v for v in b.corners)) for b in boxes])

    write_voc(out, make)


@case
def v06_one_pixel(out):
    """labelImg pull 414, #385: xmax = width + 1."""
    for number, image, boxes in iterate_scenes():
        save(paint(image, Box("bird", WIDTH - 20, 30, WIDTH, 50)), out / png(number))
        text = make_voc([*boxes, Box("bird", WIDTH - 20, 30, WIDTH + 1, 50)])
        write(out / f"im{number:02}.xml", text)


@case
def v07_gb2312(out):
    """Lab41/pelops #72 (VeRI): XML that declares gb2312."""
    names = {"cat": "猫", "dog": "狗"}
    head = '<?xml version="1.0" encoding="gb2312"?>\n'

    def make(number, boxes):
        boxes = [box._replace(label=names[box.label]) for box in boxes]
        return make_voc(boxes, head=head).encode("gb2312")

    write_voc(out, make)


@case
def v08_difficult_text(out):
    """Megvii YOLOX #1280: Unspecified; others have False, or no such element (DIOR)."""
    values = ("<difficult>Unspecified</difficult>", "<difficult>False</difficult>", "")
    tags = (*values, "<difficult>0</difficult>")
    write_voc(out, lambda number, boxes: make_voc(boxes, difficult=tags[number % 4]))


@case
def v10_parts(out):
    """rbgirshick/fast-rcnn pull 107: parts before the own box of an object; floats."""
    part = f"<part><name>head</name>{make_bndbox(Box('', 3, 3, 6, 6))}</part>"

    def make(number, boxes):
        floats = [Box(box.label, *map(float, box.corners)) for box in boxes]
        return make_voc(floats, shape=lambda box: part + make_bndbox(box))

    write_voc(out, make)


@case
def v11_no_objects(out):
    """detecto #79: XML without objects."""
    for number, image, boxes in iterate_scenes():
        is_empty = number % 4 == 0
        save(image.convert("L").convert("RGB") if is_empty else image, out / png(number))
        write(out / f"im{number:02}.xml", make_voc([] if is_empty else boxes))


def _make_polygon(box: Box) -> str:
    x0, y0, x1, y1 = box.corners
    points = ((x0, y0), (x1, y0), (x1, y1))
    tags = (f"<x{i}>{x}</x{i}><y{i}>{y}</y{i}>" for i, (x, y) in enumerate(points, 1))
    return f"<polygon>{''.join(tags)}</polygon>"


@case
def v12_polygon_only(out):
    """ssaru/convert2Yolo #16 (Labelbox): <polygon> instead of <bndbox>."""
    write_voc(out, shape=_make_polygon)


@case
def v13_names(out):
    """labelImg #76: #, blanks, umlauts, %, upper-case suffixes; a label as character references."""
    names = ("Camera MV-U300#31F6-9 Snapshot", "Über äöü ß", "100% [sure] (1)", "a.b.c", "x%20y")
    for number, image, boxes in iterate_scenes():
        stem = f"{names[number % 5]} {number}"
        save(image, out / "images" / f"{stem}.BMP")
        cat, dog = boxes
        text = make_voc([cat._replace(label="&#28938;&#28857;"), dog], name="s")
        write(out / "annotations" / f"{stem}.XML", text)


@case
def v15_exif_upright(out):
    """labelImg #376, #198, RectLabel #167, tensorflow #49834: sizes of the upright picture."""
    for number, image, boxes in iterate_scenes(width=HEIGHT, height=WIDTH):
        save_turned(image, out / f"im{number:02}.jpg", 6)
        write(out / f"im{number:02}.xml", make_voc(boxes, (HEIGHT, WIDTH)))


@case
def v17_case_of_names(out):
    """EdjeElectronics tutorial #159, torchxrayvision #153: a class written in two ways."""

    def make(number, boxes):
        cat, dog = boxes
        return make_voc([cat._replace(label="cat " if number % 8 else "Cat"), dog])

    write_voc(out, make)


@case
def v18_swapped_size(out):
    """visipedia/inat_loc #2: width and height are swapped, the boxes are right."""
    write_voc(out, size=(HEIGHT, WIDTH))


@case
def v19_many_objects(out):
    """detectron2 #1481, Pedestrian-Detection #7: 600 objects in each picture."""
    for number in range(24):
        image = np.full((384, 512, 3), 90 + number, np.uint8)
        places = ((8 + index % 30 * 16, 8 + index // 30 * 18) for index in range(600))
        boxes = [Box("cat", x, y, x + 8, y + 9) for x, y in places]
        for box in boxes:
            image[box.y0 : box.y1, box.x0 : box.x1] = (225, 25, 25)
        save(Image.fromarray(image), out / png(number))
        write(out / f"im{number:02}.xml", make_voc(boxes, (512, 384)))


@case
def v20_renamed(out):
    """The XML files have other names than the images. <filename> names the image."""
    for number, image, boxes in iterate_scenes():
        save(image, out / "images" / f"IMG_{number:04}.png")
        text = make_voc(boxes, name=f"IMG_{number:04}.png")
        write(out / "annotations" / f"{number + 1}.xml", text)


@case
def v21_lists_with_suffix(out):
    """Lists whose lines have the suffix .png, with CRLF."""
    for number, image, boxes in iterate_scenes():
        save(image, out / "JPEGImages" / png(number))
        write(out / "Annotations" / f"im{number:02}.xml", make_voc(boxes))
    lists = {"train": range(16), "val": range(16, 20), "test": range(20, 24)}
    for name, numbers in lists.items():
        lines = "".join(f"{png(number)}\r\n" for number in numbers)
        write(out / "ImageSets" / "Main" / f"{name}.txt", lines)


# COCO


@case
def c01_dummy_category(out):
    """roboflow-100-benchmark #45: category 0 is the name of the project. Roboflow's folders."""
    categories = [{"id": 0, "name": "pets", "supercategory": "none"}, *CATEGORIES]
    start = 0
    for split, count in THREE:
        file = f"{split}/_annotations.coco.json"
        write_coco(out, None, count, start, categories, file=file, images=split)
        start += count


@case
def c02_backslash(out):
    """label-studio #7294, X-AnyLabeling #700, encord-active pull 218: file_name of Windows."""
    write_coco(out, name=lambda number: f"images\\{png(number)}", file="result.json")


@case
def c03_all_crowd(out):
    """PaddleDetection #7259, maskrcnn-benchmark #480, ultralytics pull 23930: masks are crowds."""
    mask = {"counts": [0, WIDTH * HEIGHT], "size": [HEIGHT, WIDTH]}
    write_coco(out, change_annotations(lambda a: a.update(iscrowd=1, segmentation=mask)))


@case
def c04_iscrowd_null(out):
    """pylabel #6."""
    write_coco(out, change_annotations(lambda a: a.update(iscrowd=None)))


@case
def c05_no_bbox(out):
    """maskrcnn-benchmark #480 (labelme), sahi pull 1028: no bbox, or [], beside a polygon."""

    def change(annotation):
        if annotation["id"] % 2:
            del annotation["bbox"]
        else:
            annotation["bbox"] = []

    write_coco(out, change_annotations(change))


@case
def c06_zero_area(out):
    """cocoapi #355, pytracking #18: a box of height 0."""
    empty = {"id": 999, "image_id": 1, "category_id": 1, "bbox": [29.65, 38.33, 1.03, 0.0]}
    write_coco(out, lambda data: data["annotations"].append({**empty, "area": 0, "iscrowd": 0}))


@case
def c07_number_names(out):
    """Classes whose names are numbers (digits of SVHN and of number plates)."""
    names = [{"id": 1, "name": 0}, {"id": 2, "name": 1}]
    write_coco(out, lambda data: data.update(categories=names))


@case
def c08_same_file_twice(out):
    """label-studio #7096, #6438: two entries of one file."""
    write_coco(out, lambda data: data["images"].append({**data["images"][3], "id": 500}))


@case
def c10_missing_files(out):
    """label-studio #4262: annotations of images that the export lacks."""
    write_coco(out, count=40)
    for number in range(30, 40):
        (out / "images" / png(number)).unlink()


@case
def c12_xyxy(out):
    """MethaneMapper #23: bbox holds two corners instead of x, y, width, height."""

    def change(annotation):
        x, y, width, height = annotation["bbox"]
        annotation["bbox"] = [x, y, x + width, y + height]

    write_coco(out, change_annotations(change))


@case
def c14_number_file_names(out):
    """No sizes, a leading ./ in file_name, and no ids of annotations."""

    def change(data):
        data["images"] = [
            {"id": each["id"], "file_name": f"./{each['file_name']}"} for each in data["images"]
        ]
        for annotation in data["annotations"]:
            for key in ("id", "area", "segmentation", "iscrowd"):
                del annotation[key]

    write_coco(out, change)


# YOLO

_NAMES = "names:\n  0: cat\n  1: dog\n"


@case
def y01_path_dot(out):
    """ultralytics #18323: data.yaml above, path: ./, and the images in ds/train."""
    data = f"path: ./\ntrain: train/images\nval: valid/images\n{_NAMES}"
    write_yolo(out / "ds", None, TWO, data, "../custom_data.yaml")


@case
def y02_mixed(out):
    """yolov5 #9718, ultralytics #1502, roboflow/notebooks #69: boxes and polygons mixed."""

    def change(number, rows, boxes):
        x0, y0, x1, y1 = boxes[0].corners
        points = ((x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, (y0 + y1) / 2))
        polygon = " ".join(f"{x / WIDTH:.6f} {y / HEIGHT:.6f}" for x, y in points)
        return [f"0 {polygon}", rows[1]]

    write_yolo(out, change)


@case
def y03_class_too_high(out):
    """yolov5 #4370, #1538: class 2 with nc 2."""
    write_yolo(out, lambda i, rows, _: [rows[0], f"2{rows[1][1:]}"] if i == 4 else rows)


@case
def y04_sticks_out(out):
    """albumentations #947, #1497, tensorflow/models #5474: a box leaves the image by 8 pixels."""
    write_yolo(out)
    for number, image, boxes in iterate_scenes(20):
        box = Box("cat", WIDTH - 12, 0, WIDTH + 8, 20)
        if number % 4 or boxes[1].x1 > WIDTH - 14 and boxes[1].y0 < 22:
            continue
        save(paint(image, box), out / "train" / "images" / png(number))
        write(out / "train" / "labels" / f"im{number:02}.txt", make_rows([*boxes, box]))


@case
def y05_duplicate_rows(out):
    """yolov5 #12176 (FLIR), #3908, ultralytics #14858: the same row twice."""
    write_yolo(out, lambda i, rows, _: rows + rows)


@case
def y06_labelimg_yolo(out):
    """AlexeyAB/Yolo_mark #60, deepstack-trainer #5: .txt beside the images, classes.txt."""
    for number, image, boxes in iterate_scenes():
        save(image, out / png(number))
        write(out / f"im{number:02}.txt", make_rows(boxes))
    write(out / "classes.txt", "cat\ndog\n")


@case
def y09_names_and_pixels(out):
    """ultralytics #3285: rows begin with a name and have pixels."""
    write_yolo(
        out, lambda i, _, boxes: [f"SHIP{i} {b.x0} {b.y0} {b.x1} {b.y0} {b.x1}" for b in boxes]
    )


@case
def y10_pixels(out):
    """yolov5 pull 5210, mxnet-ssd #90: rows in pixels."""
    write_yolo(out, lambda i, _, boxes: [f"0 {' '.join(map(str, b.xywh))}" for b in boxes])


@case
def y11_exif(out):
    """yolov5 #405, ultralytics #19222: orientation 6, boxes on the upright picture."""
    for number, image, boxes in iterate_scenes(26, width=HEIGHT, height=WIDTH):
        split = "train" if number < 20 else "valid"
        save_turned(image, out / split / "images" / f"im{number:02}.jpg", 6)
        write(out / split / "labels" / f"im{number:02}.txt", make_rows(boxes, HEIGHT, WIDTH))
    write(out / "data.yaml", make_data_yaml(train="../train/images", val="../valid/images"))


@case
def y12_all_empty(out):
    """cvat #8367, #10691, label-studio #7306: every label file of the export is empty."""
    write_yolo(out, lambda i, rows, _: [])


@case
def y13_crlf_float(out):
    """Windows: CRLF, a byte order mark, classes as floats (0.0), tabs, and a Windows path."""
    data = make_data_yaml(
        path="C:\\Users\\anna\\datasets\\pets", train="train\\images", val="valid\\images"
    )

    def change(number, rows, boxes):
        rows = [f"{row[0]}.0\t{row[2:]}\r" for row in rows]
        return [f"\ufeff{rows[0]}", *rows[1:]]

    write_yolo(out, change, TWO, data.replace("\n", "\r\n"))


@case
def y14_coco128(out):
    """coco128.yaml (yolov5 #6350): train and val are the same folder."""
    data = "path: ../datasets/coco128\ntrain: images/train2017\nval: images/train2017\ntest:\n"
    places = {"images": "images/{}", "labels": "labels/{}"}
    write_yolo(out, None, [("train2017", 24)], data + _NAMES, "coco128.yaml", **places)


@case
def y15_keras_yolo3(out):
    """TrainYourOwnYOLO #202: `path x1,y1,x2,y2,class ...` of keras-yolo3."""
    lines = []
    for number, boxes in save_scenes(out):
        texts = (",".join(map(str, (*box.corners, NUMBERS[box.label]))) for box in boxes)
        lines.append(" ".join([f"/home/anna/shots/{png(number)}", *texts]))
    write(out / "data_train.txt", "\n".join(lines))
    write(out / "data_classes.txt", "cat\ndog\n")


@case
def y16_windows_absolute(out):
    """A public data.yaml: D:\\...\\datasets\\train/images for each split; more keys."""
    base = "D:\\Users\\anna\\PycharmProjects\\ultralytics-main\\datasets\\"
    splits = {"train": "train", "val": "valid", "test": "test"}
    data = make_data_yaml(**{key: f"{base}{name}/images" for key, name in splits.items()})
    write_yolo(out, data=f"{data}\nroboflow:\n  version: 1\n")


@case
def y17_mac_path(out):
    """A public data.yaml: path: /Users/.../data, train: seed/images, above the folder data."""
    data = f"path: /Users/anna/less/data\ntrain: seed/images\nval: test/images\n\n{_NAMES}"
    write_yolo(out / "data", None, (("seed", 20), ("test", 6)), data, "../data.yaml")


@case
def y18_datasets_folder(out):
    """A public data.yaml: train: ./datasets/train/images."""
    data = make_data_yaml(train="./datasets/train/images", val="./datasets/val/images")
    write_yolo(out / "datasets", None, (("train", 20), ("val", 6)), data, "../data.yaml")


@case
def y19_images_first(out):
    """A public data.yaml: path: data/processed_data/images, train: train/."""
    path = "path: data/processed_data/images  # root"
    data = f"# data files\n{path}\ntrain: train/  # train\nval: valid/\n\n{_NAMES}"
    base = "data/processed_data"
    places = {"images": f"{base}/images/{{}}", "labels": f"{base}/labels/{{}}"}
    write_yolo(out, None, TWO, data, **places)


@case
def y21_case_of_files(out):
    """From Windows: images IMG_00.JPG, labels img_00.txt."""
    for number, image, boxes in iterate_scenes(26):
        split = "train" if number < 20 else "valid"
        save(image, out / split / "images" / f"IMG_{number:02}.JPG", format="JPEG")
        name = f"{'img' if number % 2 else 'IMG'}_{number:02}.txt"
        write(out / split / "labels" / name, make_rows(boxes))
    write(out / "data.yaml", make_data_yaml(train="../train/images", val="../valid/images"))


@case
def y23_half_missing(out):
    """label-studio #3212, #6438: half of the images have no label file."""
    write_yolo(out)
    for path in sorted(out.rglob("*.txt"))[::2]:
        path.unlink()


# Tables

_XYWH = ("filename", "x", "y", "width", "height", "label")
_CORNERS = ("path", "xmin", "ymin", "xmax", "ymax", "label")


@case
def s01_xywh(out):
    """filename,x,y,width,height,label (RSNA pneumonia, MakeSense): one box in each image."""
    rows = []
    for number, boxes in save_scenes(out):
        box = boxes[number % 2]
        rows.append((png(number), *box.xywh, box.label))
    write_table(out / "labels.csv", _XYWH, rows)


@case
def s01b_xywh_many(out):
    """The same with two boxes per image."""
    rows = make_box_rows(out, lambda i, box: (png(i), *box.xywh, box.label))
    write_table(out / "labels.csv", _XYWH, rows)


@case
def s01c_makesense(out):
    """MakeSense: label_name,bbox_x,...,image_name,image_width,image_height."""
    rows = make_box_rows(out, lambda i, box: (box.label, *box.xywh, png(i), *SIZE))
    sides = ("bbox_x", "bbox_y", "bbox_width", "bbox_height")
    header = ("label_name", *sides, "image_name", "image_width", "image_height")
    write_table(out / "labels.csv", header, rows)


@case
def s01e_category_label(out):
    """filename,category,label: the category is the coarse class."""
    rows = []
    for number in range(60):
        label = "cat" if number % 2 else "dog"
        save(draw_blob(number, label), out / "images" / f"p{number:03}.jpg")
        rows.append((f"p{number:03}.jpg", "indoor" if number % 3 else "outdoor", label))
    write_table(out / "labels.csv", ("filename", "category", "label"), rows)


def _make_retinanet_rows(out: Path) -> list[Any]:
    return make_box_rows(
        out, lambda i, box: (f"images\\{png(i)}", *map(float, box.corners), box.label)
    )


@case
def s02_retinanet(out):
    """keras-retinanet #347, #936: no header, backslashes, floats."""
    write_table(out / "annotations.csv", None, _make_retinanet_rows(out))


@case
def s02b_retinanet_header(out):
    """The same with the header that the message asks for."""
    write_table(out / "annotations.csv", _CORNERS, _make_retinanet_rows(out))


@case
def s04_wheat(out):
    """Global wheat (datumaro pull 1273): bbox is the text [x, y, w, h]; there is no class."""
    rows = make_box_rows(
        out, lambda i, box: (f"im{i:02}", *SIZE, str([*map(float, box.xywh)]), "usask_1")
    )
    write_table(out / "train.csv", ("image_id", "width", "height", "bbox", "source"), rows)


@case
def s04b_wheat_short(out):
    """The same without the column source, and one box per image."""
    rows = make_box_rows(out, lambda i, box: (f"im{i:02}", *SIZE, str([*box.xywh])), 1)
    write_table(out / "train.csv", ("image_id", "width", "height", "bbox"), rows)


@case
def s05_one_hot(out):
    """ISIC 2019 (MONICA #5), plant pathology: a column for each class, with 0.0 and 1.0."""
    rows = []
    for number in range(30):
        is_cat = number % 2
        image = draw_blob(number, "cat" if is_cat else "dog")
        save(image, out / "images" / f"ISIC_{number:07}.jpg")
        rows.append((f"ISIC_{number:07}", float(is_cat), float(not is_cat), 0.0))
    write_table(out / "GroundTruth.csv", ("image", "CAT", "DOG", "UNK"), rows)


@case
def s06_utf16(out):
    """pandas #26446: "Unicode text" of Excel, UTF-16 with tabs."""
    rows = save_labelled(out)
    write_table(out / "labels.csv", ("filename", "label"), rows, "utf-16", "\t", "\r\n")


@case
def s07_excel(out):
    """turicreate #227, orange3 #7000: a byte order mark, semicolons, CRLF."""
    rows = save_labelled(out)
    write_table(out / "labels.csv", ("filename", "label"), rows, "utf-8-sig", ";", "\r\n")


@case
def s08_latin1(out):
    """Excel of Western Europe: CP1252."""
    rows = save_labelled(out)
    write_table(out / "labels.csv", ("filename", "label"), rows, "cp1252", ";", "\r\n")


@case
def s09_kaggle(out):
    """Kaggle: train.csv, sample_submission.csv, train, test; ids without suffix."""
    rows = [(name[:-4], label) for name, label in save_labelled(out, 30, "train")]
    write_table(out / "train.csv", ("id", "breed"), rows)
    for number in range(10):
        save(draw_blob(number + 100), out / "test" / f"t{number:02}.jpg")
    rows = [(f"t{number:02}", "Kätzchen") for number in range(10)]
    write_table(out / "sample_submission.csv", ("id", "breed"), rows)


@case
def s11_sku110k(out):
    """SKU110K #90: no header, eight columns, the last ones sizes; a box beyond the image."""
    rows = make_box_rows(out, lambda i, box: (png(i), *box.corners, box.label, *SIZE))
    rows[6] = (*rows[6][:3], WIDTH + 40, *rows[6][4:])
    write_table(out / "annotations_train.csv", None, rows)


@case
def s12_open_images(out):
    """OIDv4_ToolKit #12: ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,..."""
    names = {"cat": "/m/01yrx", "dog": "/m/0bt9lr"}

    def make(number, box):
        x0, y0, x1, y1 = in_fractions(box.corners)
        label = names[box.label]
        return (f"im{number:02}", "xclick", label, 1, x0, x1, y0, y1, 0, 0, 0, 0, 0)

    corners = ("XMin", "XMax", "YMin", "YMax")
    flags = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
    header = ("ImageID", "Source", "LabelName", "Confidence", *corners, *flags)
    write_table(out / "train-annotations-bbox.csv", header, make_box_rows(out, make))


@case
def s14_via(out):
    """VGG Image Annotator's CSV: region_shape_attributes as JSON."""

    def make(number, box):
        shape = dict(zip(("x", "y", "width", "height"), box.xywh, strict=True))
        region = json.dumps({"name": "rect", **shape}), json.dumps({"class": box.label})
        return (png(number), 1234, "{}", 2, NUMBERS[box.label], *region)

    file = ("filename", "file_size", "file_attributes")
    regions = ("region_count", "region_id", "region_shape_attributes", "region_attributes")
    write_table(out / "via_region_data.csv", (*file, *regions), make_box_rows(out, make))


@case
def s15_two_classes_per_image(out):
    """Several labels per image: one file in two rows."""
    rows = save_labelled(out)
    rows += [(name, "Zamperl") for name, _ in rows[:6]]
    write_table(out / "labels.csv", ("filename", "label"), rows)


@case
def s16_spaces(out):
    """A table typed by hand: `label, filename`, a blank after each comma."""
    lines = [f"{label}, {name}\n" for name, label in save_labelled(out)]
    write(out / "labels.csv", "".join(["label, filename\n", *lines]))


@case
def s17_windows_paths(out):
    """keras-retinanet #347: absolute paths of Windows."""
    rows = make_box_rows(
        out, lambda i, box: (f"C:\\Users\\anna\\shots\\{png(i)}", *box.corners, box.label)
    )
    write_table(out / "boxes.csv", ("image", *_CORNERS[1:]), rows)


@case
def s18_swapped_corners(out):
    """keras-retinanet #437, #347: x2 is smaller than x1 in one row."""
    rows = make_box_rows(out, lambda i, box: (f"images/{png(i)}", *box.corners, box.label))
    path, x0, y0, x1, y1, label = rows[5]
    rows[5] = (path, x1, y1, x0, y0, label)
    write_table(out / "boxes.csv", _CORNERS, rows)


# Folders and image files


@case
def f01_hidden(out):
    """tensorflow #46595, openneuro #2520, turicreate #644: hidden files of tools and systems."""
    write_classes(out)
    for folder in (out, out / "cat"):
        save(draw_blob(1), folder / ".ipynb_checkpoints" / "p01-checkpoint.jpg")
    hidden = ("cat/._p01.jpg", "__MACOSX/cat/._p01.jpg", "__MACOSX/._cat", "cat/.DS_Store")
    for path in (*hidden, ".DS_Store", "cat/Thumbs.db", "dog/desktop.ini", "Thumbs.db"):
        write(out / path, b"\0\5\x16\7\0\2\0\0Mac OS X" + b"\0" * 80)


def _write_two_splits(train: Path, test: Path) -> None:
    write_classes(train)
    write_classes(test, 6, start=20)


@case
def f02_training_set(out):
    """Kaggle cats and dogs: training_set/training_set/cats, test_set/test_set/cats."""
    _write_two_splits(out / "training_set" / "training_set", out / "test_set" / "test_set")


@case
def f02b_training_set_flat(out):
    """training_set/cats, test_set/cats."""
    _write_two_splits(out / "training_set", out / "test_set")


@case
def f02d_train_train(out):
    """Kaggle: train/train/cats, test/test/cats."""
    _write_two_splits(out / "train" / "train", out / "test" / "test")


@case
def f02e_chest(out):
    """Kaggle chest-xray-pneumonia: chest_xray/train, and chest_xray/chest_xray/train again."""
    for base in (out / "chest_xray", out / "chest_xray" / "chest_xray"):
        for split, count, start in (("train", 15, 0), ("val", 4, 20), ("test", 6, 30)):
            write_classes(base / split, count, start=start)


@case
def f03_corrupt_exif(out):
    """Pillow #4852, detectron2 #1885 (MHP): EXIF that is empty or damaged."""
    write_classes(out)
    orientation_9 = b"\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0\0\0\0\0"
    heads = (b"", b"XX*\0\x08\0\0\0", b"II*\0\xff\xff\xff\x7f", b"II*\0\x08\0\0\0\xff\xff")
    for index, head in enumerate((*heads, b"MM\0*" + orientation_9, b"II*\0")):
        buffer = io.BytesIO()
        draw_blob(30 + index).save(buffer, "JPEG", quality=95)
        data, segment = buffer.getvalue(), b"Exif\0\0" + head
        app1 = b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment
        write(out / "cat" / f"exif{index}.jpg", data[:2] + app1 + data[2:])


@case
def f04_float_tiff(out):
    """yolov5 #7726, keras-preprocessing pull 242, terratorch pull 617: floats from 0 to 1."""
    for label, start in (("cat", 0), ("dog", 50)):
        for number in range(15):
            grey = np.array(draw_blob(start + number, label).convert("L"), np.float32) / 255
            save(Image.fromarray(grey), out / label / f"p{number:02}.tif")


@case
def f05_suffixes(out):
    """.jfif of Chrome, and HEIC named .jpg."""
    write_classes(out)
    for number in range(15):
        save(draw_blob(80 + number), out / "bird" / f"p{number:02}.jfif", format="JPEG")
    write(out / "cat" / "IMG_0001.jpg", b"\0\0\0\x24ftypheic\0\0\0\0mif1heic" + b"\0" * 300)


@case
def f06_nfc_nfd(out):
    """train/Äpfel in NFC, val/Äpfel in NFD, one of the two from a Mac."""
    for split, form, count, start in (("train", "NFC", 15, 0), ("val", "NFD", 6, 20)):
        for name, label in (("Äpfel", "cat"), ("Öl", "dog")):
            folder = out / split / unicodedata.normalize(form, name)
            for number in range(start, start + count):
                image = draw_blob(number + (50 if label == "dog" else 0), label)
                save(image, folder / f"p{number:02}.jpg")


@case
def f08_nested(out):
    """keras #15575 and others: class/species/image.jpg."""
    kinds = (("cat", "siamese"), ("cat", "persian"), ("dog", "husky"), ("dog", "poodle"))
    for outer, inner in kinds:
        for number in range(8):
            image = draw_blob(number + sum(map(ord, inner)), outer)
            save(image, out / outer / inner / f"p{number:02}.jpg")


@case
def f10b_sixty_classes(out):
    """60 classes with three images each (few-shot sets of products or species)."""
    for number in range(180):
        place = out / f"species_{number // 3:04}" / f"p{number % 3}.png"
        save(draw_blob(number), place)


@case
def f11_modes(out):
    """CMYK, LA, P, 1 bit, 16 bit grey, MPO, animated GIF, RGBA; all of class cat."""
    write_classes(out, suffix="png")
    cat, image = out / "cat", draw_blob(200)
    save(image.convert("CMYK"), cat / "cmyk.jpg")
    save(image.convert("P"), cat / "palette.png")
    save(image.convert("RGBA"), cat / "rgba.webp")
    save(image.convert("LA"), cat / "la.png")
    save(image.convert("1"), cat / "bit.png")
    save(image.convert("L").convert("I;16"), cat / "sixteen.png")
    save(image, cat / "two.mpo.jpg", format="MPO", save_all=True, append_images=[draw_blob(204)])
    dogs = [draw_blob(206, "dog"), draw_blob(207, "dog")]
    save(image, cat / "anim.gif", save_all=True, append_images=dogs)


@case
def f12_large(out):
    """A picture of 64 megapixels (drones, phones)."""
    write_classes(out)
    save(Image.new("L", (8000, 8000), 120), out / "cat" / "large.png")


@case
def f13_same_image_two_classes(out):
    """A picture in two class folders."""
    write_classes(out)
    for label in ("cat", "dog"):
        save(draw_blob(300), out / label / "both.jpg")


@case
def f14_one_of_a_class(out):
    """A class with a single image."""
    write_classes(out)
    save(draw_blob(301), out / "rare" / "r.jpg")


@case
def f15_train_capital(out):
    """anomalib #3058: Train, Valid, TEST; file names with umlauts, blanks and .JPG."""
    for split, count, start in (("Train", 15, 0), ("Valid", 5, 20), ("TEST", 5, 30)):
        for label, more in (("cat", 0), ("dog", 50)):
            for number in range(count):
                path = out / split / label / f"Über {number} ß.JPG"
                save(draw_blob(start + number + more, label), path, format="JPEG")


@case
def l01_labelme(out):
    """labelme (PaddleDetection pull 1296): one JSON per image, corners in any order."""
    sizes = {"imageData": None, "imageHeight": HEIGHT, "imageWidth": WIDTH}
    for number, image, boxes in iterate_scenes():
        save(image, out / png(number))
        kind = {"group_id": None, "shape_type": "rectangle", "flags": {}}
        shapes = [{"label": b.label, "points": [[b.x1, b.y1], [b.x0, b.y0]], **kind} for b in boxes]
        data = {"version": "5.3.1", "flags": {}, "shapes": shapes, **sizes}
        text = json.dumps({**data, "imagePath": f"..\\shots\\{png(number)}"})
        write(out / f"im{number:02}.json", text)


@case
def l02_createml(out):
    """CreateML JSON (roboflow-100-benchmark #45)."""
    entries, names = [], ("x", "y", "width", "height")
    for number, boxes in save_scenes(out, "."):
        objects = [
            {"label": b.label, "coordinates": dict(zip(names, b.centre, strict=True))}
            for b in boxes
        ]
        entries.append({"image": png(number), "annotations": objects})
    write(out / "_annotations.createml.json", json.dumps(entries))


@case
def l03_zip(out):
    """A zip file as it was downloaded."""
    folder = out / "x"
    write_classes(folder, 3)
    with zipfile.ZipFile(out / "archive.zip", "w") as archive:
        for path in sorted(folder.rglob("*.jpg")):
            archive.write(path, path.relative_to(folder))
    shutil.rmtree(folder)


@case
def l04_hf_metadata(out):
    """Hugging Face's ImageFolder: metadata.jsonl with file_name and objects.bbox."""
    lines = []
    for number, boxes in save_scenes(out, "train"):
        numbers = [NUMBERS[box.label] for box in boxes]
        objects = {"bbox": [box.xywh for box in boxes], "categories": numbers}
        lines.append(json.dumps({"file_name": png(number), "objects": objects}))
    write(out / "train" / "metadata.jsonl", "\n".join(lines))


@case
def l04b_hf_metadata_csv(out):
    """Hugging Face's ImageFolder: metadata.csv with file_name and label."""
    rows = save_labelled(out, 30, "train")
    write_table(out / "train" / "metadata.csv", ("file_name", "label"), rows)


# TFRecord and Parquet


def _write_od_records(out: Path, make: Callable[[int, Any, Boxes], bytes], text: str) -> None:
    """Files of train and test, every fifth record of which may be special."""
    records = [make(*scene) for scene in iterate_scenes(28)]
    write_records(out / "train.record", records[:20])
    write_records(out / "test.record", records[20:])
    write(out / "label_map.pbtxt", text)


@case
def t02_above_one(out):
    """tensorflow/models #4560, #1754, #5474: ends of 1.0156 and 1.15."""

    def make(number, image, boxes):
        more = 0 if number % 5 else 0.35 * WIDTH
        boxes = [box._replace(x1=box.x1 + more) for box in boxes]
        return make_od_example(image, boxes, png(number))

    _write_od_records(out, make, LABEL_MAP)


@case
def t03_label_zero(out):
    """tensorflow/models #5417, raccoon_dataset #2: label 0 for an unknown class, no text."""

    def make(number, image, boxes):
        labels = () if number % 5 else (1, 0)
        return make_od_example(image, boxes, png(number), labels, with_text=False)

    _write_od_records(out, make, LABEL_MAP)


@case
def t04_roboflow(out):
    """Roboflow's TFRecord export: a label map for each split, with commas."""
    items = ((1, "cat"), (2, "dog"))
    text = "".join(
        f'item {{\n    name: "{name}",\n    id: {number},\n    display_name: "{name}"\n}}\n'
        for number, name in items
    )
    start = 0
    for split, count in THREE:
        scenes = iterate_scenes(count, start)
        examples = [make_od_example(image, boxes, png(i)) for i, image, boxes in scenes]
        write_records(out / split / "Pets.tfrecord", examples)
        write(out / split / "Pets_label_map.pbtxt", text)
        start += count


@case
def t05_text_case(out):
    """EdjeElectronics #159: the text of the records and the label map differ in case."""
    _write_od_records(
        out,
        lambda number, image, boxes: make_od_example(image, boxes, png(number)),
        LABEL_MAP.replace("cat", "Cat"),
    )


def _write_parquet(out: Path, make: Callable[[Box], Any]) -> None:
    rows = [
        make_parquet_row(image, png(i), map(make, boxes), [box.label for box in boxes])
        for i, image, boxes in iterate_scenes(40)
    ]
    write_rows(out / "data" / "train-00000-of-00001.parquet", rows)


@case
def p01_centre(out):
    """super-gradients #1768, transformers #32835: centre, width, height in fractions."""
    _write_parquet(out, lambda box: in_fractions(box.centre))


@case
def p03_xywh(out):
    """The usual one: x, y, width, height in pixels."""
    _write_parquet(out, lambda box: box.xywh)


@case
def p04_xywh_one_large(out):
    """RT-DETR #324: x, y, width, height of one large object in the middle of each picture."""
    rows, rng = [], random.Random(4)
    for number in range(40):
        label = "cat" if number % 2 else "dog"
        x0, y0 = 20 + number % 9, 15 + number % 7
        box = Box(label, x0, y0, WIDTH - rng.randrange(20, 25), HEIGHT - rng.randrange(14, 20))
        image = paint(Image.new("RGB", SIZE, (90 + number,) * 3), box)
        rows.append(make_parquet_row(image, png(number), [map(float, box.xywh)], [label]))
    write_rows(out / "data" / "train-00000-of-00001.parquet", rows)


# EXIF


@case
def x01_cvat_upside_down(out):
    """cvat #1059, #733: orientation 3, so that both sizes are equal."""
    write_cvat(out, 3, WIDTH, HEIGHT)


@case
def x02_label_studio_upside_down(out):
    """label-studio #6608: the browser shows pictures as EXIF says. Orientation 3."""
    write_label_studio(out, 3)


@case
def x03_label_studio_portrait(out):
    """label-studio #6608: orientation 6."""
    write_label_studio(out, 6, HEIGHT, WIDTH)


@case
def x04_label_studio_subfolder(out):
    """label-studio #6771: JSON export, and the pictures with their own names in a folder."""
    write_label_studio(out, 6, HEIGHT, WIDTH, "images")


@case
def x05_cvat_portrait(out):
    """cvat #1059: orientation 6, upright size in the XML."""
    write_cvat(out, 6, HEIGHT, WIDTH)
