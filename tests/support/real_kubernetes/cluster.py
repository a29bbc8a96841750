"""A cluster of one node beside the Docker daemon of the tests, with all parts of Kubernetes.

It is in the daemon's network namespace, so that pods and tests reach each other and an S3 server of
this machine. Its processes have a PID namespace, whose end ends all of them with all pods, also if
the tests are killed, and a mount namespace, with which all that they mount is gone.

It checks tokens and rights as any cluster does. Nobody can reach it but this machine, so its
servers have the certificates that they make themselves, and the kubelet obeys anyone.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import yaml
from containers import BASE_IMAGE, ROOT, ContainerEngine

from .build import build_programs

_NODE, _DOMAIN = "n1", "cluster.local"
_PODS, _SERVICES = "10.77.1.0/24", "10.96.0.0/16"
_USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    f"system:node:{_NODE}": "system:nodes",
}
"""The users with a token, and the group of each."""
_ACCOUNTS = {
    "trainyard-airflow": ("airflow", "airflow-worker"),
    "trainyard-supervisor": ("training", "trainyard-supervisor"),
}
"""The service accounts of the Roles in docker/kubernetes/rbac.yaml, with their namespaces."""
_HIDDEN = ("/run", "/var/lib", "/var/log")
"""Folders of this machine that the programs write to, whatever their settings."""
_CGROUPS = Path("/sys/fs/cgroup")
CNI_PROGRAMS = Path("/usr/lib/cni")
_DEFAULT_ACCOUNT = "/api/v1/namespaces/training/serviceaccounts/default"
_JSON = "application/json"
_PAUSE = f'FROM {BASE_IMAGE}\nCMD ["sleep", "infinity"]\n'
_START_SECONDS = 120


class RealCluster:
    """A context manager with the cluster, in which the namespaces `airflow` and `training` exist.

    Args:
      engine: the Docker daemon that has the images.

    Attributes:
      kubeconfig: the access of an administrator.
    """

    def __init__(self, engine: ContainerEngine):
        self._engine, self._address = engine, engine.host_address
        self._url = f"https://{self._address}:6443"
        self._tokens = {user: secrets.token_hex(16) for user in _USERS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._programs = build_programs()
        with contextlib.ExitStack() as stack:
            # The path of a socket is short, and pytest's folders may be long.
            self._folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
            stack.callback(shutil.rmtree, self._folder)
            self._make_cgroups(stack)
            self._open_namespaces(stack)
            self._start_control_plane()
            self._start_node()
            self._prepare()
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit.close()

    def list(self, resource: str, group: str = "api/v1") -> list[dict[str, Any]]:
        """The objects of a resource in the namespace of the jobs."""
        return list(self.request("GET", f"/{group}/namespaces/training/{resource}")["items"])

    def delete_pod(self, name: str) -> None:
        self.request("DELETE", f"/api/v1/namespaces/training/pods/{name}")

    def evict_pod(self, name: str) -> None:
        """Evicts a pod through the API, as `kubectl drain` does."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.request("POST", f"/api/v1/namespaces/training/pods/{name}/eviction", eviction)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request of an administrator. Returns the object of the answer."""
        return json.loads(self._send(method, path, body))

    def write_kubeconfig(self, role: str) -> Path:
        """Writes a kubeconfig file with a token for the account of a Role in rbac.yaml."""
        namespace, account = _ACCOUNTS[role]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return self._write_access(role, self.request("POST", path, wanted)["status"]["token"])

    def load_image(self, name: str) -> str:
        """Copies an image of the Docker daemon to the node. Returns its name with its digest."""
        ctr = [*self._inside, "ctr", "-a", f"{self._folder}/containerd.sock", "-n", "k8s.io"]
        saving = subprocess.Popen(
            ["docker", "save", name], env=self._engine.docker.environment, stdout=subprocess.PIPE
        )
        with saving:
            said = _run(*ctr, "images", "import", "-", stdin=saving.stdout)
        [digest] = re.findall(r"sha256:\w{64}", said)
        image = f"docker.io/library/{name}"
        _run(*ctr, "images", "tag", f"{image}:latest", f"{image}@{digest}")
        return f"{image}@{digest}"

    def read_logs(self) -> str:
        """The end of what each program has written."""
        files = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)

    def _make_cgroups(self, stack: contextlib.ExitStack) -> None:
        is_v2 = (_CGROUPS / "cgroup.controllers").exists()
        for parent in [_CGROUPS] if is_v2 else filter(Path.is_dir, _CGROUPS.iterdir()):
            cgroup = parent / self._folder.name
            cgroup.mkdir()
            stack.callback(_remove_cgroup, cgroup)

    def _open_namespaces(self, stack: contextlib.ExitStack) -> None:
        """Starts the first process of the namespaces. It is asleep, and ends with this thread."""
        hide = [f"mount -t tmpfs tmpfs {folder}" for folder in _HIDDEN]
        holder = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", *self._engine.enter_network()),
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-c", " && ".join([*hide, "echo ready", "exec sleep infinity"])),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        stack.callback(self._end, holder)
        assert holder.stdout.readline() == b"ready\n", "the namespaces can't be made"
        [first] = psutil.Process(holder.pid).children()
        self._inside = ["nsenter", "-t", str(first.pid), "--mount", "--pid", "--net"]
        for direction in ("-s", "-d"):  # Docker lets no packets pass but its own
            _run(*self._inside, "iptables", "-w", "-I", "FORWARD", direction, _PODS, "-j", "ACCEPT")

    def _end(self, holder: subprocess.Popen[bytes]) -> None:
        """Kills the first process of the namespaces, with which the kernel kills all others."""
        for first in psutil.Process(holder.pid).children():
            first.kill()
        for process in (holder, *self._processes.values()):
            process.wait(_START_SECONDS)

    def _start_control_plane(self) -> None:
        folder, service_key = self._folder, self._folder / "accounts.key"
        _run("openssl", "genrsa", "-out", str(service_key), "2048")
        tokens = [
            f'{token},{user},{user},"{_USERS[user]}"\n' for user, token in self._tokens.items()
        ]
        (folder / "tokens").write_text("".join(tokens))
        database = "http://127.0.0.1:2379"
        self._start(
            "etcd",
            data_dir=folder / "etcd",
            listen_client_urls=database,
            advertise_client_urls=database,
        )
        self._start(
            "kube-apiserver",
            etcd_servers=database,
            service_cluster_ip_range=_SERVICES,
            authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction",
            allow_privileged="true",
            advertise_address=self._address,
            cert_dir=folder,
            token_auth_file=folder / "tokens",
            service_account_issuer=f"https://kubernetes.default.svc.{_DOMAIN}",
            service_account_key_file=service_key,
            service_account_signing_key_file=service_key,
            kubelet_preferred_address_types="InternalIP",
        )
        self._wait((folder / "apiserver.crt").exists)
        self.kubeconfig = self._write_access("admin")
        self._wait(lambda: self._send("GET", "/readyz"))
        self._start(
            "kube-controller-manager",
            kubeconfig=self._write_access("system:kube-controller-manager"),
            service_account_private_key_file=service_key,
            root_ca_file=folder / "apiserver.crt",
            use_service_account_credentials="true",
            leader_elect="false",
        )
        self._start(
            "kube-scheduler",
            kubeconfig=self._write_access("system:kube-scheduler"),
            leader_elect="false",
        )

    def _start_node(self) -> None:
        folder = self._folder
        _write(folder / "containerd.toml", _describe_containerd(folder))
        (folder / "cni").mkdir()
        _write(folder / "cni" / "10-pods.conflist", json.dumps(_describe_network(folder)))
        self._start("containerd", config=folder / "containerd.toml")
        self._wait((folder / "containerd.sock").exists)
        (folder / "pause").mkdir()
        self._engine.build_image("pause", _PAUSE, folder / "pause")
        self.load_image("pause")
        (folder / "resolv.conf").touch()
        settings = _describe_kubelet(folder, self._address)
        _write(folder / "kubelet.yaml", yaml.safe_dump(settings))
        self._start(
            "kubelet",
            config=folder / "kubelet.yaml",
            kubeconfig=self._write_access(f"system:node:{_NODE}"),
            root_dir=folder / "kubelet",
            hostname_override=_NODE,
            node_ip=self._address,
        )
        self._start(
            "kube-proxy",
            kubeconfig=self._write_access("system:kube-proxy"),
            proxy_mode="iptables",
            hostname_override=_NODE,
            conntrack_max_per_core=0,
            cluster_cidr=_PODS,
        )
        _write(
            folder / "Corefile",
            f".:53 {{\n errors\n kubernetes {_DOMAIN} {{\n  kubeconfig {self.kubeconfig}\n"
            "  ttl 5\n }\n}\n",
        )
        self._start("dns", conf=folder / "Corefile")

    def _prepare(self) -> None:
        """Makes the namespaces and accounts, and waits until a pod could run."""
        from kubernetes import config, utils

        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        for name, labels in {"airflow": {}, "training": restricted}.items():
            self.request(
                "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}}
            )
        account = {"metadata": {"name": "airflow-worker"}}
        self.request("POST", "/api/v1/namespaces/airflow/serviceaccounts", account)
        client = config.new_client_from_config(str(self.kubeconfig))
        for file in ("rbac.yaml", "network-policy.yaml"):
            utils.create_from_yaml(client, str(ROOT / "docker" / "kubernetes" / file))
        self._wait(lambda: self.request("GET", _DEFAULT_ACCOUNT))
        self._wait(self._is_node_ready)

    def _is_node_ready(self) -> bool:
        node = self.request("GET", f"/api/v1/nodes/{_NODE}")
        return {"Ready": "True"} in [
            {condition["type"]: condition["status"]} for condition in node["status"]["conditions"]
        ]

    def _send(self, method: str, path: str, body: object = None) -> str:
        """Sends a request of an administrator. An error of HTTP is an OSError."""
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self._tokens['admin']}", "Content-Type": _JSON},
            method=method,
        )
        trusted = ssl.create_default_context(cafile=self._folder / "apiserver.crt")
        with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
            return answer.read().decode()

    def _write_access(self, user: str, token: str = "") -> Path:
        """Writes a kubeconfig file for a user."""
        file = self._folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self._url, "certificate-authority": f"{self._folder}/apiserver.crt"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self._tokens[user]}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
            "current-context": "real",
        }
        _write(file, yaml.safe_dump(content))
        return file

    def _start(self, name: str, **options: object) -> None:
        """Starts a program in the namespaces."""
        program = self._programs / name
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        if name == "dns":  # its options have one hyphen
            words = [word[1:] for word in words]
        with open(self._folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._inside, str(program) if program.exists() else name, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, is_so: Callable[[], object]) -> None:
        """Waits, and fails at once if a program has ended."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if is_so():
                    return
            ended = [name for name, run in self._processes.items() if run.poll() is not None]
            assert not ended, f"{ended} ended\n{self.read_logs()}"
            assert time.monotonic() < deadline, self.read_logs()
            time.sleep(0.2)


def _describe_containerd(folder: Path) -> str:
    """Its stores are in the folder, and it does without what needs a right of the whole machine."""
    return f"""version = 2
root = "{folder}/images"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/pause:latest"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PROGRAMS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def _describe_network(folder: Path) -> dict[str, Any]:
    addresses = {"type": "host-local", "dataDir": f"{folder}/addresses"}
    addresses |= {"ranges": [[{"subnet": _PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {"type": "ptp", "ipMasq": True, "mtu": 1500, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}


def _describe_kubelet(folder: Path, address: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{folder.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [address],
        "clusterDomain": _DOMAIN,
        "resolvConf": f"{folder}/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        "podLogsDir": f"{folder}/pods",
        "volumePluginDir": f"{folder}/plugins",
    }


def _remove_cgroup(cgroup: Path) -> None:
    """Removes a cgroup without processes and those in it, the innermost ones first."""
    for folder in [path for path in cgroup.rglob("*") if path.is_dir()][::-1]:
        folder.rmdir()
    cgroup.rmdir()


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def _run(*words: str, **options: Any) -> str:
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return str(done.stdout)
