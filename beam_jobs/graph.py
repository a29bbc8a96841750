"""The Beam graph: spreads the tasks over workers, which build whole shards.

    Create(ShardTask) | Reshuffle | ParDo(BuildShard)

Only tasks cross a shuffle. Plans and results go through the exchange. Each stage has the
counters `examples` (those that left it), `rejected` and `skipped`, and a distribution
`microseconds`, with one value for each shard. `write` counts as a stage.

The graph does not depend on the runner. This module runs it on the embedded one, and `engine.py` on
an engine. The embedded runner is named, because DirectRunner may be another one on another machine.
It works in memory: in its other modes, Beam opens four ports on all interfaces, without
credentials, and serves any file of the host there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import apache_beam as beam
from apache_beam import coders
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs.exchange import DISK_CURE, Exchange, Results, ShardTask
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.statistics.summary import PlanSummary, Summary
from beam_jobs.worker import BuildSpec, PlanCounts, PlanWorker, work_in_pool
from pipeline_ops.errors import MachineError, TrainyardError

_STOP_TIMEOUT_SECONDS = 5.0  # the time for finishing the current image

coders.registry.register_coder(ShardTask, coders.RowCoder)


class BuildShard(beam.DoFn):  # type: ignore[misc]  # Beam is skipped by mypy
    """Builds the shard of each task."""

    def __init__(self, spec: BuildSpec[PlanSummary], exchange: Exchange):
        self._spec, self._exchange = spec, exchange

    def setup(self) -> None:
        self._worker = PlanWorker(self._spec, self._exchange)

    def process(self, task: ShardTask) -> None:
        self._count(self._worker.work(task))

    def _count(self, counts: PlanCounts | None) -> None:
        """Updates the metrics of each stage for a shard that was built."""
        if counts:
            for (stage, name), count in counts.counters.items():
                Metrics.counter(stage, name).inc(count)
            for stage, spent in counts.microseconds.items():
                Metrics.distribution(stage, "microseconds").update(spent)


class BuildShardInProcesses(BuildShard):
    """Builds the shards of a bundle in the worker processes of this host."""

    def setup(self) -> None:
        self._tasks: list[ShardTask] = []

    def process(self, task: ShardTask) -> None:
        self._tasks.append(task)

    def finish_bundle(self) -> None:
        tasks, self._tasks = self._tasks, []
        try:
            for counts in work_in_pool(tasks):
                self._count(counts)
        except BrokenProcessPool:
            fault = "a worker process died. The usual cause is lack of memory"
            error = MachineError(fault, "Lower preprocess.runner.workers.")
            self._exchange.write_error(tasks[0].name, error)


def build_graph(pipeline: beam.Pipeline, tasks: Sequence[ShardTask], do_fn: BuildShard) -> None:
    """Adds the whole job. The results of the shards are in the exchange afterwards."""
    _ = (
        pipeline
        | "Shard tasks" >> beam.Create(tasks, reshuffle=False)
        | "Spread over workers" >> beam.Reshuffle()
        | "Build shards" >> beam.ParDo(do_fn)
    )


def build_shards(
    plans: Sequence[ShardPlan],
    spec: BuildSpec[Summary],
    exchange: Exchange,
    num_processes: int,
    report: Callable[[int, int], None],
) -> list[Summary]:
    """Builds all shards on this host. Returns their summaries in the order of the plans.

    Several processes are those of `open_pool`. `report` gets the number of finished and of rejected
    records. The runner changes no byte of the result. Raises the error of a worker or of Beam.
    """
    tasks = exchange.write_plans(plans)
    report(0, 0)
    results = Results(exchange, plans, spec.summary)
    do_fn = (BuildShardInProcesses if num_processes > 1 else BuildShard)(spec, exchange)
    build = partial(build_graph, tasks=tasks, do_fn=do_fn)
    if error := run_embedded(build, exchange, lambda: report(*results.read_progress())):
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        is_disk = isinstance(error, OSError)
        kind, cure = (MachineError, DISK_CURE) if is_disk else (TrainyardError, "See the log.")
        raise kind(f"Beam failed: {reason}", cure) from error
    return results.collect()


def run_embedded(
    build: Callable[[beam.Pipeline], object], exchange: Exchange, report: Callable[[], None]
) -> BaseException | None:
    """Runs the pipeline that `build` fills on this host. Returns the error of Beam, if any.

    Beam runs in a daemon thread. The calling thread stays free for cancellation and for `report`,
    which it calls until the end. If that raises, the work is stopped, and has 5 seconds to end: a
    process that ends while the thread is inside OpenCV or gRPC aborts and loses its exit code.
    Raises the error that a worker left in the exchange.
    """
    options = PipelineOptions([], direct_running_mode="in_memory", direct_num_workers=1)
    # Not Thread.join: in Python 3.11, a signal handler that raises inside it makes a living thread
    # count as dead. Not a pool: Python waits for its threads without a limit.
    outcome: Future[None] = Future()

    def run() -> None:
        logging.getLogger("apache_beam").setLevel(logging.WARNING)
        try:
            with beam.Pipeline(FnApiRunner(), options=options) as pipeline:
                build(pipeline)
        except BaseException as error:  # passed to the waiting thread
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="beam", daemon=True).start()
    try:
        while not wait([outcome], exchange.poll_seconds).done:
            report()
    finally:
        if not outcome.done():
            exchange.stop()
            wait([outcome], _STOP_TIMEOUT_SECONDS)
    exchange.raise_error()
    report()
    return outcome.exception()
