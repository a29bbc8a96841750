"""Layouts of folders as people have them, right and wrong: the words of `trainyard init` for each.

`folder_layouts.yaml` is the table. Its names of files and contents are patterns: {i} is the number
of one of 24 images, {c} its class, {s} its split of two, and {t} its split of three. IMAGE, VOC and
YOLO are a picture and annotations of it. COCO is a file for all of them. ROWS has the first line,
and then the line for each image, maybe of one split.
"""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from pipeline_ops.cli.main import main

IMAGES = [
    {
        "i": number,
        "c": ("cat", "dog")[number % 2],
        "s": "train" if number < 16 else "test",
        "t": "train" if number < 14 else "valid" if number < 19 else "test",
    }
    for number in range(24)
]
BOX = "<xmin>4</xmin><ymin>5</ymin><xmax>30</xmax><ymax>20</ymax>"
VOC = "<annotation><object><name>{c}</name><bndbox>" + BOX + "</bndbox></object></annotation>"
COCO = {
    "images": [{"id": one["i"], "file_name": f"{one['i']}.jpg"} for one in IMAGES],
    "annotations": [
        {"id": one["i"], "image_id": one["i"], "category_id": one["i"] % 2, "bbox": [4, 5, 20, 20]}
        for one in IMAGES
    ],
    "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
}
LAYOUTS = yaml.safe_load(Path(__file__).with_name("folder_layouts.yaml").read_text())


def write(folder: Path, pattern: str, content: str) -> None:
    for one in IMAGES:
        path = folder / pattern.format(**one)
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == "IMAGE":
            pixels = np.random.default_rng(one["i"]).integers(0, 256, (40, 60, 3), np.uint8)
            cv2.imwrite(str(path), pixels)
        elif content.startswith("ROWS"):
            split, first, line = content.removeprefix("ROWS").split(":", 2)
            rows = [one for one in IMAGES if split[1:] in ("", one["s"])]
            path.write_text(first + "".join(line.format(**row) for row in rows))
        else:
            texts = {"VOC": VOC, "YOLO": "{n} .5 .5 .2 .3\n", "COCO": "", "": ""}
            text = texts.get(content, "").format(**one, n=one["i"] % 2) or content
            path.write_text(json.dumps(COCO) if content == "COCO" else text)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_words_for_a_layout(name, tmp_path, capsys):
    folder, layout = tmp_path / "data", LAYOUTS[name]
    for pattern, content in layout["files"].items():
        write(folder, pattern, content)
    file = str(tmp_path / "first.yaml")
    status = main(["init", str(folder), "--output", file, "--no-measure"])
    output, errors = (text.replace(str(folder), "DATA") for text in capsys.readouterr())
    if status == 0:
        assert main(["validate", file]) == 0
        rows = [line.strip() for line in output.splitlines()]
        said = [row for row in rows if row.startswith(("DATA", "source", "images"))]
    else:
        near = errors.partition("What comes near:\n")[2].partition("What each")[0]
        said = (near or errors).splitlines()
    assert [" ".join(line.split()) for line in said] == layout["said"]
