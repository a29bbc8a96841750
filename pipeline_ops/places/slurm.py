"""Slurm: a job is a batch job of one node. The commands that gangs use as well are here, too.

The name of the batch job follows from the attempt, so a job is found by its name. Slurm never
starts it again by itself (`--no-requeue`): Airflow's next try does.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline_ops.config.hosts import SlurmHosts
from pipeline_ops.contract.cancellation import GRACE_SECONDS
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.places.place import (
    OWN_NAMES,
    JobLaunch,
    JobState,
    Place,
    build_init_command,
    build_job_environment,
    name_job,
    read_tail,
)
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host import Finding
from pipeline_ops.system.processes import wait_until_gone
from pipeline_ops.user_code.interpreter import read_versions

WAITING = ("PENDING", "CONFIGURING")
UNKNOWN_JOB = "Invalid job id"
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_ENDINGS = {
    "OUT_OF_MEMORY": "it used more memory than it may. Raise memory_per_node in the hosts file",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "it was preempted by another job",
    "TIMEOUT": "its time limit (--time) was over. Raise it in arguments of the hosts file",
    "CANCELLED": "it was cancelled in Slurm",
    "BOOT_FAIL": "its node did not start",
}
_COMMAND_SECONDS = 60
_POLL_SECONDS = 0.2
_OUTPUT = "slurm.log"


class _BatchJob(NamedTuple):
    state: str
    reason: str
    submitted: str
    number: str


class SlurmPlace(Place):
    """See `Place`."""

    def __init__(self, hosts: SlurmHosts):
        self._hosts = hosts
        self.queue_seconds = hosts.queue_timeout_seconds

    def start(self, launch: JobLaunch) -> None:
        """Submits the batch job. Of two at the same time, one starts the job (`init_process`)."""
        name, folder = name_job(launch.attempt), launch.attempt.folder
        if self._query(name):
            return
        log = folder.local / _OUTPUT if folder.is_local else Path(os.devnull)
        comment = f"--comment={launch.job} of {launch.pipeline}"
        run_slurm(
            *build_sbatch_command(self._hosts, name, log, "1"),
            comment,
            text=f"#!/bin/sh\nexec {shlex.join(build_init_command(self._hosts, launch))}\n",
            environment=build_job_environment(os.environ)
            | {**launch.environment, **self._hosts.environment},
        )

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        found = self._query(name_job(attempt))
        if not found:
            return JobState("absent", f"Slurm does not know the job in {attempt.folder}")
        if any(job.state in _RUNNING for job in found):
            return JobState("running")
        if all(job.state in WAITING for job in found):
            return self._to_queue_state(found[0])
        ended = next(job for job in found if job.state not in WAITING)
        ending = _ENDINGS.get(ended.state, f"its state in Slurm is {ended.state}")
        code = _read_exit_code(ended.number)
        return JobState("ended", f"the job ended without a status: {ending}", code)

    def _to_queue_state(self, job: _BatchJob) -> JobState:
        submitted = time.mktime(time.strptime(job.submitted, "%Y-%m-%dT%H:%M:%S"))
        reason, waited_seconds = job.reason, time.time() - submitted
        if waited_seconds < self.queue_seconds:
            return JobState("waiting", f"waits in Slurm's queue: {reason}")
        return JobState(
            "ended",
            f"Slurm has not started the job within {self.queue_seconds} s "
            f"(queue_timeout_seconds in the hosts file): {reason}",
        )

    def read_output(self, attempt: Attempt[StorePath]) -> str:
        """The output of the batch job, if its root is a folder. Else the log is in the store."""
        if not attempt.folder.is_local:
            return ""
        return read_tail(attempt.folder / _OUTPUT)

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        name = name_job(attempt)
        run_slurm("scancel", "--quiet", f"--name={name}", f"--user={getpass.getuser()}")
        if not wait_until_gone(lambda: self._is_listed(attempt), GRACE_SECONDS, _POLL_SECONDS):
            run_slurm(
                *("scancel", "--quiet", "--full", "--signal=KILL"),
                *(f"--name={name}", f"--user={getpass.getuser()}"),
            )

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        """Ends the batch job, also one in the queue. Slurm ends its processes on the node."""
        if self._is_listed(attempt):
            self.cancel(attempt)
        return not self._is_listed(attempt)

    def _is_listed(self, attempt: Attempt[StorePath]) -> bool:
        found = self._query(name_job(attempt))
        return any(job.state in (*_RUNNING, *WAITING) for job in found)

    def check(self) -> Iterator[Finding]:
        """Asks Slurm whether it would accept a job, by sbatch's own test."""
        command = build_sbatch_command(self._hosts, f"{OWN_NAMES}test", Path(os.devnull), "1")
        run_slurm(*command, "--test-only", text="#!/bin/sh\n")
        yield from ()

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        """The versions in the interpreter of the nodes, which must be at the same path here."""
        python = Path(self._hosts.python) if self._hosts.python else None
        return read_versions(python, packages)

    def _query(self, name: str) -> list[_BatchJob]:
        lines = run_slurm(
            *("squeue", "--noheader", f"--name={name}", f"--user={getpass.getuser()}"),
            *("--states=all", "--format=%T|%r|%V|%A"),
        ).splitlines()
        return [_BatchJob(*line.split("|")) for line in lines]


def _read_exit_code(number: str) -> ExitCode:
    """Returns how the end of a batch job counts, by the exit code of its init process."""
    text = run_slurm("scontrol", "show", "job", "--oneliner", number, ignored_error=UNKNOWN_JOB)
    found = re.search(r"\bExitCode=([0-9]+):", text)
    is_permanent = found is not None and int(found[1]) in (ExitCode.CONFIG, ExitCode.DATA)
    return ExitCode(int(found[1])) if found and is_permanent else ExitCode.RETRY


def build_sbatch_command(hosts: SlurmHosts, name: str, log: Path, nodes: str) -> list[str]:
    """Builds the sbatch command, whose output goes to `log` on the first node. Pure.

    A dead node must not end the others (--no-kill), and Slurm must not start the job again
    (--no-requeue). `nodes` is their number, or the least and the largest number with a hyphen.
    """
    options = {
        "--job-name": name,
        "--nodes": nodes,
        "--ntasks-per-node": "1",
        "--output": str(log),
        "--cpus-per-task": hosts.cores_per_node,
        "--mem": hosts.memory_per_node,
        "--gpus-per-node": hosts.gpus_per_node,
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


def run_slurm(
    *argv: str,
    text: str | None = None,
    ignored_error: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Returns the output of a Slurm command. Raises ConfigError if Slurm refuses a request."""
    try:
        result = subprocess.run(
            argv,
            input=text,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            env={k: v for k, v in (environment or os.environ).items() if k != "SLURM_TIME_FORMAT"},
        )
    except FileNotFoundError:
        raise ConfigError(
            f"{argv[0]} is not installed on this machine, and the hosts file has launcher: slurm",
            "Install it or choose another launcher",
        ) from None
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{' '.join(argv[:3])} has not answered within {_COMMAND_SECONDS} s"
        ) from None
    if result.returncode == 0 or (ignored_error and ignored_error in result.stderr):
        return result.stdout.strip()
    error_message = " ".join(result.stderr.split())
    if argv[0] == "sbatch" and not re.search(
        r"[Uu]nable to contact|timed out|temporarily", error_message
    ):
        raise ConfigError(f"Slurm refuses the job: {error_message}", "Correct the hosts file")
    raise MachineError(
        f"{' '.join(argv[:3])}: {error_message or f'exit status {result.returncode}'}"
    )
