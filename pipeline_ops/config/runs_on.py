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
    if config.hosts and not is_remote(config.storage.root):
        folder = config.resolve_path(config.storage.root)
        if not config.hosts.shares_folder(folder):
            where = config.locate(("train", "hosts"))
            problems.append(f"{where}: train.hosts: {_describe_missing('storage.root', folder)}")
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
    if isinstance(hosts, KubernetesHosts) and "@sha256:" not in hosts.image:
        name = hosts.image.rpartition(":")[0] or hosts.image
        yield (
            f"the image {hosts.image} has no digest, and another image of that name would give "
            f"another result. Write image: {name}@sha256:... "
            f"into hosts/{section.runs_on}.yaml. `docker inspect` prints the digest."
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
            if not hosts.shares_folder(folder):
                yield _describe_missing(key, folder)


def _describe_missing(key: str, folder: Path) -> str:
    return (
        f"{key} is {folder} on this host, which is not seen there. Use a URI such as "
        f"s3://bucket/folder, or add a volume with it, mounted at the same path, to the hosts file."
    )
