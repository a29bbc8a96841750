"""Slurm: a job is a batch job of one node, and the hosts of a gang are the nodes of another one.

The name of the batch job follows from the attempt, so a job is found by its name. Slurm never
starts it again by itself (`--no-requeue`): Airflow's next try does.
"""

from __future__ import annotations

import getpass
import itertools
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from pipeline_ops.config.fields import FieldError, config_field
from pipeline_ops.contract.cancellation import GRACE_SECONDS
from pipeline_ops.contract.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError, ExitCode, MachineError, TrainyardError
from pipeline_ops.job.runner import Job
from pipeline_ops.places.launcher import Host, Launcher, log_failed_release, wait_until
from pipeline_ops.places.place import (
    OWN_NAMES,
    JobLaunch,
    JobState,
    Place,
    PlaceSection,
    build_init_command,
    build_job_environment,
    build_python_command,
    name_job,
    read_tail,
)
from pipeline_ops.places.resources import match_pattern
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import wait_until_gone
from pipeline_ops.user_code.interpreter import read_versions

_HOLDER_MODULE = "pipeline_ops.places.allocation_holder"
_KEEP_NODES_SECONDS = 60
"""A Slurm job without agents ends after this time."""
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


_SlurmMemory = Annotated[
    str, match_pattern("[0-9]+[KMGT]?", "a number with K, M, G or T, such as 8G for Slurm")
]
_OWN = "Trainyard sets it, to find the job again"
_OWN_OPTIONS = {
    **dict.fromkeys(("--nodes", "-N"), "Write the keys nodes and min_nodes"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node"), "Write the key workers_per_node"),
    **dict.fromkeys(("--job-name", "-J", "--array", "-a", "--wrap", "--parsable"), _OWN),
    "--requeue": "Airflow tries a task again",
}
"""Options of sbatch that would replace those of `build_sbatch_command`."""
_QUEUE_OPTIONS = ("--partition=", "--account=", "--time=")


class SlurmHosts(PlaceSection):
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
    arguments: list[str] = config_field([], selects_program=True)
    """Further options of sbatch, such as `--partition=gpu`, `--time=2-00:00:00` or
    `--gres=gpu:4`. `--partition`, `--account` and `--time` are not in the fingerprint."""
    queue_timeout_seconds: int = Field(24 * 3600, ge=1)
    """Time to wait in the queue before the task is tried again."""

    @field_validator("arguments")
    @classmethod
    def _validate_arguments(cls, arguments: list[str]) -> list[str]:
        for before, each in itertools.pairwise(["", *arguments]):
            is_value = before.startswith("-") and "=" not in before  # as in [-p, main]
            if (not each.startswith("-") and not is_value) or re.search(r"\s-", each):
                raise ValueError(
                    f"must be one option of sbatch each, such as --gres=gpu:4, got {each!r}"
                )
            option = each.partition("=")[0]
            if option in _OWN_OPTIONS:
                raise ValueError(f"must not have {option}. {_OWN_OPTIONS[option]}")
        return arguments

    @model_validator(mode="after")
    def _validate_nodes(self) -> SlurmHosts:
        if self.min_nodes and self.min_nodes > self.nodes:
            rule = f"must not be above nodes ({self.nodes}), got {self.min_nodes}"
            raise FieldError("min_nodes", rule)
        return self

    @property
    def code_digests(self) -> dict[str, str]:
        arguments = [each for each in self.arguments if not each.startswith(_QUEUE_OPTIONS)]
        return super(SlurmHosts, self.model_copy(update={"arguments": arguments})).code_digests

    @property
    def capacity(self) -> int:
        return self.nodes * self.workers_per_node

    @property
    def num_hosts(self) -> int:
        return self.nodes

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node

    def open_place(self) -> SlurmPlace:
        return SlurmPlace(self)

    def make_launcher(self, job: Job) -> SlurmLauncher:
        return SlurmLauncher(self, job)

    def list_hosts(self) -> list[Host]:
        names = [f"node-{number}" for number in range(1, self.nodes + 1)]
        cores = self.cores_per_node or 0
        return [Host(name=n, address=n, workers=self.workers_per_node, cores=cores) for n in names]

    def describe_gang(self, pipeline: str, run: Path, deadline_seconds: int) -> Iterator[str]:
        log = run / _OUTPUT
        yield " ".join(build_sbatch_command(self, f"{OWN_NAMES}{pipeline}", log, count_nodes(self)))
        yield build_batch_script(self, run).strip()


class SlurmLauncher(Launcher):
    """Nodes that Slurm allocates: one batch job holds them, and one step per node runs its agent.

    We build the cluster ourselves, from the node list in Slurm's own order: TensorFlow's resolver
    sorts names as text, so that n10 comes before n2. Agents report the exits of processes, and srun
    does not, because it reports the exit of a peer as its own.

    The output of the batch job goes to the folder of the attempt if the nodes see it.
    """

    def __init__(self, hosts: SlurmHosts, job: Job):
        self._hosts, self._run = hosts, job.attempt.folder
        self._name = f"trainyard-{job.request.pipeline}"
        self._log = Path(os.devnull) if job.stored_attempt else self._run / "slurm.log"
        self._job: str | None = None

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        self._job = run_slurm(
            *build_sbatch_command(self._hosts, self._name, self._log, count_nodes(self._hosts)),
            text=build_batch_script(self._hosts, self._run),
        ).partition(";")[0]
        try:
            self._wait_for_nodes(check)
            addresses = {
                node: parse_node_address(run_slurm("scontrol", "show", "node", "--oneliner", node))
                for node in run_slurm("scontrol", "show", "hostnames", self._query("%N")).split()
            }
        except TrainyardError:
            self.release()
            raise
        return [
            Host(
                name=node,
                address=address or node,
                workers=self._hosts.workers_per_node,
                cores=self._hosts.cores_per_node or 0,
            )
            for node, address in addresses.items()
        ]

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
            *build_python_command(self._hosts, AGENT_MODULE, agent.run),
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

    def _read_state(self) -> str:
        """The state of the Slurm job, or an empty string for a job that Slurm has forgotten."""
        return self._query("%T", "--states=all", ignored_error=UNKNOWN_JOB)

    def _query(self, field: str, *options: str, ignored_error: str = "") -> str:
        arguments = ["--noheader", f"--jobs={self._job}", f"--format={field}", *options]
        return run_slurm("squeue", *arguments, ignored_error=ignored_error)


def count_nodes(hosts: SlurmHosts) -> str:
    """The number of nodes for sbatch, or its range as `MIN-MAX`."""
    return f"{hosts.min_nodes}-{hosts.nodes}" if hosts.min_nodes else str(hosts.nodes)


def build_batch_script(hosts: SlurmHosts, run: Path) -> str:
    """The script of the batch job. All words are quoted: a path may have any character."""
    holder = build_python_command(hosts, _HOLDER_MODULE, str(run), str(_KEEP_NODES_SECONDS))
    return f"#!/bin/sh\nexec {shlex.join(holder)}\n"


def parse_node_address(node: str) -> str | None:
    """The address in the output of `scontrol show node`."""
    match = re.search(r"\bNodeAddr=(\S+)", node)
    return match and match[1]
