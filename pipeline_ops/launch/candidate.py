"""The candidate: the trained weights as a SavedModel, which a fork on any ready host writes."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline_ops.errors import MachineError, TrainyardError
from pipeline_ops.jobs.file_exchange import fetch_files
from pipeline_ops.jobs.gang_protocol import CandidateSpec, Command, Fork
from pipeline_ops.jobs.request import Status
from pipeline_ops.jobs.runner import Job
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.plan import Host, LaunchPlan
from pipeline_ops.launch.stop_request import StopRequest
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.own_folders import empty_folder
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.safe_paths import open_folder

_NAME = "candidate"
_CANDIDATE_SECONDS = 600
_POLL_SECONDS = 0.2


def export_saved_model(
    job: Job, host_pool: HostPool, plan: LaunchPlan, stop: StopRequest, folder: Path
) -> None:
    """Makes a fork of a fork server write the candidate into the artifact.

    If its host is lost, a fork on another host takes over.
    """
    job.progress.report(_NAME, message="writing the SavedModel")
    code, spec = _run_fork(job, host_pool, plan, stop, folder)
    if code != 0:
        log, status = (
            job.attempt.folder / f"{_NAME}.{ending}" for ending in ("log", "status.json")
        )
        outcome = read_json_as(Status, open_path(status))
        if outcome is None:
            raise MachineError(
                f"the process that writes the candidate ended with {code} and left no "
                f"{status.name}. Its log is {log}"
            )
        message = f"cannot write the candidate: {outcome.message.rstrip('.')}. The log is {log}"
        raise MachineError(message) if outcome.exit_code.is_retried else TrainyardError(message)
    if spec.target:
        fetch_files(open_root(spec.target), folder)


def _run_fork(
    job: Job, host_pool: HostPool, plan: LaunchPlan, stop: StopRequest, folder: Path
) -> tuple[int, CandidateSpec]:
    """Forks the process. Returns its exit code, and its specification."""
    host, spec, tries = None, None, 0
    deadline = time.monotonic() + _CANDIDATE_SECONDS
    while time.monotonic() < deadline:
        stop.check()
        for _host, event in host_pool.poll(_POLL_SECONDS):
            if spec and event.event == "ended" and event.name == _NAME:
                return event.code, spec
        if (host is None or not host_pool.hosts[host].is_ready) and host_pool.ready:
            chosen, tries = host_pool.ready[0], tries + 1
            host, spec = chosen.name, _make_spec(job, plan, chosen, folder, tries)
            with open_folder(folder) as partial_folder:
                empty_folder(partial_folder)
            (job.attempt.folder / f"{_NAME}.status.json").unlink(missing_ok=True)
            fork = _make_fork(job, chosen, spec)
            host_pool.send(host, Command(action="fork", fork=fork))
    problems = ". ".join(host.problem for host in host_pool.hosts.values() if host.problem)
    raise MachineError(
        f"the {_NAME} was not written within {_CANDIDATE_SECONDS} s"
        + (f": {problems}" if problems else "")
    )


def _make_spec(job: Job, plan: LaunchPlan, host: Host, folder: Path, number: int) -> CandidateSpec:
    """The specification for a host.

    If some hosts have disks of their own, weights and candidate go through the bucket.
    """
    attempt, stored = host.get_attempt(job.attempt), plan.chief.stored
    spec = CandidateSpec(
        request=str(attempt.request), work=str(host.get_work(job.work)), folder=str(folder)
    )
    if stored is None or not stored.is_exchanged:
        return spec
    return spec.model_copy(
        update={
            "folder": str(attempt.folder / _NAME),
            "source": stored.locate_results(plan.chief.name),
            "target": stored.locate_results(f"{_NAME} {number}"),
        }
    )


def _make_fork(job: Job, host: Host, spec: CandidateSpec) -> Fork:
    folder = host.get_attempt(job.attempt).folder
    return Fork(
        name=_NAME,
        entry="candidate",
        argument=spec.model_dump_json(),
        status=str(folder / f"{_NAME}.status.json"),
        log=str(folder / f"{_NAME}.log"),
    )
