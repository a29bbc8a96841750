"""The launch plan: the host, role, address and number of cores of each process. Pure and printable.

Only a host itself knows its free ports, so a plan is built without ports (`build_launch_plan`), and
completed with the ports that the hosts report (`LaunchPlan.with_ports`). `gang.py` carries it out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import (
    Fork,
    Role,
    StoredWork,
    WorkerSpec,
    format_worker_name,
)
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError
from pipeline_ops.places.launcher import Host


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

    @property
    def needs_ports(self) -> bool:
        """Returns whether the processes listen on ports, as TensorFlow's servers do."""
        return len(self.workers) > 1

    def get_address(self, worker: WorkerSpec) -> str:
        return self.cluster[worker.role][worker.index]

    def with_ports(self, ports: Mapping[str, Iterable[int]]) -> LaunchPlan:
        """Gives each process the next free port of its host, from the free ports by host."""
        free = {host: iter(numbers) for host, numbers in ports.items()}
        cluster: dict[Role, list[str]] = {}
        for worker in self.workers:
            host = self.get_address(worker).rpartition(":")[0]
            cluster.setdefault(worker.role, []).append(f"{host}:{next(free[worker.host])}")
        workers = [worker.model_copy(update={"cluster": cluster}) for worker in self.workers]
        return self.model_copy(update={"workers": workers})

    def fork(self, worker: WorkerSpec) -> Fork:
        """Builds the message that makes the fork server start a worker."""
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
            host, _, port = self.get_address(worker).rpartition(":")
            address = host + {"none": " (no port)", "0": ":(a free one)"}.get(port, f":{port}")
            shares = str(worker.threads), str(worker.devices)
            variables = " ".join(map("=".join, self.environment.get(worker.name, {}).items()))
            rows.append((worker.name, worker.host, address, *shares, variables))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def compute_gang_size(config: Train, hosts: Sequence[Host]) -> int:
    """Returns the largest number of workers on these hosts, or 0 if the config needs more."""
    size = min(config.effective_max_workers, sum(host.workers for host in hosts))
    return size if size >= config.effective_min_workers else 0


def build_launch_plan(
    config: Train,
    hosts: Sequence[Host],
    attempt: Attempt[Any],
    work: Path,
    steps_limit: int | None = None,
    stored: StoredWork | None = None,
) -> LaunchPlan:
    """Plans the largest gang that hosts and config allow, without ports.

    `attempt` and `work` are the launcher's folders of the train job and of checkpoints, and
    `stored` is the folder of checkpoints in a bucket.
    """
    if stored and any(host.local_attempt for host in hosts):
        stored = stored.model_copy(update={"is_shared": True})
    workers = _spread_workers(hosts, compute_gang_size(config, hosts))
    gang: dict[Role, list[Host]] = {"worker": workers}
    if config.strategy == "parameter_server":
        servers = [hosts[index % len(hosts)] for index in range(config.parameter_servers)]
        gang = {"chief": [hosts[0]], "worker": workers, "ps": servers}
    cluster = {role: [f"{host.address}:none" for host in placed] for role, placed in gang.items()}
    sharers = Counter(host.name for host in workers)
    devices = _share_devices(config, workers)
    specs, environment = [], {}
    processes = [(role, *each) for role, placed in gang.items() for each in enumerate(placed)]
    for role, index, host in processes:
        name, files = format_worker_name(role, index), host.get_attempt(attempt)
        specs.append(
            WorkerSpec(
                request=str(files.request),
                cluster=cluster,
                role=role,
                index=index,
                host=host.name,
                work=str(host.get_work(work)),
                stored=stored,
                progress=str(files.worker_progress(name)),
                threads=max(1, host.cores // max(1, sharers[host.name])),
                devices=config.devices_per_worker,
                micro_batches=config.micro_batches,
                steps_limit=steps_limit,
            )
        )
        if host.gpus:
            # A process that does not train must not hold a device.
            visible = devices[index] if role == "worker" else ""
            environment[name] = {"CUDA_VISIBLE_DEVICES": visible}
    return LaunchPlan(workers=specs, environment=environment)


def _spread_workers(hosts: Sequence[Host], num_workers: int) -> list[Host]:
    """Returns the host of each worker, in the order of the hosts, so the first one has worker 0.

    The spread is as even as the capacities of the hosts allow.
    """
    places = [(turn, index) for index, host in enumerate(hosts) for turn in range(host.workers)]
    chosen = sorted(index for _, index in sorted(places)[:num_workers])
    return [hosts[index] for index in chosen]


def _share_devices(config: Train, workers: Sequence[Host]) -> list[str]:
    """Returns CUDA_VISIBLE_DEVICES of each worker. The workers of a host get its devices in order.

    All workers have GPUs or none has. With `auto`, the host with the fewest devices for each worker
    sets the number for all. Raises ConfigError if a host has too few.
    """
    sharers = Counter(host.name for host in workers)
    numbers = [len(host.gpus) // sharers[host.name] for host in workers]
    fewest, count = min(numbers), config.devices_per_worker
    if config.strategy == "auto" and fewest:
        count = fewest
    if fewest < count and any(host.gpus for host in workers):
        host = workers[numbers.index(fewest)]
        raise ConfigError(
            f"host {host.name} has {len(host.gpus)} GPUs for {sharers[host.name]} workers, and a "
            f"worker takes {count}. All workers of a gang train on GPUs, or none does. Lower "
            "train.devices_per_worker or `workers` of the host, leave the host out, or set "
            'CUDA_VISIBLE_DEVICES: "" in `environment` of the hosts file.'
        )
    shares = []
    for host, group in itertools.groupby(workers):
        parts = range(len(list(group)))
        shares += [host.gpus[index * count : (index + 1) * count] for index in parts]
    return [",".join(share) for share in shares]


def get_status_path(attempt: Attempt, name: str) -> Path:
    return attempt.worker_file(name, "status.json")
