"""Bad records: kept with their bytes, named, counted, and held to a budget."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from beam_jobs.output.quarantine import (
    MAX_BYTES,
    QuarantineWriter,
    check_rejects,
    find_lost_classes,
)
from beam_jobs.planning.duplicates import CollectionDecision
from beam_jobs.planning.plan import Record
from beam_jobs.sources.source import SourceRecords
from beam_jobs.stages import bind_stages
from beam_jobs.stages.stage import Box
from beam_jobs.statistics.summary import BadRecord
from pipeline_ops.config.preprocess import Rejects, StageConfig
from pipeline_ops.contract.dataset import RejectedRecord
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.raw_data.raw_file import RawFile
from pipeline_ops.storage.open_store import open_root


def rejected(key: str) -> RejectedRecord:
    return RejectedRecord(key=key, stage="decode", reason="empty", detail="naïve <b>")


def bad(key: str, content: bytes) -> BadRecord:
    return BadRecord(rejected(key), f"{key}.png", content, len(content))


def test_bad_records_of_all_shards_and_of_the_source_are_kept_with_their_bytes(
    animals, encode, read_quarantine
):
    truncated = encode(seed=99)[:-30]
    contents = {
        "cat/truncated.png": truncated,
        "dog/empty.png": b"",
        "dog/text.png": b"no image",
        "stray.txt": b"shopping list",
    }
    for name, content in contents.items():
        animals.add(name, content)
    outcome = animals.run(rejects={"max_count": 4})
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert outcome.bad_bytes == contents
    assert [line["key"] for line in outcome.quarantine] == sorted(contents)
    for line in outcome.quarantine:
        found = {
            features["quarantine/key"].decode(): features
            for features in read_quarantine(outcome.artifact / line["file"])
        }[line["key"]]
        for name in ("stage", "reason", "detail"):
            assert found[f"quarantine/{name}"].decode() == line[name]
        assert found["quarantine/source"].decode() == line["key"]
        assert found["quarantine/num_bytes"] == len(contents[line["key"]])
    files = {line["key"]: line["file"] for line in outcome.quarantine}
    assert files["stray.txt"] == "quarantine-source.tfrecord"
    assert files["cat/truncated.png"].removeprefix("quarantine-") in outcome.shards


def test_each_copy_of_a_bad_record_counts(animals):
    """A crawler that saves the same error page many times must not stay below the budget."""
    for number in range(6):
        animals.add(f"cat/{number}.jpg", b"<html>404</html>")
    outcome = animals.run(rejects={"max_count": 5})
    assert outcome.exit_code is ExitCode.DATA
    assert "6 of " in outcome.message and "cat/5.jpg: not_image" in outcome.message
    outcome = animals.run(rejects={"max_count": 6})
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert {line["reason"] for line in outcome.quarantine} == {"not_image"}


def test_without_bad_records_there_is_no_file_for_them(animals):
    assert not list(animals.run().artifact.glob("quarantine-*"))


def test_of_a_large_record_the_beginning_is_kept_and_its_size_told(tmp_path, read_quarantine):
    with QuarantineWriter(open_root(tmp_path), "shard.tfrecord") as quarantine:
        assert quarantine.file is None
        line = quarantine.add(bad("a", b"x" * (MAX_BYTES + 5)))
    assert line == rejected("a").model_copy(update={"file": "quarantine-shard.tfrecord"})
    [record] = read_quarantine(tmp_path / line.file)
    assert len(record["quarantine/content"]) == MAX_BYTES
    assert record["quarantine/num_bytes"] == MAX_BYTES + 5
    assert quarantine.file.path == line.file
    assert quarantine.file.num_bytes == (tmp_path / line.file).stat().st_size


@pytest.mark.parametrize(
    ("rejects", "num_records", "budget"),
    [
        (Rejects(), 999, 0),
        (Rejects(), 1000, 1),
        (Rejects(), 1_000_000, 1000),
        (Rejects(max_count=5), 1000, 5),
        (Rejects(max_fraction=0), 10**6, 0),
    ],
)
def test_the_budget_is_one_in_a_thousand_unless_the_config_says_otherwise(
    rejects, num_records, budget
):
    assert rejects.compute_budget(num_records) == budget


def test_no_budget_allows_for_the_loss_of_a_class(animals):
    animals.add("bird/1.png", b"no image")
    animals.add("bird/2.png", b"")
    outcome = animals.run(rejects={"max_fraction": 1.0})
    assert outcome.exit_code is ExitCode.DATA
    assert "every record of bird is unusable, and no budget covers a whole class" in outcome.message
    assert "bird/1.png: not_image" in outcome.message
    full_list = (outcome.attempt.folder.local / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in full_list] == ["bird/1.png", "bird/2.png"]
    assert not outcome.artifact.exists()


def labels_of(records: list[Record]) -> list[tuple[str, list[str]]]:
    return [(record.key, record.labels) for record in records]


def test_a_class_of_boxes_is_lost_with_the_last_image_that_has_one():
    def record(key: str, *labels: str) -> Record:
        return Record(
            RawFile(key, 1, int(key)), boxes=tuple(Box(0, 0, 1, 1, label) for label in labels)
        )

    records = [record("1", "cell", "plate"), record("2", "cell"), record("3", "plate"), record("4")]
    assert find_lost_classes(labels_of(records), [rejected("1"), rejected("3")]) == ["plate"]
    assert find_lost_classes(labels_of(records), [rejected("1"), rejected("4")]) == []
    assert find_lost_classes(labels_of(records), []) == []


def test_a_class_is_lost_under_the_name_that_it_has_after_the_stages():
    records = [
        Record(RawFile(key, 1, int(key)), label)
        for key, label in [("1", "cat"), ("2", "kitten"), ("3", "dog"), ("4", "plant")]
    ]
    stages = bind_stages(
        [
            StageConfig(name="decode"),
            StageConfig(
                name="map_classes", parameters={"rename": {"kitten": "cat"}, "drop": ["plant"]}
            ),
        ]
    )
    assert find_lost_classes(labels_of(records), [rejected("2"), rejected("4")], stages) == []
    assert find_lost_classes(
        labels_of(records), [rejected("1"), rejected("2"), rejected("3")], stages
    ) == ["cat", "dog"]


def test_a_class_of_which_only_removed_copies_are_left_is_lost(tmp_path):
    records = [
        Record(RawFile(key, 1, number), label)
        for number, (key, label) in enumerate([("a", "cat"), ("b", "cat"), ("c", "dog")])
    ]
    copy = RejectedRecord(key="b", stage="duplicates", reason="duplicate", detail="near a")
    decision = CollectionDecision({"train": [records[0], records[2]]}, (records[1],), (copy,))
    source = SimpleNamespace(found=SourceRecords(records, [], {}), stages=[])
    attempt, request = SimpleNamespace(folder=tmp_path), SimpleNamespace(config_file="a.yaml")
    job = SimpleNamespace(attempt=attempt, request=request)
    with pytest.raises(DataError, match="every record of cat is unusable"):
        check_rejects([rejected("a"), copy], source, decision, Rejects(max_count=9), job)


def voc(label: str, xmin: int) -> bytes:
    return (
        f"<annotation><object><name>{label}</name>"
        f"<bndbox><xmin>{xmin}</xmin><ymin>1</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>"
        "</object>\n        </annotation>"
    ).encode()


def write_source(kind: str, pipeline, encode, bad_labels: set[str]) -> dict:
    """40 images with a box of a `cell` each, and 4 with one of a `plate`; the boxes of bad labels
    are inverted, or their images missing."""
    labels = ["cell"] * 40 + ["plate"] * 4
    rows, images, annotations = ["path,xmin,ymin,xmax,ymax,label"], [], []
    for index, label in enumerate(labels):
        is_bad = label in bad_labels
        if not (is_bad and kind == "coco"):
            pipeline.add(f"JPEGImages/{index}.png", encode(seed=index))
        if kind == "voc":
            pipeline.add(f"Annotations/{index}.xml", voc(label, 7 if is_bad else 1))
        rows.append(f"{index}.png,{7 if is_bad else 1},1,5,6,{label}")
        images.append({"id": index, "file_name": f"{index}.png"})
        annotations.append(
            {
                "id": index,
                "image_id": index,
                "category_id": 1 + (label == "plate"),
                "bbox": [1, 1, 4, 5],
            }
        )
    categories = [
        {"id": 1, "name": "cell"},
        {"id": 2, "name": "plate"},
        {"id": 3, "name": "never used"},
    ]
    pipeline.add("boxes.csv", "\n".join(rows).encode())
    pipeline.add(
        "coco.json",
        json.dumps(
            {"images": images, "categories": categories, "annotations": annotations}
        ).encode(),
    )
    return {
        "voc": {"image_sets": None},
        "csv": {"manifest": "boxes.csv", "images": "JPEGImages", "task": "detection"},
        "coco": {"parts": [{"annotations": "coco.json", "images": "JPEGImages"}]},
    }[kind] | {"type": kind, "path": "../raw"}


@pytest.mark.parametrize("kind", ["voc", "csv", "coco"])
def test_a_class_that_the_source_refuses_entirely_is_lost_on_the_first_run_already(
    pipeline, encode, kind
):
    source = write_source(kind, pipeline, encode, bad_labels={"plate"})
    outcome = pipeline.run(source=source, rejects={"max_count": 10})
    assert outcome.exit_code is ExitCode.DATA
    assert (
        "every record of plate is unusable, and no budget covers a whole class" in outcome.message
    )


def test_a_class_that_no_annotation_has_is_not_lost(pipeline, encode):
    source = write_source("coco", pipeline, encode, bad_labels=set())
    assert pipeline.run(source=source).exit_code is ExitCode.SUCCESS
