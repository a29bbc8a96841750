"""The supervisor: starts a gang as a whole, monitors its processes, restarts it after a failure.

It knows nothing of TensorFlow. When one process fails, the supervisor ends the whole gang, and a
new gang continues from the last checkpoint. The new gang has new addresses, runs on the hosts that
are there now, and is as large as these and the config allow. The global batch and the learning rate
never change, so every incarnation continues the same curve. `gang_start.py` starts an incarnation,
`worker_monitor.py` finds the cause of a failure, and `restart_policy.py` defines which failures
count against `max_restarts`.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.train import Train
from pipeline_ops.errors import MachineError, TrainyardError
from pipeline_ops.jobs.gang_protocol import Command, StoredWork
from pipeline_ops.jobs.progress import ProgressEvent
from pipeline_ops.launch.gang_log import GangLog
from pipeline_ops.launch.gang_start import fork_workers, plan_gang, wait_for_hosts
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.plan import LaunchPlan, compute_gang_size
from pipeline_ops.launch.restart_policy import RestartPolicy
from pipeline_ops.launch.stop_request import StopRequest
from pipeline_ops.launch.worker_monitor import Failure, WorkerMonitor
from pipeline_ops.system.network_namespace import CLOSE_PORTS, OPEN_PORTS

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_PEER_REPORT_SECONDS = 1.0
"""The time that the other workers get after the first failure: one of them may know the reason."""
_KILL_SECONDS = 3.0
_SAVE_SECONDS = 25.0
"""Machines that are about to be taken away usually give thirty seconds."""


@dataclasses.dataclass
class Gang:
    """All processes of one training, through all incarnations.

    Args:
      config: the training section.
      attempt: the train job's folder.
      work: the folder of checkpoints on this host.
      host_pool: the hosts.
      report: is called with the chief's progress.
      steps_limit: stop after that many steps.
      stop: the request to stop the training.
      stored: the folder of checkpoints in a bucket.
      check_lease: raises if another job has taken over the artifact.
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
    """The number of restarts after failures. A gang that only changes its size is not counted."""

    def __post_init__(self) -> None:
        self._log = GangLog(self.attempt)
        self._restart_policy = RestartPolicy(self.config.max_restarts)
        self._start_step = 0
        self._is_growing = self._has_left_to_grow = False
        self._failed_at: float | None = None

    def run(self) -> LaunchPlan:
        """Returns the plan of the incarnation in which every worker has ended well.

        Raises:
          TrainyardError: the training has failed. Its class follows the exit code of the failure.
        """
        try:
            while isinstance(outcome := self._run_incarnation(), Failure):
                self._failed_at = time.monotonic()
                self.stop.check()
                self.check_lease()
                if not outcome.exit_code.is_retried:
                    raise outcome.to_error()
                if not self._has_left_to_grow:
                    self._wait_before_restart(outcome)
            return outcome
        except TrainyardError as error:
            self._log.write_message(f"FAILED: {error}")
            raise type(error)(f"{error}. The log of all workers is {self._log.path}") from error

    def _run_incarnation(self) -> LaunchPlan | Failure:
        """Runs one incarnation from start to end. On return, none of its processes is left."""
        monitor = None
        self._start_step, self._is_growing, self._has_left_to_grow = 0, False, False
        try:
            monitor = self._start()
            return self._supervise(monitor) or monitor.plan
        except MachineError as error:
            return Failure(str(error))
        finally:
            if monitor:
                self._end(monitor)

    def _start(self) -> WorkerMonitor:
        wait_for_hosts(self.host_pool, self.config, self.stop.check)
        plan = plan_gang(
            self.host_pool,
            self.config,
            self.attempt,
            self.work,
            self.steps_limit,
            self.stored,
        )
        _log.info("the gang:\n%s", plan)
        self._warn_of_open_ports(plan)
        monitor = WorkerMonitor(plan, self.config, self.attempt)
        fork_workers(self.host_pool, plan, self.attempt)
        return monitor

    def _warn_of_open_ports(self, plan: LaunchPlan) -> None:
        for name in {worker.host for worker in plan.workers}:
            report = self.host_pool.hosts[name].report
            if report and report.open_ports and len(plan.workers) > 1 and not self.restarts:
                warning = f"{OPEN_PORTS}, because {report.open_ports}. {CLOSE_PORTS}, or accept it "
                warning += "with `network: trusted` in a hosts file that train.hosts names"
                _log.warning("%s", warning)
                self._report_event("warning", warning)

    def _supervise(self, monitor: WorkerMonitor) -> Failure | None:
        while monitor.unfinished:
            self._process_events(monitor)
            self.check_lease()
            if self.stop.is_requested:
                return self._save_and_stop(monitor)
            if failure := self._find_lost_host(monitor) or monitor.find_failure():
                return self._wait_for_cause(monitor, failure)
            self._grow_if_possible(monitor)
        return None

    def _end(self, monitor: WorkerMonitor) -> None:
        self._kill_gang(monitor)
        self._log_progress(monitor)
        self._start_step = monitor.start_step
        self._has_left_to_grow = self._is_growing and monitor.has_saved

    def _wait_before_restart(self, failure: Failure) -> None:
        wait_seconds = self._restart_policy.record_failure(self._start_step)
        if wait_seconds is None:
            raise MachineError(
                f"{failure.message}\nThe gang was restarted {self.restarts} times. "
                f"train.max_restarts is {self.config.max_restarts}, counted from the last "
                "checkpoint that a restart has passed"
            )
        self.restarts += 1
        delay = f" in {wait_seconds:.0f} s" if wait_seconds else ""
        message = f"{failure.message}. Restart {self.restarts}{delay}"
        _log.warning(message)
        self._report_event("restart", message)
        until = time.monotonic() + wait_seconds
        while time.monotonic() < until:
            self.host_pool.poll(_POLL_SECONDS)
            self.stop.check()

    def _process_events(self, monitor: WorkerMonitor) -> None:
        """Waits briefly for the gang's events and passes them on."""
        self._record_events(monitor)
        had_stepped = monitor.has_stepped
        for name, progress in self._log_progress(monitor):
            if name == monitor.plan.chief.name:
                self.report(progress)
        if monitor.has_stepped and not had_stepped and self._failed_at:
            seconds = time.monotonic() - self._failed_at
            message = f"first new step {seconds:.1f} s after the failure was noticed"
            self._report_event("recovered", message, seconds=round(seconds, 3))
        if preempted := monitor.take_preempted_servers():
            self._save_and_leave(
                monitor, "stopping", f"{', '.join(sorted(preempted))} received SIGTERM"
            )

    def _log_progress(self, monitor: WorkerMonitor) -> list[tuple[str, ProgressEvent]]:
        progress = monitor.read_progress()
        self._log.copy_new_lines((worker.name for worker in monitor.plan.workers), progress)
        return progress

    def _record_events(self, monitor: WorkerMonitor) -> None:
        for host, event in self.host_pool.poll(_POLL_SECONDS):
            monitor.record_event(host, event)

    def _grow_if_possible(self, monitor: WorkerMonitor) -> None:
        """Stops the gang for a larger one once hosts have come back."""
        size = len(monitor.plan.cluster["worker"])
        possible = compute_gang_size(self.config, self.host_pool.ready)
        if not self._is_growing and monitor.has_stepped and possible > size:
            self._is_growing = True
            reason = f"the hosts can take {possible} workers instead of {size}"
            self._save_and_leave(monitor, "grow", reason)

    def _save_and_leave(self, monitor: WorkerMonitor, phase: str, reason: str) -> None:
        """Sends the chief SIGTERM: the gang saves its state and ends, and a new one continues."""
        self._report_event(phase, f"{reason}. The gang saves its state and starts again")
        chief = monitor.plan.chief
        command = Command(action="signal", name=chief.name, signal=signal.SIGTERM)
        self.host_pool.send(chief.host, command)

    def _save_and_stop(self, monitor: WorkerMonitor) -> Failure:
        self._report_event("stopping", "the job received SIGTERM. The gang saves its state")
        self.host_pool.signal_all(signal.SIGTERM)
        deadline = time.monotonic() + _SAVE_SECONDS
        while (
            monitor.unfinished and not self._find_lost_host(monitor) and time.monotonic() < deadline
        ):
            self._process_events(monitor)
        return Failure("stopped by SIGTERM")

    def _find_lost_host(self, monitor: WorkerMonitor) -> Failure | None:
        hosts = (self.host_pool.hosts[worker.host] for worker in monitor.plan.workers)
        return next((Failure(host.problem) for host in hosts if not host.is_ready), None)

    def _wait_for_cause(self, monitor: WorkerMonitor, first: Failure) -> Failure:
        """Returns the first failure, unless a worker that ends a moment later reports its cause.

        A peer's exit is only an echo of the failure.
        """
        deadline = time.monotonic() + _PEER_REPORT_SECONDS
        while monitor.unfinished and not monitor.is_explained and time.monotonic() < deadline:
            self._process_events(monitor)
        return self._find_lost_host(monitor) or monitor.find_cause(first)

    def _kill_gang(self, monitor: WorkerMonitor) -> None:
        """Kills the rest of the gang and waits until it is gone.

        A host that does not answer is given up, with every process on it.
        """
        deadline = time.monotonic() + _KILL_SECONDS
        self.host_pool.signal_all(signal.SIGKILL)
        while hosts := [h for h in monitor.running_hosts if self.host_pool.hosts[h].is_ready]:
            self._record_events(monitor)
            if time.monotonic() > deadline:
                problem = f"its processes still run {_KILL_SECONDS:.0f} s after they were killed"
                for host in hosts:
                    self.host_pool.drop(host, problem)

    def _report_event(self, phase: str, message: str, **metrics: float) -> None:
        self._log.write_message(message)
        self.report(ProgressEvent(time=time.time(), phase=phase, message=message, metrics=metrics))
