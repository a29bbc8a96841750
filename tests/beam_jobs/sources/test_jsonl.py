"""Manifests of JSON lines."""

from __future__ import annotations

import json

import pytest

from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.recognition import recognise
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box

BOX = {"xmin": 1, "ymin": 2, "xmax": 30, "ymax": 20, "label": "cat"}


@pytest.fixture
def read(raw):
    """Reads lines, objects or text; the images 1.jpg and 2.jpg are there."""

    def read(*lines, task: str = "detection", **source):
        for number in (1, 2):
            raw.add(f"{number}.jpg")
        raw.add(
            "m.jsonl",
            b"\n".join(
                line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
            ),
        )
        return raw.read(type="jsonl", manifest="m.jsonl", task=task, **source)

    return read


def test_a_line_is_an_image_with_its_boxes(read):
    records, rejected = read(
        {
            "path": "1.jpg",
            "boxes": [BOX, BOX | {"label": "dog", "is_crowd": True}],
            "width": 40,
            "height": 30,
            "split": "test",
        },
        b"",
        {"path": "2.jpg", "boxes": [], "group": "farm", "note": "rain"},
    )
    assert rejected == {}
    assert records["1.jpg"].boxes == (
        Box(2, 1, 20, 30, "cat"),
        Box(2, 1, 20, 30, "dog", is_crowd=True),
    )
    assert [(r.split, r.group, r.frame.size) for r in records.values()] == [
        ("test", None, (30, 40)),
        (None, "farm", None),
    ]


def test_a_line_is_an_image_with_its_class(read):
    records, rejected = read(
        {"path": "1.jpg", "label": "cat"},
        {"path": "2.jpg", "label": "dog", "split": "val"},
        task="classification",
    )
    assert ([(r.label, r.split, r.boxes) for r in records.values()], rejected) == (
        [("cat", None, None), ("dog", "validation", None)],
        {},
    )


def test_boxes_may_be_fractions(read):
    assert (
        read({"path": "1.jpg", "boxes": []}, units="fractions")[0]["1.jpg"].frame.size == FRACTIONS
    )


@pytest.mark.parametrize(
    "line, key, reason, detail",
    [
        (b"{", "m.jsonl:2", "malformed", "line 2: not JSON"),
        (b"\xff", "m.jsonl:2", "malformed", "line 2: not JSON"),
        (b"[" * 100_000, "m.jsonl:2", "malformed", "line 2: not JSON"),
        (b"9" * 5000, "m.jsonl:2", "malformed", "line 2: not JSON"),
        ([1], "m.jsonl:2", "malformed", "line 2: must be an object, got list"),
        ({}, "m.jsonl:2", "malformed", "line 2: must have a list of boxes"),
        ({"boxes": []}, "m.jsonl:2", "malformed", "line 2: a path must be text, got None"),
        ({"path": 7, "boxes": []}, "m.jsonl:2", "malformed", "line 2: a path must be text, got 7"),
        (
            {"path": "x\ud800", "boxes": []},
            "m.jsonl:2",
            "malformed",
            "cannot be the name of a file",
        ),
        ({"path": "3.jpg", "boxes": []}, "3.jpg", "missing_image", "there is no file 3.jpg"),
        ({"path": "1.jpg"}, "1.jpg", "malformed", "must have a list of boxes, which may be empty"),
        ({"path": "1.jpg", "boxes": ["box"]}, "1.jpg", "malformed", "a box must be an object"),
        (
            {"path": "1.jpg", "boxes": [{"xmin": 1, "label": "cat"}]},
            "1.jpg",
            "malformed",
            "line 2: a box lacks ymin, ymax, xmax",
        ),
        (
            {"path": "1.jpg", "boxes": [BOX | {"xmin": None}]},
            "1.jpg",
            "malformed",
            "None is not a number",
        ),
        (
            {"path": "1.jpg", "boxes": [BOX | {"xmin": 10**400}]},
            "1.jpg",
            "malformed",
            "is not a number",
        ),
        (
            {"path": "1.jpg", "boxes": [BOX | {"label": True}]},
            "1.jpg",
            "malformed",
            "True is not text",
        ),
        (
            {"path": "1.jpg", "boxes": [BOX | {"label": "\ud800"}]},
            "1.jpg",
            "no_label",
            "is not the name of a class",
        ),
        (
            {"path": "1.jpg", "boxes": [BOX | {"is_difficult": []}]},
            "1.jpg",
            "malformed",
            "[] must be 0 or 1",
        ),
        (
            {"path": "1.jpg", "boxes": [BOX | {"ymin": float("nan")}]},
            "1.jpg",
            "box_not_finite",
            "y nan to 20",
        ),
        ({"path": "1.jpg", "boxes": [BOX | {"ymin": 21}]}, "1.jpg", "box_inverted", "y 21 to 20"),
        (
            {"path": "1.jpg", "boxes": [BOX], "width": 10, "height": 10},
            "1.jpg",
            "box_outside",
            "in an image of 10x10 pixels",
        ),
        (
            {"path": "1.jpg", "boxes": [], "split": ["train"]},
            "1.jpg",
            "unknown_split",
            "splits are train",
        ),
        ({"path": "1.jpg", "boxes": [], "group": [3]}, "1.jpg", "malformed", "[3] is not text"),
        (
            {"path": "2.jpg", "boxes": []},
            "2.jpg",
            "duplicate",
            "named more than once: m.jsonl:1, m.jsonl:2",
        ),
    ],
)
def test_a_bad_line_is_kept_out_and_named(read, line, key, reason, detail):
    records, rejected = read({"path": "2.jpg", "boxes": [BOX]}, line)
    assert list(records) == ([] if reason == "duplicate" else ["2.jpg"])
    assert [(k, r) for k, (r, _) in rejected.items()] == [(key, reason)]
    assert detail in rejected[key][1]


def test_a_line_that_repeats_a_bad_one_is_kept_out_too(read):
    records, rejected = read({"path": "1.jpg"}, {"path": "1.jpg", "boxes": []})
    assert (records, rejected["1.jpg"][0]) == ({}, "duplicate")


def an_item(name="1.jpg", *boxes, **more) -> dict:
    names = ("x", "y", "width", "height")
    found = [{"label": "cat", "coordinates": dict(zip(names, box, strict=True))} for box in boxes]
    return {"image": name, "annotations": found} | more


def test_a_list_of_create_ml_is_recognised_and_read(raw):
    for split in ("train", "test"):
        raw.add(f"{split}/1.jpg")
        raw.add(f"{split}/2.jpg")
        items = [an_item("1.jpg", (20, 11, 10, 4), (5.5, 6, 1, 2)), an_item("2.jpg")]
        raw.add(f"{split}/_annotations.createml.json", json.dumps(items))
    match = recognise(view_folder(raw.folder))
    assert match.type == "jsonl"
    records, rejected = raw.read(type="jsonl", **match.keys)
    assert {key: record.split for key, record in records.items()} == {
        f"{split}/{n}.jpg": split for split in ("train", "test") for n in (1, 2)
    }
    assert records["train/1.jpg"].boxes == (Box(9, 15, 13, 25, "cat"), Box(5, 5, 7, 6, "cat"))
    assert (records["test/2.jpg"].boxes, rejected) == ((), {})


@pytest.mark.parametrize(
    "item",
    [
        7,
        {"image": "1.jpg"},
        an_item("1.jpg", (1, 2, 3, None)),
        an_item("1.jpg", (1, 2, 3, "x")),
        an_item("1.jpg", (1, 2, 3, 4), annotations=[{"label": "cat"}]),
        an_item("1.jpg", annotations=7),
        an_item(["1.jpg"], (5, 5, 2, 2)),
    ],
)
def test_a_fault_of_an_item_rejects_it(raw, item):
    raw.add("1.jpg")
    raw.add("2.jpg")
    raw.add("a.json", json.dumps([an_item("2.jpg", (20, 11, 10, 4)), item]))
    keys = recognise(view_folder(raw.folder)).keys
    records, rejected = raw.read(type="jsonl", **keys)
    assert (list(records), len(rejected)) == (["2.jpg"], 1)
