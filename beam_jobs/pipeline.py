"""The Beam graph: one opaque value per shard is spread over the workers; behind it, each builds whole shards.

No image crosses a shuffle or a coder. The runner is named, because DirectRunner may be another engine from one machine
to the next. What a worker wants to tell the driver lies in a scratch folder: a summary of each shard, a tally of what
is done, and the error that it ended with.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from beam_jobs.beam_log import keep_warnings_only
from beam_jobs.plan import ShardPlan
from beam_jobs.runner import engine_of
from beam_jobs.shard import Order
from beam_jobs.statistics.summary import ShardSummary
from beam_jobs.tally import Stopped, Tally, stop_workers
from pipeline_ops.contracts.config_preprocess import BeamRunner
from pipeline_ops.contracts.errors import ExitCode, MachineError, TrainyardError
from pipeline_ops.contracts.files import write_whole

_REPORT_SECONDS = 0.5
_STOP_SECONDS = 5.0  # the time to end the image in work
_STOP_SECONDS_WITHOUT_BEAM = 1.0  # Beam's thread waits for the dead worker and never ends
_TALLY, _SUMMARY, _ERROR = "tally", ".json", ".error"  # in the scratch folder, the last two by shard
_log = logging.getLogger("beam_jobs.pipeline")


class BuildShards(beam.PTransform):
    """Pickled ShardPlans in, names of finished shards out."""

    def __init__(self, order: Order, scratch: Path):
        super().__init__()
        self._order, self._scratch = order, scratch

    def expand(self, plans: beam.PCollection[bytes]) -> beam.PCollection[str]:
        return (plans
                | "spread over workers" >> beam.Reshuffle()
                | "build shard" >> beam.ParDo(_BuildShard(self._order, self._scratch)).with_output_types(str))


class _BuildShard(beam.DoFn):
    def __init__(self, order: Order, scratch: Path):
        self._order, self._scratch = order, scratch
        self._examples = Metrics.counter("preprocess", "examples")
        self._rejected = Metrics.counter("preprocess", "rejected")

    def setup(self) -> None:
        import cv2

        cv2.setNumThreads(1)  # its threads would fight with the workers for the same cores
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # a broken image is a reject with a reason, not a line on stderr
        self._builder = self._order.builder(self._scratch / _TALLY, self._scratch)

    def process(self, pickled: bytes) -> Iterator[str]:
        """Never raises: Beam would print each error four times over, and hand the driver nothing but text."""
        plan = pickle.loads(pickled)
        try:
            summary = self._builder.build(plan)
            write_whole(self._scratch / f"{plan.name}{_SUMMARY}", summary.model_dump_json().encode())
        except Stopped:
            return
        except Exception as error:
            self._give_up(plan, error)
            return
        self._examples.inc(summary.num_examples)
        self._rejected.inc(len(summary.rejected))
        yield plan.name

    def _give_up(self, plan: ShardPlan, error: Exception) -> None:
        """Leaves the error for the driver, and stops all workers."""
        if not isinstance(error, TrainyardError):
            error = TrainyardError(f"{type(error).__name__} while building {plan.name}: {error}")
        if error.exit_code is ExitCode.BUG:
            _log.exception("%s", error)
        write_whole(self._scratch / f"{plan.name}{_ERROR}", pickle.dumps(error))
        stop_workers(self._scratch / _TALLY)


def build_shards(plans: Sequence[ShardPlan], order: Order, runner: BeamRunner, scratch: Path,
                 report: Callable[[int, int], None]) -> list[ShardSummary]:
    """Builds all shards.

    Beam runs in a thread of its own. This one stays free to report, to be cancelled, and to notice that a worker
    process is dead, for which Beam would wait forever.

    Args:
      plans: the shards.
      order: what they have in common, and what is to be made of them.
      runner: how to run; without influence on a single byte.
      scratch: an empty folder.
      report: called about twice a second with records done and records rejected.

    Returns:
      Summaries in the order of the plans.

    Raises:
      ConfigError: an option of the runner that Beam does not take.
      TrainyardError: what a worker has ended with.
      MachineError: a worker process died, or a runner that is not embedded failed.
    """
    engine, options = engine_of(runner, len(plans))
    tally = Tally(scratch / _TALLY)
    with _Background(lambda: _run(plans, order, engine, options, scratch), stop=lambda: stop_workers(scratch / _TALLY)) as background:
        while background.is_running(_REPORT_SECONDS):
            report(*tally.read())
    _raise_what_workers_left(scratch)
    if background.error is not None:
        raise _failure_of(runner, str(background.error).strip().splitlines()[-1:]) from background.error
    report(*tally.read())
    return [order.summary.model_validate_json((scratch / f"{plan.name}{_SUMMARY}").read_bytes()) for plan in plans]


def _run(plans: Sequence[ShardPlan], order: Order, engine: PipelineRunner, options: PipelineOptions, scratch: Path) -> None:
    keep_warnings_only()
    with beam.Pipeline(engine, options=options) as pipeline:
        # Pickled, because Beam would look for the type of every value that is nested in a plan: minutes for a large set.
        pickled = [pickle.dumps(plan, protocol=5) for plan in plans]
        _ = pipeline | "shard plans" >> beam.Create(pickled, reshuffle=False) | "build shards" >> BuildShards(order, scratch)


def _failure_of(runner: BeamRunner, last_line: Sequence[str]) -> TrainyardError:
    """Of the embedded runner a bug; others are services that may be away, full or restarting."""
    what = last_line[0] if last_line else "no reason given"
    if runner.name == "embedded":
        return TrainyardError(f"Beam failed, see the log: {what}")
    return MachineError(f"the runner {runner.name} failed: {what}; see its log, and preprocess.runner.options")


def _raise_what_workers_left(scratch: Path) -> None:
    """Of several errors the first shard's: the others are most often the same."""
    for file in sorted(scratch.glob(f"*{_ERROR}")):
        raise pickle.loads(file.read_bytes())


class _Background:
    """Work in a daemon thread. Leaving the block while it still runs tells it to stop, and waits a little.

    A process that ends while such a thread is inside OpenCV or gRPC aborts, and loses its exit code: hence the wait.
    """

    def __init__(self, work: Callable[[], None], stop: Callable[[], None]):
        self.error: BaseException | None = None
        self._work, self._stop = work, stop
        self._dead_worker: BaseException | None = None
        # Not Thread.join: in Python 3.11, a signal handler that raises inside it makes a living thread count as dead.
        self._ended = threading.Event()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # carried over to the thread that waits
            self.error = error
        finally:
            self._ended.set()

    def __enter__(self) -> _Background:
        self._usual_hook, threading.excepthook = threading.excepthook, self._notice
        threading.Thread(target=self._run, name="beam", daemon=True).start()
        return self

    def _notice(self, failure: threading.ExceptHookArgs) -> None:
        """Beam waits for a worker process in a thread that raises when the process ends badly, and tells nobody."""
        if "subprocess exited with return code" in str(failure.exc_value):
            self._dead_worker = failure.exc_value
        else:
            self._usual_hook(failure)

    def is_running(self, wait_seconds: float) -> bool:
        """Whether it still runs after so long. Raises MachineError if a worker process is dead."""
        has_ended = self._ended.wait(wait_seconds)
        if self._dead_worker and not has_ended:
            raise MachineError(f"a Beam worker process died ({self._dead_worker}); out of memory is the usual cause: lower preprocess.runner.workers")
        return not has_ended

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if not self._ended.is_set():
            self._stop()
            self._ended.wait(_STOP_SECONDS if self._dead_worker is None else _STOP_SECONDS_WITHOUT_BEAM)
        threading.excepthook = self._usual_hook
