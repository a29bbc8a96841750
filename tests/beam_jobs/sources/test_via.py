"""VGG Image Annotator's JSON and CSV."""

from __future__ import annotations

import csv
import io
import json

import pytest

from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.recognition import recognise
from pipeline_ops.errors import DataError

RECT = {"name": "rect", "x": 10, "y": 20, "width": 20, "height": 10}
BOX = ("cat", 10, 20, 30, 30)


def a_region(shape=RECT, **attributes) -> dict:
    return {"shape_attributes": shape, "region_attributes": attributes or {"class": "cat"}}


def an_image(*regions, name="1.jpg", **more) -> dict:
    return {f"{name}99": {"filename": name, "size": 99, "regions": list(regions)} | more}


def to_csv(*images: dict) -> str:
    text = io.StringIO()
    columns = (
        "#filename",
        "file_size",
        "region_count",
        "region_shape_attributes",
        "region_attributes",
    )
    writer = csv.writer(text)
    writer.writerow(columns)
    for image in images:
        for fields in image.values():
            for each in fields["regions"] or [{"shape_attributes": {}, "region_attributes": {}}]:
                cells = (json.dumps(each[f"{name}_attributes"]) for name in ("shape", "region"))
                writer.writerow((fields["filename"], 99, len(fields["regions"]), *cells))
    return text.getvalue()


@pytest.fixture
def read(raw):
    def read(content, name="via.json", **source):
        raw.add("1.jpg")
        raw.add("2.jpg")
        raw.add(name, content if isinstance(content, str) else json.dumps(content))
        return raw.read(type="via", parts=[{"manifest": name}], **source)

    return read


def boxes_of(record) -> list[tuple]:
    return [(b.label, b.xmin, b.ymin, b.xmax, b.ymax) for b in record.boxes]


def test_the_project_the_annotations_and_the_csv_are_the_same(read):
    images = an_image(a_region()) | an_image(name="2.jpg")
    first = an_image(a_region())["1.jpg99"]
    numbered = an_image(name="2.jpg") | {"1.jpg99": first | {"regions": {"0": a_region()}}}
    found = [
        read(images),
        read({"_via_settings": {}, "_via_img_metadata": images}),
        read(numbered),
        read(to_csv(images), "via.csv"),
    ]
    for records, rejected in found:
        assert {key: boxes_of(record) for key, record in records.items()} == {
            "1.jpg": [BOX],
            "2.jpg": [],
        }
        assert rejected == {}
        assert records["1.jpg"].frame.drawn_on == "upright"


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ({"name": "circle", "cx": 20, "cy": 25, "r": 5}, (15, 20, 25, 30)),
        ({"name": "ellipse", "cx": 20, "cy": 25, "rx": 10, "ry": 5}, (10, 20, 30, 30)),
        (
            {"name": "ellipse", "cx": 20, "cy": 25, "rx": 10, "ry": 5, "theta": 1.5707963267948966},
            (15, 15, 25, 35),
        ),
        (
            {"name": "polygon", "all_points_x": [10, 30, 12], "all_points_y": [20, 25, 30]},
            (10, 20, 30, 30),
        ),
        (
            {"name": "polyline", "all_points_x": [10, 30, 12], "all_points_y": [20, 25, 30]},
            (10, 20, 30, 30),
        ),
    ],
)
def test_each_shape_is_a_box_around_it(read, shape, box):
    records, _ = read(an_image(a_region(shape)))
    assert boxes_of(records["1.jpg"]) == [("cat", *map(pytest.approx, box))]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"filename": "1.jpg", "regions": None}, "malformed"),
        ({"filename": "1.jpg", "regions": ["x"]}, "malformed"),
        ({"filename": "1.jpg", "regions": [{"shape_attributes": "{"}]}, "malformed"),
        ({"filename": "1.jpg", "regions": [{"shape_attributes": "\ud800"}]}, "malformed"),
        (an_image({"shape_attributes": RECT})["1.jpg99"], "malformed"),
        (an_image(a_region({"name": "point", "cx": 1, "cy": 2}))["1.jpg99"], "unknown_shape"),
        (an_image(a_region({}))["1.jpg99"], "unknown_shape"),
        (an_image(a_region(RECT | {"x": None}))["1.jpg99"], "malformed"),
        (an_image(a_region(RECT | {"width": -5}))["1.jpg99"], "box_inverted"),
        (an_image(a_region(kind="cat", size="big"))["1.jpg99"], "no_label"),
        (an_image(a_region(kind={"cat": True, "dog": True}))["1.jpg99"], "no_label"),
        (an_image(a_region(kind=["cat"]))["1.jpg99"], "malformed"),
        (an_image(a_region({"name": "polygon", "all_points_x": [1]}))["1.jpg99"], "unknown_shape"),
    ],
)
def test_a_fault_rejects_its_image(read, entry, reason):
    records, rejected = read({"1": entry} | an_image(name="2.jpg"))
    assert (list(records), [found for found, _ in rejected.values()]) == (["2.jpg"], [reason])


def test_an_attribute_and_a_check_box_name_the_class(read):
    regions = [a_region(kind={"cat": True, "dog": False}, size="big")]
    records, _ = read(an_image(*regions), attribute="kind")
    assert boxes_of(records["1.jpg"]) == [BOX]
    records, _ = read(an_image(a_region(size="big", kind=3)), single_class="cat")
    assert boxes_of(records["1.jpg"]) == [BOX]


def test_twice_the_same_image_and_an_image_that_is_missing(read):
    content = {"1": an_image()["1.jpg99"], "2": 7} | an_image() | an_image(name="9.jpg")
    records, rejected = read(content)
    assert {key: reason for key, (reason, _) in rejected.items()} == {
        "1.jpg": "duplicate",
        "via.json#2": "malformed",
        "via.json#9.jpg99": "missing_image",
    }
    assert records == {}


@pytest.mark.parametrize("content", ["[", "[1]", "{}", '{"a": 1}', "a,b\n1,2\n", '{"a": ' * 9000])
def test_a_file_of_another_kind_fails_the_job(read, content):
    with pytest.raises(DataError, match="via.json: not of VGG Image Annotator"):
        read(content)


def test_the_files_of_the_splits_are_recognised_with_their_attribute(raw):
    for split in ("train", "val"):
        raw.add(f"{split}/{split}.jpg")
        image = an_image(a_region(), name=f"{split}.jpg")
        raw.add(f"{split}/via_region_data.json", json.dumps(image))
        raw.add(f"{split}/via_region_data.csv", to_csv(image))
    match = recognise(view_folder(raw.folder))
    assert (match.type, match.keys["attribute"]) == ("via", "class")
    assert [part["split"] for part in match.keys["parts"]] == ["train", "validation"]
    assert [part["images"] for part in match.keys["parts"]] == ["train", "val"]


def test_balloons_without_attributes_are_one_class_and_two_attributes_are_a_question(raw):
    raw.add("1.jpg")
    region = {"shape_attributes": RECT, "region_attributes": {}}
    raw.add("via.json", json.dumps(an_image(region)))
    assert recognise(view_folder(raw.folder)).keys["single_class"] == "object"
    raw.add("via.json", json.dumps(an_image(a_region(kind="cat", size="big"))))
    with pytest.raises(DataError, match="--type via --source attribute=kind"):
        recognise(view_folder(raw.folder))
    match = recognise(view_folder(raw.folder, chosen={"attribute": "kind"}))
    assert match.keys["attribute"] == "kind"


def test_a_row_that_is_cut_off_is_no_image_without_objects(read):
    text = to_csv(an_image(a_region(), name="2.jpg")) + "1.jpg,99,1\n"
    records, rejected = read(text, "via.csv")
    assert (list(records), rejected["1.jpg"][0]) == (["2.jpg"], "malformed")
