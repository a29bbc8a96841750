"""Launchers: each allocates hosts, builds the commands that connect to agents, releases the hosts.

They differ in nothing else: the messages through the pipes and the monitoring are the same. The
start parameters of an agent contain secrets, so they go through the pipe: other users of a host see
command lines. `host_pool.py` uses a launcher.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from pipeline_ops.config.hosts import (
    Hosts,
    KubernetesHosts,
    LocalHosts,
    SlurmHosts,
    SshHosts,
    TfConfigHosts,
)
from pipeline_ops.contract.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.job.runner import Job
from pipeline_ops.launch import joining
from pipeline_ops.launch.plan import Host
from pipeline_ops.places.kubernetes import GANG_RIGHTS, Kind, KubernetesClient, is_running
from pipeline_ops.places.kubernetes_manifest import build_gang, set_owner
from pipeline_ops.places.kubernetes_state import may_replace_pods, to_pod_state
from pipeline_ops.places.place import build_python_command
from pipeline_ops.places.pod_exec import build_exec_command
from pipeline_ops.places.slurm import UNKNOWN_JOB, WAITING, build_sbatch_command, run_slurm
from pipeline_ops.places.ssh import build_ssh_command
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.system.locks import ResourceHeld, exclusive_lock

_log = logging.getLogger(__name__)

_HOLDER_MODULE = "pipeline_ops.launch.allocation_holder"
_POLL_SECONDS = 0.5
_KEEP_NODES_SECONDS = 60
"""A Slurm job without agents ends after this time."""
_KEEP_PODS_SECONDS = 300
_KINDS: Mapping[str, Kind] = {
    "Job": "jobs",
    "Service": "services",
    "NetworkPolicy": "networkpolicies",
}
_INDEX = "batch.kubernetes.io/job-completion-index"


class Launcher(Protocol):
    """The source of the hosts of a gang."""

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        """Returns the hosts. May wait in a queue.

        While it waits, it calls `check`, which raises if the hosts are no longer needed. Raises
        MachineError if there are no hosts now, and ConfigError if there will never be any.
        """

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        """Returns the command that carries a pipe to the agent of a host. Called in a thread.

        Raises MachineError if a retry may find it, and ConfigError if no retry can.
        """

    def is_intact(self) -> bool:
        """Returns False if the hosts have been taken away as a whole and must be reallocated.

        Called in a thread.
        """
        return True

    def release(self) -> None:
        """Releases the hosts, once no process of the gang runs on them."""
        return


class LocalLauncher(Launcher):
    """This machine as the only host. At most `workers` share its `cores`, 0 for all cores.

    Its agent is in the job's process group, so a signal to the job reaches the gang, too.
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
    is cut, both ends notice the silence.
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
        command = build_python_command(self._hosts, AGENT_MODULE, agent.run)
        return build_ssh_command(self._hosts, host.name, command)


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


class KubernetesLauncher(Launcher):
    """Pods of an Indexed Job: created for a gang, reached through `pod_exec.py`, then deleted.

    A headless Service gives each pod a name of its own, so a restarted pod has its old address.
    `allocation_holder.py` holds the pods and does nothing else. Agents are started in them, as on
    any other host.

    All objects are named `name` with the number of the allocation. `name` must be unique among live
    jobs. `run` identifies the agents. The cluster ends the pods after `deadline_seconds` at most.
    """

    def __init__(self, hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int):
        self._hosts, self._base_name, self._run = hosts, name, run
        self._deadline_seconds = deadline_seconds
        self._num_allocations, self._name = 0, ""
        self._client = KubernetesClient(hosts.namespace, hosts.context)

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        hosts, client = self._hosts, self._client
        if self._num_allocations == 0:
            client.check_rights(GANG_RIGHTS)
        self._num_allocations += 1
        name = self._name = f"{self._base_name}-{self._num_allocations}"
        try:
            manifest, *others = build_manifests(hosts, name, self._run, self._deadline_seconds)
            job = client.create("jobs", manifest) or client.read("jobs", name)
            if job is None:
                raise MachineError(f"the Job {name} was deleted during its creation")
            for other in others:
                client.create(_KINDS[other["kind"]], set_owner(other, job))
            self._wait_for_pods(check)
        except BaseException:
            self.release()
            raise
        return [
            Host(
                name=f"{name}-{index}",
                address=f"{name}-{index}.{name}.{hosts.namespace}.svc",
                workers=hosts.workers_per_pod,
            )
            for index in range(hosts.pods)
        ]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        # A restarted pod has another name, with the same index.
        name = host.name
        for pod in filter(is_running, self._client.list_pods(self._name)):
            metadata = pod["metadata"]
            if host.name == f"{self._name}-{metadata['annotations'][_INDEX]}":
                name = metadata["name"]
        command = build_python_command(self._hosts, AGENT_MODULE, agent.run)
        return build_exec_command(self._hosts.namespace, self._hosts.context, name, command)

    def is_intact(self) -> bool:
        """Returns whether the Job still replaces lost pods.

        It does not after the success of a pod, which follows a long time without an agent.
        """
        job = self._client.read("jobs", self._name) if self._name else None
        return job is not None and may_replace_pods(job)

    def release(self) -> None:
        if self._name:
            with log_failed_release(f"the pods of {self._name} were", _KEEP_PODS_SECONDS):
                for kind in _KINDS.values():
                    self._client.delete(kind, self._name)
            self._name = ""

    def _wait_for_pods(self, check: Callable[[], None]) -> None:
        timeout_seconds = self._hosts.queue_timeout_seconds
        if not wait_until(self._are_all_running, check, timeout_seconds):
            pods, wanted = self._client.list_pods(self._name), self._hosts.pods
            states = {to_pod_state(pod, self._client.server_time).message for pod in pods}
            cause = "; ".join(sorted(filter(None, states))) or "Kubernetes has created none"
            raise MachineError(
                f"{sum(map(is_running, pods))} of {wanted} pods of the Job {self._name} run after "
                f"{timeout_seconds} s (queue_timeout_seconds in the hosts file). {cause}"
            )

    def _are_all_running(self) -> bool:
        """Returns whether all pods run. Raises ConfigError if one of them can never run."""
        pods = self._client.list_pods(self._name)
        for pod in pods:
            state = to_pod_state(pod, self._client.server_time)
            if state.phase == "ended" and not state.exit_code.is_retried:
                raise ConfigError(f"the pod {pod['metadata']['name']}: {state.message}")
        return sum(map(is_running, pods)) >= self._hosts.pods


class TfConfigLauncher(Launcher):
    """Machines on which a cluster manager has started `joining.py`. The manager keeps them.

    TF_CONFIG gives their addresses and ports. One gang of a pipeline uses them at a time.
    """

    def __init__(self, hosts: TfConfigHosts, job: Job):
        if job.stored_attempt:
            raise ConfigError(
                "hosts with launcher: tf_config need a storage root that is a folder of a shared "
                f"file system, got {job.request.root}. Use launcher kubernetes, slurm or ssh."
            )
        self._hosts, self._run = hosts, str(job.attempt.folder)
        self._folder = Path(job.request.root) / "joining" / job.request.pipeline
        self._report, self._lock = job.progress.report, contextlib.ExitStack()
        self._indexes: dict[str, int] = {}

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        wanted, timeout_seconds = self._hosts.workers, self._hosts.queue_timeout_seconds
        command = f"python -m {joining.MODULE} {self._folder}"
        message = f"waits for {wanted} workers: start `{command}` on each machine, with TF_CONFIG"
        self._report("wait", message=message)
        if not wait_until(self._try_lock, check, timeout_seconds):
            raise MachineError(f"another training still uses the workers of {self._folder}")
        for stale in self._folder.glob("*.*"):
            stale.unlink(missing_ok=True)
        if not wait_until(lambda: len(self._list_joined()) >= wanted, check, timeout_seconds):
            self.release()
            raise MachineError(
                f"{len(self._list_joined())} of {wanted} workers have joined within "
                f"{timeout_seconds} s (queue_timeout_seconds in the hosts file). Start `{command}` "
                "on each machine, with TF_CONFIG"
            )
        addresses = self._list_joined()[0].addresses
        self._indexes = {address: index for index, address in enumerate(addresses)}
        return [
            Host(name=each, address=host, workers=1, ports=(int(port), int(port)))
            for each in addresses
            for host, _, port in [each.rpartition(":")]
        ]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        index = str(self._indexes[host.name])
        return [sys.executable, "-m", joining.MODULE, str(self._folder), index, self._run]

    def release(self) -> None:
        self._lock.close()

    def _try_lock(self) -> bool:
        try:
            resource = f"the gang of {self._folder}"
            self._lock.enter_context(exclusive_lock(self._folder / "lock", resource))
        except ResourceHeld:
            return False
        return True

    def _list_joined(self) -> list[joining.Joined]:
        """Returns the workers that have joined. Raises ConfigError if their TF_CONFIG is wrong."""
        files = sorted(self._folder.glob("*.json"))
        found = [read_json_as(joining.Joined, open_path(file)) for file in files]
        joined = [each for each in found if each]
        for each in joined:
            where = f"{each.host} can't join the gang: "
            if each.problem:
                raise ConfigError(where + each.problem)
            if len(each.addresses) != self._hosts.workers:
                raise ConfigError(
                    f"{where}its TF_CONFIG has {len(each.addresses)} workers "
                    f"({', '.join(each.addresses)}), and the hosts file has workers: "
                    f"{self._hosts.workers}. Make them the same, and start all workers again."
                )
            if each.addresses != joined[0].addresses:
                raise ConfigError(
                    f"{where}its TF_CONFIG has the workers {', '.join(each.addresses)}, but "
                    f"{joined[0].host} has {', '.join(joined[0].addresses)}. Give all of them the "
                    "same cluster."
                )
        return joined


def build_manifests(
    hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int
) -> list[dict[str, Any]]:
    """The objects of a gang, which own its pods."""
    command = build_python_command(hosts, _HOLDER_MODULE, run, str(_KEEP_PODS_SECONDS))
    return build_gang(hosts, name, command, deadline_seconds)


def make_launcher(hosts: Hosts, job: Job) -> Launcher:
    """The launcher of a hosts file."""
    match hosts:
        case SshHosts():
            return SshLauncher(hosts)
        case SlurmHosts():
            return SlurmLauncher(hosts, job)
        case KubernetesHosts():
            # A DNS name, and unique among the objects of the cluster.
            pipeline, run = job.request.pipeline.replace("_", "-")[:30], str(job.attempt.folder)
            name = f"trainyard-{pipeline}-{compute_digest(run)[:8]}"
            return KubernetesLauncher(hosts, name, run, job.request.deadline_seconds)
        case TfConfigHosts():
            return TfConfigLauncher(hosts, job)
        case LocalHosts():
            return LocalLauncher(hosts.workers, hosts.cores or 0)
        case _:
            raise TypeError(f"unknown launcher: {hosts}")


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
        _log.warning("%s not released, and will end in %d s: %s", hosts, idle_seconds, error)
