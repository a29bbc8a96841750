"""Pods of an Indexed Job: created for a gang, reached through `pod_exec.py`, and deleted after it.

A headless Service gives each pod a name of its own, so a restarted pod has its old address.
`allocation_holder.py` holds the pods and does nothing else. Agents are started in them, as on any
other host.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.config.hosts_clusters import KubernetesHosts
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.jobs.places.kubernetes import is_running
from pipeline_ops.jobs.places.kubernetes_client import Kind, KubernetesClient
from pipeline_ops.jobs.places.kubernetes_manifest import build_gang, set_owner
from pipeline_ops.jobs.places.kubernetes_rights import check_gang_rights
from pipeline_ops.jobs.places.kubernetes_state import judge_pod, may_replace_pods
from pipeline_ops.jobs.places.pod_exec import build_exec_command
from pipeline_ops.launch.launchers import (
    Launcher,
    build_agent_command,
    build_holder_command,
    log_failed_release,
    wait_until,
)
from pipeline_ops.launch.plan import Host
from pipeline_ops.system.processes import SAFE_PATH

_KEEP_SECONDS = 300
_KINDS: Mapping[str, Kind] = {"Job": "job", "Service": "service", "NetworkPolicy": "network_policy"}
_INDEX = "batch.kubernetes.io/job-completion-index"


class KubernetesLauncher(Launcher):
    """See `Launcher`.

    Args:
      hosts: the pods to create.
      name: the base name of all objects. Each allocation appends a number. It must be unique among
        live jobs.
      run: the folder of the train job's attempt, which identifies the agents in the pods.
      deadline_seconds: the cluster ends the pods after that long in any case.
    """

    def __init__(self, hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int):
        self._hosts, self._base_name, self._run = hosts, name, run
        self._deadline_seconds = deadline_seconds
        self._num_allocations, self._name = 0, ""

    @functools.cached_property
    def client(self) -> KubernetesClient:
        return KubernetesClient(self._hosts.namespace, self._hosts.context)

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        if self._num_allocations == 0:
            for finding in check_gang_rights(self.client):
                raise ConfigError(finding.problem, finding.cure)
        self._num_allocations += 1
        self._name = f"{self._base_name}-{self._num_allocations}"
        try:
            manifest, *others = build_manifests(
                self._hosts, self._name, self._run, self._deadline_seconds
            )
            job = self.client.create("job", manifest) or self.client.read("job", self._name)
            if job is None:
                raise MachineError(f"the Job {self._name} was deleted while it was made")
            for other in others:
                self.client.create(_KINDS[other["kind"]], set_owner(other, job))
            self._wait_for_pods(check)
        except BaseException:
            self.release()
            raise
        return [
            Host(
                name=(name := f"{self._name}-{index}"),
                address=f"{name}.{self._name}.{self._hosts.namespace}.svc",
                workers=self._hosts.workers_per_pod,
            )
            for index in range(self._hosts.pods)
        ]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        # A restarted pod has another name, with the same index.
        pod = host.name
        with contextlib.suppress(MachineError):  # the pool tries each host again
            pod = self._find_running_pods().get(host.name, host.name)
        variables = SAFE_PATH | {"PYTHONPATH": str(CODE_ROOT)}
        return [
            "env",
            *(f"{name}={value}" for name, value in variables.items()),
            *build_exec_command(
                self._hosts.namespace,
                self._hosts.context,
                pod,
                build_agent_command(self._hosts, agent),
            ),
        ]

    def is_intact(self) -> bool:
        """Returns whether the Job still replaces each of its pods that is lost.

        It does not once a pod has succeeded, as those do that were without an agent for long.
        """
        job = self.client.read("job", self._name) if self._name else None
        return job is not None and may_replace_pods(job)

    def release(self) -> None:
        if self._name:
            with log_failed_release(f"the pods of {self._name} were", _KEEP_SECONDS):
                for kind in _KINDS.values():
                    self.client.delete(kind, self._name)
            self._name = ""

    def _wait_for_pods(self, check: Callable[[], None]) -> None:
        timeout_seconds = self._hosts.queue_timeout_seconds
        if not wait_until(self._are_all_running, check, timeout_seconds):
            pods, wanted = self.client.list_pods(self._name), self._hosts.pods
            states = {judge_pod(pod, self.client.server_time).message for pod in pods}
            cause = "; ".join(sorted(filter(None, states))) or "Kubernetes has made none"
            raise MachineError(
                f"{sum(map(is_running, pods))} of {wanted} pods of the Job {self._name} run after "
                f"{timeout_seconds} s (queue_timeout_seconds in the hosts file). {cause}"
            )

    def _are_all_running(self) -> bool:
        """Returns whether all pods run. Raises ConfigError if one of them never will."""
        pods = self.client.list_pods(self._name)
        for pod in pods:
            state = judge_pod(pod, self.client.server_time)
            if state.phase == "ended" and not state.exit_code.is_retried:
                raise ConfigError(f"the pod {pod['metadata']['name']}: {state.message}")
        return sum(map(is_running, pods)) >= self._hosts.pods

    def _find_running_pods(self) -> dict[str, str]:
        """The names of the running pods by the names of their hosts."""
        return {
            f"{self._name}-{pod['metadata']['annotations'][_INDEX]}": pod["metadata"]["name"]
            for pod in self.client.list_pods(self._name)
            if is_running(pod)
        }


def build_manifests(
    hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int
) -> list[dict[str, Any]]:
    """The objects of a gang, which own its pods."""
    command = build_holder_command(hosts, run, _KEEP_SECONDS)
    return build_gang(hosts, name, command, deadline_seconds)
