"""The train job: runs the gang to its end, exports the candidate and writes the manifest.

It imports no TensorFlow. The preloaded processes do. SIGTERM saves the state and ends the job with
an exit code that is retried.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import DIVERGED, TENSORBOARD, TrainingFigures
from pipeline_ops.config.hosts import (
    Hosts,
    KubernetesHosts,
    LocalHosts,
    SlurmHosts,
    SshHosts,
    parse_hosts,
)
from pipeline_ops.config.model_catalogue import task_of
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError, ExitCode, MachineError, TrainyardError
from pipeline_ops.jobs.gang_protocol import (
    STATE,
    CandidateSpec,
    Command,
    Fork,
    Isolation,
    worker_digest_name,
)
from pipeline_ops.jobs.local_copy import host_cache, local_dataset
from pipeline_ops.jobs.request import Status
from pipeline_ops.jobs.runner import Job, run_job
from pipeline_ops.launch.gang import Gang, Stop
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.kubernetes import KubernetesLauncher
from pipeline_ops.launch.launcher import Launcher
from pipeline_ops.launch.local import LocalLauncher
from pipeline_ops.launch.slurm import SlurmLauncher
from pipeline_ops.launch.ssh import SshLauncher
from pipeline_ops.storage.atomic import opened_folder, read_json, write_json
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.storage.own_folders import empty_folder

_CANDIDATE_SECONDS = 600


def train(job: Job) -> ExitCode:
    """Trains, or continues the training where an earlier try stopped."""
    config, started = Train.model_validate(job.request.config), time.monotonic()
    with Stop().listening() as stop:
        check_dataset(job)
        stop.check()
        return _train(job, config, stop, started)


def _train(job: Job, config: Train, stop: Stop, started: float) -> ExitCode:
    job.work.mkdir(parents=True, exist_ok=True)
    with make_fleet(job, config) as fleet:
        gang = Gang(config, job.attempt, job.work, fleet, job.progress.forward, stop=stop)
        gang.run()
        with job.artifact() as draft:
            write_candidate(job, fleet, stop, draft.folder)
            fleet.close()
            shutil.copytree(job.work / TENSORBOARD, draft.folder / TENSORBOARD)
            if (job.work / DIVERGED).exists():
                shutil.copytree(job.work / DIVERGED, draft.folder / DIVERGED)
            draft.seeds["train"] = config.seed
            draft.figures.update(
                figures_of(job, config, gang, time.monotonic() - started).model_dump(mode="json")
            )
    return ExitCode.SUCCESS


@contextlib.contextmanager
def make_fleet(job: Job, config: Train) -> Iterator[HostPool]:
    """Yields the hosts that the request names, and ends all of our processes on them."""
    hosts = parse_hosts(job.request.hosts) if job.request.hosts else None
    fleet = HostPool(
        make_launcher(hosts, job),
        lock=lock_of(job),
        folder=job.attempt.folder,
        silence_seconds=config.heartbeat_timeout_seconds,
        start_seconds=config.start_timeout_seconds,
        ports=hosts.ports if hosts else None,
        environment=hosts.environment if hosts else None,
        isolation=isolation_of(config, hosts),
    )
    try:
        yield fleet
    finally:
        fleet.close()


def isolation_of(config: Train, hosts: Hosts | None) -> Isolation:
    """Decides if the gang gets a network namespace of its own.

    It gets one on a single host if TensorFlow's servers listen there.
    """
    if hosts and (hosts.num_hosts > 1 or hosts.network == "trusted"):
        return "never"
    if config.strategy == "parameter_server":
        return "always"
    return "with GPUs" if config.most_workers > 1 else "never"


def lock_of(job: Job) -> str:
    """The name of the lock that keeps a second gang from training the same artifact.

    The same training below another storage root has another name.
    """
    return f"{job.request.pipeline}-{digest_of(str(job.folder))}"


def make_launcher(hosts: Hosts | None, job: Job) -> Launcher:
    match hosts:
        case SshHosts():
            return SshLauncher(hosts)
        case SlurmHosts():
            return SlurmLauncher(hosts, f"trainyard-{job.request.pipeline}", job.attempt.folder)
        case KubernetesHosts():
            name = (
                f"trainyard-{job.request.pipeline.replace('_', '-')[:30]}"
                f"-{digest_of(str(job.attempt.folder))[:8]}"
            )
            return KubernetesLauncher(
                hosts, name, str(job.attempt.folder), job.request.deadline_seconds
            )
        case LocalHosts():
            return LocalLauncher(hosts.workers, hosts.cores or 0)
        case _:
            return LocalLauncher()


def check_dataset(job: Job) -> None:
    """Rejects a data set that would train a wrong model, or none.

    Raises:
      ConfigError: the data are for another task than the model.
      MachineError: shards do not match their manifest. Preprocessing can repair that.
    """
    uri = job.request.inputs["preprocess"].uri
    manifest = read_manifest(uri)
    task, model = DatasetFigures.model_validate(manifest.figures).task, job.request.config["model"]
    if task != task_of(model):
        raise ConfigError(
            f"the data set is for {task}, and train.model {model} is for {task_of(model)}; {uri}"
        )
    config = Train.model_validate(job.request.config).input
    local_dataset(
        uri,
        config,
        host_cache(config),
        lambda message: job.progress.report("input", message=message),
    )


def write_candidate(job: Job, fleet: HostPool, stop: Stop, folder: Path) -> None:
    """Has a fork of a preloaded process write the candidate into the artifact.

    If its host is lost, a fork on another host takes over.
    """
    spec, status = (
        job.attempt.folder / "candidate.spec.json",
        job.attempt.folder / "candidate.status.json",
    )
    log = job.attempt.folder / "candidate.log"
    write_json(
        spec,
        CandidateSpec(
            request=str(job.attempt.request), work=str(job.work), folder=str(folder)
        ).model_dump(mode="json"),
    )
    job.progress.report("candidate", message="writing the SavedModel")
    fork = Fork(
        name="candidate", entry="candidate", argument=str(spec), status=str(status), log=str(log)
    )
    deadline, code = time.monotonic() + _CANDIDATE_SECONDS, None
    while code is None:
        with opened_folder(folder) as half:
            empty_folder(half)
        host = _any_host(fleet, stop, deadline)
        fleet.send(host, Command(order="fork", fork=fork))
        code = _candidate_code(fleet, stop, host, deadline)
    if code != 0:
        outcome = job.attempt.read(Status, status)
        if outcome is None:
            raise MachineError(
                f"the process that writes the candidate ended with {code} and left no "
                f"{status.name}; its log is {log}"
            )
        raise _error_of(outcome, str(log))


def _any_host(fleet: HostPool, stop: Stop, deadline: float) -> str:
    """Returns the name of a host that can fork, once there is one."""
    while not fleet.ready:
        fleet.poll(0.2)
        stop.check()
        if time.monotonic() > deadline:
            raise MachineError(
                "no host is there to write the candidate: "
                + "; ".join(host.problem for host in fleet.hosts.values())
            )
    return fleet.ready[0].name


def _candidate_code(fleet: HostPool, stop: Stop, host: str, deadline: float) -> int | None:
    """The exit code of the process that writes the candidate; None if its host was lost."""
    while fleet.hosts[host].is_ready:
        for _host, event in fleet.poll(0.2):
            if event.event == "ended" and event.name == "candidate":
                return event.code
        stop.check()
        if time.monotonic() > deadline:
            raise MachineError(f"the candidate was not written within {_CANDIDATE_SECONDS} s")
    return None


def _error_of(status: Status, log: str) -> TrainyardError:
    if status.exit_code.is_retried:
        return MachineError(f"the candidate was not written: {status.message}; the log is {log}")
    return TrainyardError(f"the candidate can't be written: {status.message}; the log is {log}")


def figures_of(job: Job, config: Train, gang: Gang, seconds: float) -> TrainingFigures:
    """Summarizes the training.

    Raises:
      TrainyardError: the workers have not ended with the same weights.
    """
    state = read_json(job.work / STATE)
    workers = len(gang.plan.cluster["worker"]) if gang.plan.workers[0].is_peer else 1
    digests = [(job.work / worker_digest_name(worker)).read_text() for worker in range(workers)]
    if len(set(digests)) != 1:
        raise TrainyardError(
            f"the workers ended with different weights: {', '.join(digests)}; "
            "this is a bug of Trainyard"
        )
    dataset = DatasetFigures.model_validate(
        read_manifest(job.request.inputs["preprocess"].uri).figures
    )
    return TrainingFigures(
        strategy=state["strategy"],
        strategy_reason=state["strategy_reason"],
        workers=len(gang.plan.cluster["worker"]),
        steps=state["step"],
        restarts=gang.restarts,
        weights_digest=digests[0],
        worker_weights_digests=digests,
        num_parameters=state["num_parameters"],
        best_epoch=state["best_epoch"],
        stopped_early=state["stopped_early"],
        history=state["history"],
        warnings=state["warnings"],
        seconds=round(seconds, 2),
        class_names=dataset.class_names,
        image_shape=dataset.image_shape,
        task=dataset.task,
    )


if __name__ == "__main__":
    run_job(train)
