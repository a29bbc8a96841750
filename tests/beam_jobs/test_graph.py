"""The Beam graph: what travels through it, and its metrics."""

from __future__ import annotations

import multiprocessing
import shutil
from collections import Counter

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs.exchange import Exchange, Results, ShardTask
from beam_jobs.graph import BuildShard, BuildShardInProcesses, build_graph
from beam_jobs.output.raw_test import RawTestQuota
from beam_jobs.output.shard import ShardBuildSpec
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.statistics.dataset import collect_statistics, find_duplicates
from beam_jobs.statistics.summary import ShardSummary, compute_figures
from beam_jobs.worker import open_pool
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.contract.dataset import RejectedRecord
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root

CLASSES = ("cat", "dog")
STAGES = (
    StageConfig(name="decode", parameters={"channels": 1}),
    StageConfig(name="filter", parameters={"classes": ["cat"]}),
    StageConfig(name="tile", parameters={"height": 4, "width": 8}),
)


@pytest.fixture
def job(tmp_path, encode):
    """The spec, the exchange and the tasks of three shards: two broken files, and dogs to skip."""
    for index in range(30):
        file = tmp_path / "raw" / CLASSES[index % 2] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"no image" if index in (4, 11) else encode(seed=index))
    files = list_raw_files(tmp_path / "raw", open_root(tmp_path) / "listings").files
    records = [Record(file, file.key.split("/")[0]) for file in files]
    plans = [ShardPlan("train", f"train-{n}", tuple(records[n::3])) for n in range(3)]
    exchange, target = Exchange(open_root(tmp_path) / "exchange"), tmp_path / "target"
    target.mkdir()
    quota = RawTestQuota.divide(500, plans)
    raw, config_file = tmp_path / "raw", tmp_path / "tiny.yaml"
    spec = ShardBuildSpec(raw, open_root(target), STAGES, CLASSES, quota, config_file)
    return spec, exchange, plans, exchange.write_plans(plans)


def run(do_fn, tasks) -> tuple[Counter, dict]:
    """The counters and distributions of the runner's result."""
    pipeline = beam.Pipeline(FnApiRunner())
    build_graph(pipeline, tasks, do_fn)
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter())
    counters = Counter(
        {
            (one.key.metric.namespace, one.key.metric.name): one.committed
            for one in found["counters"]
        }
    )
    times = {
        one.key.metric.namespace: one.committed
        for one in found["distributions"]
        if one.key.metric.name == "microseconds"
    }
    return counters, times


def read_summaries(exchange, plans) -> list[ShardSummary]:
    results = Results(exchange, plans, ShardSummary)
    results.read_progress()
    return results.collect()


def test_a_process_that_died_before_its_first_task_is_noticed(job):
    spec, exchange, _, tasks = job
    with open_pool(spec, exchange, 2):
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        run(BuildShardInProcesses(spec, exchange), tasks)
    with pytest.raises(MachineError, match="a worker process died. The usual cause"):
        exchange.raise_error()


@pytest.mark.parametrize("num_processes", [1, 2])
def test_the_metrics_of_the_stages_are_the_figures_of_the_data_set(job, num_processes):
    spec, exchange, plans, tasks = job
    do_fn = (BuildShard if num_processes == 1 else BuildShardInProcesses)(spec, exchange)
    with open_pool(spec, exchange, num_processes):
        counters, times = run(do_fn, tasks)
    summaries = read_summaries(exchange, plans)
    rejected = [record for summary in summaries for record in summary.rejected]
    figures = compute_figures(summaries, CLASSES, rejected)
    num_examples, num_skipped = (
        sum(counts.values()) for counts in (figures.num_examples, figures.skipped_by_reason)
    )
    num_decoded = sum(len(plan.records) for plan in plans) - figures.num_rejected
    assert counters == {
        ("decode", "examples"): num_decoded,
        ("filter", "examples"): num_decoded - num_skipped,
        ("tile", "examples"): num_examples,
        ("write", "examples"): num_examples,
        ("decode", "rejected"): figures.num_rejected,
        ("filter", "skipped"): num_skipped,
    }
    assert num_examples == 2 * (num_decoded - num_skipped) > 0 < num_skipped
    assert figures.num_rejected == 2
    assert set(times) == {"read", "decode", "filter", "tile", "measure", "write"}
    splits = collect_statistics(summaries, figures, find_duplicates({})).splits
    assert splits["train"].features["image_bytes"].count == num_examples
    assert not splits["test"].features
    for stage, spent in times.items():
        assert spent.count == len(plans)
        assert abs(spent.sum / 1e6 - figures.seconds_by_stage[stage]) < 0.01


def test_of_very_many_reasons_the_rarest_are_counted_as_one():
    reasons = [f"is {number} pixels too large" for number in range(500)] + ["not an image"] * 2
    rejected = [
        RejectedRecord(key=f"{number}.png", stage="own", reason=reason)
        for number, reason in enumerate(reasons)
    ]
    counts = compute_figures([], CLASSES, rejected).rejected_by_reason
    assert len(counts) == 51 and sum(counts.values()) == 502
    assert counts["not an image"] == 2 and counts["other reasons"] == 451


def test_a_shard_whose_result_is_there_is_not_built_again(job):
    """A runner gives a task to another worker when it has lost the first one's report."""
    spec, exchange, plans, tasks = job
    first = run(BuildShard(spec, exchange), tasks)
    summaries = read_summaries(exchange, plans)
    shutil.rmtree(spec.raw_folder)
    assert run(BuildShard(spec, exchange), tasks) == first
    assert read_summaries(exchange, plans) == summaries
    exchange.raise_error()


def test_a_shard_whose_file_is_gone_is_built_again(job):
    spec, exchange, plans, tasks = job
    run(BuildShard(spec, exchange), tasks)
    shards = {plan.name: (spec.target / plan.name).local for plan in plans}
    before = {name: (path.read_bytes(), path.stat().st_mtime_ns) for name, path in shards.items()}
    shards["train-0"].unlink()
    shards["train-1"].write_bytes(b"short")
    run(BuildShard(spec, exchange), tasks)
    after = {name: (path.read_bytes(), path.stat().st_mtime_ns) for name, path in shards.items()}
    assert [content for content, _ in after.values()] == [content for content, _ in before.values()]
    assert [name for name in shards if after[name] == before[name]] == ["train-2"]


def test_a_task_travels_as_a_typed_row():
    """A pickle in its place would run code on a worker, and no engine in Java could read it."""
    task, coder = ShardTask("train-0", 1 << 40, 12), coders.registry.get_coder(ShardTask)
    assert isinstance(coder, coders.RowCoder)
    assert all(field.type.HasField("atomic_type") for field in coder.schema.fields)
    assert ShardTask(*coder.decode(coder.encode(task))) == task
