"""Machines on which a cluster manager starts a worker each, with TF_CONFIG. No job runs there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from pipeline_ops.config.hosts import Hosts
from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import AgentSpec, Message
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.job.runner import Job
from pipeline_ops.places.launcher import Host, Launcher, wait_until
from pipeline_ops.places.place import PlaceSection
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.system.locks import ResourceHeld, exclusive_lock

JOINING_MODULE = "pipeline_ops.launch.joining"
"""The program that a cluster manager starts on each machine."""
TOLD = "problem.told"
"""The file by which a train job says that it has read why a worker can't join."""


class Joined(Message):
    """A worker that has joined."""

    host: str
    addresses: list[str] = []
    """The addresses of all workers, `host:port`, in order."""
    problem: str = ""


class TfConfigHosts(PlaceSection):
    """Machines on which a cluster manager starts a worker each, with TF_CONFIG."""

    launcher: Literal["tf_config"]
    workers: int = Field(ge=1, le=1024)
    """The number of workers in TF_CONFIG, with its chief."""
    queue_timeout_seconds: int = Field(3600, ge=1)
    """Time to wait until all workers have joined before the task is tried again."""

    @model_validator(mode="after")
    def _validate_keys(self) -> TfConfigHosts:
        names = ("python", "code", "environment", "first_port")
        if given := [name for name in names if getattr(self, name)]:
            raise ValueError(
                f"must not set {', '.join(given)}, which the cluster manager decides: it starts "
                "the workers"
            )
        return self

    @property
    def capacity(self) -> int:
        return self.workers

    @property
    def num_hosts(self) -> int:
        return self.workers

    def make_launcher(self, job: Job) -> TfConfigLauncher:
        return TfConfigLauncher(self, job)

    def list_hosts(self) -> list[Host]:
        names = [f"worker-{number}" for number in range(self.workers)]
        return [Host(name=name, address=name, workers=1) for name in names]

    def find_job_problems(self, task: str, file: str, gang: Hosts | None) -> Iterator[str]:
        yield (
            f"{file} has the workers of a gang that joins, on which no job can be started. Name it "
            f"in train.hosts, and remove {task}.runs_on."
        )

    def validate_gang(self, train: Train, location: str) -> None:
        if train.strategy == "parameter_server":
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} has launcher: tf_config, whose workers "
                "train together, and train.strategy is parameter_server. Write strategy: "
                "multi_worker_mirrored, or name hosts with another launcher"
            )
        super().validate_gang(train, location)


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
        command = f"python -m {JOINING_MODULE} {self._folder}"
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
        return [sys.executable, "-m", JOINING_MODULE, str(self._folder), index, self._run]

    def release(self) -> None:
        self._lock.close()

    def _try_lock(self) -> bool:
        try:
            resource = f"the gang of {self._folder}"
            self._lock.enter_context(exclusive_lock(self._folder / "lock", resource))
        except ResourceHeld:
            return False
        return True

    def _list_joined(self) -> list[Joined]:
        """Returns the workers that have joined. Raises ConfigError if their TF_CONFIG is wrong."""
        files = sorted(self._folder.glob("*.json"))
        found = [read_json_as(Joined, open_path(file)) for file in files]
        joined = [each for each in found if each]
        for each in joined:
            where = f"{each.host} can't join the gang: "
            if each.problem:
                (self._folder / TOLD).touch()
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
