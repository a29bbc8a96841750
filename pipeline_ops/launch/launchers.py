"""Launchers: get hosts, name the command that carries a pipe to an agent, release the hosts.

They differ in nothing else: the messages through the pipes and the monitoring are the same. Here
are the interface, this machine, hosts over ssh and the nodes of Slurm. `kubernetes.py` has pods.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from pipeline_ops.config.hosts import SshHosts
from pipeline_ops.config.hosts_base import Hosts
from pipeline_ops.config.hosts_clusters import SlurmHosts
from pipeline_ops.errors import MachineError, TrainyardError
from pipeline_ops.jobs.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.jobs.places.environment import build_python_command
from pipeline_ops.jobs.places.slurm import UNKNOWN_JOB, WAITING, build_sbatch_command, run_slurm
from pipeline_ops.jobs.places.ssh import build_ssh_command
from pipeline_ops.launch.plan import Host

_log = logging.getLogger(__name__)

_HOLDER_MODULE = "pipeline_ops.launch.allocation_holder"
_POLL_SECONDS = 0.5
_KEEP_NODES_SECONDS = 60
"""A Slurm job without agents ends after that long."""


class Launcher(Protocol):
    """The source of the hosts of a gang."""

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        """Returns the hosts. May wait in a queue.

        While it waits, it calls `check`, which raises if the hosts are no longer needed.

        Raises:
          MachineError: there are no hosts now.
          ConfigError: there will never be any.
        """

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        """The command that carries a pipe to the agent of a host."""

    def is_intact(self) -> bool:
        """Returns False if the hosts have been taken away as a whole and must be reallocated."""
        return True

    def release(self) -> None:
        """Releases the hosts, once no process of the gang runs on them."""
        return


class LocalLauncher(Launcher):
    """This machine as the only host.

    Its agent is in the job's process group, so a signal to the job reaches the gang, too. `workers`
    is the most that it can take, and `cores` what they share, 0 for all cores.
    """

    def __init__(self, workers: int = 1024, cores: int = 0):
        self._host = Host(name="localhost", address="127.0.0.1", workers=workers, cores=cores)

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        return [self._host]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        return [sys.executable, "-m", AGENT_MODULE, agent.run]


class SshLauncher(Launcher):
    """Hosts over ssh: one ssh process per host carries the pipe to its agent while the gang lives.

    When this end dies, sshd closes the agent's input, which ends the gang there. When the network
    is cut, both ends notice by silence.
    """

    def __init__(self, hosts: SshHosts):
        self._hosts = hosts

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        return [
            Host(
                name=host.name,
                address=host.address or host.name,
                workers=host.workers,
                cores=host.cores or 0,
            )
            for host in self._hosts.hosts
        ]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        return build_ssh_command(self._hosts, host.name, build_agent_command(self._hosts, agent))


class SlurmLauncher(Launcher):
    """Nodes that Slurm allocates: one batch job holds them, and one step per node has its agent.

    We build the cluster ourselves, from the node list in Slurm's own order: TensorFlow's resolver
    sorts names as text, so that n10 comes before n2. The end of a process is reported by its agent
    and never by srun, which reports the end of the peers as its own.

    Args:
      hosts: the request to Slurm.
      name: the name of the Slurm job.
      run: the folder of the train job's attempt.
      is_shared: whether the nodes see that folder. The batch job's output goes there then.
    """

    def __init__(self, hosts: SlurmHosts, name: str, run: Path, is_shared: bool = True):
        self._hosts, self._name, self._run = hosts, name, run
        self._log = run / "slurm.log" if is_shared else Path(os.devnull)
        self._job: str | None = None

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        self._job = run_slurm(
            *build_sbatch_command(self._hosts, self._name, self._log, count_nodes(self._hosts)),
            text=build_batch_script(self._hosts, self._run),
        ).partition(";")[0]
        try:
            self._wait_for_nodes(check)
        except TrainyardError:
            self.release()
            raise
        nodes = run_slurm("scontrol", "show", "hostnames", self._query("%N")).split()
        return [self._describe_node(node) for node in nodes]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        return [
            "srun",
            f"--jobid={self._job}",
            f"--nodelist={host.name}",
            "--nodes=1",
            "--ntasks=1",
            "--overlap",
            "--cpu-bind=none",
            "--mpi=none",
            "--quiet",
            *build_agent_command(self._hosts, agent),
        ]

    def is_intact(self) -> bool:
        return self._job is not None and self._read_state() == "RUNNING"

    def release(self) -> None:
        if self._job is not None:
            with log_failed_release(f"the Slurm job {self._job} was", _KEEP_NODES_SECONDS):
                run_slurm("scancel", "--quiet", self._job, ignored_error=UNKNOWN_JOB)
            self._job = None

    def _wait_for_nodes(self, check: Callable[[], None]) -> None:
        timeout_seconds = self._hosts.queue_timeout_seconds
        if not wait_until(lambda: self._read_state() not in WAITING, check, timeout_seconds):
            raise MachineError(
                f"Slurm has not started the job {self._name} within {timeout_seconds} s "
                f"(queue_timeout_seconds in the hosts file): {self._query('%R')}"
            )
        if (state := self._read_state()) != "RUNNING":
            raise MachineError(
                f"the Slurm job {self._job} ({self._name}) ended as {state or 'unknown'} before it "
                f"was used. Its output is {self._log}"
            )

    def _describe_node(self, node: str) -> Host:
        description = run_slurm("scontrol", "show", "node", "--oneliner", node)
        return Host(
            name=node,
            address=parse_node_address(description) or node,
            workers=self._hosts.workers_per_node,
            cores=self._hosts.cores_per_node or 0,
        )

    def _read_state(self) -> str:
        """The state of the Slurm job, or an empty string for a job that Slurm has forgotten."""
        return self._query("%T", "--states=all", ignored_error=UNKNOWN_JOB)

    def _query(self, field: str, *options: str, ignored_error: str = "") -> str:
        arguments = ["--noheader", f"--jobs={self._job}", f"--format={field}", *options]
        return run_slurm("squeue", *arguments, ignored_error=ignored_error)


def count_nodes(hosts: SlurmHosts) -> str:
    """The number of nodes for sbatch, or the least and the largest number."""
    return f"{hosts.min_nodes}-{hosts.nodes}" if hosts.min_nodes else str(hosts.nodes)


def build_batch_script(hosts: SlurmHosts, run: Path) -> str:
    """The script of the batch job. All is quoted for the shell: a path may have any character."""
    holder = build_holder_command(hosts, str(run), _KEEP_NODES_SECONDS)
    return f"#!/bin/sh\nexec {shlex.join(holder)}\n"


def parse_node_address(node: str) -> str | None:
    """The address in the output of `scontrol show node`."""
    match = re.search(r"\bNodeAddr=(\S+)", node)
    return match and match[1]


def build_agent_command(hosts: Hosts, agent: AgentSpec) -> list[str]:
    """The command that starts an agent on another host.

    The agent's specification follows through the pipe, because other users of the hosts see command
    lines and the specification contains the environment.
    """
    return build_python_command(hosts, AGENT_MODULE, agent.run)


def build_holder_command(hosts: Hosts, run: str, idle_seconds: int) -> list[str]:
    """The command of the main process of an allocation, `allocation_holder.py`."""
    return build_python_command(hosts, _HOLDER_MODULE, run, str(idle_seconds))


def wait_until(
    is_ready: Callable[[], bool], check: Callable[[], None], timeout_seconds: float
) -> bool:
    """Waits for hosts and calls `check` while waiting. Returns False after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not is_ready():
        check()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


@contextlib.contextmanager
def log_failed_release(hosts: str, idle_seconds: int) -> Iterator[None]:
    """Logs an error instead of raising it: a failed release must not cost the training."""
    try:
        yield
    except TrainyardError as error:
        _log.warning("%s not released. It ends in %d s: %s", hosts, idle_seconds, error)
