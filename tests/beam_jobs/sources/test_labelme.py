"""LabelMe's JSON files, one for each image."""

from __future__ import annotations

import json

import pytest

from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.recognition import recognise
from pipeline_ops.errors import DataError


def a_shape(points, kind="rectangle", label="cat", **more):
    return {"label": label, "points": points, "shape_type": kind, "group_id": None} | more


def a_file(*shapes, path="1.jpg", **more) -> str:
    size = {"imageHeight": 60, "imageWidth": 80}
    return json.dumps({"shapes": shapes, "imagePath": path, "imageData": "/9j/"} | size | more)


@pytest.fixture
def read(raw):
    def read(content: str | bytes):
        raw.add("1.jpg")
        raw.add("1.json", content)
        return raw.read(type="labelme")

    return read


def corners(box) -> tuple:
    return box.label, box.xmin, box.ymin, box.xmax, box.ymax


@pytest.mark.parametrize(
    ("shapes", "boxes"),
    [
        ([a_shape([[30, 40], [10, 20]])], [("cat", 10, 20, 30, 40)]),
        ([a_shape([[10, 40], [30, 20]])], [("cat", 10, 20, 30, 40)]),
        ([a_shape([[10, 20], [30, 20], [30, 40], [10, 40]])], [("cat", 10, 20, 30, 40)]),
        ([a_shape([[10, 20], [30, 25], [15, 40]], "polygon")], [("cat", 10, 20, 30, 40)]),
        ([a_shape([[10, 20], [30, 25], [15, 40]], None)], [("cat", 10, 20, 30, 40)]),
        ([a_shape([[20, 30], [26, 38]], "circle")], [("cat", 10, 20, 30, 40)]),
        ([a_shape([[10, 20], [30, 40]], "mask", mask="iVBO")], [("cat", 10, 20, 30, 40)]),
        (
            [a_shape([[1, 2], [5, 6]], group_id=0), a_shape([[9, 1], [20, 4]], group_id=0)],
            [("cat", 1, 1, 20, 6)],
        ),
        (
            [
                a_shape([[1, 2], [5, 6]], group_id=1),
                a_shape([[9, 1], [20, 4]], label="dog", group_id=1),
            ],
            [("cat", 1, 2, 5, 6), ("dog", 9, 1, 20, 4)],
        ),
        ([], []),
    ],
)
def test_each_shape_is_a_box_around_it(read, shapes, boxes):
    records, rejected = read(a_file(*shapes))
    assert (list(map(corners, records["1.jpg"].boxes)), rejected) == (boxes, {})
    assert records["1.jpg"].frame.drawn_on == "upright"
    assert records["1.jpg"].frame.size == (60, 80)


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        (b"\xff", "1.json", "malformed"),
        ("[]", "1.json", "malformed"),
        ("{}", "1.json", "malformed"),
        (a_file(path=["1.jpg"]), "1.json", "malformed"),
        (a_file(path="x" * 5000), "1.json", "malformed"),
        (json.dumps({"imagePath": "1.jpg", "shapes": {}}), "1.jpg", "malformed"),
        (json.dumps({"imagePath": "1.jpg", "shapes": [3]}), "1.jpg", "malformed"),
        (a_file(a_shape([[1, 2]])), "1.jpg", "unknown_shape"),
        (a_file(a_shape([[1, 2], [3, 4]], "line")), "1.jpg", "unknown_shape"),
        (a_file(a_shape([[1, 2], [3, 4]], ["x"])), "1.jpg", "unknown_shape"),
        (a_file(a_shape([[1, 2], [3, 4]], "polygon")), "1.jpg", "malformed"),
        (a_file(a_shape([[1, 2], [3, "x"]])), "1.jpg", "malformed"),
        (a_file(a_shape([[1, 2], [3]])), "1.jpg", "malformed"),
        (a_file(a_shape({"0": 1})), "1.jpg", "malformed"),
        (a_file(a_shape([[1, 2], [3, float("nan")]])), "1.jpg", "box_not_finite"),
        (a_file(a_shape([[1, 2], [300, 4]])), "1.jpg", "box_outside"),
        (a_file(a_shape([[1, 2], [3, 4]], label=None)), "1.jpg", "malformed"),
        (a_file(a_shape([[1, 2], [3, 4]], label=" ")), "1.jpg", "no_label"),
        (a_file(imageHeight="x"), "1.jpg", "malformed"),
    ],
)
def test_a_fault_rejects_its_image(read, content, key, reason):
    records, rejected = read(content)
    assert (records, rejected[key][0]) == ({}, reason)


def test_images_are_found_by_path_by_name_and_by_the_name_of_the_file(raw):
    for name in ("train/images/1.jpg", "val/images/2.png", "3.jpg", "4.jpg"):
        raw.add(name)
    raw.add("train/json/1.json", a_file(path="..\\images\\1.jpg"))
    raw.add("val/json/2.json", a_file(path="C:\\shots\\2.png"))
    raw.add("3.json", a_file(path="IMG_0003.jpg"))
    raw.add("train/json/5.json", a_file(path="5.jpg"))
    raw.add("train/json/4.json", a_file(path="4.jpg"))
    raw.add("val/json/4.json", a_file(path="4.jpg"))
    records, rejected = raw.read(type="labelme")
    assert {key: record.split for key, record in records.items()} == {
        "train/images/1.jpg": "train",
        "val/images/2.png": "validation",
        "3.jpg": None,
    }
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "train/json/5.json": "missing_image",
        "4.jpg": "duplicate",
    }


def test_files_of_labelme_are_recognised_and_images_that_are_missing_are_told(raw):
    raw.add("a/1.json", a_file())
    with pytest.raises(DataError, match=r"a/1.json is of LabelMe, but its image 1.jpg is not"):
        recognise(view_folder(raw.folder))
    raw.add("a/1.jpg")
    match = recognise(view_folder(raw.folder))
    assert (match.type, match.is_certain, match.keys) == ("labelme", True, {})
