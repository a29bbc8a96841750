"""The supervisor: starts a gang as a whole, watches its processes, and restarts it after a failure.

It knows nothing of TensorFlow. When one process fails, the supervisor ends the whole gang, and a
new gang continues from the last checkpoint. The new gang has new addresses, runs on the hosts that
are there now, and is as large as these and the config allow. The global batch and the learning rate
never change, so every incarnation continues the same curve. `restart_policy.py` defines which
failures count against `max_restarts`. `worker_monitor.py` finds the cause of a failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.jobs.gang_protocol import Command
from pipeline_ops.jobs.progress import Progress
from pipeline_ops.launch.gang_log import GangLog
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.plan import (
    LaunchPlan,
    build_launch_plan,
    gang_size,
    needs_ports,
    seats_of,
    spec_file,
    status_file,
)
from pipeline_ops.launch.restart_policy import RestartPolicy
from pipeline_ops.launch.worker_monitor import Failure, WorkerMonitor
from pipeline_ops.storage.atomic import write_json

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_TOKEN_BYTES = 32
_PEERS_SECONDS = 1.0
"""The time that the other workers get after the first failure: one of them may know the reason."""
_PORTS_SECONDS = 10.0
_KILL_SECONDS = 3.0
_SAVE_SECONDS = 25.0
"""Machines that are about to be taken away usually give thirty seconds."""


class Stop:
    """SIGTERM to the job: the gang saves its state, and another try continues from there.

    A caller that cannot wait sends SIGKILL a moment later.
    """

    def __init__(self):
        self.is_asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)

    def _note(self, _signal: int, _frame: object) -> None:
        self.is_asked = True

    def check(self) -> None:
        """Raises MachineError if the job was asked to stop. No state is left to save."""
        if self.is_asked:
            raise MachineError("stopped by SIGTERM; another try goes on from the last checkpoint")


@dataclasses.dataclass
class Gang:
    """All processes of one training, through all incarnations.

    Args:
      config: the training section.
      attempt: the train job's folder.
      work: the folder of checkpoints.
      fleet: the hosts.
      report: is called with the chief's progress.
    """

    config: Train
    attempt: Attempt
    work: Path
    fleet: HostPool
    report: Callable[[Progress], None]
    steps_limit: int | None = None
    stop: Stop = dataclasses.field(default_factory=Stop)
    restarts: int = 0
    """The number of restarts after failures. A gang that only changes its size is not counted."""
    plan: LaunchPlan | None = None
    """The plan of the incarnation that runs, or ran last."""
    _incarnation: int = 0
    _grows: bool = False
    _failed_at: float = 0.0
    _log: GangLog | None = None

    def run(self) -> None:
        """Returns when every worker has ended well; otherwise raises the error of its exit code."""
        log = GangLog(self.attempt)
        try:
            self._run(log)
        except TrainyardError as error:
            log.follow(worker.name for worker in (self.plan.workers if self.plan else ()))
            log.say(f"FAILED: {error}")
            raise type(error)(f"{error}; all workers' lines in one: {log.path}") from error

    def _run(self, log: GangLog) -> None:
        budget, self._log = RestartPolicy(self.config.max_restarts), log
        while True:
            failure, watch = self._run_once()
            if failure is None:
                return
            self._failed_at = time.monotonic()
            self._incarnation += 1
            self.stop.check()
            if not failure.exit_code.is_retried:
                raise failure.error()
            if not (self._grows and watch and watch.has_saved):
                self._back_off(failure, budget.spend(watch.started_from if watch else 0))

    def _back_off(self, failure: Failure, wait_seconds: float | None) -> None:
        if wait_seconds is None:
            raise MachineError(
                f"{failure.message}\nThe gang was restarted {self.restarts} times; "
                f"train.max_restarts is {self.config.max_restarts}, counted from the last "
                "checkpoint that a restart has got past."
            )
        self.restarts += 1
        message = f"{failure.message}; restart {self.restarts}" + (
            f" in {wait_seconds:.0f} s" if wait_seconds else ""
        )
        _log.warning(message)
        self._tell("restart", message)
        until = time.monotonic() + wait_seconds
        while time.monotonic() < until:
            self.fleet.poll(_POLL_SECONDS)
            self.stop.check()

    def _run_once(self) -> tuple[Failure | None, WorkerMonitor | None]:
        """Runs one incarnation from start to end. On return, none of its processes is left."""
        watch = None
        try:
            self._gather()
            watch = self._start()
            return self._follow(watch), watch
        except MachineError as error:
            return Failure(str(error)), watch
        finally:
            if watch:
                self._end(watch)

    def _gather(self) -> None:
        """Waits for as many hosts as the gang may have, but not for those whose last try failed.

        Raises:
          MachineError: too few hosts have come in time.
          ConfigError: too few hosts can ever come, because a person has to fix the others.
        """
        self.fleet.allocate(self.stop.check)
        began, tries = (
            time.monotonic(),
            {name: host.tries for name, host in self.fleet.hosts.items()},
        )
        while True:
            self.fleet.poll(_POLL_SECONDS)
            self.stop.check()
            hosts, now = self.fleet.hosts, time.monotonic()
            size = gang_size(self.config, self.fleet.ready)
            failed = [
                host
                for name, host in hosts.items()
                if host.link is None and host.tries > tries[name]
            ]
            is_settled = size == self.config.most_workers or all(
                host.is_ready or host in failed for host in hosts.values()
            )
            if (
                size
                and is_settled
                and all(host.is_ready or now >= host.fenced_until for host in hosts.values())
            ):
                return
            problems = "; ".join(host.problem for host in hosts.values() if host.problem)
            if is_settled and not size and any(host.needs_person for host in hosts.values()):
                raise ConfigError(problems)
            if now - began > self.config.start_timeout_seconds:
                room = sum(place.workers for place in self.fleet.ready)
                raise MachineError(
                    f"after {now - began:.0f} s (train.start_timeout_seconds) the hosts have room "
                    f"for {room} workers, and at least {self.config.fewest_workers} are needed: "
                    f"{problems or 'no host has answered'}"
                )

    def _start(self) -> WorkerMonitor:
        places = self.fleet.ready
        seats = seats_of(self.config, places, gang_size(self.config, places))
        ports = (
            self._ask_for_ports(Counter(seat.host for seat in seats))
            if needs_ports(self.config, places, seats)
            else {}
        )
        self.plan = build_launch_plan(
            self.config,
            places,
            seats,
            ports,
            self.attempt,
            self.work,
            self._incarnation,
            self.steps_limit,
        )
        self._grows = False
        write_json(self.attempt.folder / "launch-plan.json", self.plan.model_dump(mode="json"))
        _log.info("the gang:\n%s", self.plan)
        watch, token = (
            WorkerMonitor(self.plan, self.config, self.attempt),
            secrets.token_hex(_TOKEN_BYTES),
        )
        for worker in self.plan.workers:
            write_json(spec_file(self.attempt, worker.name), worker.model_dump(mode="json"))
            status_file(self.attempt, worker.name).unlink(missing_ok=True)
            self.fleet.send(
                worker.host, Command(order="fork", fork=self.plan.fork(worker, self.attempt, token))
            )
        return watch

    def _ask_for_ports(self, counts: Counter[str]) -> dict[str, list[int]]:
        for host, count in counts.items():
            self.fleet.send(host, Command(order="ports", count=count))
        ports: dict[str, list[int]] = {}
        deadline = time.monotonic() + _PORTS_SECONDS
        while ports.keys() != counts.keys():
            ports |= {
                host: event.ports
                for host, event in self.fleet.poll(_POLL_SECONDS)
                if event.event == "ports"
            }
            if silent := [
                host
                for host in counts
                if host not in ports
                and (not self.fleet.hosts[host].is_ready or time.monotonic() > deadline)
            ]:
                raise MachineError(
                    self.fleet.hosts[silent[0]].problem
                    or f"host {silent[0]} has named no ports within {_PORTS_SECONDS:.0f} s"
                )
        for host, found in ports.items():
            if len(found) < counts[host]:
                raise MachineError(
                    f"host {host} has {len(found)} free ports where {counts[host]} are needed; "
                    "widen first_port and last_port in the hosts file, or end what holds them"
                )
        return ports

    def _follow(self, watch: WorkerMonitor) -> Failure | None:
        while watch.unfinished:
            self._listen(watch)
            if self.stop.is_asked:
                return self._save_and_leave(watch)
            if failure := self._lost_host() or watch.failure():
                return self._ask_peers(watch, failure)
            self._grow(watch)
        return None

    def _listen(self, watch: WorkerMonitor) -> None:
        """Waits a moment for the gang's events and passes them on."""
        for host, event in self.fleet.poll(_POLL_SECONDS):
            watch.note(host, event)
        self._log.follow(worker.name for worker in self.plan.workers)
        had_stepped, moments = watch.has_stepped, watch.progress()
        for moment in moments:
            self.report(moment)
        if watch.has_stepped and not had_stepped and self._incarnation:
            seconds = time.monotonic() - self._failed_at
            self._tell(
                "recovered",
                f"first new step {seconds:.1f} s after the failure was noticed",
                {"seconds": round(seconds, 3)},
            )
        if asked := watch.take_preempted_servers():
            self._tell(
                "stopping",
                f"SIGTERM to {', '.join(sorted(asked))}: the gang saves its state and leaves",
            )
            self._signal_chief(signal.SIGTERM)

    def _grow(self, watch: WorkerMonitor) -> None:
        """Makes room for a larger gang once hosts have come back.

        The gang saves its state and leaves, as for SIGTERM, and a larger one continues from there.
        """
        size, possible = len(self.plan.cluster["worker"]), gang_size(self.config, self.fleet.ready)
        if not self._grows and watch.has_stepped and possible > size:
            self._grows = True
            self._tell(
                "grow",
                f"there is room for {possible} workers and not {size} now; "
                "the gang saves its state and goes on larger",
            )
            self._signal_chief(signal.SIGTERM)

    def _signal_chief(self, number: int) -> None:
        chief = next(worker for worker in self.plan.workers if worker.is_chief)
        self.fleet.send(chief.host, Command(order="signal", name=chief.name, signal=number))

    def _lost_host(self) -> Failure | None:
        lost = [
            self.fleet.hosts[worker.host].problem
            for worker in self.plan.workers
            if not self.fleet.hosts[worker.host].is_ready
        ]
        return Failure(lost[0]) if lost else None

    def _ask_peers(self, watch: WorkerMonitor, first: Failure) -> Failure:
        """Returns the first failure, unless a worker that ends a moment later reports its cause.

        A peer's exit is only an echo of the failure.
        """
        deadline = time.monotonic() + _PEERS_SECONDS
        while watch.unfinished and not watch.is_explained and time.monotonic() < deadline:
            self._listen(watch)
        return self._lost_host() or watch.cause(first)

    def _save_and_leave(self, watch: WorkerMonitor) -> Failure:
        self._tell("stopping", "SIGTERM: the gang saves its state and leaves")
        self.fleet.signal_all(signal.SIGTERM)
        deadline = time.monotonic() + _SAVE_SECONDS
        while watch.unfinished and not self._lost_host() and time.monotonic() < deadline:
            self._listen(watch)
        return Failure("stopped by SIGTERM")

    def _end(self, watch: WorkerMonitor) -> None:
        """Kills the rest of the gang and waits until it is gone.

        A host that does not answer is given up, with every process on it.
        """
        hosts = {worker.name: worker.host for worker in self.plan.workers}
        deadline = time.monotonic() + _KILL_SECONDS
        self.fleet.signal_all(signal.SIGKILL)
        while left := {
            hosts[name] for name in watch.living if self.fleet.hosts[hosts[name]].is_ready
        }:
            for host, event in self.fleet.poll(_POLL_SECONDS):
                watch.note(host, event)
            if time.monotonic() > deadline:
                for host in left:
                    self.fleet.drop(
                        host,
                        f"its processes are not gone {_KILL_SECONDS:.0f} s after they were killed",
                    )

    def _tell(self, phase: str, message: str, metrics: Mapping[str, float] | None = None) -> None:
        self._log.say(message)
        self.report(
            Progress(time=time.time(), phase=phase, message=message, metrics=dict(metrics or {}))
        )
