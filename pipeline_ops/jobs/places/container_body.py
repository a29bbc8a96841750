"""The description of a container, as the Docker API takes it. Pure.

A container has no right that it does not need, and shares nothing: what its job writes is in a
volume of its own, which is removed with the container.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline_ops.config.hosts import ContainerHosts
from pipeline_ops.jobs.places.container_daemon import WORK
from pipeline_ops.jobs.workspace import LOCAL_FOLDER_VARIABLE

OWNER_LABEL, PIPELINE_LABEL = "trainyard.owner", "trainyard.pipeline"
JOB_LABEL, ATTEMPT_LABEL = "trainyard.job", "trainyard.attempt"
OWNER = "trainyard"
_SHARED_MEMORY_BYTES = 1 << 30
"""The size of /dev/shm, through which GPUs exchange gradients. It counts as memory once used."""
_MAX_PROCESSES = 16384
"""Threads count, too. It stops what starts processes without an end."""
_TEMPORARY = "rw,nosuid,nodev,noexec,size=256m,mode=1777"
_LOG_OPTIONS = {"max-size": "10m", "max-file": "2"}


@dataclasses.dataclass(frozen=True)
class ContainerUse:
    """The purpose of one container.

    Attributes:
      command: the command of its first process.
      labels: for people, and for those who remove it.
      environment: variables besides those of the image. All users of the daemon can read them.
      network: the Docker network. None is the default one.
    """

    command: Sequence[str]
    labels: Mapping[str, str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    network: str | None = None


def build_labels(pipeline: str, job: str, attempt: str) -> dict[str, str]:
    return {
        OWNER_LABEL: OWNER,
        PIPELINE_LABEL: pipeline,
        JOB_LABEL: job,
        ATTEMPT_LABEL: attempt,
    }


def build_body(hosts: ContainerHosts, image: str, use: ContainerUse) -> dict[str, Any]:
    """Builds the request that creates a container.

    Args:
      hosts: the hosts file.
      image: the id of the image.
      use: the rest.
    """
    program, *arguments = use.command
    folders = {"HOME": WORK, "TMPDIR": WORK, LOCAL_FOLDER_VARIABLE: f"{WORK}/local"}
    return {
        "Image": image,
        "Entrypoint": [program],
        "Cmd": arguments,
        "Env": [f"{key}={value}" for key, value in {**folders, **use.environment}.items()],
        "WorkingDir": WORK,
        "Labels": dict(use.labels),
        "Volumes": {WORK: {}},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _build_limits(hosts) | _build_rights(hosts, use.network),
    }


def _build_limits(hosts: ContainerHosts) -> dict[str, Any]:
    limits: dict[str, Any] = {
        "PidsLimit": _MAX_PROCESSES,
        "ShmSize": min(hosts.memory_bytes or _SHARED_MEMORY_BYTES, _SHARED_MEMORY_BYTES),
    }
    if hosts.num_cores:
        limits["NanoCpus"] = int(hosts.num_cores * 1e9)
    if hosts.memory_bytes:  # no swap besides: a job that needs it is hopelessly slow
        limits |= {"Memory": hosts.memory_bytes, "MemorySwap": hosts.memory_bytes}
    if hosts.gpus:
        devices = {"Driver": "", "Capabilities": [["gpu"]], "Count": hosts.gpus}
        limits["DeviceRequests"] = [devices]
    return limits


def _build_rights(hosts: ContainerHosts, network: str | None) -> dict[str, Any]:
    return {
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "RestartPolicy": {"Name": "no"},
        "Tmpfs": {"/tmp": _TEMPORARY},  # noqa: S108
        "LogConfig": {"Type": "json-file", "Config": _LOG_OPTIONS},
        "Mounts": [
            {
                "Type": "bind",
                "Source": volume.folder,
                "Target": volume.mount,
                "ReadOnly": volume.read_only,
            }
            for volume in hosts.volumes
        ],
        **({"NetworkMode": network} if network else {}),
    }
