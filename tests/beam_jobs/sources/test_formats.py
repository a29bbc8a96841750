"""The same images and boxes in six formats, through the whole job."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
import yaml

from beam_jobs.io.example import parse
from pipeline_ops.errors import ExitCode

NAMES = [f"{index:02d}.jpg" for index in range(30)]
SOURCES = {
    "voc": {"type": "voc"},
    "coco": {"type": "coco", "parts": [{"annotations": "coco.json", "images": "JPEGImages"}]},
    "csv": {"type": "csv", "manifest": "boxes.csv", "images": "JPEGImages", "task": "detection"},
    "jsonl": {"type": "jsonl", "manifest": "boxes.jsonl", "task": "detection"},
    "fractions": {
        "type": "jsonl",
        "manifest": "fractions.jsonl",
        "task": "detection",
        "units": "fractions",
    },
    "cvat": {"type": "cvat", "annotations": "cvat.xml", "images": "JPEGImages"},
    "label_studio": {"type": "label_studio", "export": "label_studio.json"},
}


def boxes_of(index: int) -> list[tuple[str, float, float, float, float]]:
    """Class, xmin, ymin, xmax, ymax in an image of 32x64; every third image has none."""
    return [
        (["cat", "dog"][number], 2.0 * number, 4.0, 16.0 + index, 30.0 - number)
        for number in range(index % 3)
    ]


@pytest.fixture
def formats(pipeline):
    """One folder with all of them; no format knows of the others."""
    coco = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 5, "name": "dog"}, {"id": 90, "name": "cat"}],
    }
    rows, lines, fractions = ["path,label,xmin,ymin,xmax,ymax"], [], []
    cvat, tasks = ["<annotations><version>1.1</version>"], []
    for index, name in enumerate(NAMES):
        noise = np.random.default_rng(index).integers(0, 256, (32, 64, 3), dtype=np.uint8)
        pipeline.add(f"JPEGImages/{name}", cv2.imencode(".jpg", noise)[1].tobytes())
        boxes = [
            dict(zip(("label", "xmin", "ymin", "xmax", "ymax"), box, strict=True))
            for box in boxes_of(index)
        ]
        objects = "".join(
            "<object><name>{label}</name><bndbox><xmax>{xmax}</xmax><xmin>{xmin}</xmin>"
            "<ymin>{ymin}</ymin><ymax>{ymax}</ymax></bndbox></object>".format(**box)
            for box in boxes
        )
        pipeline.add(f"Annotations/{name[:2]}.xml", f"<annotation>{objects}</annotation>".encode())
        coco["images"].append({"id": index, "file_name": name, "width": 64, "height": 32})
        coco["annotations"] += [
            {
                "image_id": index,
                "category_id": {"cat": 90, "dog": 5}[label],
                "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
            }
            for label, xmin, ymin, xmax, ymax in boxes_of(index)
        ]
        rows += [",".join(map(str, (name, *box))) for box in boxes_of(index)] or [f"{name},,,,,"]
        lines.append(json.dumps({"path": f"JPEGImages/{name}", "boxes": boxes}))
        scaled = [
            {
                key: value if key == "label" else value / (64 if key[0] == "x" else 32)
                for key, value in box.items()
            }
            for box in boxes
        ]
        fractions.append(json.dumps({"path": f"JPEGImages/{name}", "boxes": scaled}))
        cvat += [
            f'<image id="{index}" name="{name}" width="64" height="32">',
            *(
                f'<box label="{label}" xtl="{xmin:.2f}" ytl="{ymin:.2f}" '
                f'xbr="{xmax:.2f}" ybr="{ymax:.2f}" occluded="0" z_order="0"></box>'
                for label, xmin, ymin, xmax, ymax in boxes_of(index)
            ),
            "</image>",
        ]
        shapes = [
            {
                "type": "rectanglelabels",
                "original_width": 64,
                "original_height": 32,
                "value": {
                    "x": xmin / 64 * 100,
                    "y": ymin / 32 * 100,
                    "width": (xmax - xmin) / 64 * 100,
                    "height": (ymax - ymin) / 32 * 100,
                    "rotation": 0,
                    "rectanglelabels": [label],
                },
            }
            for label, xmin, ymin, xmax, ymax in boxes_of(index)
        ]
        image = f"/data/local-files/?d=labelling/JPEGImages/{name}"
        tasks.append({"data": {"image": image}, "annotations": [{"result": shapes}]})
    pipeline.add("label_studio.json", json.dumps(tasks).encode())
    pipeline.add("coco.json", json.dumps(coco).encode())
    for name, content in (
        ("boxes.csv", rows),
        ("boxes.jsonl", reversed(lines)),
        ("fractions.jsonl", fractions),
        ("cvat.xml", [*cvat, "</annotations>"]),
    ):
        pipeline.add(name, "\n".join(content).encode())
    return pipeline


def run(pipeline, source: dict, **overrides):
    config = yaml.safe_load(pipeline.config_file.read_text())
    config["preprocess"] |= {"source": {"path": "../raw", **source}, "stages": ["decode"]}
    pipeline.config_file.write_text(yaml.safe_dump(config))
    outcome = pipeline.run(**overrides)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    return outcome


@pytest.mark.engines
def test_the_format_of_the_annotations_changes_not_a_byte(formats, read_records):
    outcomes = {name: run(formats, source) for name, source in SOURCES.items()}
    assert all(outcome.shards == outcomes["voc"].shards for outcome in outcomes.values())
    outcome = outcomes["voc"]
    written = {
        example["image/key"][0].decode(): example
        for name in outcome.shards
        for example in map(parse, read_records(outcome.artifact / name))
    }
    assert sorted(written) == [f"JPEGImages/{name}" for name in NAMES]
    for index, name in enumerate(NAMES):
        example = written[f"JPEGImages/{name}"]
        assert [value * 64 for value in example["image/object/bbox/xmax"]] == [
            box[3] for box in boxes_of(index)
        ]
        assert [value * 32 for value in example["image/object/bbox/ymin"]] == [
            box[2] for box in boxes_of(index)
        ]
        assert example["image/object/class/label"] == [0, 1][: index % 3]


def test_yolo_keeps_its_splits_and_gives_the_same_boxes(formats, read_records):
    """Not a seventh source of the test above: the images lie in other folders."""
    lists = {"train": NAMES[:20], "val": NAMES[20:25], "test": NAMES[25:]}
    for part, names in lists.items():
        for name in names:
            image = (formats.raw / "JPEGImages" / name).read_bytes()
            formats.add(f"yolo/images/{part}/{name}", image)
            lines = [
                f"{['cat', 'dog'].index(label)} {(xmin + xmax) / 128:.6f} {(ymin + ymax) / 64:.6f} "
                f"{(xmax - xmin) / 64:.6f} {(ymax - ymin) / 32:.6f}"
                for label, xmin, ymin, xmax, ymax in boxes_of(NAMES.index(name))
            ]
            if lines:  # Ultralytics' converters write no file for an image without objects
                label_file = f"yolo/labels/{part}/{name[:2]}.txt"
                formats.add(label_file, "\n".join(lines).encode())
    formats.add(
        "yolo/data.yaml",
        b"path: ../datasets/yolo\ntrain: images/train\nval: images/val\ntest: images/test\n"
        b"names:\n  0: cat\n  1: dog\n",
    )
    outcome = run(formats, {"type": "yolo", "path": "../raw/yolo"})
    written = {
        example["image/key"][0].decode(): example
        for name in outcome.shards
        for example in map(parse, read_records(outcome.artifact / name))
    }
    assert outcome.manifest.figures["num_examples"] == {"train": 20, "validation": 5, "test": 5}
    assert sorted(written) == sorted(
        f"images/{part}/{name}" for part, names in lists.items() for name in names
    )
    for key, example in written.items():
        wanted = boxes_of(int(key[-6:-4]))
        for number, (corner, size) in enumerate(
            (("xmin", 64), ("ymin", 32), ("xmax", 64), ("ymax", 32)), start=1
        ):
            assert [v * size for v in example[f"image/object/bbox/{corner}"]] == pytest.approx(
                [box[number] for box in wanted], abs=1e-4
            )
        assert example["image/object/class/label"] == [0, 1][: len(wanted)]


def test_class_names_of_the_config_keep_their_order(formats):
    assert run(formats, SOURCES["csv"] | {"class_names": ["dog", "cat"]}).manifest.figures[
        "class_names"
    ] == ["dog", "cat"]


def test_an_annotation_changed_after_the_listing_is_a_reason_to_retry(formats):
    run(formats, SOURCES["csv"])
    plan = formats.plan(shards=5)
    formats.add("boxes.csv", b"path,label,xmin,ymin,xmax,ymax")
    assert formats.run(plan).exit_code is ExitCode.RETRY
