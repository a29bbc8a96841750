"""Containers of one Docker daemon: each is a host of the gang, in a network of the gang's own.

The main process of a container is `allocation_holder.py`. A helper process (`container_pipe.py`)
carries the pipe to the agent in it, and replaces a container that has died. The daemon removes the
containers of a launcher that was killed: their agents end with the pipes, the holders without
agents, the containers with their holders.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pipeline_ops.config.hosts_clusters import ContainerHosts
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.jobs.places.container_body import (
    OWNER,
    OWNER_LABEL,
    ContainerUse,
    build_body,
    build_labels,
)
from pipeline_ops.jobs.places.container_daemon import Daemon, ignore_missing
from pipeline_ops.jobs.places.container_pipe import ContainerPipe, ensure_running
from pipeline_ops.launch.launcher import (
    Launcher,
    build_agent_command,
    build_holder_command,
    log_failed_release,
)
from pipeline_ops.launch.plan import Host

_KEEP_SECONDS = 60
"""A container without an agent ends after that long."""
_PIPE_MODULE = "pipeline_ops.jobs.places.container_pipe"
_FORGOTTEN = "24h"


class ContainerLauncher(Launcher):
    """See `Launcher`.

    Args:
      hosts: the containers to create.
      name: the base name of containers and network, unique among living jobs. Each allocation
        appends a number.
      pipeline: the name of the pipeline, for people.
      run: the folder of the train job's attempt, which identifies the agents in the containers.
    """

    def __init__(self, hosts: ContainerHosts, name: str, pipeline: str, run: str):
        self._hosts, self._base_name, self._run, self._pipeline = hosts, name, run, pipeline
        self._daemon = Daemon(hosts.daemon)
        self._num_allocations, self._network = 0, ""
        self._bodies: dict[str, dict[str, Any]] = {}

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        self._num_allocations += 1
        name = f"{self._base_name}-{self._num_allocations}"
        image = self._daemon.find_image(self._hosts)
        check()
        with self._daemon.connect() as api:
            daemon_cores = int(api.info()["NCPU"])
        try:
            self._network = self._hosts.docker_network or self._make_network(name)
            self._bodies = build_gang(
                self._hosts, image, name, self._network, self._pipeline, self._run
            )
            for host, body in self._bodies.items():
                check()
                ensure_running(self._daemon, host, body)
        except TrainyardError:
            self.release()
            raise
        return describe_hosts(self._hosts, name, daemon_cores)

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        pipe = ContainerPipe(
            daemon=self._hosts.daemon,
            container=host.name,
            body=self._bodies[host.name],
            command=build_agent_command(self._hosts, agent),
        )
        return [sys.executable, "-m", _PIPE_MODULE, pipe.model_dump_json()]

    def is_intact(self) -> bool:
        """Containers come back one by one, as long as their network is there."""
        if not self._bodies:
            return False
        with self._daemon.connect() as api:
            return ignore_missing(lambda: api.inspect_network(self._network)) is not None

    def release(self) -> None:
        with log_failed_release(f"the containers {', '.join(self._bodies)} were", _KEEP_SECONDS):
            for host in self._bodies:
                self._daemon.remove(host)
            if self._network and not self._hosts.docker_network:
                with self._daemon.connect() as api:
                    ignore_missing(lambda: api.remove_network(self._network))
        self._bodies, self._network = {}, ""

    def _make_network(self, name: str) -> str:
        """Makes the network of the gang. Those of killed launchers are removed a day later."""
        labels = build_labels(self._pipeline, "train", self._run)
        filters = {"label": [f"{OWNER_LABEL}={OWNER}"], "until": [_FORGOTTEN]}
        with self._daemon.connect() as api:
            api.prune_networks(filters=filters)
            api.create_network(name, driver="bridge", labels=labels)
        return name


def build_gang(
    hosts: ContainerHosts, image: str, name: str, network: str, pipeline: str, run: str
) -> dict[str, dict[str, Any]]:
    """The requests that create the containers of a gang, by their names. Pure."""
    labels = build_labels(pipeline, "train", run)
    return {
        (host := f"{name}-{index}"): build_body(
            hosts,
            image,
            ContainerUse(
                command=build_holder_command(hosts, run, _KEEP_SECONDS),
                labels=labels,
                network=network,
                names=[host],
                gpu_ids=[str(index * hosts.gpus + gpu) for gpu in range(hosts.gpus)],
                is_temporary=True,
            ),
        )
        for index in range(hosts.containers)
    }


def describe_hosts(hosts: ContainerHosts, name: str, daemon_cores: int = 0) -> list[Host]:
    """The hosts of a gang. Pure.

    A container sees all cores of its machine, and shares them with the others or has a limit. So
    the number of its threads follows from here.

    Args:
      hosts: the hosts file.
      name: the name of the gang.
      daemon_cores: the cores of the daemon's host. 0 if they are not known.
    """
    cores = hosts.num_cores or daemon_cores / hosts.containers
    return [
        Host(
            name=(host := f"{name}-{index}"),
            address=host,
            workers=hosts.workers_per_container,
            cores=max(1, int(cores)) if cores else 0,
        )
        for index in range(hosts.containers)
    ]
