"""The five kinds of places, for tests: how each is set up, and how its host is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from fake_kubernetes import KubernetesCluster
from fake_kubernetes.hosts import HOSTS
from launch import cluster as slurm
from launch import network
from placed_job import PlacedJob
from processes import read_command_line
from small_disks import mount_small_disk

from pipeline_ops.config.hosts import parse_hosts
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.places.open_place import make_place
from pipeline_ops.places.place import Place, name_job
from pipeline_ops.storage.open_store import make_store_environment, open_root
from pipeline_ops.system.processes import ATTEMPT_VARIABLE, find_processes

MODULE_PATH = f"{CODE_ROOT}{os.pathsep}{CODE_ROOT / 'tests' / 'support'}"


class Kind:
    """One kind of place.

    Attributes:
      root: the storage root that its jobs reach.
      hosts: the content of the hosts file. None is this host.
      small_disk: a folder on a disk of 64 KiB where the jobs run.
    """

    hosts: Mapping[str, object] | None = None
    environment: Mapping[str, str] = {"PYTHONPATH": MODULE_PATH}

    def __init__(self, folder: Path):
        self.root = str(folder / "root")
        self.small_disk = str(folder / "small")
        (folder / "tmp").mkdir(parents=True)
        self.environment = dict(self.environment) | {"TMPDIR": str(folder / "tmp")}

    def open(self) -> Place:
        return make_place(parse_hosts(self.hosts) if self.hosts else None)

    def lose_host(self, job: KindJob) -> None:
        """Ends everything on the host of a job, which then can't be reached."""
        job.kill_all()

    def restore_host(self) -> None:
        """Makes the host reachable again."""


class Local(Kind):
    """This host. A lost host is one that was started again: its processes are gone."""


class Ssh(Kind):
    def __init__(self, folder: Path, hosts: network.Network):
        super().__init__(folder)
        self._network = hosts
        self.hosts = hosts.hosts_file(2) | {"code": MODULE_PATH}

    def lose_host(self, job: KindJob) -> None:
        for host in self._network.hosts:
            self._network.cut(host)
        job.kill_all()

    def restore_host(self) -> None:
        for host in self._network.hosts:
            self._network.reconnect(host)


class Slurm(Kind):
    def __init__(self, folder: Path):
        super().__init__(folder)
        self.hosts = {
            "launcher": "slurm",
            "nodes": 1,
            "cores_per_node": 1,
            "code": MODULE_PATH,
            "python": sys.executable,
        }


class Kubernetes(Kind):
    """Pods of a fake cluster, which are processes of this host."""

    def __init__(self, folder: Path, cluster: KubernetesCluster):
        super().__init__(folder)
        self._cluster = cluster
        self.hosts = HOSTS | {"volumes": [{"claim": "root", "mount": str(folder)}]}

    def lose_host(self, job: KindJob) -> None:
        self._cluster.lose_node(name_job(job.attempt), is_removed=True)


_STARTER = """
import json, os, signal, sys
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.config.hosts import parse_hosts
from pipeline_ops.places.open_place import make_place
from pipeline_ops.places.place import JobLaunch
from pipeline_ops.storage.open_store import open_root

given = json.loads(sys.argv[1])
place = make_place(parse_hosts(given["hosts"]) if given["hosts"] else None)
attempt = Attempt(open_root(given["attempt"]))
place.start(JobLaunch(attempt, "place_job", given["environment"], 300, "digits", "train"))
os.kill(os.getpid(), signal.SIGKILL)
"""


class KindJob(PlacedJob):
    """A job in a place of some kind, as an operator would start it."""

    def __init__(self, kind: Kind, do: str = "nothing", number: int = 1):
        access = make_store_environment(open_root(kind.root))
        environment = {**kind.environment, **access}
        super().__init__(kind.root, number, kind.open(), do, environment, artifact=0)
        self.kind = kind

    def start_and_kill_starter(self) -> None:
        """Starts the job in a process that is killed at once."""
        launch = {
            "hosts": self.kind.hosts,
            "attempt": str(self.attempt.folder),
            "environment": dict(self.launch.environment),
        }
        argv = [sys.executable, "-c", _STARTER, json.dumps(launch)]
        done = subprocess.run(argv, env=os.environ | {"PYTHONPATH": MODULE_PATH})
        assert done.returncode == -signal.SIGKILL

    def find_again(self, lost_seconds: float = 300.0) -> JobHandle:
        """The job as another process sees it."""
        return JobHandle(self.attempt, self.kind.open(), lost_seconds)

    def list_processes(self) -> list[int]:
        """All processes of the job. Those of containers are visible here, too."""
        found = find_processes((ATTEMPT_VARIABLE, str(self.attempt.folder)))
        return [process.pid for process in found]

    def list_main_processes(self) -> list[psutil.Process]:
        """The processes of the job itself, without their children and the init process."""
        found = find_processes((ATTEMPT_VARIABLE, str(self.attempt.folder)))
        return [each for each in found if read_command_line(each)[1:3] == ["-m", "place_job"]]

    def kill_all(self) -> None:
        for pid in self.list_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def open_kind(name: str, folder: Path) -> Iterator[Kind]:
    """Sets up a place of one kind, and removes it afterwards."""
    with contextlib.ExitStack() as stack:
        # Before the hosts come up: each has a list of mounts of its own.
        stack.enter_context(mount_small_disk(folder / "small"))
        match name:
            case "local":
                yield Local(folder)
            case "ssh":
                hosts = network.Network(folder, 2)
                hosts.up()
                stack.callback(hosts.down)
                yield Ssh(folder, hosts)
            case "slurm":
                cluster = slurm.Cluster(folder, 1)
                cluster.up()
                stack.callback(cluster.down)
                yield Slurm(folder)
            case "kubernetes":
                pods = stack.enter_context(KubernetesCluster(folder / "cluster"))
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                patch.setenv("KUBECONFIG", str(pods.write_kubeconfig("trainyard-airflow")))
                yield Kubernetes(folder, pods)
            case _:
                raise ValueError(name)
