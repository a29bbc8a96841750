"""Hosts that a cluster or a container engine makes for a job: Slurm, containers, Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, config_field
from pipeline_ops.config.hosts_base import Hosts, Resources


class SlurmHosts(Hosts):
    """Nodes that Slurm allocates for the training and takes back after it."""

    launcher: Literal["slurm"]
    nodes: int = Field(ge=1, le=1024)
    min_nodes: int | None = Field(None, ge=1, le=1024)
    """The smallest number of nodes to start with if there are no more. Null is all of `nodes`."""
    workers_per_node: int = Field(1, ge=1, le=256)
    cores_per_node: int | None = Field(None, ge=1)
    memory_per_node: str | None = Field(None, pattern=r"^[0-9]+[KMGT]?$")
    """Memory in the format of sbatch, such as `16G`. Null is the default of the partition."""
    gpus_per_node: int = Field(0, ge=0, le=64)
    partition: str | None = None
    account: str | None = None
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


_OWN_FOLDERS = ("/", "/tmp", "/work")  # noqa: S108


class FolderVolume(Section):
    """A folder of the container engine's host that the containers see."""

    folder: str = Field(pattern=r"^/")
    mount: str = Field(pattern=r"^/")
    read_only: bool = False


class ContainerHosts(Hosts, Resources):
    """Containers of a Docker daemon. One container is one host of a gang.

    Containers run with a read-only root file system, without capabilities, and as the image's user,
    which must not be root. They share no folder with Airflow unless `volumes` names one.
    """

    launcher: Literal["container"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The image. It must have this project's code and packages (`docker/jobs.Dockerfile`)."""
    daemon: str | None = Field(None, pattern=r"^(unix|ssh|tcp|https?)://")
    """The daemon's address, such as `ssh://user@host`. Null is the one that DOCKER_HOST names, or
    the local one. For TLS, DOCKER_CERT_PATH names the folder of the certificates."""
    containers: int = Field(1, ge=1, le=256)
    """Number of hosts for a gang. With `gpus`, the first one gets the first GPUs, and so on."""
    workers_per_container: int = Field(1, ge=1, le=64)
    docker_network: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The Docker network of the containers, from which they must reach the store. Null is the
    default network for a job, and a network of its own for a gang."""
    pull: Literal["missing", "never"] = "missing"
    """Whether the daemon pulls an image that it does not have."""
    volumes: list[FolderVolume] = config_field([], selects_program=True)

    @model_validator(mode="after")
    def _validate_network(self) -> ContainerHosts:
        if self.docker_network == "none":
            raise ValueError(
                "docker_network must be a network from which the store can be reached, got none"
            )
        if self.containers > 1 and self.docker_network in ("bridge", "host", "default"):
            raise ValueError(
                f"containers of a gang have no names in the network {self.docker_network}. Leave "
                "docker_network out, or name one that `docker network create` has made"
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

    @property
    def capacity(self) -> int:
        return self.containers * self.workers_per_container

    @property
    def num_hosts(self) -> int:
        return self.containers

    def shares_folder(self, path: Path) -> bool:
        return any(
            path.is_relative_to(volume.mount) and not volume.read_only for volume in self.volumes
        )


class Volume(Section):
    """A persistent volume claim that all pods share."""

    claim: str
    mount: str = Field(pattern=r"^/")


class Toleration(Section):
    """A taint of a node that the pods tolerate, as in a pod's specification."""

    key: str | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesHosts(Hosts, Resources):
    """Pods, which are created for a job or a gang and deleted after it."""

    launcher: Literal["kubernetes"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The container image. It must have this project's code and packages
    (`docker/jobs.Dockerfile`). For `runs_on` it ends with its digest, `@sha256:...`."""
    pods: int = Field(1, ge=1, le=1024)
    """Number of hosts for a gang."""
    workers_per_pod: int = Field(1, ge=1, le=64)
    namespace: str = "default"
    volumes: list[Volume] = config_field([], selects_program=True)
    cpu: str | None = Field("1", pattern=r"^([0-9]+(\.[0-9]+)?|[0-9]+m)$")
    memory: str | None = Field("4Gi", pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$")
    service_account: str | None = None
    """The account of the pods. A training with `runs_on` needs one that may create its gang's
    pods. Null is none, and no token."""
    secret: str | None = None
    """A Secret whose entries become variables of the pods, such as the access to a bucket. With
    a `secret` or a `service_account`, Airflow's own credentials are not sent, so one of them must
    have the access."""
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    priority_class: str | None = None
    image_pull_secrets: list[str] = []
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

    def shares_folder(self, path: Path) -> bool:
        return any(path.is_relative_to(volume.mount) for volume in self.volumes)
