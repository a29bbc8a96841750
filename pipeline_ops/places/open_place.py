"""Opens the place where a task's job runs, by the pipeline's config.

The libraries of a place are imported only if a config names such a place.
"""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.config.hosts import ContainerHosts, Hosts, KubernetesHosts, SlurmHosts, SshHosts
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.places.local import LocalPlace
from pipeline_ops.places.place import Place


def open_place(config: PipelineConfig, job: str) -> Place:
    """The place of a task's job."""
    return make_place(config.find_job_hosts(job), config.resolve_interpreter(job))


def make_place(hosts: Hosts | None, python: Path | None = None) -> Place:
    """The place that a hosts file describes.

    Without one, this host, with the interpreter `python`.
    """
    match hosts:
        case None:
            return LocalPlace(python)
        case SshHosts():
            from pipeline_ops.places.ssh import SshPlace

            return SshPlace(hosts)
        case SlurmHosts():
            from pipeline_ops.places.slurm import SlurmPlace

            return SlurmPlace(hosts)
        case ContainerHosts():
            from pipeline_ops.places.container import ContainerPlace

            return ContainerPlace(hosts)
        case KubernetesHosts():
            from pipeline_ops.places.kubernetes import KubernetesPlace

            return KubernetesPlace(hosts)
        case _:
            raise TypeError(f"unknown place: {hosts}")
