"""Nodes that Slurm allocates: one batch job holds them, and one step per node reaches its agent.

We build the cluster ourselves, from the node list in Slurm's own order: TensorFlow's resolver sorts
names as text, so that n10 comes before n2. The end of a process is reported by its agent and never
by srun, which reports the end of the peers as its own.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.config.hosts_clusters import SlurmHosts
from pipeline_ops.errors import MachineError, TrainyardError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.jobs.places.slurm import UNKNOWN_JOB, WAITING, build_sbatch_command, run_slurm
from pipeline_ops.launch.launcher import (
    Launcher,
    build_agent_command,
    build_holder_command,
    log_failed_release,
    wait_until,
)
from pipeline_ops.launch.plan import Host

_KEEP_SECONDS = 60
"""An allocation without agents is given back after that long."""


class SlurmLauncher(Launcher):
    """See `Launcher`.

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
            with log_failed_release(f"the Slurm job {self._job} was", _KEEP_SECONDS):
                run_slurm("scancel", "--quiet", self._job, ignored_error=UNKNOWN_JOB)
            self._job = None

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
    """Builds the batch script, which runs `allocation_holder.py`. Pure.

    Every argument is quoted for the shell, because a path may contain any character.
    """
    return f"#!/bin/sh\nexec {shlex.join(build_holder_command(hosts, str(run), _KEEP_SECONDS))}\n"


def parse_node_address(node: str) -> str | None:
    """The address in the output of `scontrol show node`."""
    match = re.search(r"\bNodeAddr=(\S+)", node)
    return match and match[1]
