"""Pods of an Indexed Job: `kubectl` creates them, carries the pipes to their agents, deletes them.

The manifest is a pure function of the hosts file. A headless service gives every pod a name of its
own, so a restarted pod has its old address. `allocation_holder.py` holds the pods and does nothing
else. Workers are started through `kubectl exec`, as on any other host.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.config.hosts import KubernetesHosts
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.launch.launcher import agent_command
from pipeline_ops.launch.plan import Host

_log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_COMMAND_SECONDS = 60
_KEEP_SECONDS = 300
_POD_SECONDS = 600
"""The time after which pods that are not running are given back. It may include an image pull."""
_INDEX = "batch.kubernetes.io/job-completion-index"


class KubernetesLauncher:
    """See `Launcher`.

    Args:
      hosts: the pods to create.
      name: the base name of job and service. Each allocation appends a number. It must be unique
        among live jobs.
      run: the folder of the train job's attempt, which identifies the agents in the pods.
      deadline_seconds: the cluster ends the pods after that long in any case.
    """

    def __init__(self, hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int):
        self._hosts, self._base, self._run, self._deadline_seconds = (
            hosts,
            name,
            run,
            deadline_seconds,
        )
        self._count, self._name = 0, ""

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        self._count += 1
        self._name = f"{self._base}-{self._count}"
        self._kubectl(
            "apply",
            "--filename=-",
            text=json.dumps(manifest(self._hosts, self._name, self._run, self._deadline_seconds)),
        )
        deadline = time.monotonic() + _POD_SECONDS
        try:
            while len(pods := self._running_pods()) < self._hosts.pods:
                check()
                if time.monotonic() > deadline:
                    raise MachineError(
                        f"of {self._hosts.pods} pods of the job {self._name}, {len(pods)} run "
                        f"after {_POD_SECONDS} s; see kubectl describe job {self._name}"
                    )
                time.sleep(_POLL_SECONDS)
        except MachineError:
            self.release()
            raise
        names = [f"{self._name}-{index}" for index in range(self._hosts.pods)]
        return [
            Host(
                name=name,
                address=f"{name}.{self._name}.{self._hosts.namespace}.svc",
                workers=self._hosts.workers_per_pod,
            )
            for name in names
        ]

    def command(self, place: Host, agent: AgentSpec) -> list[str]:
        pod = self._running_pods().get(
            place.name, place.name
        )  # a restarted pod has another name, with the same index
        return [*self._words(), "exec", "--stdin", pod, "--", *agent_command(self._hosts, agent)]

    def is_intact(self) -> bool:
        return bool(self._name) and bool(
            self._kubectl("get", f"job/{self._name}", "--ignore-not-found", "--output=name").strip()
        )

    def release(self) -> None:
        if self._name:
            try:
                self._kubectl(
                    "delete",
                    "--ignore-not-found",
                    "--wait=false",
                    f"job/{self._name}",
                    f"service/{self._name}",
                    f"networkpolicy/{self._name}",
                )
            except (
                TrainyardError
            ) as error:  # the pods end by themselves, and the training must not be lost for that
                _log.warning(
                    "the pods of %s were not deleted, and end in %d s: %s",
                    self._name,
                    _KEEP_SECONDS,
                    error,
                )
            self._name = ""

    def _running_pods(self) -> dict[str, str]:
        """The names of the running pods by the names of their places."""
        listed = json.loads(
            self._kubectl(
                "get",
                "pods",
                f"--selector=batch.kubernetes.io/job-name={self._name}",
                "--output=json",
            )
        )
        running = [
            pod["metadata"] for pod in listed["items"] if pod["status"].get("phase") == "Running"
        ]
        return {
            f"{self._name}-{pod['annotations'][_INDEX]}": pod["name"]
            for pod in running
            if "deletionTimestamp" not in pod
        }

    def _words(self) -> list[str]:
        return [
            "kubectl",
            *([f"--context={self._hosts.context}"] if self._hosts.context else []),
            f"--namespace={self._hosts.namespace}",
        ]

    def _kubectl(self, *words: str, text: str | None = None) -> str:
        try:
            done = subprocess.run(
                [*self._words(), *words],
                input=text,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
            )
        except FileNotFoundError:
            raise ConfigError(
                "kubectl is not installed on this machine, "
                "and the hosts file says launcher: kubernetes"
            ) from None
        except subprocess.TimeoutExpired:
            raise MachineError(
                f"kubectl {words[0]} has not answered within {_COMMAND_SECONDS} s"
            ) from None
        if done.returncode:
            raise MachineError(f"kubectl {words[0]}: {' '.join(done.stderr.split())}")
        return done.stdout


def manifest(hosts: KubernetesHosts, name: str, run: str, deadline_seconds: int) -> dict[str, Any]:
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
            "template": {"metadata": {"labels": labels}, "spec": _pod(hosts, name, run)},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [service, job, _network_policy(name, labels)],
    }


def _network_policy(name: str, labels: dict[str, str]) -> dict[str, Any]:
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


def _pod(hosts: KubernetesHosts, name: str, run: str) -> dict[str, Any]:
    resources = {"cpu": hosts.cpus, "memory": hosts.memory} | (
        {"nvidia.com/gpu": str(hosts.gpus)} if hosts.gpus else {}
    )
    container = {
        "name": "host",
        "image": hosts.image,
        "command": [
            hosts.python or sys.executable,
            "-m",
            "pipeline_ops.launch.allocation_holder",
            run,
            str(_KEEP_SECONDS),
        ],
        "env": [
            {"name": "PYTHONSAFEPATH", "value": "1"},
            {"name": "PYTHONPATH", "value": hosts.code or str(CODE_ROOT)},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
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
