"""The Beam graph: spreads the names of the shard plans over workers, which build whole shards.

No image crosses a shuffle or a coder. The runner is named, because DirectRunner may be another
engine on another machine. Workers leave their results for the driver in a scratch folder, see
`work.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.beam_log import keep_warnings_only
from beam_jobs.output.shard import ShardBuildSpec
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.processes import workers_for
from beam_jobs.progress_counter import ProgressCounter, stop_workers
from beam_jobs.runner import engine_of, threads_of
from beam_jobs.statistics.summary import ShardSummary
from beam_jobs.work import SUMMARY, TALLY, Done, Work, raise_what_workers_left, write_plans
from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import MachineError, TrainyardError

_REPORT_SECONDS = 0.5
_STOP_SECONDS = 5.0  # the time for finishing the current image


class BuildShards(beam.PTransform):
    """Builds shards: names of plans in, names of finished shards out.

    Args:
      order: the common properties of the shards.
      scratch: the folder of the plans.
      threads: the number of plans that each Beam worker builds at once.
    """

    def __init__(self, order: ShardBuildSpec, scratch: Path, threads: int = 1):
        super().__init__()
        self._do_fn = _BuildShard(order, scratch, threads)

    def expand(self, plans: beam.PCollection[str]) -> beam.PCollection[str]:
        return (
            plans
            | "spread over workers" >> beam.Reshuffle()
            | "build shard" >> beam.ParDo(self._do_fn).with_output_types(str)
        )


class _BuildShard(beam.DoFn):
    """Builds the plans of a bundle in its own threads.

    Beam's embedded runner opens no port while it has one worker. With more workers it starts gRPC
    servers on all interfaces, which serve any file of the host to any client.
    """

    def __init__(self, order: ShardBuildSpec, scratch: Path, threads: int):
        self._order, self._scratch, self._threads = order, scratch, threads
        self._examples = Metrics.counter("preprocess", "examples")
        self._rejected = Metrics.counter("preprocess", "rejected")

    def setup(self) -> None:
        self._of_thread = threading.local()
        self._pool = ThreadPoolExecutor(self._threads, "build shard")
        self._building: list[Future[tuple[str, Done | None]]] = []

    def process(self, name: str) -> None:
        self._building.append(self._pool.submit(self._build, name))

    def _build(self, name: str) -> tuple[str, Done | None]:
        if not hasattr(self._of_thread, "work"):
            self._of_thread.work = workers_for(self._scratch) or Work(self._order, self._scratch)
        return name, self._of_thread.work.do(name)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        building, self._building = self._building, []
        for name, done in (future.result() for future in building):
            if done is not None:
                num_examples, num_rejected = done
                self._examples.inc(num_examples)
                self._rejected.inc(num_rejected)
                yield GlobalWindows.windowed_value(name)

    def teardown(self) -> None:
        self._pool.shutdown()


def build_shards(
    plans: Sequence[ShardPlan],
    order: ShardBuildSpec,
    runner: BeamRunner,
    scratch: Path,
    report: Callable[[int, int], None],
) -> list[ShardSummary]:
    """Builds all shards.

    Beam runs in a thread of its own. The calling thread stays free for reports and for
    cancellation.

    Args:
      plans: the shards.
      order: the common properties of the shards, and the kind of summary to make.
      runner: the Beam runner and its options. They do not change a single byte of the result.
      scratch: an empty folder.
      report: called about twice a second with the number of finished and of rejected records.

    Returns:
      The summaries in the order of the plans.

    Raises:
      ConfigError: Beam does not take an option of the runner.
      TrainyardError: the error with which a worker ended.
      MachineError: a worker process died, or a runner that is not embedded failed.
    """
    engine, options = engine_of(runner)
    threads = threads_of(runner, len(plans))
    tally = ProgressCounter(scratch / TALLY)
    write_plans(plans, scratch)
    build = BuildShards(order, scratch, threads)
    with _Background(
        lambda: _run(plans, build, engine, options), stop=lambda: stop_workers(scratch / TALLY)
    ) as background:
        while background.is_running(_REPORT_SECONDS):
            report(*tally.read())
    raise_what_workers_left(scratch)
    if background.error is not None:
        raise _failure_of(runner, background.error) from background.error
    report(*tally.read())
    return [
        order.summary.model_validate_json((scratch / f"{plan.name}{SUMMARY}").read_bytes())
        for plan in plans
    ]


def _run(
    plans: Sequence[ShardPlan], build: BuildShards, engine: PipelineRunner, options: PipelineOptions
) -> None:
    keep_warnings_only()
    with beam.Pipeline(engine, options=options) as pipeline:
        names = [plan.name for plan in plans]
        _ = pipeline | "plans" >> beam.Create(names, reshuffle=False) | "build shards" >> build


def _failure_of(runner: BeamRunner, error: BaseException) -> TrainyardError:
    """Returns the error to raise when Beam has failed.

    A failure of the disk, or of another runner, which is a service, is a MachineError and is
    retried. Any other failure is a bug.
    """
    what = (str(error).strip().splitlines() or ["no reason given"])[-1]
    if isinstance(error, OSError):
        return MachineError(f"Beam failed: {what}; make room or mend the disk, then retry")
    if runner.name == "embedded":
        return TrainyardError(f"Beam failed, see the log: {what}")
    return MachineError(
        f"the runner {runner.name} failed: {what}; see its log, and preprocess.runner.options"
    )


class _Background:
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

    def __enter__(self) -> _Background:
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
            self._ended.wait(_STOP_SECONDS)
