"""The meaning of a table's columns: guesses are tried on all rows, and doubts are questions."""

from __future__ import annotations

import json
import random

import pytest
from PIL import Image

from beam_jobs.sources.box_formats import judge_formats, to_corners
from beam_jobs.sources.columns import Columns, Meaning, find_field, parse_numbers
from beam_jobs.sources.folder_view import Question, view_folder
from beam_jobs.sources.recognition import merge_keys, recognise
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import MAX_NESTED_LISTS

HEIGHT, WIDTH = 48, 64


def make_boxes(number: int = 40, seed: int = 1) -> list[tuple[int, int, int, int]]:
    """Boxes as xmin, ymin, xmax, ymax, of which many touch an edge of the image."""
    generator, boxes = random.Random(seed), []
    for _ in range(number):
        xmin = generator.choice((0, generator.randrange(WIDTH - 10)))
        ymin = generator.choice((0, generator.randrange(HEIGHT - 10)))
        xmax = generator.choice((WIDTH, generator.randrange(xmin + 4, WIDTH + 1)))
        ymax = generator.choice((HEIGHT, generator.randrange(ymin + 4, HEIGHT + 1)))
        boxes.append((xmin, ymin, xmax, ymax))
    return boxes


def convert(box, box_format: str, is_fraction: bool = False) -> list[float]:
    xmin, ymin, xmax, ymax = box
    width, height = xmax - xmin, ymax - ymin
    numbers = {
        "xyxy": (xmin, ymin, xmax, ymax),
        "yxyx": (ymin, xmin, ymax, xmax),
        "xywh": (xmin, ymin, width, height),
        "center_xywh": (xmin + width / 2, ymin + height / 2, width, height),
    }[box_format]
    sides = (HEIGHT, WIDTH) * 2 if box_format == "yxyx" else (WIDTH, HEIGHT) * 2
    return [n / side if is_fraction else n for n, side in zip(numbers, sides, strict=True)]


@pytest.mark.parametrize("is_fraction", [False, True])
@pytest.mark.parametrize("box_format", ["xyxy", "xywh", "center_xywh"])
@pytest.mark.parametrize("seed", range(5))
def test_the_format_of_boxes_is_the_one_that_keeps_them_in_their_images(
    box_format, is_fraction, seed
):
    boxes = [convert(box, box_format, is_fraction) for box in make_boxes(seed=seed)]
    found = judge_formats([(box, (HEIGHT, WIDTH)) for box in boxes])
    assert found.formats == [box_format]
    assert found.units == ("fractions" if is_fraction else "pixels")


@pytest.mark.parametrize("box_format", ["xyxy", "xywh", "center_xywh"])
def test_a_box_in_fifty_may_be_wrong(box_format):
    boxes = [convert(box, box_format) for box in make_boxes(100)]
    boxes[3] = [70, 3, 190, 40]
    found = judge_formats([(box, (HEIGHT, WIDTH)) for box in boxes])
    assert found.formats == [box_format]


@pytest.mark.parametrize("box_format", ["xyxy", "yxyx", "xywh", "center_xywh"])
def test_a_format_gives_the_corners_that_were_meant(box_format):
    for box in make_boxes():
        ymin, xmin, ymax, xmax = to_corners(convert(box, box_format), box_format)
        assert (xmin, ymin, xmax, ymax) == pytest.approx(box)


@pytest.mark.parametrize(
    "value, boxes",
    [
        ("[1.0, 2.0, 3.0, 4.0]", [[1, 2, 3, 4]]),
        ("1,2,3,4", [[1, 2, 3, 4]]),
        ("(1 2 3 4)", [[1, 2, 3, 4]]),
        ("[[1, 2, 3, 4], [5, 6, 7, 8]]", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ([1, 2, 3, 4], [[1, 2, 3, 4]]),
        ("", []),
        ([], []),
        ("cat 1 2 3 4", None),
        ("[1, 2, 3]", None),
        ([1, 2, 3, "4"], None),
        (7, None),
    ],
)
def test_boxes_are_lists_or_their_text(value, boxes):
    assert parse_numbers(value) == boxes


def rows(*names: str, **columns) -> list[dict]:
    boxes = make_boxes()
    made = []
    for index, box in enumerate(boxes):
        row = {"label": "cat" if index % 2 else "dog"}
        row |= {name: values(index, box) for name, values in columns.items()}
        made.append({name: row[name] for name in (*columns, *names)})
    return made


def coordinates(box_format: str, *names: str) -> dict:
    return {
        name: lambda _, box, position=position: str(convert(box, box_format)[position])
        for position, name in enumerate(names)
    }


def mean(table: list[dict], **chosen):
    sizes = [(HEIGHT, WIDTH)] * len(table)
    return Columns(table, list(table[0]), sizes, chosen, "columns.label").find_meaning()


@pytest.mark.parametrize(
    "box_format, names",
    [
        ("xywh", ("x", "y", "width", "height")),
        ("xywh", ("bbox_x", "bbox_y", "bbox_width", "bbox_height")),
        ("xywh", ("left", "top", "width", "height")),
        ("center_xywh", ("x", "y", "w", "h")),
        ("center_xywh", ("x_center", "y_center", "width", "height")),
        ("center_xywh", ("cx", "cy", "w", "h")),
        ("xyxy", ("Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2")),
        ("xyxy", ("XMin", "YMin", "XMax", "YMax")),
        ("xyxy", ("left", "top", "right", "bottom")),
    ],
)
def test_columns_of_coordinates_are_boxes_and_never_the_label(box_format, names):
    table = rows("label", **coordinates(box_format, *names))
    found = mean(table)
    assert isinstance(found, Meaning), found
    assert (found.task, found.label, found.box_format) == ("detection", "label", box_format)
    assert list(found.corners) == list(names)
    assert any("label from the column label" in note for note in found.notes)


def test_names_that_contradict_their_numbers_are_asked():
    found = mean(rows("label", **coordinates("xywh", "xmin", "ymin", "xmax", "ymax")))
    assert isinstance(found, Question)
    assert [*found.choices] == [{"box_format": "xywh"}]


def test_two_formats_that_fit_are_asked_and_the_answer_is_taken():
    table = [{"bbox": [24, 18, 30, 24], "label": "cat"}] * 5
    found = mean(table)
    assert isinstance(found, Question)
    assert {"box_format": "xywh"} in found.choices and {"box_format": "xyxy"} in found.choices
    assert mean(table, box_format="xywh").box_format == "xywh"


def label(*columns) -> list[dict]:
    """Rows of 30 images with the columns (name, function of the index)."""
    return [{name: values(index) for name, values in columns} for index in range(30)]


KIND = ("dog", "cat", "owl")


@pytest.mark.parametrize(
    "columns, wanted",
    [
        ([("category", lambda i: f"a{i % 4}"), ("label", lambda i: KIND[i % 3])], "label"),
        ([("y", lambda i: KIND[i % 3])], "y"),
        ([("class_id", lambda i: i % 3), ("class_name", lambda i: KIND[i % 3])], "class_name"),
        ([("breed", lambda i: KIND[i % 3])], "breed"),
        (
            [("split", lambda i: "train" if i % 3 else "test"), ("kind", lambda i: KIND[i % 3])],
            "kind",
        ),
    ],
)
def test_the_column_of_the_classes(columns, wanted):
    found = mean(label(*columns))
    assert isinstance(found, Meaning) and (found.task, found.label) == ("classification", wanted)


def test_a_column_of_splits_is_one_if_all_its_values_are():
    split = ("split", lambda i: ("train", "valid", "test")[i % 3])
    found = mean(label(split, ("label", lambda i: KIND[i % 3])))
    assert found.others == {"split": "split"}
    other = ("split", lambda i: ("train", "left", "right")[i % 3])
    assert mean(label(other, ("label", lambda i: KIND[i % 3]))).others == {}


@pytest.mark.parametrize(
    "columns, choices",
    [
        (
            [("class", lambda i: KIND[i % 3]), ("category", lambda i: f"a{i % 4}")],
            [{"columns.label": "class"}, {"columns.label": "category"}],
        ),
        (
            [("species", lambda i: KIND[i % 3]), ("target", lambda i: i % 2)],
            [{"columns.label": "target"}, {"columns.label": "species"}],
        ),
    ],
)
def test_two_columns_that_may_be_the_classes_are_asked(columns, choices):
    found = mean(label(*columns))
    assert isinstance(found, Question) and [*found.choices] == choices
    for choice in choices:
        assert mean(label(*columns), **choice).label == choice["columns.label"]


@pytest.mark.parametrize(
    "columns, fault",
    [
        ([("label", lambda i: 3 * i)], "30 numbers that all differ, which are no classes"),
        ([("area", lambda i: i + 0.5)], "30 numbers that all differ, which are no classes"),
        ([("x", lambda i: i), ("y", lambda i: 2 * i)], "the columns x, y are coordinates"),
        ([("cat", lambda i: 1), ("dog", lambda i: i % 2)], "multi-label"),
        ([("tags", lambda i: ("cat", "dog", "cat|dog")[i % 3])], "multi-label"),
    ],
)
def test_columns_that_are_no_classes_say_why(columns, fault):
    assert fault in mean(label(*columns))


@pytest.mark.parametrize(
    "more, key",
    [
        ({n: lambda i, n=n: i * len(n) + 0.5 for n in ("ax", "bx2", "cx33", "dx444")}, "corners"),
        ({"where": lambda i: f"({i}, 2, 30, 40)"}, "columns.boxes"),
        ({"region": lambda i: f"{{'x': {i}, 'y': 2, 'w': 3, 'h': 4}}"}, None),
        ({"outline": lambda i: f"POLYGON(({i} 1, 2 3, 4 5))"}, None),
        ({"mask": lambda i: f"{i} 12 40 7 80 3"}, None),
    ],
)
def test_columns_that_may_be_boxes_are_no_silent_classification(more, key):
    table = label(("name", lambda i: KIND[i % 3]), ("label", lambda i: KIND[i % 2]), *more.items())
    found = mean(table)
    assert isinstance(found, Question)
    assert found.choices[0] == {"task": "classification"}
    assert [key in choice for choice in found.choices[1:]] == ([True] if key else [])
    for choice in found.choices[1:]:
        assert mean(table, **choice, box_format="xyxy").task == "detection"
    answered = mean(table, task="classification")
    assert answered.label == "label" and "columns that are not used: name" in answered.notes[-1]


def test_columns_of_zeros_and_ones_are_classes():
    found = mean(label(("MEL", lambda i: float(i % 2)), ("NV", lambda i: 1.0 - i % 2)))
    assert (found.task, [*found.one_hot]) == ("classification", ["MEL", "NV"])


def test_boxes_without_a_column_of_classes_have_one_class():
    found = mean(rows(**coordinates("xyxy", "xmin", "ymin", "xmax", "ymax")))
    assert found.single_class == "object"
    assert "no column names one" in found.notes[-1]


def test_an_answer_about_boxes_keeps_the_name_of_their_field():
    keys = merge_keys({"boxes": "objects.bbox"}, {"boxes.drawn_on": "upright"})
    assert keys == {"boxes": {"field": "objects.bbox", "drawn_on": "upright"}}


def test_the_question_of_a_folder_is_two_commands(tmp_path):
    (tmp_path / "images").mkdir()
    lines = []
    for index in range(6):
        Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / f"images/{index}.png")
        lines.append(json.dumps({"path": f"{index}.png", "bbox": [24, 18, 30, 24], "label": "a"}))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError) as caught:
        recognise(view_folder(tmp_path))
    command = f"  trainyard init {tmp_path} --type jsonl --source box_format="
    assert f"{command}xyxy\n" in str(caught.value) and f"{command}xywh" in str(caught.value)
    match = recognise(view_folder(tmp_path, chosen={"box_format": "xywh"}))
    assert (match.keys["box_format"], match.keys["columns"]) == ("xywh", {"boxes": "bbox"})


ONE, BOX = {"label": "cat"}, {"bbox": [1, 2, 30, 40]}


@pytest.mark.parametrize(
    "lines, wanted",
    [
        ([ONE | {"bbox": [1, 2, 3, 10**400]}], "may be boxes, which are not known"),
        ([ONE | {"boxes": [{"xmin": "a", "ymin": 2, "xmax": 3, "ymax": 4}]}], "detection"),
        ([ONE | BOX | {"width": 64, "height": 48}, ONE | BOX], "fit alike"),
        ([ONE | {"x": 20, "y": 20, "width": 10, "height": 10}], "fit alike"),
    ],
)
def test_rows_that_differ_or_have_odd_numbers_are_judged(lines, wanted):
    columns = Columns(lines, list(lines[0]), [None] * len(lines), {}, "columns.label")
    found = columns.find_meaning()
    assert wanted in (found.task if isinstance(found, Meaning) else found.reason)


def test_a_field_is_not_looked_up_in_lists_without_end():
    """A file of 2 kB ended `trainyard init` and jobs with a RecursionError."""
    nested = {"x": 1}
    for _ in range(500):
        nested = [nested]
    found = find_field(nested, "x")
    for _ in range(MAX_NESTED_LISTS):
        [found] = found
    assert found is None
    assert find_field([[{"x": 1}], {"x": 2}], "x") == [[1], 2]
