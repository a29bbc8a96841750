"""The launch plan: the host, role, address and number of cores of each process. Pure and printable.

It takes two steps, because only the host itself knows its free ports. `seats_of` assigns the
processes to the hosts. `build_launch_plan` adds the ports that the hosts have found and makes the
specification of each process.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.train import Train
from pipeline_ops.jobs.gang_protocol import Fork, Role, WorkerSpec, worker_name

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


class WorkerAssignment(BaseModel):
    """One process of the gang: its role, its index in the role, its host, and its number there."""

    model_config = ConfigDict(frozen=True)

    role: Role
    index: int
    host: str
    number_on_host: int

    @property
    def name(self) -> str:
        return worker_name(self.role, self.index)


class LaunchPlan(BaseModel):
    """One incarnation of a gang.

    Every incarnation has addresses of its own, so that it never meets its predecessor's peers.
    """

    model_config = ConfigDict(frozen=True)

    incarnation: int
    workers: list[WorkerSpec]
    environment: dict[str, dict[str, str]] = {}
    """The variables of each process, by name, in addition to the environment of its host."""

    @property
    def cluster(self) -> dict[Role, list[str]]:
        return self.workers[0].cluster

    @property
    def awaited(self) -> list[str]:
        """The processes whose good end is the end of the training. The others serve them."""
        return [worker.name for worker in self.workers if not worker.is_server]

    def fork(self, worker: WorkerSpec, attempt: Attempt, token: str) -> Fork:
        """The message to the preloaded process. The token is the gang's secret."""
        return Fork(
            name=worker.name,
            entry="worker",
            argument=str(spec_file(attempt, worker.name)),
            status=str(status_file(attempt, worker.name)),
            log=str(attempt.worker_log(worker.name)),
            env=self.environment.get(worker.name, {}),
            token=token,
        )

    def __str__(self) -> str:
        rows = [("process", "host", "address", "threads", "devices", "environment")]
        rows += [
            (
                w.name,
                w.host,
                _printed(w.cluster[w.role][w.index]),
                str(w.threads),
                str(w.devices),
                " ".join(
                    f"{key}={value}" for key, value in self.environment.get(w.name, {}).items()
                ),
            )
            for w in self.workers
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def _printed(address: str) -> str:
    return re.sub(r":none$", " (no port)", re.sub(r":0$", ":(a free one)", address))


def gang_size(config: Train, places: Sequence[Host]) -> int:
    """The number of workers that the gang can have on these hosts now; 0 if that is too few."""
    size = min(config.most_workers, sum(place.workers for place in places))
    return size if size >= config.fewest_workers else 0


def seats_of(config: Train, places: Sequence[Host], workers: int) -> list[WorkerAssignment]:
    """Spreads the workers over the hosts and numbers them in the order of the hosts.

    The spread is as even as the hosts' capacities allow. A chief sits on the first host. Parameter
    servers go round the hosts.
    """
    taken: Counter[str] = Counter()
    while sum(taken.values()) < workers:
        free = [place for place in places if taken[place.name] < place.workers]
        if not free:
            raise ValueError(
                f"{workers} workers need as many places, and the hosts have "
                f"{sum(place.workers for place in places)}"
            )
        taken[min(free, key=lambda place: taken[place.name]).name] += 1
    hosts = [place.name for place in places for _ in range(taken[place.name])]
    roles: list[tuple[Role, int, str]] = [
        ("worker", index, host) for index, host in enumerate(hosts)
    ]
    if config.strategy == "parameter_server":
        servers = [
            ("ps", index, places[index % len(places)].name)
            for index in range(config.parameter_servers)
        ]
        roles = [("chief", 0, places[0].name), *roles, *servers]
    numbers: Counter[str] = Counter()
    seats = []
    for role, index, host in roles:
        seats.append(
            WorkerAssignment(role=role, index=index, host=host, number_on_host=numbers[host])
        )
        numbers[host] += 1
    return seats


def needs_ports(config: Train, places: Sequence[Host], seats: Sequence[WorkerAssignment]) -> bool:
    """Returns whether a process of the gang listens on a port.

    TensorFlow's servers do, and so do workers with peers on other hosts.
    """
    taken = {seat.host for seat in seats}
    has_gpus = any(place.gpus for place in places if place.name in taken)
    return len(taken) > 1 or config.strategy == "parameter_server" or (has_gpus and len(seats) > 1)


def build_launch_plan(
    config: Train,
    places: Sequence[Host],
    seats: Sequence[WorkerAssignment],
    ports: Mapping[str, Sequence[int]],
    attempt: Attempt,
    work: Path,
    incarnation: int,
    steps_limit: int | None = None,
) -> LaunchPlan:
    """Makes the specification of each process from its seat.

    Args:
      config: the training section.
      places: the hosts.
      seats: the assignment of the processes to the hosts.
      ports: free ports by host, one for each seat there. Empty for a gang that needs none.
      attempt: the train job's folder: request, logs and progress.
      work: the folder of checkpoints.
      incarnation: 0 for the first gang, one more for every restart.
      steps_limit: stop after that many steps.
    """
    by_name = {place.name: place for place in places}
    cluster: dict[Role, list[str]] = defaultdict(list)
    for seat in seats:
        port = ports[seat.host][seat.number_on_host] if ports else "none"
        cluster[seat.role].append(f"{by_name[seat.host].address}:{port}")
    workers_on = Counter(seat.host for seat in seats if seat.role == "worker")
    seen: Counter[str] = Counter()
    workers, environment = [], {}
    for seat in seats:
        place, sharers = by_name[seat.host], max(1, workers_on[seat.host])
        workers.append(
            WorkerSpec(
                request=str(attempt.request),
                cluster=dict(cluster),
                role=seat.role,
                index=seat.index,
                host=seat.host,
                work=str(work),
                progress=str(attempt.worker_progress(seat.name)),
                threads=max(1, place.cores // sharers),
                devices=config.devices_per_worker,
                steps_limit=steps_limit,
            )
        )
        if place.gpus:
            count = (
                len(place.gpus) // sharers
                if config.strategy == "auto"
                else config.devices_per_worker
            )
            environment[seat.name] = {
                _DEVICE_VARIABLE: _share(place.gpus, seat, seen[seat.host], count)
            }
            seen[seat.host] += seat.role == "worker"
    return LaunchPlan(incarnation=incarnation, workers=workers, environment=environment)


def _share(gpus: Sequence[str], seat: WorkerAssignment, nth_worker: int, count: int) -> str:
    """The devices of one process, or none if it does not train.

    The devices of worker n follow those of worker n - 1.
    """
    return (
        ",".join(gpus[nth_worker * count : (nth_worker + 1) * count])
        if seat.role == "worker"
        else ""
    )


def spec_file(attempt: Attempt, name: str) -> Path:
    return attempt.of_worker(name, "spec.json")


def status_file(attempt: Attempt, name: str) -> Path:
    return attempt.of_worker(name, "status.json")
