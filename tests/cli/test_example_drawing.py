"""The picture of training examples that `trainyard run` draws."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from beam_jobs.io.example import serialise
from beam_jobs.stages.stage import Box, Example
from pipeline_ops.cli.commands.run import print_examples
from pipeline_ops.cli.drawing import draw_examples
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.task_record import TaskRecord
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.tfrecord import frame_record

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
MakeDataset = Callable[..., str]


@pytest.fixture
def make_dataset(make_artifact) -> MakeDataset:
    """Makes a data set with one shard from labels or boxes. Returns the URI of its manifest.

    Images of the class 0 and images with boxes are black, all others white.
    """

    def make(contents: Sequence[str | list[Box]], **figures) -> str:
        shard = []
        for number, content in enumerate(contents):
            image = np.full((20, 30, 3), 255 if content == "1" else 0, np.uint8)
            label, boxes = (content, None) if isinstance(content, str) else ("", tuple(content))
            example = Example(f"{number}.png", label, b"", image, is_original=False, boxes=boxes)
            shard += frame_record(*serialise(example, {"0": 0, "1": 1}))
        return make_artifact("preprocess", {}, contents=b"".join(shard), **figures)

    return make


def draw(manifest: str) -> Image.Image:
    return Image.open(io.BytesIO(draw_examples(open_path(manifest))))


def list_colors(picture: Image.Image) -> list[tuple[int, ...]]:
    """The colors in the middle of the nine places."""
    middles = [8 + 170 + number * 348 for number in range(3)]
    lines = [8 + 170 + number * 382 for number in range(3) if number * 382 < picture.height - 8]
    return [picture.getpixel((x, y)) for y in lines for x in middles]


def test_nine_of_many_examples_show_all_classes(make_dataset):
    picture = draw(make_dataset([*"0" * 20, "1", *"0" * 10]))
    assert picture.size == (1052, 1154)
    assert list_colors(picture) == [BLACK] * 8 + [WHITE]


def test_few_examples_are_one_line_and_a_removed_one_is_not_shown(make_dataset):
    shard = "train-00000-of-00001.tfrecord"
    picture = draw(make_dataset(["0", "1", "0"], removed={shard: [1]}))
    assert picture.size == (1052, 390)
    assert list_colors(picture) == [BLACK, BLACK, WHITE]  # the third place is empty


def test_boxes_are_drawn(make_dataset):
    boxes = [Box(0, 0, 10, 15, "0"), Box(10, 15, 20, 30, "1")]
    picture = draw(make_dataset([boxes, []], task="detection"))
    top = 8 + (340 - 227) // 2
    corner = 8 + 170, top + 114  # where the two boxes meet, in the middle of the image
    assert picture.getpixel(corner) not in (BLACK, WHITE)
    assert list_colors(picture)[1:] == [BLACK, WHITE]


def show(config_file, manifest: str) -> str:
    config, output = load_config(config_file), io.StringIO()
    print_examples(
        Console(file=output, soft_wrap=True, markup=False),
        Layout(config.root, config.pipeline),
        "manual__1",
        TaskRecord(state="success", manifest=manifest),
    )
    return output.getvalue()


def test_a_run_names_the_file_in_its_folder(make_dataset, config_file):
    file = config_file.parent / "root" / "runs" / "digits" / "manual__1" / "examples.png"
    assert show(config_file, make_dataset(["0", "1"])) == f"Examples  {file}\n"
    assert Image.open(file).size == (1052, 390)


def test_examples_that_cannot_be_drawn_are_one_line(make_artifact, config_file):
    printed = show(config_file, make_artifact("preprocess", {}))  # its shards are no TFRecords
    assert printed.startswith("Examples  cannot be drawn: ") and printed.count("\n") == 1
