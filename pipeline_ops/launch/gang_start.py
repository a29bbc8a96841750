"""The start of a gang: waits for hosts, plans the processes on them, and forks the processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.jobs.gang_protocol import Command, StoredWork
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.plan import (
    LaunchPlan,
    assign_workers,
    build_launch_plan,
    compute_gang_size,
    get_status_path,
    needs_ports,
)
from pipeline_ops.storage.atomic import write_json

_POLL_SECONDS = 0.2
_PORTS_SECONDS = 10.0
_CONNECT_SECONDS = 20.0


def wait_for_hosts(host_pool: HostPool, config: Train, check: Callable[[], None]) -> None:
    """Waits for as many hosts as the gang may have, but not for those whose last try failed.

    Args:
      host_pool: the hosts.
      config: the training section.
      check: raises if the gang is no longer needed. Called while waiting.

    Raises:
      MachineError: too few hosts have come in time.
      ConfigError: too few hosts can ever come, because a person has to fix the others.
    """
    host_pool.allocate(check)
    deadline = time.monotonic() + config.start_timeout_seconds
    tries = {name: host.tries for name, host in host_pool.hosts.items()}
    while True:
        host_pool.poll(_POLL_SECONDS)
        check()
        hosts = host_pool.hosts.values()
        size = compute_gang_size(config, host_pool.ready)
        is_settled = size == config.effective_max_workers or all(
            host.is_ready or host.has_failed_since(tries[host.spec.name]) for host in hosts
        )
        if size and is_settled and not any(host.is_fenced for host in hosts):
            return
        problems = ". ".join(host.problem for host in hosts if host.problem)
        if not size and is_settled and any(host.is_permanent_failure for host in hosts):
            raise ConfigError(problems)
        if time.monotonic() > deadline:
            capacity = sum(host.workers for host in host_pool.ready)
            raise MachineError(
                f"after {config.start_timeout_seconds} s (train.start_timeout_seconds) the hosts "
                f"can take {capacity} workers, and at least {config.effective_min_workers} are "
                f"needed: {problems or 'no host has answered'}"
            )


def plan_gang(
    host_pool: HostPool,
    config: Train,
    attempt: Attempt,
    work: Path,
    steps_limit: int | None,
    stored: StoredWork | None = None,
) -> LaunchPlan:
    """Plans the largest gang for the hosts that are ready. The arguments are `build_launch_plan`'s.

    Raises:
      MachineError: a host is lost, or has too few free ports.
    """
    hosts = host_pool.ready
    assignments = assign_workers(config, hosts, compute_gang_size(config, hosts))
    ports: dict[str, list[int]] = {}
    if needs_ports(config, assignments):
        ports = _request_ports(host_pool, Counter(assignment.host for assignment in assignments))
        addresses = {host.name: host.address for host in hosts}
        _check_connections(
            host_pool, {name: f"{addresses[name]}:{ports[name][0]}" for name in ports}
        )
    return build_launch_plan(config, hosts, assignments, ports, attempt, work, steps_limit, stored)


def _request_ports(host_pool: HostPool, counts: Mapping[str, int]) -> dict[str, list[int]]:
    """Returns free ports by host, as many as `counts` names."""
    for host, count in counts.items():
        host_pool.send(host, Command(action="ports", count=count))
    ports: dict[str, list[int]] = {}
    deadline = time.monotonic() + _PORTS_SECONDS
    while missing := counts.keys() - ports.keys():
        is_late = time.monotonic() > deadline
        for host in missing:
            if is_late or not host_pool.hosts[host].is_ready:
                raise MachineError(
                    host_pool.hosts[host].problem
                    or f"host {host} has named no ports within {_PORTS_SECONDS:.0f} s"
                )
        for host, event in host_pool.poll(_POLL_SECONDS):
            if event.event == "ports":
                ports[host] = event.ports
    for host, count in counts.items():
        if len(ports[host]) < count:
            raise MachineError(
                f"host {host} has {len(ports[host])} free ports where {count} are needed. Widen "
                "first_port and last_port in the hosts file, or end the processes that use them"
            )
    return ports


def _check_connections(host_pool: HostPool, addresses: Mapping[str, str]) -> None:
    """Lets each host connect to a port of each other host, where workers will listen.

    Raises:
      MachineError: a host can't reach another one.
    """
    if len(addresses) < 2:
        return
    for host in addresses:
        others = [address for name, address in addresses.items() if name != host]
        host_pool.send(host, Command(action="connect", addresses=others))
    waiting, deadline = set(addresses), time.monotonic() + _CONNECT_SECONDS
    while waiting:
        for host, event in host_pool.poll(_POLL_SECONDS):
            if event.event == "connected":
                waiting.discard(host)
                if event.message:
                    raise MachineError(
                        f"host {host} can't connect to {event.message}. Open these ports between "
                        "the hosts (first_port and last_port in the hosts file), or correct "
                        "`address`"
                    )
        for host in waiting:
            if not host_pool.hosts[host].is_ready or time.monotonic() > deadline:
                raise MachineError(
                    host_pool.hosts[host].problem
                    or f"host {host} has not tried the other hosts in {_CONNECT_SECONDS:.0f} s"
                )


def fork_workers(host_pool: HostPool, plan: LaunchPlan, attempt: Attempt) -> None:
    """Sends the fork servers the requests to fork the processes."""
    write_json(attempt.folder / "launch-plan.json", plan.model_dump(mode="json"))
    for worker in plan.workers:
        get_status_path(attempt, worker.name).unlink(missing_ok=True)
        command = Command(action="fork", fork=plan.fork(worker))
        host_pool.send(worker.host, command)
