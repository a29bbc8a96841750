"""A real VOC data set through the whole job: BCCD, 364 microscope pictures with 4,888 boxes.

Every box in the shards is compared with what ElementTree finds in the XML,
in a few lines of its own.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
import yaml

from beam_jobs.io.example import parse
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.errors import ExitCode

REPOSITORY = Path(__file__).resolve().parents[3]
BCCD = Path(os.environ.get("TRAINYARD_BCCD", REPOSITORY.parent / "shared" / "data" / "bccd"))
POINTS = {"BloodImage_00338": 1, "BloodImage_00343": 1}
"""Images in which a box has no extent, and how many: two slips of the mouse in the real data."""

pytestmark = pytest.mark.skipif(
    not BCCD.is_dir(),
    reason=f"the BCCD data set is not in {BCCD}; TRAINYARD_BCCD may name another place",
)

Corners = tuple[str, float, float, float, float]


def boxes_in_xml(name: str) -> list[Corners]:
    """Class, xmin, ymin, xmax, ymax of all objects, in order."""
    objects = ElementTree.parse(BCCD / "Annotations" / f"{name}.xml").getroot().iter("object")
    return [
        (
            o.find("name").text,
            *(
                float(o.find(f"bndbox/{corner}").text)
                for corner in ("xmin", "ymin", "xmax", "ymax")
            ),
        )
        for o in objects
    ]


def boxes_in_example(example: dict, class_names: list[str]) -> list[Corners]:
    """In pixels of 640x480."""
    columns = [
        example[f"image/object/bbox/{corner}"] for corner in ("xmin", "ymin", "xmax", "ymax")
    ]
    labels = example["image/object/class/label"]
    return [
        (
            class_names[label],
            *(round(x * size, 3) for x, size in zip(box, (640, 480, 640, 480), strict=True)),
        )
        for label, *box in zip(labels, *columns, strict=True)
    ]


@pytest.fixture
def bccd(pipeline):
    """A pipeline that reads BCCD."""
    config = yaml.safe_load(pipeline.config_file.read_text())
    config["preprocess"] |= {
        "source": {"type": "voc", "path": str(BCCD)},
        "stages": ["decode"],
        "rejects": {"max_count": 2},
    }
    pipeline.config_file.write_text(yaml.safe_dump(config))
    return pipeline


def test_every_box_of_every_image_is_in_the_shards(bccd, read_records):
    outcome = bccd.run()
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    figures = DatasetFigures.model_validate(outcome.manifest.figures)
    assert figures.task == "detection"
    assert figures.class_names == ["Platelets", "RBC", "WBC"]
    assert figures.image_shape == (480, 640, 3)
    lists = {"train": "train", "validation": "val", "test": "test"}
    seen, num_boxes = set(), 0
    for split, name in lists.items():
        listed = set((BCCD / "ImageSets" / "Main" / f"{name}.txt").read_text().split())
        examples = [
            parse(record)
            for shard in sorted(outcome.artifact.glob(f"{split}-*.tfrecord"))
            for record in read_records(shard)
        ]
        for example in examples:
            stem = Path(example["image/key"][0].decode()).stem
            wanted = [box for box in boxes_in_xml(stem) if box[1] < box[3] and box[2] < box[4]]
            assert boxes_in_example(example, figures.class_names) == wanted, stem
            assert example["image/encoded"] == [(BCCD / "JPEGImages" / f"{stem}.jpg").read_bytes()]
            assert len(boxes_in_xml(stem)) - len(wanted) == POINTS.get(stem, 0)
            assert stem in listed
            seen.add(stem)
            num_boxes += len(wanted)
        assert len(examples) == len(listed) == figures.num_examples[split]
    assert (len(seen), num_boxes) == (364, 4888 - 2)
    assert sum((Counter(counts) for counts in figures.labels.values()), Counter()) == {
        "RBC": 4153,
        "WBC": 372,
        "Platelets": 361,
    }


def test_what_is_wrong_in_the_real_data_is_named(bccd):
    quarantine = bccd.run().quarantine
    assert [
        (line["key"].partition("#")[0], line["stage"], line["reason"]) for line in quarantine
    ] == [(f"JPEGImages/{name}.jpg", "source", "box_empty") for name in POINTS]


def test_without_a_budget_the_two_slips_fail_the_job_and_are_named(bccd):
    outcome = bccd.run(rejects={"max_count": 0})
    assert outcome.exit_code is ExitCode.DATA
    assert "2 of 366 raw files are unusable" in outcome.message
    assert "JPEGImages/BloodImage_00338.jpg#box-" in outcome.message
