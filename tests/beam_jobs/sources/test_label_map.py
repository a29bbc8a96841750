"""Label maps of the Object Detection API."""

from __future__ import annotations

import pytest

from beam_jobs.sources.tfrecord import parse_label_map
from pipeline_ops.errors import DataError


@pytest.mark.parametrize(
    "text",
    [
        "item { id: 1 name: 'cat' } item { id: 2 name: 'dog' }",
        "# pets\nitem: {\n  name: \"cat\"  # a cat\n  id: 1;\n}\nitem <\n id: 2, name: 'd' 'og'>\n",
        "\ufeffitem { id: 1 display_name: 'cat' } item { id: 2 name: '/m/01' display_name: 'dog' }",
        (
            "item { id: 1 name: 'cat' keypoints { id: 4 label: 'nose' } frequency: FREQUENT } "
            "item { id: 2 name: 'd\\157g' instance_count: 5 }"
        ),
    ],
)
def test_names_by_number(text):
    assert parse_label_map(text.encode(), "map.pbtxt").names == {1: "cat", 2: "dog"}


def test_a_class_has_both_names_of_cocos_label_map():
    text = b"item { id: 1 name: '/m/01g317' display_name: 'person' } item { id: 2 name: 'dog' }"
    assert parse_label_map(text, "map.pbtxt").aliases == {
        "/m/01g317": "person",
        "person": "person",
        "dog": "dog",
    }


def test_a_class_has_the_lowest_of_its_numbers():
    text = (
        "item { id: 7 name: 'dog' } item { id: 5 name: ' dog' } item { id: 1 name: 'cafe\u0301' }"
    )
    assert parse_label_map(text.encode(), "map.pbtxt").numbers == {"caf\xe9": 1, "dog": 5}


@pytest.mark.parametrize(
    ("first", "names"),
    [
        ("name: 'background'", {}),
        ("name: 'none_of_the_above' display_name: 'background'", {}),
        ("name: 'background' display_name: 'nothing'", {}),
        ("name: 'cat'", {0: "cat"}),
    ],
)
def test_the_background_of_the_api_is_no_class_of_a_detector(first, names):
    text = f"item {{ id: 0 {first} }} item {{ id: 1 name: 'dog' }}"
    found = parse_label_map(text.encode(), "map.pbtxt")
    assert found.names.keys() == {0, 1}
    assert found.without_background().names == names | {1: "dog"}
    only = parse_label_map(b"item { id: 3 name: 'background' }", "map.pbtxt")
    assert only.without_background() == only


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "has no items"),
        (b"item {", "not a label map in protobuf's text format: 1"),
        (b"item { id: one name: 'x' }", "1:12"),
        (b"\xff", "utf-8"),
        (b"item { id: 1 }", "an item needs an id from 0 on and a name, got id 1 and name ''"),
        (b"item { id: -1 name: 'cat' }", "needs an id from 0 on and a name, got id -1 and"),
        (b"item { name: 'x' }", "needs an id"),
        (
            b"item { id: 1 name: 'a' } item { id: 1 name: 'b' }",
            "the classes 'a' and 'b' have the same id 1",
        ),
        (
            b"item { id: 1 name: 'a' display_name: 'x' } item { id: 2 name: 'a' }",
            "'a' names the classes 'x' and 'a'",
        ),
        (b"item { id: 99999999999 name: 'a' }", "not a label map"),
        (b"item { id: 1 id: 2 name: 'a' }", "not a label map"),
        (b"item { id: 1 name: 'a' x " + b"{ x " * 50_000, "not a label map"),
        (b"item { id: 1 name: '\\377' }", "not a label map"),
        (
            b"item { id: 4 name: '%b' }" % (b"a" * 1001),
            "the item 4 has 1001 characters in its name, allowed are 1000",
        ),
        (b"item { id: 4 display_name: 'a' name: '%b' }" % (b"a" * 1001), "item 4 has 1001"),
    ],
)
def test_what_is_no_label_map_is_told_with_the_place(content, message):
    with pytest.raises(DataError, match=r"^map.pbtxt: ") as caught:
        parse_label_map(content, "map.pbtxt")
    assert message in str(caught.value)
