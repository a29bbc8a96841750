"""Each kind of data is recognised by names and the start of a few files, with its keys.

The files of YOLO, Label Studio and CVAT are looked at and not read here.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from beam_jobs.sources.folder_view import SourceMatch, view_folder
from beam_jobs.sources.recognition import recognise
from beam_jobs.sources.tfrecord import find_class_order
from pipeline_ops.errors import DataError

CORNERS = ("xmin", "ymin", "xmax", "ymax")
OBJECTS = [{"bbox": [1, 2, 9, 8], "class": 1}, {"bbox": [30, 40, 20, 10], "class": 0}]
YOLO = "train: images/train\nval: images/val\nnames: [cat, dog]\n"
TASK = {"id": 1, "data": {"image": "/data/upload/1/a.jpg"}, "annotations": []}
RECTANGLE = {"type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["cat"]}}
CHOICE = {"type": "choices", "value": {"choices": ["cat"]}}
CVAT = '<?xml version="1.0"?>\n<annotations>\n  <image id="0" name="a &amp; b.jpg" width="4">{}</image>\n</annotations>'  # noqa: E501
COCO = json.dumps({"images": [{"file_name": "1.jpg"}], "annotations": [], "categories": []})
ANNOTATION = '<annotation verified="yes"></annotation>'
CLASSES, BOXES = {"task": "classification"}, {"task": "detection"}
NO_TAR = "x.tar is no tar file, or is damaged"


def make_table(**columns) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def make_tar(**members: str) -> bytes:
    """A tar file whose members are named as the keys, with a dot for each double underscore."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"./{name.replace('__', '.')}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return file.getvalue()


def label(result: dict) -> str:
    """A project of Label Studio with an annotation."""
    return json.dumps([TASK | {"annotations": [{"result": [result]}]}])


def look(folder: Path, files: dict[str, str | bytes]) -> SourceMatch:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return recognise(view_folder(folder))


@pytest.mark.parametrize(
    ("files", "kind", "keys"),
    [
        (
            {"data.yaml": YOLO, "images/train/a.jpg": "", "labels/train/a.txt": "0 .5 .5 .1 .1"},
            "yolo",
            {},
        ),
        (
            {"x.yml": YOLO, "images/a.jpg": "", "labels/a.txt": "0 0 0 1 1 0 1\n"},
            "yolo",
            {"data": "x.yml"},
        ),
        (
            {"train-0-of-1.parquet": make_table(image=[b"x"], label=["cat"])},
            "parquet",
            CLASSES | {"parts": [{"files": "train-?-of-1.parquet", "split": "train"}]},
        ),
        (
            {
                "x.parquet": make_table(
                    img=[{"bytes": b"x", "path": "1.jpg"}] * 2,
                    objects=[
                        {"bbox": [], "category": []},
                        {"bbox": [[2, 3, 9, 8.5], [9, 8, 7, 6.5]], "category": ["cat", "dog"]},
                    ],
                )
            },
            "parquet",
            BOXES
            | {"boxes": "objects.bbox", "label": "objects.category"}
            | {"box_format": "xywh", "image": "img"},
        ),
        (
            {
                "x.parquet": make_table(file=["1.jpg"], **dict.fromkeys(CORNERS, [[0.5]])),
                "a/1.jpg": "",
            },
            "parquet",
            BOXES | {"corners": [*CORNERS], "units": "fractions", "image": "file", "images": "a"},
        ),
        (
            {"photos/1.jpg": "", "labels.csv": "File Name;Breed\n1.jpg;cat\n"},
            "csv",
            {"manifest": "labels.csv", "images": "photos"}
            | CLASSES
            | {"columns": {"path": "File Name", "label": "Breed"}},
        ),
        (
            {"train/1.jpg": "", "train/metadata.jsonl": '{"file_name": "1.jpg", "label": "cat"}'},
            "jsonl",
            CLASSES
            | {"manifest": "train/metadata.jsonl", "images": "train"}
            | {"columns": {"path": "file_name"}},
        ),
        (
            {
                f"{folder}{split}2017{file}": COCO if folder else ""
                for split in ("train", "val")
                for folder, file in (
                    ("", "/1.jpg"),
                    ("annotations/instances_", ".json"),
                    ("annotations/captions_", ".json"),
                )
            },
            "coco",
            {
                "parts": [
                    {"annotations": f"annotations/instances_{name}.json", "images": name}
                    | {"split": split}
                    for name, split in (("train2017", "train"), ("val2017", "validation"))
                ]
            },
        ),
        (
            {"a/1.jpg": "", "b.csv": "path,xmin,ymin,xmax,ymax,label\n1.jpg,.1,.1,.4,.5,cat"},
            "csv",
            {"manifest": "b.csv", "images": "a", "units": "fractions"} | BOXES,
        ),
        (
            {"a/1.jpg": "", "b.jsonl": '{"path": "1.jpg", "boxes": [{"xmin": 4, "label": "cat"}]}'},
            "jsonl",
            {"manifest": "b.jsonl", "images": "a"} | BOXES,
        ),
        (
            {"a/1.jpg": "", "b/2.jpg": "", "t.csv": "id,width,label\n1,9,cat\n2,9,dog\n"},
            "csv",
            CLASSES | {"manifest": "t.csv", "columns": {"path": "id"}, "find_by": "name"},
        ),
        (
            {
                f"images/{name}": text
                for split in ("train", "test")
                for name, text in (
                    (f"{split}/{split}_1.jpg", ""),
                    (
                        f"{split}_labels.csv",
                        "filename,width,height,class,xmin,ymin,xmax,ymax\n"
                        f"{split}_1.jpg,40,30,cat,1,2,30,20\n",
                    ),
                )
            },
            "csv",
            BOXES
            | {
                "parts": [
                    {"manifest": f"images/{split}_labels.csv", "images": f"images/{split}"}
                    | {"split": split}
                    for split in ("test", "train")
                ],
                "columns": {"path": "filename", "label": "class"},
            },
        ),
        ({"a-000.tar": make_tar(a__jpg="", a__cls="3"), "a-001.tar": ""}, "webdataset", CLASSES),
        ({"a.tar": make_tar(a__jpg="", a__json='{"boxes": []}')}, "webdataset", BOXES),
        (
            {"a.tar": make_tar(a__jpg="", a__json=json.dumps({"objects": OBJECTS}))},
            "webdataset",
            BOXES | {"boxes": "objects.bbox", "label": "objects.class", "box_format": "xywh"},
        ),
        (
            {"a.tar": make_tar(a__jpg="", a__json='{"class_name": "cat"}', a__txt="A cat.")},
            "webdataset",
            {"task": "classification", "label": "class_name", "annotation": "json"},
        ),
        (
            {"val.tar": make_tar(a__jpg="x" * 600, a__txt="cat")},
            "webdataset",
            CLASSES | {"parts": [{"files": "val.tar", "split": "validation"}], "annotation": "txt"},
        ),
        ({"p.json": label(RECTANGLE), "a.jpg": ""}, "label_studio", BOXES | {"export": "p.json"}),
        ({"p.json": label(CHOICE), "a.jpg": ""}, "label_studio", CLASSES | {"export": "p.json"}),
        (
            {"annotations.xml": CVAT.format('<box label="cat"/>'), "images/a & b.jpg": ""},
            "cvat",
            {"annotations": "annotations.xml", "images": "images", "task": "detection"},
        ),
        (
            {"annotations.xml": CVAT.format('<tag label="cat"/>'), "a & b.jpg": ""},
            "cvat",
            {"annotations": "annotations.xml", "images": ".", "task": "classification"},
        ),
    ],
)
def test_a_kind_is_recognised_with_its_keys(tmp_path, files, kind, keys):
    match = look(tmp_path, files)
    assert (match.type, match.is_certain, match.keys) == (kind, True, keys)


def test_a_folder_of_voc_below_the_given_one_is_found(tmp_path):
    files = {"VOC2012/JPEGImages/a.jpg": "", "VOC2012/Annotations/a.xml": ANNOTATION}
    assert look(tmp_path, files).below == "VOC2012"


@pytest.mark.parametrize(
    ("image", "xml", "below", "keys"),
    [
        ("x.jpg", "x.xml", "", (".", ".")),
        ("images/x.jpg", "images/x.xml", "images", (".", ".")),
        ("images/x.jpg", "annotations/xmls/x.xml", "", ("images", "annotations/xmls")),
        ("a/x.jpg", "x.xml", "", ("a", ".")),
        ("images/{}/x.jpg", "images/{}/x.xml", "images", (".", ".")),
        ("set/{}/x.jpg", "set/{}/x.xml", "set", (".", ".")),
        ("{}/images/x.jpg", "{}/labels/x.xml", "", ("images", "labels")),
        ("pictures/{}/x.jpg", "labels/{}/x.xml", "", ("pictures", "labels")),
    ],
)
def test_images_and_annotations_of_voc_are_found_in_any_two_folders(
    tmp_path, image, xml, below, keys
):
    files = {}
    for split in ("train", "test"):
        files |= {image.format(split): "", xml.format(split): ANNOTATION}
    match = look(tmp_path, files | {"README.txt": "about"})
    assert (match.type, match.is_certain, match.below) == ("voc", True, below)
    assert match.keys == {"images": keys[0], "annotations": keys[1]}
    assert ("in the folders test (test), train (train)" in match.reason) == ("{}" in image)


def test_the_classes_are_in_the_order_of_a_label_map(tmp_path):
    items = [("owl", 3), ("dog", 1), ("cat", 2)]
    text = "".join(f'item {{ id: {number} name: "{name}" }}' for name, number in items)
    for name, content in (("map.pbtxt", text), ("graph.pbtxt", "node {}")):
        (tmp_path / name).write_text(content)
    view = view_folder(tmp_path)
    assert find_class_order(view, {"cat", "dog"}) == ["dog", "cat"]
    assert find_class_order(view, {"cat", "cow"}) == []


def test_a_data_yaml_in_a_folder_below_is_the_folder_of_the_source(tmp_path):
    files = {"set/data.yaml": YOLO, "set/images/a.jpg": "", "set/labels/a.txt": "1 .5 .5 .2 .2\n"}
    match = look(tmp_path, files)
    assert (match.type, match.below) == ("yolo", "set")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"x.tar": make_tar(folder__jpg="")}, "x.tar begins with folder.jpg. In a shard of"),
        ({"x.tar": "none"}, NO_TAR),
        ({"x.tar": make_tar(a__jpg="").replace(b"00000000000\0", b"99999999999\0", 1)}, NO_TAR),
        ({"x.parquet": "none"}, "(1 .parquet)"),
        ({"x.parquet": "PAR1"}, "parquet       x.parquet: Parquet"),
        ({"x.parquet": make_table(a=[1], label=["cat"])}, "no known column with images"),
        ({"x.parquet": make_table(image=[b"x"])}, "no known column with labels or boxes"),
        ({"x.parquet": make_table(image=[], label=[])}, "no known column with images"),
        ({"x.json": "[" * 70_000}, "(1 .json)"),
        ({"x.xml": CVAT.format("")}, "x.xml is an export of CVAT without its images"),
        ({"x.csv": "path,label\n" + '"' * 70_000}, "none of its images"),
        ({"x.csv": b"\xff\xfe\0p\0a"}, "(1 .csv)"),
        ({"x.jsonl": b"\xff\n[]\nnull\n" + b"[" * 70_000}, "(1 .jsonl)"),
        ({"x-00000-of-00001": b"\x1f\x8b" + b"x" * 20}, "a compressed TFRecord file"),
        ({"dataset_info.json": "{}", "x.tfrecord-00000-of-00001": ""}, "use `type: tfds`"),
    ],
)
def test_broken_files_lead_to_a_message(tmp_path, files, message):
    with pytest.raises(DataError) as error:
        look(tmp_path, files)
    assert message in str(error.value)


def test_a_link_to_itself_and_a_missing_folder_are_told(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("loop", "missing"):
        with pytest.raises(DataError, match=f"{name}: .*Correct the path"):
            view_folder(tmp_path / name)
