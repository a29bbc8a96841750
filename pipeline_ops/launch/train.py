"""The train job: runs the gang to its end, exports the candidate and writes the manifest.

It imports no TensorFlow. The fork servers do. SIGTERM saves the state and ends the job with
an exit code that is retried.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.artifacts.layout import work_folder
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import DIVERGED, TENSORBOARD, TrainingFigures
from pipeline_ops.config.hosts import LocalHosts, SshHosts, parse_hosts
from pipeline_ops.config.hosts_base import Hosts
from pipeline_ops.config.hosts_clusters import KubernetesHosts, SlurmHosts
from pipeline_ops.config.model_catalogue import get_model_task
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError, ExitCode, TrainyardError
from pipeline_ops.jobs.file_exchange import fetch_files
from pipeline_ops.jobs.gang_protocol import STATE, Isolation, StoredWork, format_worker_digest_name
from pipeline_ops.jobs.host_dataset import open_host_cache, open_host_dataset
from pipeline_ops.jobs.places.environment import collect_store_environment, read_hosts_variable
from pipeline_ops.jobs.runner import Job, run_job
from pipeline_ops.jobs.workspace import REQUEST_VARIABLE
from pipeline_ops.launch.candidate import export_saved_model
from pipeline_ops.launch.gang import Gang
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.kubernetes import KubernetesLauncher
from pipeline_ops.launch.launcher import Launcher
from pipeline_ops.launch.local import LocalLauncher
from pipeline_ops.launch.plan import LaunchPlan
from pipeline_ops.launch.slurm import SlurmLauncher
from pipeline_ops.launch.ssh import SshLauncher
from pipeline_ops.launch.stop_request import StopRequest
from pipeline_ops.storage.atomic import read_json
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.open_store import open_path, open_root


def train(job: Job) -> ExitCode:
    """Trains, or continues the training where an earlier try stopped."""
    config, started_at = Train.model_validate(job.request.config), time.monotonic()
    with StopRequest().handle_sigterm() as stop:
        check_dataset(job, config)
        stop.check()
        return _train(job, config, stop, started_at)


def _train(job: Job, config: Train, stop: StopRequest, started_at: float) -> ExitCode:
    job.make_work()
    stored = work_folder(job.folder)
    stored_work = None if stored.is_local else StoredWork(uri=str(stored), token=job.lease.token)
    with open_host_pool(job, config) as host_pool:
        gang = Gang(
            config,
            job.attempt,
            job.work,
            host_pool,
            job.progress.forward,
            stop=stop,
            stored=stored_work,
            check_lease=job.lease.check,
        )
        plan = gang.run()
        fetch_results(plan, job.work)
        with job.artifact() as draft:
            export_saved_model(job, host_pool, plan, stop, draft.folder)
            host_pool.clean()
            host_pool.close()
            shutil.copytree(job.work / TENSORBOARD, draft.folder / TENSORBOARD)
            if (job.work / DIVERGED).exists():
                shutil.copytree(job.work / DIVERGED, draft.folder / DIVERGED)
            draft.seeds["train"] = config.seed
            seconds = time.monotonic() - started_at
            figures = summarize_training(job, config, plan, gang.restarts, seconds)
            draft.figures.update(figures.model_dump(mode="json"))
    return ExitCode.SUCCESS


@contextlib.contextmanager
def open_host_pool(job: Job, config: Train) -> Iterator[HostPool]:
    """Yields the hosts that the request names, and ends all processes of the gang on them."""
    hosts = parse_hosts(job.request.hosts or {"launcher": "local"})
    host_pool = HostPool(
        make_launcher(hosts, job),
        lock=build_lock_name(job),
        folder=job.attempt.folder,
        silence_timeout_seconds=config.heartbeat_timeout_seconds,
        start_timeout_seconds=config.start_timeout_seconds,
        ports=hosts.ports,
        environment=build_host_environment(job, hosts),
        isolation=choose_isolation(config, hosts),
        stored_attempt=str(job.stored_attempt or ""),
        stored_work=str(work_folder(job.folder)) if job.stored_attempt else "",
    )
    try:
        yield host_pool
    finally:
        host_pool.close()


def build_host_environment(job: Job, hosts: Hosts) -> dict[str, str]:
    """The variables of the gang's processes, with the access to a bucket. They are secret.

    On this host, its processes inherit them.
    """
    own = read_hosts_variable(os.environ)
    if job.stored_attempt is None or isinstance(hosts, LocalHosts):
        return own
    digest = {name: os.environ[name] for name in (REQUEST_VARIABLE,) if name in os.environ}
    return collect_store_environment(os.environ) | digest | own


def fetch_results(plan: LaunchPlan, work: Path) -> None:
    """Fetches what the workers on other disks have left in the bucket.

    Raises:
      MachineError: the store or the disk failed.
    """
    for worker in plan.workers:
        if worker.stored and worker.stored.is_exchanged and not worker.is_server:
            fetch_files(open_root(worker.stored.locate_results(worker.name)), work)


def choose_isolation(config: Train, hosts: Hosts) -> Isolation:
    """Decides whether the gang gets a network namespace of its own.

    A gang with servers of TensorFlow gets one on a single host, where that is possible.
    """
    is_alone = config.effective_max_workers == 1 and config.strategy != "parameter_server"
    if is_alone or hosts.num_hosts > 1 or hosts.network == "trusted":
        return "never"
    return "always" if hosts.network == "isolated" else "where possible"


def build_lock_name(job: Job) -> str:
    """The name of the lock that keeps a second gang from training the same artifact.

    The same training below another storage root has another name.
    """
    return f"{job.request.pipeline}-{compute_digest(str(job.folder))}"


def build_gang_name(job: Job) -> str:
    """The name of a gang among the objects of a cluster. Unique, and valid as a DNS name."""
    pipeline = job.request.pipeline.replace("_", "-")[:30]
    return f"trainyard-{pipeline}-{compute_digest(str(job.attempt.folder))[:8]}"


def make_launcher(hosts: Hosts, job: Job) -> Launcher:
    match hosts:
        case SshHosts():
            return SshLauncher(hosts)
        case SlurmHosts():
            name = f"trainyard-{job.request.pipeline}"
            return SlurmLauncher(hosts, name, job.attempt.folder, not job.stored_attempt)
        case KubernetesHosts():
            return KubernetesLauncher(
                hosts, build_gang_name(job), str(job.attempt.folder), job.request.deadline_seconds
            )
        case LocalHosts():
            return LocalLauncher(hosts.workers, hosts.cores or 0)
        case _:
            raise TypeError(f"unknown launcher: {hosts}")


def check_dataset(job: Job, config: Train) -> None:
    """Rejects a data set that would train a wrong model, or none.

    Raises:
      ConfigError: the data are for another task than the model.
      MachineError: shards do not match their manifest. Preprocessing can repair that.
    """
    uri = job.request.inputs["preprocess"].uri
    manifest = read_manifest(open_path(uri))
    task = DatasetFigures.model_validate(manifest.figures).task
    model_task = get_model_task(config.model)
    if task != model_task:
        raise ConfigError(
            f"the data set is for {task}, and train.model {config.model} is for {model_task}. "
            f"Choose a model for {task}. The data set is {uri}"
        )
    open_host_dataset(
        uri,
        config.input,
        open_host_cache(config.input),
        lambda message: job.progress.report("input", message=message),
    )


def summarize_training(
    job: Job, config: Train, plan: LaunchPlan, restarts: int, seconds: float
) -> TrainingFigures:
    """Summarizes the training.

    Raises:
      TrainyardError: the workers have not ended with the same weights.
    """
    state = read_json(job.work / STATE)
    workers = len(plan.cluster["worker"])
    digests = [
        (job.work / format_worker_digest_name(worker)).read_text()
        for worker in range(workers if plan.workers[0].is_peer else 1)
    ]
    if len(set(digests)) != 1:
        raise TrainyardError(
            f"the workers ended with different weights: {', '.join(digests)}. "
            "This is a bug of Trainyard"
        )
    dataset = DatasetFigures.model_validate(
        read_manifest(open_path(job.request.inputs["preprocess"].uri)).figures
    )
    return TrainingFigures(
        strategy=state["strategy"],
        strategy_reason=state["strategy_reason"],
        workers=workers,
        steps=state["step"],
        restarts=restarts,
        weights_digest=digests[0],
        worker_weights_digests=digests,
        num_parameters=state["num_parameters"],
        best_epoch=state["best_epoch"],
        best_monitor=config.best_monitor,
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
