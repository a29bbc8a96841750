"""Builds shards on an engine: Flink or Spark behind a job server of Beam, or Dataflow.

Its workers share nothing with this host but the store, unless `runner.shared_disk` says so. Engines
show Beam's metrics only at the end, so progress comes from the results in the store.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apache_beam as beam

from beam_jobs import exchange as messages
from beam_jobs.engine_job import EngineJob
from beam_jobs.exchange import Exchange, ShardTask
from beam_jobs.graph import BuildShard, build_graph
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.stages import find_stage
from beam_jobs.statistics.summary import PlanSummary, Summary
from beam_jobs.worker import BuildSpec, PlanWorker
from pipeline_ops.config.preprocess import BeamRunner, Preprocess
from pipeline_ops.config.sources import BeamSource
from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.contract.request import Request
from pipeline_ops.errors import ConfigError, ExitCode, MachineError, TrainyardError
from pipeline_ops.job.job_code import check_environment, digest_code
from pipeline_ops.job.runner import Job
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.user_code.sources import digest_source_code
from pipeline_ops.user_code.stages import digest_stage_code

_STORE_SECONDS = 5
"""How long a new worker waits for a store that it cannot reach."""
_END_SECONDS = 20
"""The time before the job's deadline that is left for ending the job on the engine."""
_SILENT_SECONDS = 25
"""The time without an image after which the log says where to look. Beam does not tell the engine
of a pool whose workers end at their start."""
_CHECK_SECONDS = 30
_Build = Callable[[beam.Pipeline], object]
_log = logging.getLogger("beam_jobs.engine")


class _JobIsLate(TrainyardError):
    """The deadline of this job is near. Unlike after a MachineError, its engine's job is ended."""

    exit_code = ExitCode.RETRY


class BuildShardOnEngine(BuildShard):
    """Builds shards in a worker of an engine, which repeats what a fault has interrupted."""

    def __init__(self, spec: BuildSpec[PlanSummary], exchange: Exchange, request: Request):
        super().__init__(spec, exchange)
        self._request = request

    def setup(self) -> None:
        """Raises the error of a store that cannot be reached, which only the engine can pass on."""
        self._worker = PlanWorker(self._spec, self._exchange, is_repeated=True)
        with contextlib.suppress(messages.StoppedByDriver), wait_at_most(_STORE_SECONDS):
            self._exchange.check_stop()  # whether it is stopped, `work` asks again
        self._fault = _find_fault(self._request)

    def process(self, task: ShardTask) -> None:
        if self._fault:
            self._exchange.write_error(task.name, self._fault)
        else:
            super().process(task)


def _find_fault(request: Request) -> ConfigError | None:
    config = Preprocess.model_validate(request.config)
    try:
        stages, folder = [stage.name for stage in config.stages], Path(request.config_file).parent
        own_code = digest_stage_code(stages)
        if isinstance(config.source, BeamSource):  # other sources run in the driver
            own_code |= digest_source_code(config.source, folder)
        check_environment(request, folder, own_code)
        for name in stages:
            find_stage(name)
    except ConfigError as error:
        pool = config.runner.worker_pool
        return ConfigError(f"preprocess.runner.worker_pool: at {pool}, {error}")
    return None


def _add_versions(request: Request) -> Request:
    """The request with all that a worker compares."""
    fingerprint = request.fingerprint
    versions = fingerprint.versions | find_versions(["apache-beam"])
    compared = fingerprint.model_copy(update={"versions": versions})
    return request.model_copy(update={"code_digest": digest_code(), "fingerprint": compared})


def check_worker(name: str, exchange: Exchange, request: Request) -> None:
    """Leaves the fault of this worker in the store, which it must be able to write."""
    with wait_at_most(_STORE_SECONDS):
        exchange.write_progress(name, messages.PlanProgress(done=0, rejected=0))
    if fault := _find_fault(request):
        exchange.write_error(name, fault)


def check_workers(request: Request, runner: BeamRunner, exchange: Exchange) -> None:
    """Lets a worker of the engine say whether it can do the work of a request.

    The exchange is for this check alone, and is removed. The job has the name of its folder.
    Raises the error of a worker that cannot, or MachineError if none says anything for 30 seconds.
    """
    engine_job = EngineJob(runner, f"trainyard-{exchange.folder.name}")
    check = beam.Map(check_worker, exchange, _add_versions(request))
    silent_at = time.monotonic() + _CHECK_SECONDS
    with contextlib.ExitStack() as ending:
        ending.callback(exchange.folder.remove_tree)
        ending.callback(engine_job.cancel)
        engine_job.start(lambda pipeline: pipeline | beam.Create(["doctor"]) | check)
        while not engine_job.is_over():
            if failure := engine_job.find_failure():
                raise MachineError(f"{runner.worker_pool}: {failure}", "Correct it there.")
            if time.monotonic() > silent_at:
                causes = _list_causes(runner, request.root)
                raise MachineError(f"no worker answers after {_CHECK_SECONDS} s. {causes}")
            time.sleep(exchange.poll_seconds)
        exchange.raise_error()


def _list_causes(runner: BeamRunner, root: object) -> str:
    return (
        f"{runner.name} may wait for slots, {runner.worker_pool} may not start workers, or they "
        f"may not reach {root}: look at the pool's output"
    )


def build_shards_on_engine(
    job: Job,
    plans: Sequence[ShardPlan],
    spec: BuildSpec[Summary],
    runner: BeamRunner,
    exchange: Exchange,
    report: Callable[[int, int], None],
) -> list[Summary]:
    """Builds all shards on an engine, or follows the job there that does. See `build_shards`."""
    results = messages.Results(exchange, plans, spec.summary)

    def build(pipeline: beam.Pipeline) -> None:
        do_fn = BuildShardOnEngine(spec, exchange, _add_versions(job.request))
        build_graph(pipeline, exchange.write_plans(plans), do_fn)

    def look() -> int:
        done, rejected = results.read_progress()
        report(done, rejected)
        return done

    report(0, 0)
    _follow(job, runner, exchange, messages.digest_plans(plans), build, look)
    report(*results.read_progress())
    return results.collect()


def make_run_on_engine(
    job: Job, runner: BeamRunner, exchange: Exchange, report: Callable[[int], None]
) -> tuple[Callable[[_Build], None], Callable[[], ConfigError | None]]:
    """Runs the pipeline of a transform on an engine. See `transform.make_run_here`.

    The second function tells a worker whether it has the code and the packages of the request.
    """

    def look() -> int:
        report(done := exchange.count_done())
        return done

    find_fault = functools.partial(_find_fault, _add_versions(job.request))
    return lambda build: _follow(job, runner, exchange, "", build, look), find_fault


def _follow(
    job: Job,
    runner: BeamRunner,
    exchange: Exchange,
    digest: str,
    build: _Build,
    look: Callable[[], int],
) -> None:
    """Starts a job on the engine, or finds that of an earlier try, and returns when it is over.

    `digest` tells it from others in the exchange. `look` reports how much is done. The engine's job
    ends if this one is cancelled or late. If the engine does not answer, its job is left to the
    next try. Raises the error that a worker left.
    """
    logging.getLogger("apache_beam").setLevel(logging.WARNING)
    digest = hashlib.sha256(f"{exchange.folder}\0{digest}".encode()).hexdigest()
    name = f"trainyard-{job.request.pipeline.replace('_', '-')}-{digest[:16]}"
    engine_job = EngineJob(runner, name)

    def tell(level: int, message: str) -> None:
        job.progress.report(exchange.folder.name, message=message)
        _log.log(level, "%s", message)

    with _end_with_job(engine_job, exchange):
        engine_job.start(build)
        page, silent_at = "", time.monotonic() + _SILENT_SECONDS
        while not engine_job.is_over():
            if not look() and time.monotonic() > silent_at:
                causes = _list_causes(runner, job.request.root)
                tell(logging.WARNING, f"no image is done after {_SILENT_SECONDS} s. {causes}")
                silent_at = math.inf
            with contextlib.suppress(MachineError):  # `is_over` says if the engine stays silent
                if not page and (page := engine_job.find_page()):
                    tell(logging.INFO, f"the engine's page is {page}")
                if failure := engine_job.find_failure():
                    place = f"{runner.name} repeats a step at {runner.worker_pool}"
                    tell(logging.WARNING, f"{place}: {failure}")
            if job.seconds_left < _END_SECONDS:
                seconds = job.request.deadline_seconds
                raise _JobIsLate(f"not done after timeout_seconds ({seconds})")
            time.sleep(exchange.poll_seconds)
    exchange.raise_error()


@contextlib.contextmanager
def _end_with_job(engine_job: EngineJob, exchange: Exchange) -> Iterator[None]:
    """Cancels the engine's job if the block fails, unless the engine itself does not answer."""
    try:
        yield
    except MachineError:
        if engine_job.has_begun:
            exchange.raise_error()  # the error of a worker says more
        raise
    except BaseException as error:
        if engine_job.has_begun:
            exchange.stop()  # a worker finishes its shard otherwise
            try:
                engine_job.cancel()
            except MachineError as fault:
                raise type(error)(f"{error}. {fault}") from fault
        raise
