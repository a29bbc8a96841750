"""The launch plan: the host, role, address and number of cores of each process. Pure and printable.

It takes two steps, because only the host itself knows its free ports. `assign_workers` assigns the
processes to the hosts. `build_launch_plan` adds the ports that the hosts have found and makes the
specification of each process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.train import Train
from pipeline_ops.jobs.gang_protocol import (
    Fork,
    Role,
    StoredWork,
    WorkerSpec,
    format_worker_name,
)

_DEVICE_VARIABLE = "CUDA_VISIBLE_DEVICES"


class Host(BaseModel):
    """A host as the plan sees it: its address for the others, and how many workers it can take."""

    model_config = ConfigDict(frozen=True)

    name: str
    address: str
    workers: int
    cores: int = 0
    """0: as many as the host reports."""
    gpus: tuple[str, ...] = ()
    """The devices that its processes share, as CUDA_VISIBLE_DEVICES names them.

    Empty if there are none, or if they are not to be divided.
    """
    own_attempt: str = ""
    """Its folder of the attempt, if it shares only a bucket with the launcher."""
    own_work: str = ""
    """Its folder of checkpoints, if it shares only a bucket with the launcher."""

    def get_attempt(self, shared: Attempt[Any]) -> Attempt[Any]:
        return Attempt(Path(self.own_attempt)) if self.own_attempt else shared

    def get_work(self, shared: Path) -> Path:
        return Path(self.own_work) if self.own_work else shared


class WorkerAssignment(BaseModel):
    """One process of the gang: its role, its index in the role, and its host."""

    model_config = ConfigDict(frozen=True)

    role: Role
    index: int
    host: str

    @property
    def name(self) -> str:
        return format_worker_name(self.role, self.index)


class LaunchPlan(BaseModel):
    """One incarnation of a gang.

    Every incarnation has addresses of its own, so that it never meets its predecessor's peers.
    """

    model_config = ConfigDict(frozen=True)

    workers: list[WorkerSpec]
    environment: dict[str, dict[str, str]] = {}
    """The variables of each process, by name, in addition to the environment of its host."""

    @property
    def cluster(self) -> dict[Role, list[str]]:
        return self.workers[0].cluster

    @property
    def chief(self) -> WorkerSpec:
        return next(worker for worker in self.workers if worker.is_chief)

    def fork(self, worker: WorkerSpec) -> Fork:
        """The message to the fork server."""
        attempt = Attempt(Path(worker.progress).parent)
        return Fork(
            name=worker.name,
            entry="worker",
            argument=worker.model_dump_json(),
            status=str(get_status_path(attempt, worker.name)),
            log=str(attempt.worker_log(worker.name)),
            env=self.environment.get(worker.name, {}),
        )

    def __str__(self) -> str:
        rows = [("process", "host", "address", "threads", "devices", "environment")]
        for worker in self.workers:
            host, _, port = worker.cluster[worker.role][worker.index].rpartition(":")
            variables = self.environment.get(worker.name, {}).items()
            rows.append(
                (
                    worker.name,
                    worker.host,
                    host + {"none": " (no port)", "0": ":(a free one)"}.get(port, f":{port}"),
                    str(worker.threads),
                    str(worker.devices),
                    " ".join(map("=".join, variables)),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def compute_gang_size(config: Train, hosts: Sequence[Host]) -> int:
    """Returns how many workers the gang can have on these hosts now, 0 if that is too few."""
    size = min(config.effective_max_workers, sum(host.workers for host in hosts))
    return size if size >= config.effective_min_workers else 0


def assign_workers(config: Train, hosts: Sequence[Host], workers: int) -> list[WorkerAssignment]:
    """Spreads the workers over the hosts and numbers them in the order of the hosts.

    The spread is as even as the hosts' capacities allow. The chief runs on the first host. The
    parameter servers are assigned to the hosts in turn.
    """
    assigned: Counter[str] = Counter()
    if workers > (capacity := sum(host.workers for host in hosts)):
        raise ValueError(f"{workers} workers exceed the capacity of the hosts, which is {capacity}")
    for _ in range(workers):
        free = [host for host in hosts if assigned[host.name] < host.workers]
        assigned[min(free, key=lambda host: assigned[host.name]).name] += 1
    names = [host.name for host in hosts for _ in range(assigned[host.name])]
    gang = [
        WorkerAssignment(role="worker", index=index, host=name) for index, name in enumerate(names)
    ]
    if config.strategy != "parameter_server":
        return gang
    servers = [
        WorkerAssignment(role="ps", index=index, host=hosts[index % len(hosts)].name)
        for index in range(config.parameter_servers)
    ]
    return [WorkerAssignment(role="chief", index=0, host=hosts[0].name), *gang, *servers]


def needs_ports(config: Train, assignments: Sequence[WorkerAssignment]) -> bool:
    """Returns whether the processes of the gang listen on ports, as TensorFlow's servers do."""
    return len(assignments) > 1 or config.strategy == "parameter_server"


def build_launch_plan(
    config: Train,
    hosts: Sequence[Host],
    assignments: Sequence[WorkerAssignment],
    ports: Mapping[str, Sequence[int]],
    attempt: Attempt[Any],
    work: Path,
    steps_limit: int | None = None,
    stored: StoredWork | None = None,
) -> LaunchPlan:
    """Makes the specification of each process from its assignment.

    Args:
      ports: free ports by host, one for each process there. Empty for a gang that needs none.
      attempt, work: the launcher's folders of the train job and of checkpoints.
      steps_limit: stop after that many steps.
      stored: the folder of checkpoints in a bucket.
    """
    if stored and any(host.own_attempt for host in hosts):
        stored = stored.model_copy(update={"is_exchanged": True})
    hosts_by_name = {host.name: host for host in hosts}
    cluster: dict[Role, list[str]] = {}
    free_ports = {name: iter(free) for name, free in ports.items()}
    for each in assignments:
        port = next(free_ports[each.host]) if ports else "none"
        cluster.setdefault(each.role, []).append(f"{hosts_by_name[each.host].address}:{port}")
    sharers = Counter(each.host for each in assignments if each.role == "worker")
    workers = [
        WorkerSpec(
            request=str((host := hosts_by_name[each.host]).get_attempt(attempt).request),
            cluster=cluster,
            role=each.role,
            index=each.index,
            host=each.host,
            work=str(host.get_work(work)),
            stored=stored,
            progress=str(host.get_attempt(attempt).worker_progress(each.name)),
            threads=max(1, host.cores // max(1, sharers[host.name])),
            devices=config.devices_per_worker,
            steps_limit=steps_limit,
        )
        for each in assignments
    ]
    environment = _assign_devices(config, hosts_by_name, assignments, sharers)
    return LaunchPlan(workers=workers, environment=environment)


def _assign_devices(
    config: Train,
    hosts: Mapping[str, Host],
    assignments: Sequence[WorkerAssignment],
    sharers: Mapping[str, int],
) -> dict[str, dict[str, str]]:
    """The variables of the processes on hosts with devices. Each worker gets the next devices."""
    num_assigned: Counter[str] = Counter()
    environment = {}
    for each in assignments:
        if gpus := hosts[each.host].gpus:
            is_auto = config.strategy == "auto"
            count = (
                len(gpus) // max(1, sharers[each.host]) if is_auto else config.devices_per_worker
            )
            is_worker, start = each.role == "worker", num_assigned[each.host] * count
            devices = ",".join(gpus[start : start + count]) if is_worker else ""
            environment[each.name] = {_DEVICE_VARIABLE: devices}
            num_assigned[each.host] += is_worker
    return environment


def get_status_path(attempt: Attempt, name: str) -> Path:
    return attempt.worker_file(name, "status.json")
