"""Opens the place of a task's job, and the launcher of a gang, by the pipeline's config."""

from __future__ import annotations

from pipeline_ops.config.hosts import Hosts
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError
from pipeline_ops.places.local import LocalPlace
from pipeline_ops.places.place import Place, PlaceSection


def open_place(config: PipelineConfig, job: str) -> Place:
    """The place of a task's job."""
    return make_place(config.find_job_hosts(job))


def make_place(hosts: Hosts | None) -> Place:
    """The place that a hosts file describes. Without one, this host."""
    return LocalPlace() if hosts is None else as_section(hosts).open_place()


def as_section(hosts: Hosts) -> PlaceSection:
    """Returns the hosts. Raises ConfigError if the class of their launcher is not a place's."""
    if not isinstance(hosts, PlaceSection):
        raise ConfigError(
            f"launcher {hosts.launcher}: {type(hosts).__module__}.{type(hosts).__name__} must "
            "derive from pipeline_ops.places.place.PlaceSection"
        )
    return hosts
