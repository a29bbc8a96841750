"""The monitor of one incarnation: the state of its processes, and the one that failed first.

A process is judged by its exit, its heartbeat, its progress file and, before its first step, the
clock. When a process is lost, its peers fail a moment later with a connection error. Such an echo
counts as the cause only if nothing else explains the failure.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.train import Train
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.jobs.gang_protocol import HEARTBEAT_SECONDS, Event, WorkerSpec
from pipeline_ops.jobs.progress import ProgressEvent, ProgressReader
from pipeline_ops.jobs.request import Status
from pipeline_ops.launch.plan import LaunchPlan, get_status_path
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as

_MISSED_HEARTBEATS = 3


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first failure in a gang, with an exit code that decides whether a retry may help."""

    message: str
    exit_code: ExitCode = ExitCode.RETRY


@dataclasses.dataclass(eq=False)
class _Process:
    """The state of one process. Times are those of the monotonic clock."""

    spec: WorkerSpec
    last_heartbeat: float
    last_progress: float
    phase: str = ""
    step: int | None = None
    """None until it has taken one."""
    is_stopped: bool = False
    """Whether a signal has stopped it, from the last report of its agent."""
    exit_code: int | None = None
    """None while it runs."""
    cause_of_end: str = ""
    """Its host's explanation of its end."""

    @property
    def has_crashed(self) -> bool:
        """Returns whether it crashed, as TensorFlow may when it gives up a collective."""
        return self.exit_code in (-signal.SIGSEGV, -signal.SIGABRT)

    @property
    def was_killed(self) -> bool:
        return self.exit_code is not None and self.exit_code < 0 and not self.has_crashed

    def __post_init__(self) -> None:
        self._reader = ProgressReader(open_path(Path(self.spec.progress)))
        self._reader.seek_end()  # earlier incarnations have written to the same file

    def record_alive(self, event: Event) -> None:
        """Records a report of its agent about all processes of the host.

        A process that joins waits for its peers inside TensorFlow, where none of its threads
        advances. It is alive unless it is stopped.
        """
        self.is_stopped = self.spec.name in event.stopped
        if self.spec.name in event.names or (self.phase == "joining" and not self.is_stopped):
            self.last_heartbeat = time.monotonic()

    def read_progress(self) -> list[ProgressEvent]:
        events = self._reader.read_new()
        for event in events:
            self.last_progress, self.phase = time.monotonic(), event.phase
            if event.phase == "train":
                self.step = event.done or 0
        return events


class WorkerMonitor:
    """The processes of one incarnation."""

    def __init__(self, plan: LaunchPlan, config: Train, attempt: Attempt):
        self.plan = plan
        self._config, self._attempt = config, attempt
        self._started = now = time.monotonic()
        self._processes = {spec.name: _Process(spec, now, now) for spec in plan.workers}
        self._ended: list[_Process] = []
        """In the order in which they ended."""
        self.start_step = 0
        """The step of the checkpoint from which the gang continued."""
        self.has_saved = False
        """Whether the chief has saved its state and left, because a process was asked to stop."""

    @property
    def unfinished(self) -> list[str]:
        """The processes that must still end. Servers never do by themselves."""
        return [process.spec.name for process in self._running if not process.spec.is_server]

    @property
    def running_hosts(self) -> set[str]:
        return {process.spec.host for process in self._running}

    @property
    def has_stepped(self) -> bool:
        return any(process.step is not None for process in self._processes.values())

    @property
    def is_explained(self) -> bool:
        """Returns whether a process was killed, so that reports of its peers add nothing."""
        return any(process.was_killed for process in self._ended)

    @property
    def _running(self) -> list[_Process]:
        return [process for process in self._processes.values() if process.exit_code is None]

    def record_event(self, host: str, event: Event) -> None:
        match event.event:
            case "ended" if process := self._processes.get(event.name):
                if process.exit_code is None:
                    process.exit_code, process.cause_of_end = event.code, event.message
                    self._ended.append(process)
            case "alive":
                for process in self._processes.values():
                    if process.spec.host == host:
                        process.record_alive(event)

    def read_progress(self) -> list[tuple[str, ProgressEvent]]:
        """Returns the reports of all processes since the last call, and records them."""
        events = []
        for name, process in self._processes.items():
            for event in process.read_progress():
                events.append((name, event))
                match event.phase:
                    case "restored" if process.spec.is_chief:
                        self.start_step = event.done or 0
                    case "preempted" if process.spec.is_chief:
                        self.has_saved = True
        return events

    def find_failure(self) -> Failure | None:
        """The first process that ended badly, hangs or has not started."""
        for process in self._ended:
            if process.exit_code != 0 or process.spec.is_server:
                return self._explain_exit(process)
        return (
            self._find_silent_worker(self._config.heartbeat_timeout_seconds)
            or self._find_late_worker()
        )

    def find_cause(self, first: Failure) -> Failure:
        """The failure that explains most, after the peers have had a moment to report theirs.

        An error of config, data or code comes before a killed process, and a killed process before
        one that hangs. Then comes a crash, and last a peer's report of a lost connection.
        """
        failures = [self._explain_exit(process) for process in self._ended if process.exit_code]
        permanent = [failure for failure in failures if not failure.exit_code.is_retried]
        killed = [self._explain_exit(process) for process in self._ended if process.was_killed]
        if permanent or killed:
            return [*permanent, *killed][0]
        if silent := self._find_silent_worker(_MISSED_HEARTBEATS * HEARTBEAT_SECONDS):
            return silent
        crashed = [self._explain_exit(process) for process in self._ended if process.has_crashed]
        return (self._find_late_worker() or crashed[0]) if crashed else first

    def _explain_exit(self, process: _Process) -> Failure:
        code, step = process.exit_code or 0, f"at step {process.step or 0}"
        if code < 0:
            killer = f"signal {-code} ({signal.Signals(-code).name})"
            cause = f": {process.cause_of_end}" if process.cause_of_end else ""
            return self._blame(process, f"was killed by {killer} {step}{cause}")
        file = get_status_path(self._attempt, process.spec.name)
        try:
            status = read_json_as(Status, open_path(file))
        except DataError as error:
            return self._blame(process, f"ended with {code} {step}: {error}")
        if status is None:
            return self._blame(process, f"ended with {code} {step} and left no {file.name}")
        if status.exit_code == ExitCode.SUCCESS:
            return self._blame(process, f"ended {step}, but it must serve until the training ends")
        return self._blame(process, f"failed {step}: {status.message}", status.exit_code)

    def _blame(
        self, process: _Process, problem: str, exit_code: ExitCode = ExitCode.RETRY
    ) -> Failure:
        name, log = process.spec.name, self._attempt.worker_log(process.spec.name)
        message = f"{name} on {process.spec.host} {problem.rstrip('.')}. Its log is {log}"
        return Failure(message, exit_code)

    def _find_silent_worker(self, limit_seconds: float) -> Failure | None:
        """Finds a process without heartbeat.

        A chief that waits for a stopped server starves with it and may seem silent first. The cause
        is the process that is stopped.
        """
        now, running = time.monotonic(), self._running
        silent = [process for process in running if now - process.last_heartbeat > limit_seconds]
        if not silent:
            return None
        process = next((process for process in running if process.is_stopped), silent[0])
        return self._blame(
            process,
            f"has sent no heartbeat for {now - process.last_heartbeat:.0f} s "
            f"(train.heartbeat_timeout_seconds is {self._config.heartbeat_timeout_seconds}). "
            "It is stopped, or its machine hangs",
        )

    def _find_late_worker(self) -> Failure | None:
        now, awaited = time.monotonic(), [self._processes[name] for name in self.unfinished]
        late = [process.spec.name for process in awaited if process.step is None]
        if late and now - self._started > self._config.start_timeout_seconds:
            states = ", ".join(
                f"{process.spec.name} on {process.spec.host} "
                + (f"is {process.phase}" if process.phase else "has not started")
                for process in self._running
            )
            return Failure(
                f"no step within {self._config.start_timeout_seconds} s "
                f"(train.start_timeout_seconds): {states}. "
                f"The log of {late[0]} is {self._attempt.worker_log(late[0])}"
            )
        for process in awaited:
            silent = now - process.last_progress
            if process.step is not None and silent > self._config.step_timeout_seconds:
                return self._blame(
                    process,
                    f"has reported no progress for {silent:.0f} s "
                    f"(train.step_timeout_seconds is {self._config.step_timeout_seconds})",
                )
        return None
