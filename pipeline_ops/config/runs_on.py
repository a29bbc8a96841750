"""The rules for `runs_on`: what a job reads and writes must be reachable where it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline_ops.config.hosts_base import Hosts
from pipeline_ops.config.hosts_clusters import KubernetesHosts
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.open_store import is_remote

TASKS = ("preprocess", "train", "evaluate", "export")


class _Config(Protocol):
    """The parts of a pipeline's config that the rules need."""

    @property
    def storage(self) -> Any: ...
    @property
    def preprocess(self) -> Any: ...
    @property
    def train(self) -> Any: ...
    @property
    def export(self) -> Any: ...
    @property
    def hosts(self) -> Hosts | None: ...
    def find_job_hosts(self, job: str) -> Hosts | None: ...
    def locate(self, location: Sequence[str | int]) -> str: ...
    def resolve_path(self, relative: str) -> Path: ...


def validate_places(config: _Config) -> None:
    """Checks the hosts files of all tasks against what their jobs need.

    Raises:
      ConfigError: with a line for each problem.
    """
    problems = []
    for task in TASKS:
        if (hosts := config.find_job_hosts(task)) is not None:
            where = config.locate((task, "runs_on"))
            found = [*_find_problems(config, task, hosts), *_find_folders(config, task, hosts)]
            problems += [f"{where}: {task}.runs_on: {problem}" for problem in found]
    if config.hosts and not is_remote(root := config.storage.root):
        folder = config.resolve_path(root)
        where = f"{config.locate(('train', 'hosts'))}: train.hosts"
        if problem := config.hosts.find_folder_problem(folder):
            problems.append(f"{where}: storage.root is {folder} on this host, {problem}.")
    if problems:
        raise ConfigError("\n".join(problems))


def _find_problems(config: _Config, task: str, hosts: Hosts) -> Iterator[str]:
    section = getattr(config, task)
    if section.python is not None:
        yield (
            f"{task}.python is for the host of the Airflow worker. "
            f"Write `python` into hosts/{section.runs_on}.yaml instead."
        )
    if hosts.launcher == "local":
        yield (
            f"hosts/{section.runs_on}.yaml describes the host of the Airflow worker, where jobs "
            f"run anyway. Remove runs_on, and set {task}.python if another interpreter is needed."
        )
    if isinstance(hosts, KubernetesHosts) and hosts.image_digest is None:
        yield (
            f"the image {hosts.image} has no digest, and another image of that name would give "
            f"another result. Write image: {hosts.image_name}@sha256:... with 64 digits into "
            f"hosts/{section.runs_on}.yaml. `docker push IMAGE && docker inspect --format "
            "'{{index .RepoDigests 0}}' IMAGE` prints it."
        )
    if task == "train":
        yield from _find_training_problems(config, hosts)


def _find_training_problems(config: _Config, hosts: Hosts) -> Iterator[str]:
    """Problems of the job of a training with its gang."""
    train, gang = config.train, config.hosts
    if (
        isinstance(hosts, KubernetesHosts)
        and isinstance(gang, KubernetesHosts)
        and not (hosts.service_account or gang.context)
    ):
        yield (
            "the job of the training creates the pods of its gang, and has no account for it. "
            "Write service_account: trainyard-supervisor (docker/kubernetes/rbac.yaml) into "
            f"hosts/{train.runs_on}.yaml."
        )
    is_gang_here = gang is None or gang.launcher == "local"
    num_needed = train.effective_max_workers * train.devices_per_worker
    if is_gang_here and train.strategy != "tpu" and 0 < hosts.num_gpus < num_needed:
        yield (
            f"the gang runs in the job, which has {hosts.num_gpus} GPUs, and train.workers "
            f"({train.effective_max_workers}) x train.devices_per_worker "
            f"({train.devices_per_worker}) is {num_needed}. Ask for {num_needed} GPUs in "
            f"hosts/{train.runs_on}.yaml, or lower one of the two."
        )


def _find_folders(config: _Config, task: str, hosts: Hosts) -> Iterator[str]:
    """The folders of Airflow's host that the job can't see."""
    paths = {"storage.root": config.storage.root}
    if task == "preprocess":
        paths["preprocess.source.path"] = config.preprocess.source.path
    if task == "export" and config.export.registry:
        paths["export.registry"] = config.export.registry
    if task == "export" and config.export.signing_key:
        paths["export.signing_key"] = config.export.signing_key
    if config.storage.ca_file:
        paths["storage.ca_file"] = config.storage.ca_file
    for key, path in paths.items():
        if not is_remote(path):
            folder = config.resolve_path(path)
            if problem := hosts.find_folder_problem(folder):
                yield f"{key} is {folder} on this host, {problem}."
