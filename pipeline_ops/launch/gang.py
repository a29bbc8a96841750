"""The supervisor: starts a gang as a whole, supervises it, and restarts it after a failure.

It knows nothing of TensorFlow. When one process fails, the supervisor ends the whole gang, and a
new gang continues from the last checkpoint. The new gang has new addresses, runs on the hosts that
are there now, and is as large as these and the config allow. The global batch and the learning rate
never change, so every incarnation continues the same loss curve.

`train.py` runs it. `host_pool.py` reaches the hosts, `monitor.py` judges the processes, and
`gang_log.py` keeps their messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import Command, StoredWork, WorkerSpec
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.errors import ConfigError, MachineError, OutOfMemory, Pruned, TrainyardError
from pipeline_ops.launch.gang_log import GangLog
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.monitor import SELF_EXPLANATORY, WorkerMonitor
from pipeline_ops.launch.plan import (
    LaunchPlan,
    build_launch_plan,
    compute_gang_size,
    get_status_path,
)
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.system.host import OPEN_PORTS

_log = logging.getLogger(__name__)

_PORTS_SECONDS = 10.0
_CONNECT_SECONDS = 20.0
_PEER_REPORT_SECONDS = 1.0
"""The time that the other workers get after the first failure: one of them may know the reason."""
_KILL_SECONDS = 3.0
_SAVE_SECONDS = 25.0
"""Shorter than the thirty seconds that a preempted machine usually has."""
_BACK_OFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class StopRequest:
    """SIGTERM to the train job: the gang saves its state, and another try continues from there.

    A caller that cannot wait sends SIGKILL soon afterwards.
    """

    is_requested = False

    @contextlib.contextmanager
    def handle_sigterm(self) -> Iterator[StopRequest]:
        def request(_signal: int, _frame: object) -> None:
            self.is_requested = True

        previous = signal.signal(signal.SIGTERM, request)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, previous)

    def check(self) -> None:
        """Raises MachineError after a request, where there is no state to save."""
        if self.is_requested:
            raise MachineError("stopped by SIGTERM. Another try continues from the last checkpoint")


class RestartPolicy:
    """Counts consecutive failures without new progress, up to `max_restarts`.

    A training of months meets more dead machines than any fixed number allows, so a failure is
    forgiven once a later gang has started from a later checkpoint. An error that returns at the
    same step never gets that far and uses the budget up.
    """

    def __init__(self, max_restarts: int):
        self._max_restarts = max_restarts
        self._consecutive_failures = self._latest_start_step = 0

    def record_failure(self, start_step: int) -> float | None:
        """Counts the failure of a gang that had started from the checkpoint of `start_step`.

        Returns the seconds to wait before the next gang, or None if the budget is used up.
        """
        has_progressed = start_step > self._latest_start_step
        self._consecutive_failures = 1 if has_progressed else self._consecutive_failures + 1
        self._latest_start_step = max(self._latest_start_step, start_step)
        if self._consecutive_failures > self._max_restarts:
            return None
        return _BACK_OFF_SECONDS[min(self._consecutive_failures, len(_BACK_OFF_SECONDS)) - 1]


@dataclasses.dataclass
class Gang:
    """All processes of one training, through all incarnations.

    Checkpoints are in `work`, a folder of this host, and `stored` is their folder in a bucket.
    `report` is called with the chief's progress. It may raise Pruned, which ends the gang.
    `check_lease` raises if another job has taken over the artifact.
    """

    config: Train
    attempt: Attempt
    work: Path
    host_pool: HostPool
    report: Callable[[ProgressEvent], None]
    steps_limit: int | None = None
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)
    stored: StoredWork | None = None
    check_lease: Callable[[], None] = lambda: None
    restarts: int = dataclasses.field(default=0, init=False)
    """The number of restarts after failures, without those that only make the gang larger."""

    def __post_init__(self) -> None:
        self._log = GangLog(self.attempt)
        self._restart_policy = RestartPolicy(self.config.max_restarts)
        self._start_step = 0
        self._has_left_to_grow = self._has_warned_of_ports = False
        self._failed_at: float | None = None
        """The time of a failure from which the training has not yet recovered."""

    def run(self) -> LaunchPlan:
        """Returns the plan of the incarnation in which every worker finished.

        Raises the TrainyardError of the exit code of a failure that ends the training.
        """
        try:
            while isinstance(outcome := self._run_incarnation(), TrainyardError):
                self._prepare_restart(outcome)
            return outcome
        except Pruned as error:
            self._log.write_message(str(error))
            raise
        except TrainyardError as error:
            self._log.write_message(f"FAILED: {error}")
            if error.exit_code in SELF_EXPLANATORY:
                raise
            where = f"See {self._log.path} for all workers."
            told = type(error)(error.problem, f"{error.cure} {where}".strip())
            told.place = error.place
            raise told from error

    def _run_incarnation(self) -> LaunchPlan | TrainyardError:
        """Runs one incarnation from start to end. On return, none of its processes is left."""
        monitor = None
        self._start_step, self._has_left_to_grow = 0, False
        count = self.config.effective_max_workers
        phase = f"starting TensorFlow on {count} worker{'s' * (count > 1)}"
        self.report(ProgressEvent(time=time.time(), phase=phase))
        try:
            self._wait_for_hosts()
            plan = self._plan()
            _log.info("the gang:\n%s", plan)
            self._warn_of_open_ports(plan)
            monitor = WorkerMonitor(plan, self.config, self.attempt)
            self._fork(plan)
            return self._supervise(monitor) or plan
        except MachineError as error:
            return error
        finally:
            if monitor:
                self._end(monitor)

    def _wait_for_hosts(self) -> None:
        """Waits for as many hosts as the gang may have, but not for those whose last try failed.

        Raises MachineError if too few hosts are ready in time, and ConfigError if too few can ever
        be, because a person has to fix the others.
        """
        config, pool = self.config, self.host_pool
        pool.allocate(self.stop.check)
        deadline = time.monotonic() + config.start_timeout_seconds
        tries = {name: host.tries for name, host in pool.hosts.items()}
        while True:
            pool.poll()
            self.stop.check()
            hosts = pool.hosts.values()
            size = compute_gang_size(config, pool.ready)
            is_settled = size == config.effective_max_workers or all(
                host.can_fork or (host.connection is None and host.tries > tries[host.spec.name])
                for host in hosts
            )
            if size and is_settled and not any(host.is_fenced for host in hosts):
                return
            problems = pool.describe_problems()
            if not size and is_settled and any(host.is_permanent_failure for host in hosts):
                raise ConfigError(problems)
            if time.monotonic() > deadline:
                capacity = sum(host.workers for host in pool.ready)
                raise MachineError(
                    f"after {config.start_timeout_seconds} s (train.start_timeout_seconds) the "
                    f"hosts can take {capacity} workers, and at least "
                    f"{config.effective_min_workers} are needed: "
                    f"{problems or 'no host has answered'}"
                )

    def _plan(self) -> LaunchPlan:
        """Plans the largest gang for the hosts that are ready."""
        hosts, config = self.host_pool.ready, self.config
        plan = build_launch_plan(
            config, hosts, self.attempt, self.work, self.steps_limit, self.stored
        )
        if not plan.needs_ports:
            return plan
        plan = plan.with_ports(self._reserve_ports(plan))
        self._check_connections(plan)
        return plan

    def _reserve_ports(self, plan: LaunchPlan) -> dict[str, list[int]]:
        """Returns free ports by host, one for each of its processes."""
        counts = Counter(worker.host for worker in plan.workers)
        commands = {host: Command(action="ports", count=count) for host, count in counts.items()}
        replies = self.host_pool.ask(commands, "ports", _PORTS_SECONDS)
        for host, count in counts.items():
            if (found := len(replies[host].ports)) < count:
                raise MachineError(
                    f"host {host} has {found} free ports where {count} are needed. Widen "
                    "first_port and last_port in the hosts file, or end the processes that use "
                    "them"
                )
        return {host: reply.ports for host, reply in replies.items()}

    def _check_connections(self, plan: LaunchPlan) -> None:
        """Lets each host connect to a port of every other host, where workers will listen."""
        addresses = {worker.host: plan.get_address(worker) for worker in plan.workers}
        if len(addresses) == 1:
            return
        commands = {
            host: Command(action="connect", addresses=sorted({*addresses.values()} - {address}))
            for host, address in addresses.items()
        }
        for host, reply in self.host_pool.ask(commands, "connected", _CONNECT_SECONDS).items():
            if reply.message:
                raise MachineError(
                    f"host {host} can't connect to {reply.message}. Open these ports between the "
                    "hosts (first_port and last_port in the hosts file), or correct `address`"
                )

    def _warn_of_open_ports(self, plan: LaunchPlan) -> None:
        """Warns once. A hosts file with several hosts has declared their network as trusted."""
        report = self.host_pool.hosts[plan.chief.host].report
        if report and report.open_ports and plan.needs_ports and not self._has_warned_of_ports:
            self._has_warned_of_ports = True
            warning = (
                f"{OPEN_PORTS}, because {report.open_ports}. {report.close_ports}, or accept it "
                "with `network: trusted` in a hosts file that train.hosts names"
            )
            _log.warning("%s", warning)
            self._report_event("warning", warning)

    def _fork(self, plan: LaunchPlan) -> None:
        write_json(self.attempt.folder / "launch-plan.json", plan.model_dump(mode="json"))
        for worker in plan.workers:
            get_status_path(self.attempt, worker.name).unlink(missing_ok=True)
            self.host_pool.send(worker.host, Command(action="fork", fork=plan.fork(worker)))

    def _supervise(self, monitor: WorkerMonitor) -> TrainyardError | None:
        """Returns the cause of a failure, or None once every worker has exited well."""
        while monitor.unfinished:
            self._process_events(monitor)
            self.check_lease()
            if self.stop.is_requested:
                return self._save_and_stop(monitor)
            if failure := self._find_lost_host(monitor) or monitor.find_failure():
                return self._wait_for_cause(monitor, failure)
            self._grow_if_possible(monitor)
        return None

    def _process_events(self, monitor: WorkerMonitor) -> None:
        """Waits briefly for the events of hosts, then records and reports all that is new."""
        for host, event in self.host_pool.poll():
            monitor.record_event(host, event)
        for worker, progress in self._log_progress(monitor):
            if worker.is_chief:
                self.report(progress)
            elif worker.is_server and progress.phase == "preempted":
                # A server cannot notify the chief.
                self._save_and_restart(monitor, "stopping", f"{worker.name} received SIGTERM")
        if self._failed_at and monitor.has_stepped:
            seconds, self._failed_at = time.monotonic() - self._failed_at, None
            message = f"first new step {seconds:.1f} s after the failure was noticed"
            self._report_event("recovered", message, seconds=round(seconds, 3))

    def _log_progress(self, monitor: WorkerMonitor) -> list[tuple[WorkerSpec, ProgressEvent]]:
        """Copies the new messages of all workers to the log. Returns their new progress events."""
        progress = monitor.read_progress()
        events = [(worker.name, event) for worker, event in progress]
        self._log.copy_new_lines([worker.name for worker in monitor.plan.workers], events)
        return progress

    def _find_lost_host(self, monitor: WorkerMonitor) -> TrainyardError | None:
        hosts = (self.host_pool.hosts[worker.host] for worker in monitor.plan.workers)
        return next((MachineError(host.problem) for host in hosts if not host.is_ready), None)

    def _wait_for_cause(self, monitor: WorkerMonitor, first: TrainyardError) -> TrainyardError:
        """Waits for the reports of other workers. Returns the cause of the failure.

        The first failure may be an echo: a peer of a lost worker exits with a connection error.
        """
        deadline = time.monotonic() + _PEER_REPORT_SECONDS
        while monitor.unfinished and not monitor.is_explained and time.monotonic() < deadline:
            self._process_events(monitor)
        return self._find_lost_host(monitor) or monitor.find_cause(first)

    def _grow_if_possible(self, monitor: WorkerMonitor) -> None:
        """Restarts the gang as a larger one once lost hosts are ready again."""
        size = len(monitor.plan.cluster["worker"])
        possible = compute_gang_size(self.config, self.host_pool.ready)
        if not monitor.is_growing and monitor.has_stepped and possible > size:
            monitor.is_growing = True
            reason = f"the hosts can take {possible} workers instead of {size}"
            self._save_and_restart(monitor, "grow", reason)

    def _save_and_restart(self, monitor: WorkerMonitor, phase: str, reason: str) -> None:
        """Sends the chief SIGTERM: the gang saves its state and exits, and a new one continues."""
        self._report_event(phase, f"{reason}. The gang saves its state and starts again")
        chief = monitor.plan.chief
        command = Command(action="signal", name=chief.name, signal=signal.SIGTERM)
        self.host_pool.send(chief.host, command)

    def _save_and_stop(self, monitor: WorkerMonitor) -> TrainyardError:
        """Sends all processes SIGTERM and waits while the gang saves its state."""
        self._report_event("stopping", "the job received SIGTERM. The gang saves its state")
        self.host_pool.send_all(Command(action="signal", signal=signal.SIGTERM))
        deadline = time.monotonic() + _SAVE_SECONDS
        while (
            monitor.unfinished and not self._find_lost_host(monitor) and time.monotonic() < deadline
        ):
            self._process_events(monitor)
        return MachineError("stopped by SIGTERM")

    def _end(self, monitor: WorkerMonitor) -> None:
        """Kills what is left of the incarnation, and records how far it got."""
        self._kill(monitor)
        self._log_progress(monitor)
        self._start_step = monitor.start_step
        self._has_left_to_grow = monitor.is_growing and monitor.has_saved

    def _kill(self, monitor: WorkerMonitor) -> None:
        """Kills the rest of the gang and waits until it is gone.

        A host that does not answer is given up, with every process on it.
        """
        deadline = time.monotonic() + _KILL_SECONDS
        self.host_pool.send_all(Command(action="signal", signal=signal.SIGKILL))
        while hosts := [h for h in monitor.running_hosts if self.host_pool.hosts[h].is_ready]:
            for host, event in self.host_pool.poll():
                monitor.record_event(host, event)
            if time.monotonic() > deadline:
                problem = f"its processes still run {_KILL_SECONDS:.0f} s after they were killed"
                for host in hosts:
                    self.host_pool.disconnect(host, problem)

    def _prepare_restart(self, failure: TrainyardError) -> None:
        """Waits, or changes the config, so that the next incarnation can succeed.

        Raises the failure if it can't, and MachineError once the restarts are used up. A gang that
        stopped to grow restarts at once.
        """
        self._failed_at = time.monotonic()
        self.stop.check()
        self.check_lease()
        if not failure.exit_code.is_retried:
            raise failure
        if isinstance(failure, OutOfMemory):
            self._divide_batch(failure)
        elif not self._has_left_to_grow:
            self._wait_before_restart(failure)

    def _divide_batch(self, failure: OutOfMemory) -> None:
        """Doubles `micro_batches` for the next incarnation.

        Raises ConfigError if the config does not allow that.
        """
        parts = 2 * self.config.micro_batches
        try:
            values = self.config.model_dump() | {"micro_batches": parts}
            self.config = Train.model_validate(values)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(
                f"{str(failure).rstrip('.')}. More micro-batches are not possible: {reason}",
                "Lower train.global_batch_size, make images or model smaller, or set "
                "train.precision to bfloat16",
            ) from None
        self._report_restart(failure, f", with train.micro_batches: {parts}")

    def _wait_before_restart(self, failure: TrainyardError) -> None:
        wait_seconds = self._restart_policy.record_failure(self._start_step)
        if wait_seconds is None:
            raise MachineError(
                f"{failure}\nThe gang was restarted {self.restarts} times. "
                f"train.max_restarts is {self.config.max_restarts}, the limit of consecutive "
                "failures without a new checkpoint"
            )
        self._report_restart(failure, f" in {wait_seconds:.0f} s" if wait_seconds else "")
        until = time.monotonic() + wait_seconds
        while time.monotonic() < until:
            self.host_pool.poll()
            self.stop.check()

    def _report_restart(self, failure: TrainyardError, details: str) -> None:
        self.restarts += 1
        message = f"{str(failure).rstrip('.')}. Restart {self.restarts}{details}"
        _log.warning(message)
        self._report_event("restart", message)

    def _report_event(self, phase: str, message: str, **metrics: float) -> None:
        self._log.write_message(message)
        self.report(ProgressEvent(time=time.time(), phase=phase, message=message, metrics=metrics))
