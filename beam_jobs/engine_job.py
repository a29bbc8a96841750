"""A job on an engine: starts it, or finds it, looks at it, and ends it, with Flink's REST API.

A driver that was killed has left its job running. The next try finds it by its name and follows it,
so that no second one is started.
"""

from __future__ import annotations

import logging
import re
import socket
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, TypeVar

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners import create_runner
from apache_beam.runners.portability import portable_runner
from apache_beam.runners.runner import PipelineResult, PipelineState
from apache_beam.transforms.environments import SDK_VERSION_CAPABILITY_PREFIX
from pydantic import BaseModel, Field, TypeAdapter

from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError

_ANSWER_SECONDS, _CANCEL_SECONDS, _SILENCE_SECONDS = 10, 10, 60
_MAX_BYTES = 64 << 20
_MISSING_CODE = re.compile("ModuleNotFoundError|ImportError|Can't get attribute")
_PYTHON_ERROR = re.compile(
    r"^(?:pipeline_ops\.[\w.]+|(?!java\.|org\.)[A-Za-z_][\w.]*(?:Error|Exception))\b.*",
    re.MULTILINE,
)
_CONFIG_ERROR = "pipeline_ops.errors.ConfigError: "
_MAX_REASON = 1000
_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


class FlinkJob(BaseModel):
    """A job as Flink lists it."""

    id: str = Field(alias="jid")
    name: str
    state: str
    start_time: int = Field(alias="start-time")

    @property
    def has_ended(self) -> bool:
        return self.state in ("FINISHED", "FAILED", "CANCELED")


class _Jobs(BaseModel):
    jobs: list[FlinkJob]


class _Overview(BaseModel):
    total: int = Field(alias="slots-total")
    free: int = Field(alias="slots-available")


class _Exceptions(BaseModel):
    reason: str | None = Field(None, alias="root-exception")


class Flink:
    """A Flink cluster. Methods raise MachineError if its REST API does not answer."""

    def __init__(self, address: str):
        self.address = address

    def find_jobs(self, name: str) -> list[FlinkJob]:
        """The jobs that Beam has started under a name, the newest first."""
        answer = self._ask("/jobs/overview", _Jobs)
        found = [job for job in answer.jobs if job.name.startswith(name)]
        return sorted(found, key=lambda job: job.start_time, reverse=True)

    def read_error(self, job: FlinkJob) -> str:
        """The last failure, after which Flink repeats a step or gives up. "" if there was none."""
        return self._ask(f"/jobs/{job.id}/exceptions", _Exceptions).reason or ""

    def cancel(self, job: FlinkJob) -> None:
        """Beam's own way ends the job only for Beam, and leaves it running on Flink."""
        self._ask(f"/jobs/{job.id}?mode=cancel", dict, "PATCH")

    def check_slots(self, needed: int) -> str:
        """Returns a message if a job has to wait for slots, which Kubernetes may add, else ""."""
        found = self._ask("/overview", _Overview)
        if found.free >= needed:
            return ""
        fault = f"Flink at {self.address} has {found.total} slots, {found.free} of them free"
        cure = "Start TaskManagers, or lower preprocess.runner.options.parallelism."
        return f"{fault}. The job waits for {needed}. {cure}"

    def _ask(self, path: str, kind: type[_Answer], method: str = "GET") -> _Answer:
        request = urllib.request.Request(self.address + path, method=method)  # noqa: S310  (http)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
                return TypeAdapter(kind).validate_json(answer.read(_MAX_BYTES) or b"{}")
        except (OSError, HTTPException, ValueError) as error:  # a ValueError: it is another answer
            fault = f"Flink's REST API does not answer at {self.address}: {error!s:.200}"
            cure = "Start Flink, or correct the address."
            raise MachineError(f"preprocess.runner.rest_address: {fault}", cure) from error


class _EngineRunner(portable_runner.PortableRunner):  # type: ignore[misc]
    """Leaves the versions to our workers: Beam's own comparison lets the job hang on Flink."""

    def run_portable_pipeline(self, pipeline: Any, options: PipelineOptions) -> PipelineResult:
        for environment in pipeline.components.environments.values():
            for name in list(environment.capabilities):
                if name.startswith(SDK_VERSION_CAPABILITY_PREFIX):
                    environment.capabilities.remove(name)
        return super().run_portable_pipeline(pipeline, options)


class EngineJob:
    """A job with a name of its own. Methods raise MachineError if the engine does not answer."""

    def __init__(self, runner: BeamRunner, name: str):
        self._runner, self._name = runner, name
        self._result: PipelineResult | None = None
        self._flink = Flink(runner.rest_address) if runner.name == "flink" else None  # type: ignore[arg-type]
        self._past: set[str] = set()
        """The ids of jobs of this name that have ended before."""
        self._told = ""
        self._answered = time.monotonic()
        self.has_begun = False
        """Whether there may be a job on the engine."""

    def check(self) -> str:
        """Asks the job server and the engine. Returns a warning, "" for none."""
        self._result = self._find_result()
        return self._check_slots()

    def _check_slots(self) -> str:
        needed = self._runner.options.get("parallelism", 1)
        return self._flink.check_slots(int(needed)) if self._flink else ""

    def start(self, build: Callable[[beam.Pipeline], object]) -> None:
        """Starts the job, which `build` fills, unless one of an earlier try is running."""
        self._result = self._find_result()
        if self._flink:
            self._past = {job.id for job in self._flink.find_jobs(self._name) if job.has_ended}
        if self._is_running():
            self.has_begun = True
            _log.info("follows the job %s, which an earlier try has started", self._name)
            return
        if message := self._check_slots():
            _log.warning("%s", message)
        pipeline = create_pipeline(self._runner, self._name)
        build(pipeline)
        self.has_begun = True
        try:
            self._result = pipeline.run()
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            raise self._make_endpoint_error(error) from error

    def _is_running(self) -> bool:
        """Asks Flink, too: a job server takes dead jobs for running, and Flink lists jobs later."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self._flink and not self._find_on_flink():
            if not self._result or time.monotonic() > deadline:
                self._result = None
                return False
            time.sleep(0.5)
        return self._flink is not None or self._result is not None

    def find_page(self) -> str:
        """The address of the engine's page about the job, "" if there is none yet."""
        if self._flink is None:
            return self._runner.rest_address or ""
        job = self._find_on_flink()
        return f"{self._flink.address}/#/job/running/{job.id}" if job else ""

    def find_failure(self) -> str:
        """The reason why Flink repeats a step, told once. "" if there is nothing new."""
        before, self._told = self._told, self._read_flink_error()
        return find_reason(self._told) if self._told not in ("", before) else ""

    def _read_flink_error(self) -> str:
        job = self._find_on_flink()
        return self._flink.read_error(job) if self._flink and job else ""

    def is_over(self) -> bool:
        """Returns whether the job has done its work. Raises the error of one that has failed.

        An engine that is away for less than a minute has said nothing.
        """
        try:
            state = self._read_state()
            self._answered = time.monotonic()
        except MachineError:
            if time.monotonic() > self._answered + _SILENCE_SECONDS:
                raise
            return False
        if PipelineState.is_terminal(state) and state != PipelineState.DONE:
            raise self._make_error()
        return state == PipelineState.DONE

    def cancel(self) -> None:
        """Ends the job, and waits until it is gone. Raises MachineError if that takes too long."""
        deadline = time.monotonic() + _CANCEL_SECONDS
        while self.has_begun:
            if time.monotonic() > deadline:
                page = self.find_page() or self._runner.endpoint
                raise MachineError(f"the job {self._name} does not end. Cancel it at {page}.")
            self._result = self._result or self._find_result()
            if job := self._find_on_flink():
                if job.has_ended:
                    return
                self._flink.cancel(job)  # type: ignore[union-attr]
            elif self._result:
                if PipelineState.is_terminal(self._read_state()):
                    return
                self._result.cancel()
            time.sleep(0.5)

    def _read_state(self) -> str:
        """Beam's name of the state. Flink's word counts before that of the job server."""
        job = self._find_on_flink()
        if job and job.has_ended:
            return PipelineState.DONE if job.state == "FINISHED" else PipelineState.FAILED
        try:
            return self._result.state if self._result else PipelineState.UNKNOWN
        except grpc.RpcError as error:
            if job:  # only the job server is away
                return PipelineState.RUNNING
            raise self._make_endpoint_error(error) from error

    def _find_on_flink(self) -> FlinkJob | None:
        jobs = self._flink.find_jobs(self._name) if self._flink else []
        return next((job for job in jobs if job.id not in self._past), None)

    def _find_result(self) -> PipelineResult | None:
        """The running job of this name that the job server knows. Dataflow has no job server."""
        if not self._runner.has_job_server:
            return None
        host, _, port = str(self._runner.endpoint).rpartition(":")
        try:  # Beam itself would wait for minutes without a line
            socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
            channel = grpc.insecure_channel(self._runner.endpoint)
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            jobs = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=_ANSWER_SECONDS)
        except (OSError, grpc.RpcError) as error:
            raise self._make_endpoint_error(error) from error
        for job in jobs.job_info:
            to_state = portable_runner.PipelineResult.runner_api_state_to_pipeline_state
            if job.job_name == self._name and not PipelineState.is_terminal(to_state(job.state)):
                messages = beam_job_api_pb2.JobMessagesRequest(job_id=job.job_id)
                states = beam_job_api_pb2.GetJobStateRequest(job_id=job.job_id)
                streams = service.GetMessageStream(messages), service.GetStateStream(states)
                return portable_runner.PipelineResult(service, job.job_id, *streams)
        return None

    def _make_endpoint_error(self, error: Exception) -> MachineError:
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        reason = f"{self._runner.endpoint}: {details or type(error).__name__}"
        fault = f"preprocess.runner.endpoint: Beam's job server does not answer at {reason}"
        return MachineError(fault, "Start it, or correct the address.")

    def _make_error(self) -> TrainyardError:
        text = self._read_flink_error()
        if not text and self._result:
            try:
                self._result.wait_until_finish()  # it has ended: this raises its last message
            except (RuntimeError, grpc.RpcError) as error:
                text = str(error)
        reason, pool = find_reason(text), self._runner.worker_pool
        key = "preprocess.runner.worker_pool"
        if _MISSING_CODE.search(reason):
            fault = f"{key}: the workers of {pool} lack what the job needs: {reason}"
            cure = "Install the same version of Trainyard there, and the packages of your stages."
            return ConfigError(fault, cure)
        if reason.startswith(_CONFIG_ERROR):  # the access of the workers to the store
            return ConfigError(f"{key}: at {pool}, {reason.removeprefix(_CONFIG_ERROR)}")
        place = self.find_page() or self._runner.endpoint or self._runner.name
        fault = f"the job {self._name} has failed ({place}): {reason.rstrip('.')}"
        return MachineError(fault, "Retry.")


def create_pipeline(runner: BeamRunner, name: str) -> beam.Pipeline:
    """Raises ConfigError if Beam lacks the runner's packages, or does not accept an option."""
    options: dict[str, Any] = {"runner": "DataflowRunner", "job_name": name}
    if runner.has_job_server:
        options.update(runner="PortableRunner", job_endpoint=runner.endpoint, job_server_timeout=30)
        if "environment_type" not in runner.options:
            options.update(environment_type="EXTERNAL", environment_config=runner.worker_pool)
            # Without it, each step starts workers of its own. They outlive the job by this time.
            options["environment_cache_millis"] = 3_000
    try:
        made = PipelineOptions.from_dictionary(options | runner.options)
        made.get_all_options()
        beam_runner = _EngineRunner() if runner.has_job_server else create_runner("DataflowRunner")
        return beam.Pipeline(beam_runner, made)
    except SystemExit:  # Beam's argument parser exits after it has named the wrong option on stderr
        fault = f"preprocess.runner.options: Beam does not accept {runner.options}"
        raise ConfigError(fault, "See the log.") from None
    except (ImportError, ValueError) as error:
        fault = f"preprocess.runner: Beam cannot start {runner.name}: {error}"
        cure = "Correct the options, or install the packages of the runner."
        raise ConfigError(fault, cure) from None


def find_reason(text: str) -> str:
    """The line of an engine's message that tells the reason: the last error in Python."""
    found = [match.group() for match in _PYTHON_ERROR.finditer(text)]
    if found and found[-1].endswith("terminated with:"):  # an error of gRPC has several lines
        found += re.findall(r'^\s*details = "(.+)"$', text, re.MULTILINE)
    lines = text.strip().splitlines() or ["no reason given"]
    return (found or lines[:1])[-1].strip()[:_MAX_REASON]
