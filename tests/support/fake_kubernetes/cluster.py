"""The cluster of tests: starts and stops it, and does to pods what happens to pods."""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
import yaml
from processes import wait_until

from .api import Api, Fault
from .controllers import Controllers
from .kubelet import Kubelet
from .objects import Object, Objects, format_time, set_condition
from .rbac import Account, read_roles

_RBAC = Path(__file__).resolve().parents[3] / "docker" / "kubernetes" / "rbac.yaml"
_TICK_SECONDS = 0.03


class KubernetesCluster:
    """A context manager that runs the cluster in threads of this process.

    Args:
      folder: for certificates, logs and the folders of pods.

    Attributes:
      accounts: by name: `admin`, who may do everything, and the accounts of the Roles in
        docker/kubernetes/rbac.yaml, `trainyard-airflow` and `trainyard-supervisor`.
    """

    namespace = "training"
    """The only one that exists."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.objects = Objects()
        self.controllers = Controllers(self.objects)
        self.kubelet = Kubelet(folder, self.objects, self.controllers.finish)
        rights = {"admin": None} | read_roles(_RBAC)
        self.accounts = {name: Account(name, found) for name, found in rights.items()}
        tokens = {f"token-of-{name}": account for name, account in self.accounts.items()}
        self.api = Api(self.objects, self.namespace, tokens, self.controllers, self.kubelet)
        self._server: uvicorn.Server | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._certificate, self._key = _make_certificate(self._folder)
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
        self.reset()

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

    def reset(self) -> None:
        """Removes all objects at once, ends their processes, and forgets all faults."""
        self.api.faults.clear()
        self.api.delay_seconds, self.controllers.admission = 0.0, ""
        self.kubelet.reset()
        for resource in ("jobs", "secrets", "services", "networkpolicies", "events", "pods"):
            for found in self.objects.list(resource):
                if resource == "pods":
                    self.kubelet.kill(found)
                self.objects.remove(resource, found)

    def write_kubeconfig(self, account: str = "admin") -> Path:
        """Writes a kubeconfig file for an account. KUBECONFIG names it."""
        file = self._folder / f"kubeconfig-{account}"
        authority = base64.b64encode(self._certificate.read_bytes()).decode()
        cluster = {"server": self.address, "certificate-authority-data": authority}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": account, "user": {"token": f"token-of-{account}"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": account}}],
        }
        file.write_text(yaml.safe_dump(content))
        return file

    def fail(self, request: str, status: int, times: int = 1, **headers: str) -> None:
        """Answers the next requests whose `METHOD PATH` match an expression with a status."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.api.faults.append(Fault(re.compile(request), status, names, times))

    def get(self, resource: str, name: str) -> Object | None:
        return self.objects.get(resource, self.namespace, name)

    def list_names(self, resource: str) -> list[str]:
        return [found["metadata"]["name"] for found in self.objects.list(resource)]

    def list_pods(self, job: str) -> list[Object]:
        """The pods whose names begin with that of a Job."""
        pods = self.objects.list("pods")
        return [pod for pod in pods if pod["metadata"]["name"].startswith(f"{job}-")]

    def find_pod(self, job: str, phase: str | None = None) -> Object:
        """The newest pod of a job, once it is in a phase."""

        def find() -> list[Object]:
            return [p for p in self.list_pods(job) if phase in (None, p["status"]["phase"])]

        return wait_until(find, 30)[-1]

    def list_processes(self, job: str) -> list[int]:
        """The living processes of the containers of a job."""
        return [
            process.pid
            for pod in self.list_pods(job)
            for process in self.kubelet.find_processes(pod)
        ]

    def kill(self, job: str) -> None:
        """Kills all processes of a job's container by signal 9."""
        self.kubelet.kill(self.find_pod(job, "Running"))

    def evict(self, job: str) -> None:
        """The pod is evicted through the API, as `kubectl drain` does."""
        self._disrupt(self.find_pod(job), "EvictionByEvictionAPI")

    def lose_node(self, job: str, is_removed: bool = True) -> None:
        """The pod's node is switched off.

        Args:
          job: the job.
          is_removed: whether the cloud removes the node, so that its pods are collected. If not,
            the pod is deleted after a while, and stays for ever because its node does not answer.
        """
        pod = self.find_pod(job, "Running")
        with self.objects.lock:
            self.kubelet.lost.add(pod["metadata"]["uid"])
            self.kubelet.kill(pod)
            self._disrupt(pod, "DeletionByPodGC" if is_removed else "DeletionByTaintManager")
            if is_removed:
                self.controllers.finish(pod)

    def _disrupt(self, pod: Object, reason: str) -> None:
        with self.objects.lock:
            set_condition(pod, "DisruptionTarget", "True", reason, "")
            self.controllers.delete("pods", pod)

    def age_job(self, name: str, seconds: float) -> None:
        """Makes a Job older than it is."""
        self.get("jobs", name)["metadata"]["creationTimestamp"] = format_time(-seconds)

    def _tick(self) -> None:
        while not self._is_over.is_set():
            self.controllers.tick()
            self.kubelet.tick()
            time.sleep(_TICK_SECONDS)


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    """Makes a certificate that is its own authority, and its key."""
    certificate, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
