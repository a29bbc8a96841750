"""Data sets that TensorFlow Datasets has prepared: by a builder of our own,
and by real ones with made-up data."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
import yaml
from pydantic import TypeAdapter

from beam_jobs.io.example import parse
from beam_jobs.io.raw import read_raw
from beam_jobs.sources import read_records
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box
from pipeline_ops.config.sources import AnySource
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root


@pytest.fixture(scope="module")
def cells():
    """The module of builders, importable as `cells_builder`."""
    spec = importlib.util.spec_from_file_location(
        "cells_builder", Path(__file__).with_name("cells_builder.py")
    )
    module = sys.modules["cells_builder"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["cells_builder"]


@pytest.fixture(scope="module")
def data_dir(cells, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    labelled = (cells.Labelled(data_dir=folder, config=config) for config in ("small", "large"))
    for builder in (cells.MyCells(data_dir=folder), cells.Words(data_dir=folder), *labelled):
        builder.download_and_prepare()
    return folder


@pytest.fixture
def read(data_dir, tmp_path):
    def read(builder: str, *parts: str | dict, path: Path = data_dir):
        parts = [{"name": part} if isinstance(part, str) else part for part in parts]
        config = TypeAdapter(AnySource).validate_python(
            {"type": "tfds", "path": str(path), "builder": builder, "parts": parts}
        )
        listing = list_raw_files(Path(config.folder), open_root(tmp_path) / "listings")
        records, rejected, *_ = read_records(config, listing)
        return {record.key: record for record in records}, rejected, listing.folder

    return read


@pytest.mark.parametrize(
    "builder",
    ["my_cells", "my_cells:1.2.0", "cells_builder.MyCells", "cells_builder.MyCells:1.2.0"],
)
def test_a_builder_by_name_version_or_module_path(read, builder):
    records, rejected, folder = read(
        builder, {"name": "train", "split": "train"}, {"name": "holdout", "split": "test"}
    )
    assert rejected == []
    assert {
        split: [r.split for r in records.values()].count(split) for split in ("train", "test")
    } == {"train": 20, "test": 6}
    seen = set()
    for record in records.values():
        image = cv2.imdecode(
            np.frombuffer(read_raw(record.file, folder), np.uint8), cv2.IMREAD_COLOR
        )
        assert image.shape == (8, 12, 3)
        number = int(image[0, 0, 0])
        white = Box(0, 0.25, 0.5, 0.75, "white", is_crowd=number % 2 == 0)
        wanted = (Box(0, 0.25, 0.5, 0.75, "red"), white)[: number % 3]
        assert (record.boxes, record.frame.size) == (wanted, FRACTIONS)
        seen.add(number)
    assert seen == set(range(26))


@pytest.mark.parametrize(
    "builder, count",
    [("labelled/small", 4), ("labelled/large:1.0.0", 12), ("cells_builder.Labelled/large", 12)],
)
def test_a_config_of_a_builder_and_a_label_that_is_none(read, builder, count):
    records, [rejected], _ = read(builder, "train")
    assert len(records) == count - 1
    assert {record.label for record in records.values()} == {"cat", "dog"}
    assert (rejected.reason, rejected.detail) == (
        "no_label",
        "the label -1 is not one of 2 classes",
    )


def test_a_data_set_goes_through_the_whole_job(pipeline, data_dir, read_records):
    config = yaml.safe_load(pipeline.config_file.read_text())
    parts = [{"name": "train", "split": "train"}, {"name": "holdout"}]
    config["preprocess"] |= {
        "source": {"type": "tfds", "path": str(data_dir), "builder": "my_cells", "parts": parts},
        "stages": ["decode"],
        "split": {"train": 0.2, "validation": 0.4, "test": 0.4, "seed": 5},
    }
    pipeline.config_file.write_text(yaml.safe_dump(config))
    outcome = pipeline.run()
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    written = [
        parse(record)
        for shard in outcome.shards
        for record in read_records(outcome.artifact / shard)
    ]
    assert len(written) == 26
    for one in written:
        brightness = int(
            cv2.imdecode(np.frombuffer(one["image/encoded"][0], np.uint8), cv2.IMREAD_COLOR)[
                0, 0, 0
            ]
        )
        assert one["image/object/class/label"] == [0, 1][: brightness % 3]
        assert one["image/object/bbox/xmin"] == [0.25] * (brightness % 3)


@pytest.mark.parametrize(
    "name, split",
    [("voc/2007", "test"), ("coco/2017", "validation"), ("beans", "train"), ("mnist", "test")],
)
def test_real_builders_with_made_up_data(read, tmp_path, name, split):
    """`mock_data` makes examples from the features of the real builder;
    written as the builder would, without any download."""
    builder = tfds.builder(name, data_dir=tmp_path / "mocked")
    with tfds.testing.mock_data(num_examples=5):
        examples = [
            as_written(example) for example in tfds.as_numpy(builder.as_dataset(split=split))
        ]
    Path(builder.data_dir).mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=3)
    writer.initialize_splits([split])
    writer.add_examples({split: examples})
    writer.close_all()
    records, rejected, folder = read(name, split, path=tmp_path / "mocked")
    features = builder.info.features
    assert (len(records), rejected) == (5, [])
    for record, example in zip(records.values(), examples, strict=True):
        stored = cv2.imdecode(
            np.frombuffer(read_raw(record.file, folder), np.uint8), cv2.IMREAD_COLOR
        )
        assert stored.shape[:2] == example["image"].shape[:2]
        if "objects" in example:
            assert [box.label for box in record.boxes] == [
                features["objects"]["label"].names[row["label"]] for row in example["objects"]
            ]
            assert [box.xmax for box in record.boxes] == [
                row["bbox"].xmax for row in example["objects"]
            ]
        else:
            assert record.label == features["label"].names[example["label"]]


def as_written(example: dict) -> dict:
    """Sequences go in as lists of objects; what is made up has lists of different lengths,
    and edges in no order."""
    if "objects" not in example:
        return example
    objects = example["objects"]
    rows = [
        {name: values[index] for name, values in objects.items()}
        for index in range(min(map(len, objects.values())))
    ]
    return example | {
        "objects": [row | {"bbox": _box(sorted(map(float, row["bbox"])))} for row in rows]
    }


def _box(edges: list[float]):
    return tfds.features.BBox(edges[0], edges[1], edges[2], edges[3])


@pytest.mark.parametrize(
    "builder, parts, message",
    [
        (
            "my_cells",
            ["trian"],
            "my_cells/1.2.0 has no split trian; the nearest valid name is 'train'",
        ),
        ("my_cells:9.0.0", ["train"], "TensorFlow Datasets has no my_cells:9.0.0 in "),
        (
            "cells_builder.Nothing",
            ["train"],
            "AttributeError: module 'cells_builder' has no attribute 'Nothing'",
        ),
        (
            "no_such_module.MyCells",
            ["train"],
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("words", ["train"], "words/1.0.0: needs the features image .*, got text"),
    ],
)
def test_what_can_not_be_read_is_told(read, data_dir, builder, parts, message):
    (data_dir / "nothing").mkdir(exist_ok=True)
    with pytest.raises(DataError, match=message):
        read(builder, *parts)


def test_a_data_set_that_is_not_prepared_is_told_and_nothing_is_downloaded(read, tmp_path):
    (tmp_path / "mnist").mkdir()
    with pytest.raises(
        DataError,
        match=(
            "mnist is not prepared in .*\\. Set preprocess.source.download: true, or call "
            "download_and_prepare of the builder"
        ),
    ):
        read("mnist", "train", path=tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_another_file_format_is_told(read, cells, tmp_path):
    folder = tmp_path / "my_cells" / "1.2.0"
    folder.mkdir(parents=True)
    cells.MyCells(data_dir=tmp_path, file_format="riegeli").info.write_to_directory(folder)
    with pytest.raises(DataError, match="prepared as riegeli, need tfrecord"):
        read("my_cells", "train", path=tmp_path)


@pytest.fixture
def copy(data_dir, tmp_path) -> Path:
    """A prepared data set `cells` without code, which its files describe. A test may change it."""
    folder = tmp_path / "copy"
    shutil.copytree(data_dir / "my_cells", folder / "cells")
    for file in folder.rglob("my_cells-*"):
        file.rename(file.with_name(file.name.replace("my_cells", "cells")))
    replace_in(folder, "dataset_info.json", '"my_cells"', '"cells"')
    return folder


def replace_in(folder: Path, name: str, old: str, new: str) -> None:
    [file] = folder.rglob(name)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize("kind", ["pythonClassName", "type"])
def test_a_prepared_data_set_imports_no_module_of_its_choice(copy, read, kind):
    """F12: TensorFlow Datasets imports the module of each feature that `features.json` names."""
    [file] = copy.rglob("features.json")
    features = json.loads(file.read_text())
    features["featuresDict"]["features"]["image"] = {kind: "antigravity.Image"}
    file.write_text(json.dumps(features))
    with pytest.raises(
        DataError,
        match=("features.json: the feature 'antigravity.Image' is not one of TensorFlow Datasets"),
    ):
        read("cells", "train", path=copy)
    assert "antigravity" not in sys.modules


def test_classes_without_names_are_their_numbers_and_have_a_limit(copy, read):
    """A number in a file of 3 kB made TensorFlow Datasets build a list of that many texts."""
    [names] = copy.rglob("*.labels.txt")
    names.unlink()
    records, rejected, _ = read("cells", "train", path=copy)
    assert {box.label for record in records.values() for box in record.boxes} == {"0", "1"}
    assert not rejected
    replace_in(copy, "features.json", '"numClasses": "2"', f'"numClasses": "{1 << 40}"')
    with pytest.raises(DataError, match="cells/1.2.0: has 1099511627776 classes, allowed are"):
        read("cells", "train", path=copy)


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ('"name": "cells"', '"name": ""', "ValueError: Could not format template"),
        ("{DATASET}-{SPLIT}", "/etc/{SPLIT}", "ValueError: .* is not in the subpath of "),
    ],
)
def test_a_field_that_tensorflow_datasets_reads_late_is_an_error_of_the_data(
    copy, read, old, new, problem
):
    replace_in(copy, "dataset_info.json", old, new)
    with pytest.raises(DataError, match=f"TensorFlow Datasets has no cells in .*: {problem}"):
        read("cells", "train", path=copy)


def test_a_lack_of_memory_in_a_builder_is_no_error_of_the_data(read, cells, data_dir, monkeypatch):
    (data_dir / "hungry").mkdir()

    def fail(**_):
        raise MemoryError

    monkeypatch.setattr(cells, "Hungry", fail, raising=False)
    with pytest.raises(MemoryError):
        read("cells_builder.Hungry", "train")
