"""Images in tar shards and Parquet files, through the whole job."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from beam_jobs.io.example import parse
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.errors import ExitCode

BOX = [2.0, 4.0, 16.0, 24.0]
Rows = Iterable[tuple[str, bytes, str]]  # name, image and label


def make_tar(rows: Rows) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, image, label in rows:
            annotation = json.dumps({"boxes": [BOX], "label": [label]})
            for suffix, content in (("png", image), ("cls", label), ("json", annotation)):
                content = content.encode() if isinstance(content, str) else content
                info = tarfile.TarInfo(f"{name}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def make_parquet(rows: Rows) -> bytes:
    names, images, labels = zip(*rows, strict=True)
    table = {
        "image": [
            {"bytes": image, "path": f"{name}.png"}
            for name, image in zip(names, images, strict=True)
        ],
        "label": labels,
        "objects": [{"bbox": [BOX], "category": [label]} for label in labels],
    }
    file = io.BytesIO()
    pq.write_table(pa.table(table), file, row_group_size=8)
    return file.getvalue()


DETECTION = {
    "webdataset": {},
    "parquet": {"boxes": "objects.bbox", "label": "objects.category"},
}
MAKE: dict[str, Callable[[Rows], bytes]] = {"webdataset": make_tar, "parquet": make_parquet}
SUFFIX = {"webdataset": "tar", "parquet": "parquet"}


@pytest.fixture(params=MAKE)
def kind(request) -> str:
    return request.param


@pytest.fixture
def write(pipeline, kind):
    """Writes files of rows, and the config with a source that reads them."""

    def write(files: dict[str, Rows], **source) -> None:
        for name, rows in files.items():
            pipeline.add(f"{name}.{SUFFIX[kind]}", MAKE[kind](rows))
        config = yaml.safe_load(pipeline.config_file.read_text())
        section = {"type": kind, "path": "../raw", "task": "classification", **source}
        config["preprocess"] |= {"source": section, "stages": ["decode"]}
        pipeline.config_file.write_text(yaml.safe_dump(config))

    return write


def make_rows(encode, start: int, count: int = 30) -> list[tuple[str, bytes, str]]:
    return [
        (f"{index:04d}", encode(32, 32, seed=index), ["cat", "dog"][index % 2])
        for index in range(start, start + count)
    ]


def read_examples(outcome, read_records) -> dict[bytes, dict]:
    """All examples by the bytes of their images."""
    return {
        example["image/encoded"][0]: example
        for name in outcome.shards
        for example in map(parse, read_records(outcome.artifact / name))
    }


@pytest.mark.parametrize("task", ["classification", "detection"])
@pytest.mark.parametrize("duplicates", ["remove_exact", "remove_near"])
def test_all_images_come_out_with_their_annotations(
    pipeline, write, kind, encode, read_records, task, duplicates
):
    files = {"a": make_rows(encode, 0), "val": make_rows(encode, 100, 12)}
    part = {"files": f"val.{SUFFIX[kind]}", "split": "validation"}
    source = {"task": task, "parts": [{"files": f"a.{SUFFIX[kind]}"}, part]}
    write(files, **source, **(DETECTION[kind] if task == "detection" else {}))
    runner = {"workers": 2} if task == "detection" else {"workers": 1}
    outcome = pipeline.run(duplicates=duplicates, runner=runner)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    found = read_examples(outcome, read_records)
    rows = [row for each in files.values() for row in each]
    assert set(found) == {image for _, image, _ in rows}
    assert outcome.manifest.figures["num_examples"]["validation"] >= 12
    for _, image, label in rows:
        index = ["cat", "dog"].index(label)
        if task == "classification":
            assert found[image]["image/class/label"] == [index]
            continue
        assert found[image]["image/object/class/label"] == [index]
        edges = [found[image][f"image/object/bbox/{edge}"][0] * 32 for edge in ("xmin", "ymax")]
        assert edges == pytest.approx([BOX[0], BOX[3]])


def test_equal_images_are_found_by_content_also_in_other_files(pipeline, write, kind, encode):
    rows = make_rows(encode, 0)
    copies = [(f"copy{name}", image, label) for name, image, label in rows[:4]]
    liar = [("liar", rows[5][1], "cat")]  # the fifth is a dog
    write({"a": rows, "b": [*copies, *liar]})
    outcome = pipeline.run(duplicates="remove_exact", rejects={"max_fraction": 0.1})
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert sum(outcome.manifest.figures["num_examples"].values()) == 29
    reasons = [line["reason"] for line in outcome.quarantine]
    assert sorted(reasons) == ["conflicting_labels"] * 2 + ["duplicate"] * 4


def test_a_further_file_leaves_the_shards_of_the_others_as_they_are(
    pipeline, write, encode, read_records
):
    rows = make_rows(encode, 0, 60)
    write({"a": rows})
    first = pipeline.make()
    write({"b": make_rows(encode, 200, 6)})
    second = pipeline.make()
    figures = DatasetFigures.model_validate(second.manifest.figures)
    assert figures.generation == 2 and not figures.removed
    assert sum(figures.num_examples.values()) == 66
    assert first.shards.items() <= second.shards.items()
    changed = [*rows[:7], ("0007", encode(32, 32, seed=999), rows[7][2]), *rows[8:]]
    write({"a": changed})
    third = pipeline.make()
    figures = DatasetFigures.model_validate(third.manifest.figures)
    assert figures.generation == 3
    assert sum(map(len, figures.removed.values())) == 1


def test_raw_test_records_hold_the_images_as_the_file_does(pipeline, write, encode, read_records):
    rows = make_rows(encode, 0, 60)
    write({"a": rows})
    outcome = pipeline.run(stages=["decode", {"resize": {"height": 8, "width": 8}}])
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    files = [
        parse(record)["raw/file"][0]
        for file in outcome.artifact.glob("raw-test-*")
        for record in read_records(file)
    ]
    assert len(files) == outcome.manifest.figures["num_examples"]["test"] > 0
    assert set(files) <= {image for _, image, _ in rows}


def test_bad_images_and_samples_are_in_the_quarantine(pipeline, write, encode):
    bad = [("bad", b"no image", "cat"), ("empty", encode(), "")]
    write({"a": [*make_rows(encode, 0, 40), *bad]})
    outcome = pipeline.run(rejects={"max_fraction": 0.1})
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert sorted((line["stage"], line["reason"]) for line in outcome.quarantine) == [
        ("decode", "not_image"),
        ("source", "no_label"),
    ]
