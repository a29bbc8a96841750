"""Plans and errors of a preprocess job are JSON:
a file that was dropped there runs nothing (F10)."""

from __future__ import annotations

import dataclasses
import os
import pickle

import pytest

from beam_jobs.io.raw import PackedImage
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.planning.plan_file import read_plan, write_plan
from beam_jobs.stages.stage import Box
from beam_jobs.workers.plan_builder import (
    ERROR,
    PLAN,
    PROGRESS,
    PlanBuilder,
    raise_worker_error,
    report_failure,
)
from pipeline_ops.errors import ConfigError, DataError, MachineError, TrainyardError
from pipeline_ops.raw_data.raw_file import RawFile


def records() -> tuple[Record, ...]:
    file = RawFile("a/ü%20.png", 12, "d" * 32, "1.2")
    packed = PackedImage(
        "x:3", 7, "e" * 32, RawFile("x.tfrecord", 99, "f" * 32), 40, "image/encoded"
    )
    box = Box(0.1, 1e-17, 1 / 3, 7.25, "cat", is_crowd=True)
    return (
        Record(file, "a"),
        Record(file),
        Record(packed, boxes=()),
        Record(dataclasses.replace(packed, packing="tar", feature="")),
        Record(dataclasses.replace(packed, packing="parquet")),
        Record(packed, boxes=(box, box), split="test", group="patient 1", frame=(1.0, 1.0)),
    )


def test_a_plan_reads_back_as_it_was_written(tmp_path):
    plan = ShardPlan("train", "train-00000-of-00001.tfrecord", records())
    write_plan(tmp_path / "a.plan", plan)
    assert read_plan(tmp_path / "a.plan") == plan
    assert [record.file.version for record in read_plan(tmp_path / "a.plan").records[:1]] == ["1.2"]


class Exploit:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


class NoSpec:
    """A spec whose builder must not be reached."""

    def create_builder(self, progress_file, fragments):
        return None


def test_a_pickle_in_the_place_of_a_plan_or_of_an_error_is_not_loaded(tmp_path):
    """F10."""
    scratch, victim = tmp_path / "scratch", tmp_path / "victim"
    scratch.mkdir()
    (scratch / PROGRESS).write_bytes(b"")
    (scratch / f"train-0{PLAN}").write_bytes(pickle.dumps(Exploit(victim)))
    assert PlanBuilder(NoSpec(), scratch).build("train-0") is None
    with pytest.raises(MachineError, match="train-0.plan is not a plan"):
        raise_worker_error(scratch)
    (scratch / f"a{ERROR}").write_bytes(pickle.dumps(Exploit(victim)))
    with pytest.raises(DataError, match=f"a{ERROR}: not a valid Status"):
        raise_worker_error(scratch)
    assert not victim.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"[1, 2, 3]",
        b'["a", "b", [[]]]',
        b"[" * 9999,
        b'["a", "b", [[["k", 1, "d"], "", null, null, null, null]]]',
    ],
)
def test_a_damaged_plan_is_a_failure_of_the_machine_that_names_the_file(tmp_path, content):
    (tmp_path / "a.plan").write_bytes(content)
    with pytest.raises(MachineError, match="a.plan is not a plan"):
        read_plan(tmp_path / "a.plan")
    with pytest.raises(MachineError, match="cannot read .*none.plan"):
        read_plan(tmp_path / "none.plan")


@pytest.mark.parametrize(
    "error", [ConfigError("a"), DataError("b"), MachineError("c"), TrainyardError("d")]
)
def test_the_driver_raises_what_the_worker_has_met(tmp_path, error):
    (tmp_path / PROGRESS).write_bytes(b"")
    report_failure("train-0", error, tmp_path)
    with pytest.raises(type(error)) as raised:
        raise_worker_error(tmp_path)
    assert str(raised.value) == str(error)
    assert type(raised.value) is type(error)
