"""The messages of a preprocess job are JSON: what was dropped in their place runs nothing (F10)."""

from __future__ import annotations

import dataclasses
import os
import pickle

import pytest

from beam_jobs.exchange import (
    Exchange,
    PlanProgress,
    ProgressReporter,
    Results,
    ShardTask,
    StoppedByDriver,
)
from beam_jobs.io.raw import PackedImage
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.stages.stage import Box, BoxFrame
from beam_jobs.statistics.summary import PlanSummary
from beam_jobs.worker import PlanWorker
from pipeline_ops.contract.dataset import RejectedRecord
from pipeline_ops.errors import ConfigError, DataError, MachineError, TrainyardError
from pipeline_ops.raw_data.raw_file import RawFile
from pipeline_ops.storage.open_store import open_root

REJECTED = RejectedRecord(key="a", stage="decode", reason="empty")


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.stores)])
def exchange(request, tmp_path) -> Exchange:
    root = open_root(tmp_path)
    return Exchange(
        (request.getfixturevalue("s3_root") if request.param == "bucket" else root) / "x"
    )


def records() -> tuple[Record, ...]:
    file = RawFile("a/ü%20.png", 12, 0xD << 124, 1_732_600_000.1234567)
    packed = PackedImage("x:3", 7, 0xE, RawFile("x.tfrecord", 99, 0), 40)
    box = Box(0.1, 1e-17, 1 / 3, 7.25, "cat", is_crowd=True)
    return (
        Record(file, "a"),
        Record(file),
        Record(packed, boxes=()),
        Record(dataclasses.replace(packed, column="image")),
        Record(
            packed, boxes=(box, box), split="test", group="patient 1", frame=BoxFrame((1.0, 1.0))
        ),
    )


def make_plans() -> list[ShardPlan]:
    return [ShardPlan("train", f"train-{number}", records()[number:]) for number in range(3)]


def test_plans_read_back_as_they_were_written(exchange):
    plans = make_plans()
    tasks = exchange.write_plans(plans)
    assert [exchange.read_plan(task) for task in reversed(tasks)] == plans[::-1]
    assert exchange.read_plan(tasks[0]).records[0].file.version == 1_732_600_000.1234567


def test_of_an_earlier_try_only_results_of_the_same_plans_stay(exchange):
    plans = make_plans()
    exchange.write_plans(plans)
    exchange.write_result("train-0", PlanSummary(num_examples=7))
    exchange.write_progress("train-1", PlanProgress(done=1, rejected=0))
    exchange.write_error("train-2", MachineError("the disk is full"))
    exchange.write_plans(plans)
    exchange.raise_error()
    exchange.check_stop()
    assert exchange.find_result("train-0", PlanSummary).num_examples == 7
    assert Results(exchange, plans, PlanSummary).read_progress() == (5, 0)
    exchange.write_plans(plans[:2])
    assert exchange.find_result("train-0", PlanSummary) is None


def test_progress_counts_finished_plans_and_reports_on_others(exchange):
    plans = make_plans()
    exchange.write_plans(plans)
    results = Results(exchange, plans, PlanSummary)
    assert results.read_progress() == (0, 0)
    exchange.write_progress("train-0", PlanProgress(done=1, rejected=0))
    exchange.write_progress("train-1", PlanProgress(done=2, rejected=1))
    assert results.read_progress() == (3, 1)
    exchange.write_result("train-0", PlanSummary(num_examples=2, rejected=[REJECTED] * 2))
    assert results.read_progress() == results.read_progress() == (len(records()) + 2, 3)


def test_the_results_are_in_the_order_of_the_plans_and_a_lost_one_is_named(exchange):
    plans = make_plans()
    results = Results(exchange, plans, PlanSummary)
    for number in (2, 0):
        exchange.write_result(f"train-{number}", PlanSummary(num_examples=number))
    results.read_progress()
    with pytest.raises(MachineError, match="has ended without train-1"):
        results.collect()
    exchange.write_result("train-1", PlanSummary(num_examples=1))
    results.read_progress()
    assert [result.num_examples for result in results.collect()] == [0, 1, 2]


def test_a_worker_reports_now_and_then_and_stops_when_it_is_told_to(exchange, monkeypatch):
    results = Results(exchange, make_plans(), PlanSummary)
    reporter = ProgressReporter(exchange, "train-0")
    reporter.add(is_rejected=True)
    assert results.read_progress() == (0, 0), "the next report is not due"
    monkeypatch.setattr(Exchange, "poll_seconds", 0.0)
    reporter = ProgressReporter(exchange, "train-0")
    for number in range(3):
        reporter.add(is_rejected=number == 1)
    assert results.read_progress() == (3, 1)
    exchange.stop()
    for work in (lambda: reporter.add(is_rejected=False), lambda: ProgressReporter(exchange, "a")):
        with pytest.raises(StoppedByDriver):
            work()
    assert results.read_progress() == (3, 1)


class Exploit:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


class NoSpec:
    """A spec whose builder must not be reached."""

    summary = PlanSummary

    def create_builder(self, exchange):
        raise AssertionError


def test_a_pickle_in_the_place_of_a_message_is_not_loaded(exchange, tmp_path):
    """F10."""
    victim = tmp_path / "victim"
    exploit = pickle.dumps(Exploit(victim))
    for name in ("plans.jsonl", "results/a.json", "progress/b.json", "errors/a.json"):
        (exchange.folder / name).write(exploit)
    plans = [ShardPlan("train", name, ()) for name in "ab"]
    worker = PlanWorker(NoSpec(), exchange)
    assert worker.work(ShardTask("z", 0, len(exploit))) is None
    for name in ("results/a.json", "progress/b.json"):
        with pytest.raises(MachineError, match=f"{name} is no message of a worker"):
            Results(exchange, plans, PlanSummary).read_progress()
        (exchange.folder / name).remove()
    with pytest.raises(MachineError, match=r"errors/a.json is no message of a worker"):
        exchange.raise_error()
    (exchange.folder / "errors" / "a.json").remove()
    with pytest.raises(MachineError, match=r"plans.jsonl has no plan z"):
        exchange.raise_error()
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
    exchange = Exchange(open_root(tmp_path))
    with pytest.raises(MachineError, match="plans.jsonl is missing"):
        exchange.read_plan(ShardTask("a", 0, 10))
    (tmp_path / "plans.jsonl").write_bytes(content)
    with pytest.raises(MachineError, match="plans.jsonl has no plan a"):
        exchange.read_plan(ShardTask("a", 0, len(content)))


@pytest.mark.parametrize(
    "error", [ConfigError("a"), DataError("b"), MachineError("c"), TrainyardError("d")]
)
def test_the_driver_raises_what_the_worker_has_met(exchange, error):
    exchange.raise_error()
    exchange.write_error("train-0", error)
    with pytest.raises(type(error)) as raised:
        exchange.raise_error()
    assert str(raised.value) == str(error)
    assert type(raised.value) is type(error)
    with pytest.raises(StoppedByDriver):
        exchange.check_stop()
