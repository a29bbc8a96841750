"""COCO's JSON."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from beam_jobs.stages.stage import Box
from pipeline_ops.errors import DataError

CATEGORIES = [
    {"id": 18, "name": "dog"},
    {"id": 1, "name": "person"},
    {"id": 90, "name": "toothbrush"},
]


def an_image(number: int = 7, name: str = "7.jpg", **more) -> dict:
    return {"id": number, "file_name": name, "width": 40, "height": 30} | more


def an_annotation(image: int = 7, category: int = 18, bbox=(1, 2, 10, 20), **more) -> dict:
    return {"image_id": image, "category_id": category, "bbox": list(bbox)} | more


@pytest.fixture
def read(raw):
    """Reads images and annotations; the files 7.jpg and 8.jpg are there."""

    def read(images, annotations, categories=CATEGORIES, **source):
        raw.add("train/7.jpg")
        raw.add("train/8.jpg")
        raw.add(
            "a.json",
            json.dumps({"images": images, "annotations": annotations, "categories": categories}),
        )
        return raw.read(
            type="coco", **{"parts": [{"annotations": "a.json", "images": "train"}], **source}
        )

    return read


def test_a_box_of_x_y_width_and_height_becomes_edges(read):
    records, rejected = read(
        [an_image(), an_image(8, "8.jpg")],
        [an_annotation(), an_annotation(category=90, iscrowd=1), an_annotation(8)],
    )
    assert rejected == {}
    assert records["train/7.jpg"].boxes == (
        Box(2, 1, 22, 11, "dog"),
        Box(2, 1, 22, 11, "toothbrush", is_crowd=True),
    )
    assert records["train/7.jpg"].frame.size == (30, 40)
    assert records["train/8.jpg"].boxes == (Box(2, 1, 22, 11, "dog"),)


def test_an_image_without_annotations_has_no_boxes(read):
    assert read([an_image()], [])[0]["train/7.jpg"].boxes == ()


def test_outlines_take_no_memory(read):
    """Those of COCO 2017 have most of its 450 MB, and numbers in memory take 4 times their text."""
    outline = [number + 0.25 for number in range(1000)]
    annotations = [
        an_annotation(segmentation=[outline], area=200, bbox=[1, 2, 3, 4 + number / 100])
        for number in range(300)
    ]
    num_bytes = len(json.dumps(annotations))
    tracemalloc.start()
    try:
        records, _ = read([an_image()], annotations)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(records["train/7.jpg"].boxes) == 300
    assert peak < 3.5 * num_bytes, "the text as it is written and read here, and hardly more"


def test_parts_have_splits_of_their_own(raw):
    for name in ("train", "val"):
        raw.add(f"{name}/1.jpg")
        raw.add(
            f"{name}.json",
            json.dumps({"images": [an_image(1, "1.jpg")], "annotations": [], "categories": []}),
        )
    parts = [
        {"annotations": "train.json", "images": "train", "split": "train"},
        {"annotations": "val.json", "images": "val", "split": "validation"},
    ]
    records, rejected = raw.read(type="coco", parts=parts)
    assert ({key: record.split for key, record in records.items()}, rejected) == (
        {"train/1.jpg": "train", "val/1.jpg": "validation"},
        {},
    )


@pytest.mark.parametrize(
    "image, annotation, key, reason, detail",
    [
        (
            an_image(name="9.jpg"),
            an_annotation(),
            "train/9.jpg",
            "missing_image",
            "there is no file train/9.jpg",
        ),
        (
            an_image(name="../../etc/passwd"),
            an_annotation(),
            "../etc/passwd",
            "missing_image",
            "there is no file",
        ),
        (
            an_image(name=None),
            an_annotation(),
            "a.json#images-0",
            "malformed",
            "a path must be text, got None",
        ),
        (
            an_image(name="\ud800"),
            an_annotation(),
            "a.json#images-0",
            "malformed",
            "cannot be the name of a file",
        ),
        ("an image", an_annotation(), "a.json#images-0", "malformed", "an image without an id"),
        (
            an_image(number=[]),
            an_annotation(),
            "train/7.jpg",
            "malformed",
            "an image without an id",
        ),
        (
            an_image(width="wide"),
            an_annotation(),
            "train/7.jpg",
            "malformed",
            "'wide' is not a number",
        ),
        (
            an_image(),
            an_annotation(image=9),
            "a.json#annotations-0",
            "unknown_image",
            "no image has the image_id 9",
        ),
        (
            an_image(),
            "box",
            "a.json#annotations-0",
            "unknown_image",
            "no image has the image_id None",
        ),
        (
            an_image(),
            an_annotation(category=2),
            "train/7.jpg",
            "unknown_class",
            "no category has the category_id 2",
        ),
        (
            an_image(),
            an_annotation(category=[1]),
            "train/7.jpg",
            "unknown_class",
            "the category_id None",
        ),
        (
            an_image(),
            an_annotation(bbox=(1, 2, 3)),
            "train/7.jpg",
            "malformed",
            "the bbox must be a list of x, y, width and height",
        ),
        (
            an_image(),
            an_annotation(bbox=(1, 2, 3, "4px")),
            "train/7.jpg",
            "malformed",
            "'4px' is not a number",
        ),
        (
            an_image(),
            an_annotation(bbox=(1, 2, 3, True)),
            "train/7.jpg",
            "malformed",
            "True is not a number",
        ),
        (
            an_image(),
            an_annotation(bbox=(1, 2, 3, 10**400)),
            "train/7.jpg",
            "malformed",
            "is not a number",
        ),
        (
            an_image(),
            an_annotation(bbox=(1, 2, 3, float("nan"))),
            "train/7.jpg",
            "box_not_finite",
            "nan",
        ),
        (
            an_image(),
            an_annotation(bbox=(1, 2, 3, float("inf"))),
            "train/7.jpg",
            "box_not_finite",
            "inf",
        ),
        (an_image(), an_annotation(bbox=(1, 2, -3, 4)), "train/7.jpg", "box_inverted", "x 1 to -2"),
        (
            an_image(),
            an_annotation(bbox=(30, 2, 15, 4)),
            "train/7.jpg",
            "box_outside",
            "x 30 to 45",
        ),
        (
            an_image(),
            an_annotation(bbox=(1, 2, 0, 4)),
            "train/7.jpg#box-0",
            "box_empty",
            "x 1 to 1",
        ),
        (an_image(), an_annotation(iscrowd=7), "train/7.jpg", "malformed", "7 must be 0 or 1"),
    ],
)
def test_what_is_wrong_with_one_image_keeps_that_one_out(
    read, image, annotation, key, reason, detail
):
    records, rejected = read([image, an_image(8, "8.jpg")], [annotation, an_annotation(8)])
    assert "train/8.jpg" in records
    assert [rejected[key][0]] == [reason]
    assert detail in rejected[key][1]
    assert ("train/7.jpg" in records) == (reason in ("unknown_image", "box_empty") and "#" in key)


def test_images_that_share_an_id_are_all_kept_out(read):
    records, rejected = read([an_image(), an_image(7, "8.jpg")], [an_annotation()])
    assert records == {}
    assert rejected == dict.fromkeys(
        ("train/7.jpg", "train/8.jpg"), ("duplicate", "2 images have the id 7")
    )


def test_a_file_that_two_images_name_is_kept_out(read):
    records, rejected = read([an_image(), an_image(8, "7.jpg")], [])
    assert (records, rejected) == (
        {},
        {"train/7.jpg": ("duplicate", "named more than once: a.json#images-0, a.json#images-1")},
    )


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "a.json: not JSON"),
        ("[]", "a.json: not a COCO file for detection"),
        ("[" * 100_000, "a.json: not JSON"),
        (b"\xff\xfe", "a.json: not JSON"),
        ('{"images": [], "annotations": {}, "categories": []}', "not a COCO file"),
        ('{"images": []}', "It must be a mapping with the lists images,"),
    ],
)
def test_a_file_that_is_not_coco_is_told(raw, content, message):
    raw.add("a.json", content)
    with pytest.raises(DataError, match=message):
        raw.read(type="coco", parts=[{"annotations": "a.json"}])


def test_a_file_that_is_not_there_is_told(raw):
    with pytest.raises(
        DataError,
        match="b.json: no such file. preprocess.source.parts.0.annotations names this file",
    ):
        raw.read(type="coco", parts=[{"annotations": "b.json"}])
