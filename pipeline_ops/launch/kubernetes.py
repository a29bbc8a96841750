"""Pods of an Indexed Job: `kubectl` creates them, carries the pipes to their agents, deletes them.

The manifest is a pure function of the hosts file. A headless service gives every pod a name of its
own, so a restarted pod has its old address. `allocation_holder.py` holds the pods and does nothing
else. Workers are started through `kubectl exec`, as on any other host.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pipeline_ops.config.hosts import KubernetesHosts
from pipeline_ops.errors import MachineError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.launch.launcher import (
    Launcher,
    build_agent_command,
    build_holder_command,
    build_python_environment,
    log_failed_release,
    run_client,
    wait_until,
)
from pipeline_ops.launch.plan import Host

_KEEP_SECONDS = 300
_POD_SECONDS = 600
"""The time after which pods that are not running are given back. It may include an image pull."""
_INDEX = "batch.kubernetes.io/job-completion-index"


class KubernetesLauncher(Launcher):
    """See `Launcher`.

    Args:
      hosts: the pods to create.
      name: the base name of job and service. Each allocation appends a number. It must be unique
        among live jobs.
      run: the folder of the train job's attempt, which identifies the agents in the pods.
      deadline_seconds: the cluster ends the pods after that long in any case.
    """

    def __init__(self, hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int):
        self._hosts, self._base_name, self._run = hosts, name, run
        self._deadline_seconds = deadline_seconds
        self._num_allocations, self._name = 0, ""

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        self._num_allocations += 1
        self._name = f"{self._base_name}-{self._num_allocations}"
        manifest = build_manifest(self._hosts, self._name, self._run, self._deadline_seconds)
        self._run_kubectl("apply", "--filename=-", text=json.dumps(manifest))
        try:
            self._wait_for_pods(check)
        except MachineError:
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

    def _wait_for_pods(self, check: Callable[[], None]) -> None:
        pods = self._hosts.pods
        if not wait_until(lambda: len(self._list_running_pods()) >= pods, check, _POD_SECONDS):
            raise MachineError(
                f"{len(self._list_running_pods())} of {pods} pods of the job {self._name} run "
                f"after {_POD_SECONDS} s. See kubectl describe job {self._name}"
            )

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        # A restarted pod has another name, with the same index.
        pod = self._list_running_pods().get(host.name, host.name)
        command = build_agent_command(self._hosts, agent)
        return self._build_kubectl_command("exec", "--stdin", pod, "--", *command)

    def is_intact(self) -> bool:
        return bool(
            self._name
            and self._run_kubectl(
                "get", f"job/{self._name}", "--ignore-not-found", "--output=name"
            ).strip()
        )

    def release(self) -> None:
        if self._name:
            objects = [f"{kind}/{self._name}" for kind in ("job", "service", "networkpolicy")]
            with log_failed_release(f"the pods of {self._name} were", _KEEP_SECONDS):
                self._run_kubectl("delete", "--ignore-not-found", "--wait=false", *objects)
            self._name = ""

    def _list_running_pods(self) -> dict[str, str]:
        """The names of the running pods by the names of their hosts."""
        selector = f"--selector=batch.kubernetes.io/job-name={self._name}"
        pods = json.loads(self._run_kubectl("get", "pods", selector, "--output=json"))["items"]
        return {
            f"{self._name}-{metadata['annotations'][_INDEX]}": metadata["name"]
            for metadata, status in ((pod["metadata"], pod["status"]) for pod in pods)
            if status.get("phase") == "Running" and "deletionTimestamp" not in metadata
        }

    def _build_kubectl_command(self, *arguments: str) -> list[str]:
        context = [f"--context={self._hosts.context}"] if self._hosts.context else []
        return ["kubectl", *context, f"--namespace={self._hosts.namespace}", *arguments]

    def _run_kubectl(self, *arguments: str, text: str | None = None) -> str:
        result = run_client(self._build_kubectl_command(*arguments), "kubernetes", text)
        if result.returncode:
            raise MachineError(f"kubectl {arguments[0]}: {' '.join(result.stderr.split())}")
        return result.stdout


def build_manifest(
    hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int
) -> dict[str, Any]:
    """Builds service, job and network policy as one list. Pure."""
    labels = {"app.kubernetes.io/name": "trainyard", "app.kubernetes.io/instance": name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": hosts.pods,
            "parallelism": hosts.pods,
            "backoffLimit": hosts.pods * 100,
            "activeDeadlineSeconds": deadline_seconds,
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": labels}, "spec": _build_pod_spec(hosts, name, run)},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [service, job, _build_network_policy(name, labels)],
    }


def _build_network_policy(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Lets only pods of the same gang reach its pods: TensorFlow's servers ask for no credentials.

    `kubectl exec`, which carries the pipes, goes through the kubelet and is not affected.
    """
    same_gang = {"from": [{"podSelector": {"matchLabels": labels}}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": [same_gang],
        },
    }


def _build_pod_spec(hosts: KubernetesHosts, name: str, run: str) -> dict[str, Any]:
    resources = {"cpu": hosts.cpus, "memory": hosts.memory} | (
        {"nvidia.com/gpu": str(hosts.gpus)} if hosts.gpus else {}
    )
    container = {
        "name": "host",
        "image": hosts.image,
        "command": build_holder_command(hosts, run, _KEEP_SECONDS),
        "env": [
            {"name": name, "value": value}
            for name, value in (build_python_environment(hosts) | {"HOME": "/tmp"}).items()  # noqa: S108
        ],
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            *(
                {"name": f"volume-{number}", "mountPath": volume.mount}
                for number, volume in enumerate(hosts.volumes)
            ),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [container],
        # None of our processes talks to the cluster. A config with an account wants its token.
        "automountServiceAccountToken": bool(hosts.service_account),
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [
            *(
                {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": volume.claim}}
                for number, volume in enumerate(hosts.volumes)
            ),
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    optional = {
        "serviceAccountName": hosts.service_account,
        "nodeSelector": hosts.node_selector,
        "imagePullSecrets": [{"name": secret} for secret in hosts.image_pull_secrets],
    }
    return pod | {key: value for key, value in optional.items() if value}
