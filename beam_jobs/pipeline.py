"""The Beam graph: spreads the tasks over workers, which build whole shards.

No image crosses a shuffle or a coder. The runner is named, because DirectRunner may be another
engine on another machine. Plans and results go through the exchange.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import apache_beam as beam
from apache_beam import coders
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange import Exchange, Results, ShardTask
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.runner import compute_num_threads, create_engine
from beam_jobs.statistics.summary import PlanSummary, Summary
from beam_jobs.workers.plan_builder import BuildSpec, PlanBuilder, PlanCounts
from beam_jobs.workers.pool import find_worker_pool
from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import MachineError, TrainyardError

coders.registry.register_coder(ShardTask, coders.RowCoder)
_STOP_TIMEOUT_SECONDS = 5.0  # the time for finishing the current image


class BuildShards(beam.PTransform):  # type: ignore[misc]  # Beam is skipped by mypy
    """Builds shards: tasks in, names of finished shards out.

    Args:
      spec: the common properties of the shards.
      exchange: the messages.
      fragments: the folder of bad records.
      threads: the number of plans that each Beam worker builds at once.
    """

    def __init__(
        self,
        spec: BuildSpec[PlanSummary],
        exchange: Exchange,
        fragments: Path,
        threads: int = 1,
    ):
        super().__init__()
        self._do_fn = _BuildShard(spec, exchange, fragments, threads)

    def expand(self, tasks: beam.PCollection[ShardTask]) -> beam.PCollection[str]:
        return (
            tasks
            | "spread over workers" >> beam.Reshuffle()
            | "build shard" >> beam.ParDo(self._do_fn).with_output_types(str)
        )


class _BuildShard(beam.DoFn):  # type: ignore[misc]  # Beam is skipped by mypy
    """Builds the plans of a bundle in its own threads.

    Beam's embedded runner opens no port while it has one worker. With more workers it starts gRPC
    servers on all interfaces, which serve any file of the host to any client.
    """

    def __init__(
        self, spec: BuildSpec[PlanSummary], exchange: Exchange, fragments: Path, threads: int
    ):
        self._spec, self._exchange, self._threads = spec, exchange, threads
        self._fragments = fragments
        self._examples = Metrics.counter("preprocess", "examples")
        self._rejected = Metrics.counter("preprocess", "rejected")

    def setup(self) -> None:
        self._thread_local = threading.local()
        self._pool = ThreadPoolExecutor(self._threads, "build shard")
        self._futures: list[Future[tuple[str, PlanCounts | None]]] = []

    def process(self, task: ShardTask) -> None:
        self._futures.append(self._pool.submit(self._build, task))

    def _build(self, task: ShardTask) -> tuple[str, PlanCounts | None]:
        if not hasattr(self._thread_local, "builder"):
            self._thread_local.builder = find_worker_pool(self._exchange) or PlanBuilder(
                self._spec, self._exchange, self._fragments
            )
        return task.name, self._thread_local.builder.build(task)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        futures, self._futures = self._futures, []
        for name, counts in (future.result() for future in futures):
            if counts is not None:
                num_examples, num_rejected = counts
                self._examples.inc(num_examples)
                self._rejected.inc(num_rejected)
                yield GlobalWindows.windowed_value(name)

    def teardown(self) -> None:
        self._pool.shutdown()


def build_shards(
    plans: Sequence[ShardPlan],
    spec: BuildSpec[Summary],
    runner: BeamRunner,
    exchange: Exchange,
    fragments: Path,
    report: Callable[[int, int], None],
) -> list[Summary]:
    """Builds all shards.

    Beam runs in a thread of its own. The calling thread stays free for reports and for
    cancellation.

    Args:
      plans: the shards.
      spec: the common properties of the shards, and the kind of summary to make.
      runner: the Beam runner and its options. They do not change a single byte of the result.
      exchange: the messages, none so far.
      fragments: an empty folder for bad records.
      report: called about once a second, and less often if the messages are in a bucket, with the
        number of finished and of rejected records.

    Returns:
      The summaries in the order of the plans.

    Raises:
      ConfigError: Beam does not take an option of the runner.
      TrainyardError: the error with which a worker ended.
      MachineError: a worker process died, or a runner that is not embedded failed.
    """
    engine, options = create_engine(runner)
    threads = compute_num_threads(runner, len(plans))
    tasks = exchange.write_plans(plans)
    results = Results(exchange, plans, spec.summary)
    transform = BuildShards(spec, exchange, fragments, threads)
    with _BackgroundThread(
        lambda: _run(tasks, transform, engine, options), stop=exchange.stop
    ) as background:
        while background.is_running(exchange.seconds):
            report(*results.read_progress())
    exchange.raise_error()
    if background.error is not None:
        raise _to_trainyard_error(runner, background.error) from background.error
    report(*results.read_progress())
    return results.collect()


def _run(
    tasks: Sequence[ShardTask],
    transform: BuildShards,
    engine: PipelineRunner,
    options: PipelineOptions,
) -> None:
    logging.getLogger("apache_beam").setLevel(logging.WARNING)
    with beam.Pipeline(engine, options=options) as pipeline:
        _ = pipeline | "tasks" >> beam.Create(tasks, reshuffle=False) | "build shards" >> transform


def _to_trainyard_error(runner: BeamRunner, error: BaseException) -> TrainyardError:
    """Returns the error to raise when Beam has failed.

    A failure of the disk, or of another runner, which is a service, is a MachineError and is
    retried. Any other failure is a bug.
    """
    message = (str(error).strip().splitlines() or ["no reason given"])[-1]
    if isinstance(error, OSError):
        return MachineError(
            f"Beam failed: {message}. Free disk space or repair the disk, then retry."
        )
    if runner.name == "embedded":
        return TrainyardError(f"Beam failed: {message}. See the log.")
    return MachineError(
        f"the runner {runner.name} failed: {message}. Check its log, and preprocess.runner.options."
    )


class _BackgroundThread:
    """Work in a daemon thread. Leaving the block early stops the work and waits up to 5 seconds.

    A process that ends while such a thread is inside OpenCV or gRPC aborts and loses its exit code.
    The wait prevents that.
    """

    def __init__(self, work: Callable[[], None], stop: Callable[[], None]):
        self.error: BaseException | None = None
        self._work, self._stop = work, stop
        # Not Thread.join: in Python 3.11, a signal handler that raises inside it makes a living
        # thread count as dead.
        self._ended = threading.Event()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # passed to the waiting thread
            self.error = error
        finally:
            self._ended.set()

    def __enter__(self) -> _BackgroundThread:
        threading.Thread(target=self._run, name="beam", daemon=True).start()
        return self

    def is_running(self, wait_seconds: float) -> bool:
        """Waits up to `wait_seconds`, and returns whether the work is still running."""
        return not self._ended.wait(wait_seconds)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._ended.is_set():
            self._stop()
            self._ended.wait(_STOP_TIMEOUT_SECONDS)
