"""Nodes that Slurm allocates: one batch job holds them, and one step per node reaches its agent.

We build the cluster ourselves, from the node list in Slurm's own order: TensorFlow's resolver sorts
names as text, so that n10 comes before n2. The end of a process is reported by its agent and never
by srun, which reports the end of the peers as its own.
"""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.config.hosts import SlurmHosts
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.launch.launcher import agent_command, our_path
from pipeline_ops.launch.plan import Host

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_COMMAND_SECONDS = 60
_KEEP_SECONDS = 60
"""An allocation without agents is given back after that long."""
_WAITING = ("PENDING", "CONFIGURING")


class SlurmLauncher:
    """See `Launcher`.

    Args:
      hosts: the request to Slurm.
      name: the name of the Slurm job.
      run: the folder of the train job's attempt. The batch job's output goes there.
    """

    def __init__(self, hosts: SlurmHosts, name: str, run: Path):
        self._hosts, self._name, self._run = hosts, name, run
        self._job: str | None = None

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        self._job = _ask(
            *sbatch_command(self._hosts, self._name, self._run),
            text=batch_script(self._hosts, self._run),
        ).partition(";")[0]
        deadline = time.monotonic() + self._hosts.queue_timeout_seconds
        while (state := self._state()) in _WAITING:
            check()
            if time.monotonic() > deadline:
                reason = _ask("squeue", "--noheader", f"--jobs={self._job}", "--format=%R")
                self.release()
                raise MachineError(
                    f"Slurm has not started the job {self._name} within "
                    f"{self._hosts.queue_timeout_seconds} s "
                    f"(queue_timeout_seconds in the hosts file): {reason}"
                )
            time.sleep(_POLL_SECONDS)
        if state != "RUNNING":
            raise MachineError(
                f"the Slurm job {self._job} ({self._name}) ended as {state or 'unknown'} before it "
                f"was used; its output is {self._run / 'slurm.log'}"
            )
        nodes = _ask(
            "scontrol",
            "show",
            "hostnames",
            _ask("squeue", "--noheader", f"--jobs={self._job}", "--format=%N"),
        ).split()
        return [
            Host(
                name=node,
                address=address_of(_ask("scontrol", "show", "node", "--oneliner", node)) or node,
                workers=self._hosts.workers_per_node,
                cores=self._hosts.cores_per_node or 0,
            )
            for node in nodes
        ]

    def command(self, place: Host, agent: AgentSpec) -> list[str]:
        return [
            "srun",
            f"--jobid={self._job}",
            f"--nodelist={place.name}",
            "--nodes=1",
            "--ntasks=1",
            "--overlap",
            "--cpu-bind=none",
            "--mpi=none",
            "--quiet",
            *agent_command(self._hosts, agent),
        ]

    def is_intact(self) -> bool:
        return self._job is not None and self._state() == "RUNNING"

    def release(self) -> None:
        if self._job is not None:
            try:
                _ask("scancel", "--quiet", self._job, forgives="Invalid job id")
            except (
                TrainyardError
            ) as error:  # the allocation ends by itself, and the training must not be lost for that
                _log.warning(
                    "the Slurm job %s was not cancelled, and ends in %d s: %s",
                    self._job,
                    _KEEP_SECONDS,
                    error,
                )
            self._job = None

    def _state(self) -> str:
        """The state of the Slurm job, or an empty string for a job that Slurm has forgotten."""
        return _ask(
            "squeue",
            "--noheader",
            f"--jobs={self._job}",
            "--states=all",
            "--format=%T",
            forgives="Invalid job id",
        )


def sbatch_command(hosts: SlurmHosts, name: str, run: Path) -> list[str]:
    """Builds the sbatch command. Pure.

    A dead node must not end the others (--no-kill), and Slurm must not start the job again
    (--no-requeue).
    """
    nodes = f"{hosts.min_nodes}-{hosts.nodes}" if hosts.min_nodes else str(hosts.nodes)
    options = {
        "--job-name": name,
        "--nodes": nodes,
        "--ntasks-per-node": "1",
        "--output": str(run / "slurm.log"),
        "--partition": hosts.partition,
        "--account": hosts.account,
        "--time": hosts.time_limit,
        "--cpus-per-task": hosts.cores_per_node,
    }
    return [
        "sbatch",
        "--parsable",
        "--no-requeue",
        "--no-kill",
        *(f"{key}={value}" for key, value in options.items() if value),
        *([] if hosts.cores_per_node else ["--exclusive"]),
        *hosts.arguments,
    ]


def batch_script(hosts: SlurmHosts, run: Path) -> str:
    """Builds the batch script, which runs `allocation_holder.py`. Pure.

    Every word is quoted for the shell, because a path may contain any character.
    """
    keeper = [
        hosts.python or sys.executable,
        "-m",
        "pipeline_ops.launch.allocation_holder",
        str(run),
        str(_KEEP_SECONDS),
    ]
    return f"#!/bin/sh\nexec {shlex.join([*our_path(hosts), *keeper])}\n"


def address_of(node: str) -> str | None:
    """The address in the output of `scontrol show node`."""
    found = re.search(r"\bNodeAddr=(\S+)", node)
    return found and found[1]


def _ask(*argv: str, text: str | None = None, forgives: str = "") -> str:
    """Returns the output of a Slurm command.

    Raises:
      MachineError: Slurm is not there, or does not answer.
      ConfigError: Slurm refuses the request of the hosts file.
    """
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=_COMMAND_SECONDS
        )
    except FileNotFoundError:
        raise ConfigError(
            f"{argv[0]} is not installed on this machine, and the hosts file says launcher: slurm"
        ) from None
    except subprocess.TimeoutExpired:
        raise MachineError(f"{argv[0]} has not answered within {_COMMAND_SECONDS} s") from None
    if done.returncode == 0 or (forgives and forgives in done.stderr):
        return done.stdout.strip()
    words = " ".join(done.stderr.split())
    if argv[0] == "sbatch" and not re.search(r"[Uu]nable to contact|timed out|temporarily", words):
        raise ConfigError(f"Slurm refuses the job: {words}; mend the hosts file")
    raise MachineError(f"{' '.join(argv[:3])}: {words or f'exit status {done.returncode}'}")
