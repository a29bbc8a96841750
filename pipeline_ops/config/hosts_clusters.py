"""Hosts that a cluster or a container engine makes for a job: Slurm, containers, Kubernetes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, config_field
from pipeline_ops.config.hosts_base import Cpu, Hosts, Memory, Resources, match_pattern
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError

_SlurmMemory = Annotated[
    str, match_pattern("[0-9]+[KMGT]?", "a number with K, M, G or T, such as 8G for Slurm")
]
_DaemonAddress = Annotated[
    str,
    match_pattern(
        "(unix|ssh|tcp|https?)://.+",
        "an address that begins with unix://, ssh://, tcp:// or https://, such as ssh://user@host",
    ),
]
_Namespace = Annotated[
    str,
    match_pattern(
        "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        "lower-case letters, digits and hyphens, such as training",
    ),
]
_ObjectName = Annotated[
    str,
    match_pattern(
        r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
        "lower-case letters, digits, hyphens and dots, such as trainyard-store",
    ),
]
"""The name of an object in Kubernetes."""
_DIGEST = re.compile("@(sha256:[0-9a-f]{64})$")


class SlurmHosts(Hosts):
    """Nodes that Slurm allocates for the training and takes back after it."""

    launcher: Literal["slurm"]
    nodes: int = Field(ge=1, le=1024)
    """Number of hosts for a gang."""
    min_nodes: int | None = Field(None, ge=1, le=1024)
    """The smallest number of nodes to start with if there are no more. Null is all of `nodes`."""
    workers_per_node: int = Field(1, ge=1, le=256)
    """Number of workers that a node can take."""
    cores_per_node: int | None = Field(None, ge=1)
    """Number of cores. Null is whole nodes."""
    memory_per_node: _SlurmMemory | None = None
    """Memory in the format of sbatch, such as `16G`. Null is the default of the partition."""
    gpus_per_node: int = Field(0, ge=0, le=64)
    """Number of GPUs."""
    partition: str | None = None
    """Slurm's partition. Null is its default one."""
    account: str | None = None
    """The account that Slurm charges. Null is the user's default one."""
    time_limit: str | None = None
    """The time limit in the format of sbatch, such as `2-00:00:00`. Null is that of the
    partition."""
    arguments: list[str] = config_field([], selects_program=True)
    """Further options of sbatch, such as `--gres=gpu:4` or `--exclusive`."""
    queue_timeout_seconds: int = Field(24 * 3600, ge=1)
    """Time to wait in the queue before the task is tried again."""

    @property
    def capacity(self) -> int:
        return self.nodes * self.workers_per_node

    @property
    def num_hosts(self) -> int:
        return self.nodes

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node


_OWN_FOLDERS = ("/", "/tmp", "/work")  # noqa: S108


class FolderVolume(Section):
    """A folder of the container engine's host that the containers see."""

    folder: str = Field(pattern=r"^/")
    """The folder on the daemon's host."""
    mount: str = Field(pattern=r"^/")
    """The path of the folder in the containers. For a storage root, that on Airflow's host."""
    read_only: bool = False
    """Whether the containers can't write to it."""


class ContainerHosts(Resources, Hosts):
    """Containers of a Docker daemon, one for each job. A gang runs inside that of its train job.

    Containers run with a read-only root file system, without capabilities, and as the image's user,
    which must not be root. They share no folder with Airflow unless `volumes` names one.
    """

    launcher: Literal["container"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The image. It must have this project's code and packages (`docker/jobs.Dockerfile`)."""
    daemon: _DaemonAddress | None = None
    """The daemon's address, such as `ssh://user@host`. Null is the one that DOCKER_HOST names, or
    the local one. For TLS, DOCKER_CERT_PATH names the folder of the certificates."""
    docker_network: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The Docker network of the containers, from which they must reach the store. Null is Docker's
    default network."""
    pull: Literal["missing", "never"] = "missing"
    """Whether the daemon pulls an image that it does not have."""
    volumes: list[FolderVolume] = config_field([], selects_program=True)

    @model_validator(mode="after")
    def _validate_network(self) -> ContainerHosts:
        if self.docker_network == "none":
            raise ValueError(
                "docker_network must be a network from which the store can be reached, got none"
            )
        return self

    @model_validator(mode="after")
    def _validate_volumes(self) -> ContainerHosts:
        for volume in self.volumes:
            if volume.mount in _OWN_FOLDERS:
                raise ValueError(
                    f"volumes must not be mounted at {volume.mount}, which each container has of "
                    "its own"
                )
        return self

    def validate_gang(self, train: Train, location: str) -> None:
        raise ConfigError(
            f"{location}: train.hosts: {train.hosts} is a Docker daemon, which runs the job of a "
            f"training with its whole gang in one container. Write runs_on: {train.hosts} in the "
            "place of hosts, or name hosts with launcher ssh, slurm or kubernetes"
        )

    @property
    def num_gpus(self) -> int:
        return self.gpus

    def find_folder_problem(self, folder: Path) -> str:
        cure = f"volumes: [{{folder: {folder}, mount: {folder}}}]"
        covering = [
            volume
            for volume in self.volumes
            if folder.is_relative_to(volume.mount) and not volume.read_only
        ]
        if not covering:
            return f"which is not seen there. {_describe_volume_cure(cure)}"
        volume = max(covering, key=lambda each: len(each.mount))
        if self._is_daemon_here and _is_elsewhere(volume):
            return (
                f"and a container has another folder there: {volume.folder}. "
                f"{_describe_volume_cure(cure)}"
            )
        return ""

    @property
    def _is_daemon_here(self) -> bool:
        address = self.daemon or os.environ.get("DOCKER_HOST") or "unix://"
        return address.startswith("unix://")


def _is_elsewhere(volume: FolderVolume) -> bool:
    """Returns whether this host has another folder at the path of a volume.

    If this process runs in a container, the daemon may see a folder that is missing here.
    """
    folder, mount = volume.folder, volume.mount
    if not os.path.exists(folder):
        return False
    return not (os.path.exists(mount) and os.path.samefile(folder, mount))


def _describe_volume_cure(form: str) -> str:
    return (
        f"Use a URI such as s3://bucket/folder, or write {form} into the hosts file, which "
        "mounts it at the same path"
    )


class Volume(Section):
    """A persistent volume claim that all pods share."""

    claim: _ObjectName
    """The name of the claim."""
    mount: str = Field(pattern=r"^/")
    """The path of the volume in the pods. For a storage root, that on Airflow's host."""


class Toleration(Section):
    """A taint of a node that the pods tolerate, as in a pod's specification."""

    key: str | None = None
    """The key of the taint. Null is any."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Equal` compares the value, and `Exists` does not."""
    value: str | None = None
    """The value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect of the taint. Null is any."""


class KubernetesHosts(Resources, Hosts):
    """Pods, which are created for a job or a gang and deleted after it."""

    launcher: Literal["kubernetes"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The container image. It must have this project's code and packages
    (`docker/jobs.Dockerfile`). For `runs_on` it ends with its digest, `@sha256:...`."""
    pods: int = Field(1, ge=1, le=1024)
    """Number of hosts for a gang."""
    workers_per_pod: int = Field(1, ge=1, le=64)
    """Number of workers that a pod can take."""
    namespace: _Namespace = "default"
    """The namespace of the pods."""
    volumes: list[Volume] = config_field([], selects_program=True)
    cpu: Cpu | None = "1"
    memory: Memory | None = "4Gi"
    service_account: _ObjectName | None = None
    """The account of the pods. A training with `runs_on` needs one that may create its gang's
    pods. Null is none, and no token."""
    secret: _ObjectName | None = None
    """A Secret whose entries become variables of the pods, such as the access to a bucket. With
    a `secret` or a `service_account`, Airflow's own credentials are not sent, so one of them must
    have the access."""
    node_selector: dict[str, str] = {}
    """Labels that the nodes of the pods must have."""
    tolerations: list[Toleration] = []
    priority_class: _ObjectName | None = None
    """The PriorityClass of the pods."""
    image_pull_secrets: list[_ObjectName] = []
    """Secrets with the access to the registry of the image."""
    queue_timeout_seconds: int = Field(3600, ge=1)
    """Time to wait until the pods run before the task is tried again."""
    context: str | None = None
    """The context in the kubeconfig file. Null is the current one, or the cluster around the
    process."""

    @property
    def capacity(self) -> int:
        return self.pods * self.workers_per_pod

    @property
    def num_hosts(self) -> int:
        return self.pods

    @property
    def num_gpus(self) -> int:
        return self.gpus

    @property
    def image_digest(self) -> str | None:
        """The digest that the image ends with, `sha256:...`, or None."""
        found = _DIGEST.search(self.image)
        return found[1] if found else None

    @property
    def image_name(self) -> str:
        """The image without its tag and its digest."""
        return re.sub(r"(:[^/@]*)?(@.*)?$", "", self.image, count=1)

    def find_folder_problem(self, folder: Path) -> str:
        if any(folder.is_relative_to(volume.mount) for volume in self.volumes):
            return ""
        cure = f"volumes: [{{claim: NAME, mount: {folder}}}]"
        return f"which is not seen there. {_describe_volume_cure(cure)}"
