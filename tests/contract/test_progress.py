"""Progress lines: what a job writes reads back,
and a bad line is one problem at its place (F16)."""

from __future__ import annotations

import json
import math

import pytest

from pipeline_ops.contract.layout import Attempt, list_worker_progress
from pipeline_ops.contract.progress import (
    ProgressEvent,
    ProgressReader,
    ProgressWriter,
    read_last_event,
)
from pipeline_ops.contract.results import Epoch
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.open_store import open_path, open_root


def test_a_metric_that_is_not_a_number_reads_back(tmp_path):
    """F16: it was written as null, which ended the train job as a bug."""
    writer = ProgressWriter(tmp_path / "progress.jsonl")
    writer.report("train", 1, 2, "steps", {"own": math.nan, "high": math.inf, "low": -math.inf})
    [line] = (tmp_path / "progress.jsonl").read_text().splitlines()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    [event] = ProgressReader(open_path(tmp_path / "progress.jsonl")).read_new()
    assert math.isnan(event.metrics["own"])
    assert (event.metrics["high"], event.metrics["low"]) == (math.inf, -math.inf)
    assert "own nan" in str(event)


def test_figures_that_are_not_numbers_read_back(tmp_path):
    """F16."""
    epoch = Epoch(epoch=0, step=1, metrics={"validation_own": math.nan}, learning_rate=math.inf)
    again = Epoch.model_validate_json(epoch.model_dump_json())
    assert math.isnan(again.metrics["validation_own"])
    assert again.learning_rate == math.inf
    write_json(tmp_path / "a.json", {"values": [math.nan, {"x": (-math.inf, 1.5)}]})
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "values": ["NaN", {"x": ["-Infinity", 1.5]}]
    }


BAD_LINES = [
    b'{"time": 1, "phase": "train", "metrics": {"loss": null}}',
    b"null",
    b"[]",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b'{"time": "soon", "phase": "x"}',
    b'{"phase": "x"}',
    b'{"time": 1e300, "phase": "x"}',
    b'{"time": NaN, "phase": "x"}',
    b'{"time": 1, "phase": "x", "done": ' + b"9" * 5000 + b"}",
    b'{"time": 1, "phase": "x", "total": -1}',
    b'{"time": 1, "phase": "x", "rate": Infinity}',
    b'{"time": 1, "phase": "x", "eta_seconds": NaN}',
    b'{"time": 1, "phase": "\\ud800"}',
    b"[" * 100_000,
    b'{"time": 1, "phase": "' + b"x" * 101 + b'"}',
    b'{"a":' * 50_000,
    b'{"time": 1, "pha',
]


def test_bad_lines_do_not_hide_the_good_ones(tmp_path):
    """F16: one such line was an error 500 of the Progress page."""
    path = tmp_path / "progress.jsonl"
    good = [b'{"time": %d, "phase": "train", "done": %d}' % (i, i) for i in range(len(BAD_LINES))]
    path.write_bytes(b"".join(a + b"\n" + b + b"\n" for a, b in zip(good, BAD_LINES, strict=True)))
    reader = ProgressReader(open_path(path))
    assert [event.done for events in reader.read_all() for event in events] == list(
        range(len(good))
    )
    assert len(reader.problems) == len(BAD_LINES)
    assert max(map(len, reader.problems)) < 2000
    assert reader.problems[0].startswith(f"{path}, byte {len(good[0]) + 1}: ")
    assert "metrics.loss: Input should be a valid number" in reader.problems[0]


def test_a_file_of_nothing_but_bad_lines_is_read_once_in_bounded_memory(tmp_path):
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b"x\n" * 100_000 + b"y" * (10 << 20) + b'\n{"time": 1, "phase": "end"}\n')
    reader = ProgressReader(open_path(path))
    assert [event.phase for events in reader.read_all() for event in events] == ["end"]
    assert len(reader.problems) == 20


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path):
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b'{"time": 1, "phase": "a"}\n{"time": 2, "ph')
    reader = ProgressReader(open_path(path))
    assert [event.phase for event in reader.read_new()] == ["a"]
    with open(path, "ab") as file:
        file.write(b'ase": "b"}\n')
    assert [event.phase for event in reader.read_new()] == ["b"]
    assert reader.problems == []


def test_no_link_is_followed_to_a_progress_file(tmp_path):
    """F8."""
    (tmp_path / "root" / "attempt").mkdir(parents=True)
    (tmp_path / "secret").write_text("a secret\n")
    path = tmp_path / "root" / "attempt" / "progress.jsonl"
    path.symlink_to(tmp_path / "secret")
    linked = tmp_path / "root" / "linked"
    linked.symlink_to(tmp_path)
    (tmp_path / "progress.jsonl").write_text("a secret\n")
    for name in ("attempt", "linked"):
        file = open_root(tmp_path / "root") / name / "progress.jsonl"
        reader = ProgressReader(file)
        assert reader.read_new() == [] and read_last_event(file) is None
        assert "link" in reader.problems[0] and "a secret" not in reader.problems[0]


def test_what_a_writer_is_given_is_always_what_a_reader_takes(tmp_path):
    writer = ProgressWriter(tmp_path / "progress.jsonl", worker=3)
    writer.report("load", message="a name that is not Unicode: \udcff " + "x" * 100_000)
    writer.report("train", 5, 3, "steps")
    writer.report("train", 6, 3, "steps")
    reader = ProgressReader(open_path(tmp_path / "progress.jsonl"))
    assert [event.phase for event in reader.read_new()] == ["load", "train", "train"]
    assert reader.problems == []


def test_only_the_processes_of_a_gang_are_taken_for_workers(tmp_path):
    """The rejected records are in the same folder, in `rejected.jsonl`."""
    names = [
        "worker-0.jsonl",
        "worker-12.jsonl",
        "chief-0.jsonl",
        "ps-1.jsonl",
        "rejected.jsonl",
        "progress.jsonl",
        "worker-x.jsonl",
        "quarantine.jsonl",
        "worker-0.jsonl.tmp",
    ]
    for name in names:
        (tmp_path / name).write_bytes(ProgressEvent(time=1, phase="x").model_dump_json().encode())
    found = list_worker_progress(Attempt(open_root(tmp_path)))
    assert list(found) == ["chief 0", "ps 1", "worker 0", "worker 12"]
    assert all(path.local.parent == tmp_path for path in found.values())
