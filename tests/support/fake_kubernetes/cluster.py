"""The cluster of tests: starts and stops it, and does to pods what happens to pods."""

from __future__ import annotations

import base64
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
import yaml
from processes import wait_until

from .api import Api, Fault
from .certificates import make_certificates
from .controllers import Controllers
from .kubelet import Kubelet, set_condition
from .objects import Object, Objects, format_time
from .rbac import Account, read_roles

RBAC = Path(__file__).resolve().parents[3] / "docker" / "kubernetes" / "rbac.yaml"
_TICK_SECONDS = 0.03


class KubernetesCluster:
    """A context manager that runs the cluster in threads of this process.

    Args:
      folder: for certificates, logs and the folders of pods.
      namespace: the one that exists.

    Attributes:
      accounts: by name: `admin`, who may do everything, and the accounts of the Roles in
        docker/kubernetes/rbac.yaml, `trainyard-airflow` and `trainyard-supervisor`.
    """

    def __init__(self, folder: Path, namespace: str = "training"):
        self.namespace, self._folder = namespace, folder
        self.objects = Objects()
        self.controllers = Controllers(self.objects)
        self.kubelet = Kubelet(folder, self.objects, self.controllers.finish)
        self.accounts = {"admin": Account("admin")}
        if RBAC.exists():
            for name, rights in read_roles(RBAC).items():
                self.accounts[name] = Account(name, rights)
        self.api = Api(
            self.objects,
            {f"token-of-{name}": account for name, account in self.accounts.items()},
            {namespace},
            self.controllers.delete,
            self.kubelet.find_log,
            self.kubelet.run_command,
        )
        self._server: uvicorn.Server | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._authority, self._certificate, self._key = make_certificates(self._folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.address = f"https://127.0.0.1:{self._port}"
        self.start()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._ticker.join()
        self.stop()
        for pod in self.objects.list("pods"):
            self.kubelet.kill(pod)

    def start(self) -> None:
        """Starts the API server. It has the same address each time."""
        config = uvicorn.Config(
            self.api.build_app(),
            host="127.0.0.1",
            port=self._port,
            ssl_certfile=str(self._certificate),
            ssl_keyfile=str(self._key),
            log_level="critical",
            log_config=None,  # uvicorn's would close absl's handler, and with it a stream of pytest
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, 20)

    def stop(self) -> None:
        """Stops the API server: connections are cut and refused. All pods go on."""
        if self._server:
            self._server.should_exit = True
            self._thread.join(10)
            self._server = None

    def write_kubeconfig(self, account: str = "admin") -> Path:
        """Writes a kubeconfig file for an account. KUBECONFIG names it."""
        file = self._folder / f"kubeconfig-{account}"
        authority = base64.b64encode(self._authority.read_bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [
                {
                    "name": "fake",
                    "cluster": {
                        "server": self.address,
                        "certificate-authority-data": authority,
                    },
                }
            ],
            "users": [{"name": account, "user": {"token": f"token-of-{account}"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": account}}],
        }
        file.write_text(yaml.safe_dump(content))
        return file

    def fail(self, request: str, status: int, times: int = 1, **headers: str) -> None:
        """Answers the next requests whose `METHOD PATH` match an expression with a status."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.api.faults.append(Fault(re.compile(request), status, names, remaining=times))

    def get(self, resource: str, name: str) -> Object | None:
        return self.objects.get(resource, self.namespace, name)

    def list_names(self, resource: str) -> list[str]:
        return [found["metadata"]["name"] for found in self.objects.list(resource)]

    def find_pod(self, job: str, phase: str | None = None, seconds: float = 30) -> Object:
        """The pod of a job, once it is in a phase."""

        def find() -> Object | None:
            pods = [
                pod
                for pod in self.objects.list("pods")
                if pod["metadata"]["name"].startswith(f"{job}-")
                and phase in (None, pod["status"]["phase"])
            ]
            return pods[-1] if pods else None

        return wait_until(find, seconds)

    def list_processes(self, job: str) -> list[int]:
        """The living processes of the containers of a job."""
        return [
            process.pid
            for pod in self.objects.list("pods")
            if pod["metadata"]["name"].startswith(f"{job}-")
            for process in self.kubelet.find_processes(pod["metadata"]["uid"])
        ]

    def kill(self, job: str) -> None:
        """Kills all processes of a job's container by signal 9."""
        self.kubelet.kill(self.find_pod(job, "Running"))

    def exhaust_memory(self, job: str) -> None:
        """The kernel kills the container, which has used more memory than its limit."""
        self.kubelet.kill(self.find_pod(job, "Running"), "OOMKilled")

    def evict(self, job: str) -> None:
        """The kubelet evicts the pod, because its node runs out of memory. The pod stays."""
        pod = self.find_pod(job, "Running")
        message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 91Mi"

        def change() -> None:
            self.kubelet.kill(pod)
            set_condition(pod, "DisruptionTarget", "True", "TerminationByKubelet", message)
            pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": message}

        self._change(pod, change)

    def preempt(self, job: str, grace_seconds: int = 30) -> None:
        """The scheduler deletes the pod for another one, which is more important."""
        pod = self.find_pod(job)
        message = "default-scheduler: preempting to accommodate a higher priority pod"
        self._change(
            pod,
            lambda: set_condition(
                pod, "DisruptionTarget", "True", "PreemptionByScheduler", message
            ),
        )
        self.controllers.delete("pods", pod, grace_seconds)

    def drain(self, job: str, grace_seconds: int = 30) -> None:
        """The pod is evicted through the API, as `kubectl drain` does."""
        pod = self.find_pod(job, "Running")
        message = "Eviction API: evicting"
        self._change(
            pod,
            lambda: set_condition(
                pod, "DisruptionTarget", "True", "EvictionByEvictionAPI", message
            ),
        )
        self.controllers.delete("pods", pod, grace_seconds)

    def lose_node(self, job: str, is_removed: bool = True) -> None:
        """The pod's node is switched off.

        Args:
          job: the job.
          is_removed: whether the cloud removes the node, so that its pods are collected. If not,
            the pod is deleted after a while, and stays for ever because its node does not answer.
        """
        pod = self.find_pod(job, "Running")

        def change() -> None:
            self.kubelet.lost.add(pod["metadata"]["uid"])
            self.kubelet.kill(pod)
            set_condition(pod, "Ready", "False", "NodeNotReady", "")
            reason, message = "DeletionByTaintManager", "Taint manager: deleting due to NoExecute"
            if is_removed:
                reason, message = "DeletionByPodGC", "PodGC: node no longer exists"
                pod["status"]["phase"] = "Failed"
            set_condition(pod, "DisruptionTarget", "True", reason, message)
            pod["metadata"]["deletionGracePeriodSeconds"] = 30
            pod["metadata"]["deletionTimestamp"] = format_time(30)

        self._change(pod, change)
        if is_removed:
            self.controllers.finish(pod)

    def remove_all(self) -> None:
        """Removes all objects at once, and ends their processes."""
        for resource in ("jobs", "secrets", "services", "networkpolicies", "events", "pods"):
            for found in self.objects.list(resource):
                if resource == "pods":
                    self.kubelet.kill(found)
                self.objects.remove(resource, found)

    def age(self, resource: str, name: str, seconds: float) -> None:
        """Makes an object older than it is, with all of its conditions."""
        found = self.get(resource, name)

        def change() -> None:
            for each in (found["metadata"], *found.get("status", {}).get("conditions", [])):
                for key in ("creationTimestamp", "lastTransitionTime", "deletionTimestamp"):
                    if key in each:
                        each[key] = format_time(-seconds)

        self._change(found, change, resource)

    def _change(self, found: Object, change: Callable[[], Any], resource: str = "pods") -> None:
        with self.objects.lock:
            change()
            self.objects.touch(resource, found)

    def _tick(self) -> None:
        while not self._is_over.is_set():
            self.controllers.tick()
            self.kubelet.tick()
            time.sleep(_TICK_SECONDS)
