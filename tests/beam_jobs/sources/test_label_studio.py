"""Label Studio's exports as JSON and JSON-MIN."""

from __future__ import annotations

import json

import pytest

from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box, BoxFrame
from pipeline_ops.errors import DataError


def a_rectangle(label="cat", x=10, y=20, width=30, height=40, rotation=0, **more) -> dict:
    """A result as Label Studio 1.x writes it."""
    return {
        "original_width": 200,
        "original_height": 100,
        "image_rotation": 0,
        "value": {
            "x": x,
            "y": y,
            "width": width,
            "height": height,
            "rotation": rotation,
            "rectanglelabels": [label],
        },
        "id": "C7oHaRDVVC",
        "from_name": "label",
        "to_name": "image",
        "type": "rectanglelabels",
        "origin": "manual",
    } | more


def a_choice(*labels: str, name="choice", **more) -> dict:
    return {
        "value": {"choices": list(labels)} | more,
        "id": "Dx_aB91ISN",
        "from_name": name,
        "to_name": "image",
        "type": "choices",
        "origin": "manual",
    }


def an_annotation(*results: dict, **more) -> dict:
    return {
        "id": 1,
        "completed_by": 2,
        "result": list(results),
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": "2024-12-27T13:36:25.747398Z",
        "updated_at": "2024-12-27T21:04:40.495704Z",
        "draft_created_at": None,
        "lead_time": 1235.418,
        "prediction": {},
        "result_count": len(results),
        "unique_id": "0a6f4f3b-7a9f-4a4b-8b1c-6a3e3b8f5a11",
        "task": 1,
        "project": 1,
        "parent_prediction": None,
        "parent_annotation": None,
    } | more


def a_task(*annotations: dict, image: object = "/data/upload/1/1a2b3c4d-1.jpg", **more) -> dict:
    return {
        "id": 1,
        "annotations": list(annotations),
        "file_upload": "1a2b3c4d-1.jpg",
        "drafts": [],
        "predictions": [{"model_version": "m", "result": [a_rectangle("a prediction")]}],
        "data": {"image": image},
        "meta": {},
        "created_at": "2024-12-27T12:06:58.502299Z",
        "inner_id": 1,
        "total_annotations": len(annotations),
        "cancelled_annotations": 0,
        "total_predictions": 1,
        "project": 1,
    } | more


GOOD = a_task(an_annotation(a_rectangle()), image="2.jpg")


@pytest.fixture
def read(raw):
    """Reads tasks; the files 1.jpg and 2.jpg are there."""

    def read(*tasks: object, **source):
        raw.add("1.jpg")
        raw.add("2.jpg")
        raw.add("a.json", json.dumps(tasks))
        return raw.read(type="label_studio", export="a.json", **source)

    return read


def test_percentages_become_pixels(read):
    records, rejected = read(a_task(an_annotation(a_rectangle(), a_rectangle("dog", 0, 0, 100))))
    assert rejected == {}
    assert records["1.jpg"].boxes == (Box(20, 20, 60, 80, "cat"), Box(0, 0, 40, 200, "dog"))
    assert (records["1.jpg"].frame.size, records["1.jpg"].split) == ((100, 200), None)


def test_without_the_size_of_the_image_percentages_are_fractions_of_the_upright_image(read):
    shape = a_rectangle()
    del shape["original_width"], shape["original_height"]
    record = read(a_task(an_annotation(shape)))[0]["1.jpg"]
    assert record.frame == BoxFrame(FRACTIONS, "upright")
    assert record.boxes == (Box(0.2, 0.1, 0.6, 0.4, "cat"),)


def test_an_annotation_without_results_has_no_boxes(read):
    assert read(a_task(an_annotation()))[0]["1.jpg"].boxes == ()


@pytest.mark.parametrize(
    "angle, ymin, xmin, ymax, xmax",
    [
        (90, 40, 40, 100, 60),
        (180, 20, 0, 40, 60),
        (-90, 0, 60, 40, 80),  # and 20 pixels above the image
        (45, 40, 60 - 20 / 2**0.5, 40 + 80 / 2**0.5, 60 + 60 / 2**0.5),
    ],
)
def test_a_rotated_rectangle_turns_clockwise_around_its_upper_left_corner(
    read, angle, ymin, xmin, ymax, xmax
):
    """60 pixels wide, 20 high, with its corner at x 60 and y 40."""
    shape = a_rectangle("cat", 30, 40, 30, 20, angle)
    [box] = read(a_task(an_annotation(shape)))[0]["1.jpg"].boxes
    assert (box.ymin, box.xmin, box.ymax, box.xmax) == pytest.approx(
        (ymin, xmin, ymax, xmax), abs=1e-9
    )


def test_a_polygon_becomes_the_box_around_it(read):
    shape = a_rectangle(
        type="polygonlabels",
        value={"points": [[10, 20], [40, 30], [20, 60]], "closed": True, "polygonlabels": ["dog"]},
    )
    assert read(a_task(an_annotation(shape)))[0]["1.jpg"].boxes == (Box(20, 20, 60, 80, "dog"),)


def test_results_that_are_no_shapes_do_not_count_for_boxes(read):
    relation = {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
    text = {"type": "textarea", "from_name": "note", "value": {"text": ["blurred"]}}
    task = a_task(an_annotation(a_rectangle(), relation, text, a_choice("indoors")))
    assert read(task)[0]["1.jpg"].labels == ["cat"]


def test_choices_are_the_classes_of_images(read):
    per_region = a_choice("striped", x=1, y=2, width=3, height=4)
    tasks = [
        a_task(an_annotation(a_choice("indoors"), a_rectangle(), per_region)),
        a_task(an_annotation(a_rectangle()), image="2.jpg"),
    ]
    records, rejected = read(*tasks, task="classification")
    assert (records["1.jpg"].label, records["1.jpg"].boxes) == ("indoors", None)
    assert rejected == {"2.jpg": ("no_label", "the annotation has no choice")}


def test_control_selects_one_of_several_tags(read):
    task = a_task(an_annotation(a_choice("indoors"), a_choice("sunny", name="weather")))
    assert read(task, task="classification")[1] == {
        "1.jpg": ("contradictory", "the choices are indoors, sunny")
    }
    assert read(task, task="classification", control="weather")[0]["1.jpg"].label == "sunny"


@pytest.mark.parametrize("mark", [{"was_cancelled": True}, {"skipped": True}])
def test_a_cancelled_annotation_does_not_count(read, mark):
    cancelled = an_annotation(a_rectangle("dog"), **mark)
    good = an_annotation(a_rectangle())
    assert read(a_task(cancelled, good))[0]["1.jpg"].labels == ["cat"]
    records, rejected = read(a_task(cancelled), GOOD)
    assert (list(records), rejected["1.jpg"][0]) == (["2.jpg"], "no_annotation")
    assert "preprocess.source.unannotated: ignore" in rejected["1.jpg"][1]
    assert read(a_task(cancelled), GOOD, unannotated="ignore")[1] == {}


@pytest.mark.parametrize("old_name", ["annotations", "completions"])
@pytest.mark.parametrize("which, label", [("first", "cat"), ("last", "dog")])
def test_one_of_several_annotations_counts_by_time(read, old_name, which, label):
    later = an_annotation(a_rectangle("dog"), created_at="2025-01-01T00:00:00.000000Z")
    task = a_task(later, an_annotation(a_rectangle()))
    task[old_name] = task.pop("annotations")
    assert read(task, annotation=which)[0]["1.jpg"].labels == [label]
    assert read(task)[1]["1.jpg"] == (
        "contradictory",
        "the task has 2 annotations. Set preprocess.source.annotation to first or last",
    )


def test_without_times_the_order_of_the_file_counts(read):
    task = a_task(
        an_annotation(a_rectangle("dog"), created_at=1609000000),
        an_annotation(a_rectangle(), created_at=None),
    )
    assert read(task, annotation="first")[0]["1.jpg"].labels == ["dog"]


JSON_MIN_TIMES = {
    "annotator": 1,
    "annotation_id": 1,
    "created_at": "2024-12-27T13:36:25.747398Z",
    "updated_at": "2024-12-27T21:04:40.495704Z",
    "lead_time": 5.6,
}
JSON_MIN = {
    "image": "/data/upload/1/1a2b3c4d-1.jpg",
    "id": 1,
    "label": [
        {
            "x": 10,
            "y": 20,
            "width": 30,
            "height": 40,
            "rotation": 0,
            "rectanglelabels": ["cat"],
            "original_width": 200,
            "original_height": 100,
        }
    ],
    "choice": "indoors",
    **JSON_MIN_TIMES,
}


def test_json_min_has_the_results_next_to_the_data(read):
    records, rejected = read(JSON_MIN)
    assert rejected == {}
    assert records["1.jpg"].boxes == (Box(20, 20, 60, 80, "cat"),)
    assert records["1.jpg"].frame.size == (100, 200)
    assert read(JSON_MIN, task="classification")[0]["1.jpg"].label == "indoors"
    assert read(JSON_MIN, task="classification", control="rating")[1]["1.jpg"][0] == "no_label"
    assert read(JSON_MIN | {"choice": [{"choices": ["a", "b"]}]}, task="classification")[1] == {
        "1.jpg": ("contradictory", "the choices are a, b")
    }


def test_annotations_of_one_task_are_entries_of_json_min(read):
    second = JSON_MIN | {"annotation_id": 2, "created_at": "2024-12-28T00:00:00.000000Z"}
    second["label"] = [JSON_MIN["label"][0] | {"rectanglelabels": ["dog"]}]
    assert read(second, JSON_MIN)[1]["1.jpg"][0] == "contradictory"
    assert read(second, JSON_MIN, annotation="last")[0]["1.jpg"].labels == ["dog"]


def test_a_task_of_json_min_without_annotations_is_no_background(read):
    entry = {"image": "1.jpg", "id": 1} | dict.fromkeys(JSON_MIN_TIMES)
    assert read(entry)[1]["1.jpg"][0] == "no_annotation"


@pytest.mark.parametrize(
    "reference, key",
    [
        ("photos/a b/1.jpg", "photos/a b/1.jpg"),
        ("/home/me/photos/a b/1.jpg", "photos/a b/1.jpg"),
        ("C:\\photos\\a b\\1.jpg", "photos/a b/1.jpg"),
        ("/data/local-files/?d=photos/a%20b/1.jpg", "photos/a b/1.jpg"),
        ("/data/local-files/?d=mnt%2Fphotos%2Fa+b%2F1.jpg", "photos/a b/1.jpg"),
        ("/label-studio/data/local-files/?d=photos/a%20b/1.jpg", "photos/a b/1.jpg"),
        ("http://localhost:8080/data/local-files/?d=a%20b/1.jpg", "photos/a b/1.jpg"),
        ("s3://bucket/photos/a b/1.jpg", "photos/a b/1.jpg"),
        ("gs://bucket/some/where/photos/a b/1.jpg", "photos/a b/1.jpg"),
        ("azure-blob://container/photos/a b/1.jpg", "photos/a b/1.jpg"),
        ("https://example.org/photos/a%20b/1.jpg?X-Amz-Signature=0", "photos/a b/1.jpg"),
        ("/data/upload/12/0123abcd-2.jpg", "2.jpg"),
        ("http://localhost:8080/data/upload/12/0123abcd-2.jpg", "2.jpg"),
        ("/data/upload/12/0123abcd-3.jpg", "0123abcd-3.jpg"),
        ("/data/upload/12/0123abcd-9.jpg", None),
        ("s3://bucket/50%25#?.jpg", "50%2525#?.jpg"),
        ("../../../../etc/2.jpg", "2.jpg"),
        ("..", None),
        ("/", None),
    ],
)
def test_references_of_every_kind_are_found_below_the_source(raw, reference, key):
    for name in ("photos/a b/1.jpg", "2.jpg", "0123abcd-3.jpg", "50%25#?.jpg"):
        raw.add(name)
    raw.add("a.json", json.dumps([a_task(an_annotation(), image=reference)]))
    records, rejected = raw.read(type="label_studio", export="a.json")
    assert list(records) == ([] if key is None else [key])
    if key is None:
        assert rejected["a.json#task-0"][0] == "missing_image"


def test_a_prefix_stands_for_a_folder(raw):
    for folder in ("a", "b"):
        raw.add(f"{folder}/1 2.jpg")
    images = ["s3://b/x/1 2.jpg", "/data/local-files/?d=sub/1%202.jpg", "s3://b/x/3.jpg"]
    raw.add("a.json", json.dumps([a_task(an_annotation(), image=image) for image in images]))
    prefixes = {"s3://b/": "nowhere", "s3://b/x/": "a", "/data/local-files/?d=sub/": "b"}
    records, rejected = raw.read(type="label_studio", export="a.json", prefixes=prefixes)
    assert sorted(records) == ["a/1 2.jpg", "b/1 2.jpg"]
    assert rejected == {
        "a.json#task-2": (
            "missing_image",
            "no file below a has the path 3.jpg, an end of it, or its name. Name the folder in "
            "preprocess.source.prefixes",
        )
    }


def test_two_references_that_end_alike_are_not_taken_for_one_image(read):
    tasks = [a_task(an_annotation(), image=f"s3://b/{folder}/1.jpg") for folder in "xy"]
    assert read(*tasks)[1] == {
        "1.jpg": ("duplicate", "named more than once: a.json#task-0, a.json#task-1")
    }


def test_the_image_may_have_another_key(read):
    task = a_task(an_annotation(), data={"photo": "1.jpg", "image": "2.jpg"})
    assert list(read(task, image_key="photo")[0]) == ["1.jpg"]


def with_value(**value) -> dict:
    shape = a_rectangle()
    return a_task(an_annotation(shape | {"value": shape["value"] | value}))


def with_result(**more) -> dict:
    return a_task(an_annotation(a_rectangle(**more)))


@pytest.mark.parametrize(
    "task, key, reason, detail",
    [
        ("a task", "a.json#task-0", "malformed", "must be an object, got str"),
        ({}, "a.json#task-0", "malformed", "the image under the key image must be a path"),
        (a_task(data=None), "a.json#task-0", "malformed", "an object under the key data"),
        (a_task(an_annotation(), data={}), "a.json#task-0", "malformed", "the key image"),
        (a_task(an_annotation(), image=["1.jpg"]), "a.json#task-0", "malformed", "as text"),
        (a_task(an_annotation(), image="data:image/png;base64," + "A/" * 9999), "a.json#task-0",
         "malformed", "at most 4096 characters"),
        (a_task(an_annotation(), image="http://[1.jpg"), "a.json#task-0", "malformed", "URL"),
        (a_task(an_annotation(), image="\ud800"), "a.json#task-0", "malformed", "name of a file"),
        (a_task(an_annotation(), image="/home/9.jpg"), "a.json#task-0", "missing_image",
         "has the path /home/9.jpg, an end of it, or its name. Name the folder in"),
        (a_task(), "1.jpg", "no_annotation", "neither cancelled nor skipped"),
        (a_task(annotations={}), "a.json#task-0", "malformed", "annotations must be a list"),
        (a_task("x"), "a.json#task-0", "malformed", "annotations must be a list"),
        (a_task({"result": None}), "a.json#task-0", "malformed", "the result of an annotation"),
        (a_task({"result": [7]}), "a.json#task-0", "malformed", "the result of an annotation"),
        (a_task({"result": [{"type": 7}]}), "a.json#task-0", "malformed", "needs a type"),
        (a_task({"result": [{"type": "x", "value": 7}]}), "a.json#task-0", "malformed", "value"),
        (with_value(rectanglelabels=[]), "1.jpg", "malformed", "needs one label, and this one has"),
        (with_value(rectanglelabels=["a", "b"]), "1.jpg", "malformed", "['a', 'b']"),
        (with_value(rectanglelabels="cat"), "1.jpg", "malformed", "needs one label"),
        (with_value(rectanglelabels=[7.5]), "1.jpg", "malformed", "7.5 is not text"),
        (with_value(rectanglelabels=[" "]), "1.jpg", "no_label", "not the name of a class"),
        (with_value(x="ten"), "1.jpg", "malformed", "'ten' is not a number"),
        (with_value(x=None), "1.jpg", "malformed", "None is not a number"),
        (with_value(x=float("nan")), "1.jpg", "box_not_finite", "nan"),
        (with_value(x=10**400), "1.jpg", "malformed", "is not a number"),
        (with_value(width=-1), "1.jpg", "box_inverted", "x 20 to 18"),
        (with_value(width=0), "1.jpg#box-0", "box_empty", "x 20 to 20"),
        (with_value(x=81), "1.jpg", "box_outside", "x 162 to 222"),
        (with_value(rotation="left"), "1.jpg", "malformed", "'left' is not a number"),
        (with_value(rotation=float("inf")), "1.jpg", "box_not_finite", "inf degrees"),
        (with_result(original_width=None, rotation=9), "1.jpg", "malformed",
         "a rotated rectangle needs original_width and original_height"),
        (with_result(original_width="x"), "1.jpg", "malformed", "'x' is not a number"),
        (with_result(image_rotation=90), "1.jpg", "rotated_image", "Rotate it back there"),
        (a_task(an_annotation(a_rectangle(), a_rectangle(original_width=201))), "1.jpg",
         "contradictory", "different sizes of the image"),
        (with_result(type="brushlabels"), "1.jpg", "unknown_shape", "type brushlabels"),
        (with_result(type="rectangle"), "1.jpg", "unknown_shape", "type rectangle"),
        (with_result(type="polygonlabels", value={"polygonlabels": ["a"], "points": [[1, 2]]}),
         "1.jpg", "malformed", "a polygon needs three points"),
        (with_result(type="polygonlabels", value={"polygonlabels": ["a"], "points": [1, 2]}),
         "1.jpg", "malformed", "a list of points, [x, y]"),
    ],
)  # fmt: skip
def test_a_fault_in_one_task_keeps_that_one_out(read, task, key, reason, detail):
    records, rejected = read(task, GOOD)
    assert "2.jpg" in records
    assert rejected[key][0] == reason
    assert detail in rejected[key][1]
    assert ("1.jpg" in records) == (reason == "box_empty")


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "a.json: not JSON: .* preprocess.source.export names this file"),
        ("{}", "not an export of Label Studio as JSON or JSON-MIN, which is a list of tasks"),
        ("[" * 100_000, "a.json: not JSON"),
        (b"\xff\xfe", "a.json: not JSON"),
        (f"[{'1' * 5000}]", "a.json: not JSON"),
        ('[{"data": {"image": "1.jpg", "image": "2.jpg"}}]', "has the key 'image' more than once"),
    ],
)
def test_a_file_that_is_no_export_is_told(raw, content, message):
    raw.add("a.json", content)
    with pytest.raises(DataError, match=message):
        raw.read(type="label_studio", export="a.json")


@pytest.mark.timeout(60)
def test_an_object_of_many_keys_is_read_in_linear_time(raw):
    """N3: in quadratic time it takes ten minutes."""
    keys = ", ".join(f'"{number}": 0' for number in range(150_000))
    raw.add("a.json", f'[{{{keys}, "149999": 0}}]')
    with pytest.raises(DataError, match="has the key '149999' more than once"):
        raw.read(type="label_studio", export="a.json")


def test_a_file_that_is_missing_is_told(raw):
    raw.add("1.jpg")
    with pytest.raises(DataError, match=r"a.json: no such file. preprocess.source.export"):
        raw.read(type="label_studio", export="a.json")


@pytest.mark.parametrize(
    ("rotation", "corners"),
    [(0, (30, 20, 50, 120)), (90, (-10, 60, 90, 80)), (180, (30, 20, 50, 120))],
)
def test_an_ellipse_is_a_box_around_it(read, rotation, corners):
    value = {"x": 35, "y": 40, "radiusX": 25, "radiusY": 10, "rotation": rotation}
    ellipse = a_rectangle() | {"type": "ellipselabels", "value": value | {"ellipselabels": ["cat"]}}
    [box] = read(a_task(an_annotation(ellipse)))[0]["1.jpg"].boxes
    assert (box.ymin, box.xmin, box.ymax, box.xmax) == pytest.approx(corners)


def test_brush_labels_are_rejected_with_the_cure(read):
    brush = a_rectangle() | {"type": "brushlabels", "value": {"format": "rle", "rle": [0]}}
    [(reason, detail)] = read(a_task(an_annotation(brush)))[1].values()
    assert (reason, "export brush labels as COCO" in detail) == ("unknown_shape", True)


@pytest.mark.parametrize("prefixes", [{}, {"/data/upload/1/": "images"}])
def test_an_upload_is_found_by_its_name_without_the_code(raw, prefixes):
    for name in ("images/a.jpg", "images/cb0618f6-b.jpg", "images/x/c.jpg", "images/y/c.jpg"):
        raw.add(name)
    images = [f"/data/upload/1/{name}.jpg" for name in ("cb0618f6-a", "cb0618f6-b", "cb0618f6-c")]
    raw.add("a.json", json.dumps([a_task(an_annotation(), image=image) for image in images]))
    records, rejected = raw.read(type="label_studio", export="a.json", prefixes=prefixes)
    assert sorted(records) == ["images/a.jpg", "images/cb0618f6-b.jpg"]
    assert rejected["a.json#task-2"][0] == "ambiguous_image"
