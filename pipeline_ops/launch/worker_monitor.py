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
from pipeline_ops.errors import DataError, ExitCode, TrainyardError, make_error
from pipeline_ops.jobs.gang_protocol import HEARTBEAT_SECONDS, Event
from pipeline_ops.jobs.progress import ProgressEvent, ProgressReader
from pipeline_ops.jobs.request import Status
from pipeline_ops.launch.plan import LaunchPlan, get_status_path
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as

_MISSED_HEARTBEATS = 3
_JOINING = "is joining"


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first failure in a gang, with an exit code that decides whether a retry may help."""

    message: str
    exit_code: ExitCode = ExitCode.RETRY

    def to_error(self) -> TrainyardError:
        return make_error(self.exit_code, self.message)


class WorkerMonitor:
    """The processes of one incarnation.

    Args:
      plan: the processes.
      config: the training section, for its timeouts.
      attempt: the folder with their files.
    """

    def __init__(self, plan: LaunchPlan, config: Train, attempt: Attempt):
        self.plan = plan
        self._config, self._attempt = config, attempt
        self._hosts = {worker.name: worker.host for worker in plan.workers}
        self._awaited = plan.awaited
        self._chief = plan.chief.name
        self._servers = {worker.name for worker in plan.workers if worker.is_server}
        self._readers = {
            worker.name: _open_reader_at_end(Path(worker.progress)) for worker in plan.workers
        }
        self._started = time.monotonic()
        self._last_progress = dict.fromkeys(self._awaited, self._started)
        self._last_heartbeat = dict.fromkeys(self._hosts, self._started)
        self._stopped: dict[str, list[str]] = {}
        """The processes that a signal has stopped, by host, from the last report of its agent."""
        self._last_step: dict[str, int] = {}
        self._last_phase: dict[str, str] = {}
        self._ended: dict[str, int] = {}
        """Exit codes, in the order in which the processes ended."""
        self._causes: dict[str, str] = {}
        """What the hosts know about these ends."""
        self.start_step = 0
        """The step of the checkpoint from which the gang continued."""
        self.has_stepped = False
        self.has_saved = False
        """Whether the chief has saved its state and left, because a process was asked to stop."""
        self._preempted_servers: set[str] = set()

    @property
    def unfinished(self) -> list[str]:
        """The processes that must still end."""
        return [name for name in self._awaited if name not in self._ended]

    @property
    def _running(self) -> list[str]:
        return [name for name in self._hosts if name not in self._ended]

    @property
    def running_hosts(self) -> set[str]:
        return {self._hosts[name] for name in self._running}

    def record_event(self, host: str, event: Event) -> None:
        match event.event:
            case "ended" if event.name in self._hosts:
                self._ended.setdefault(event.name, event.code)
                self._causes.setdefault(event.name, event.message)
            case "alive":
                self._stopped[host] = event.stopped
                alive = [
                    name
                    for name, where in self._hosts.items()
                    if where == host and self._is_alive(name, event)
                ]
                self._last_heartbeat |= dict.fromkeys(alive, time.monotonic())

    def _is_alive(self, name: str, event: Event) -> bool:
        """Returns whether a process is alive.

        A process that joins waits for its peers inside TensorFlow, where none of its threads
        advances. It is alive unless it is stopped.
        """
        return name in event.names or (
            self._last_phase.get(name) == _JOINING and name not in event.stopped
        )

    def read_progress(self) -> list[tuple[str, ProgressEvent]]:
        """Returns the reports of all processes since the last call, and records them."""
        events = [
            (name, event) for name, reader in self._readers.items() for event in reader.read_new()
        ]
        for name, event in events:
            self._record_progress(name, event)
        return events

    def _record_progress(self, name: str, event: ProgressEvent) -> None:
        self._last_progress[name], self._last_phase[name] = time.monotonic(), f"is {event.phase}"
        match event.phase:
            case "restored" if name == self._chief:
                self.start_step = event.done or 0
            case "train":
                self._last_step[name] = event.done or 0
                self.has_stepped = True
            case "preempted" if name in self._servers:
                self._preempted_servers.add(name)
            case "preempted" if name == self._chief:
                self.has_saved = True

    def take_preempted_servers(self) -> set[str]:
        """Returns the servers that were newly asked to stop. They cannot notify the chief."""
        found, self._preempted_servers = self._preempted_servers, set()
        return found

    def find_failure(self) -> Failure | None:
        """The first process that ended badly, hangs or has not started."""
        for name, code in self._ended.items():
            if code != 0 or name in self._servers:
                return self._explain_exit(name)
        return (
            self._find_silent_worker(self._config.heartbeat_timeout_seconds)
            or self._find_late_worker()
        )

    def find_cause(self, first: Failure) -> Failure:
        """The failure that explains most, after the peers have had a moment to report theirs.

        An error of config, data or code comes before a killed process, and a killed process before
        one that hangs. A peer's report of a lost connection comes last.
        """
        failures = {name: self._explain_exit(name) for name, code in self._ended.items() if code}
        permanent = [each for each in failures.values() if not each.exit_code.is_retried]
        killed = [each for name, each in failures.items() if self._ended[name] < 0]
        if permanent or killed:
            return [*permanent, *killed][0]
        return self._find_silent_worker(_MISSED_HEARTBEATS * HEARTBEAT_SECONDS) or first

    @property
    def is_explained(self) -> bool:
        """Returns whether a process was killed, so that reports of its peers add nothing."""
        return any(code < 0 for code in self._ended.values())

    def _explain_exit(self, name: str) -> Failure:
        code, step = self._ended[name], f"at step {self._last_step.get(name, 0)}"
        if code < 0:
            killer = f"signal {-code} ({signal.Signals(-code).name})"
            cause = f": {found}" if (found := self._causes.get(name)) else ""
            return self._blame(name, f"was killed by {killer} {step}{cause}")
        file = get_status_path(self._attempt, name)
        try:
            status = read_json_as(Status, open_path(file))
        except DataError as error:
            return self._blame(name, f"ended with {code} {step}: {error}")
        if status is None:
            return self._blame(name, f"ended with {code} {step} and left no {file.name}")
        if status.exit_code == ExitCode.SUCCESS:
            return self._blame(name, f"ended {step}, but it must serve until the training ends")
        return self._blame(name, f"failed {step}: {status.message}", status.exit_code)

    def _blame(self, name: str, problem: str, exit_code: ExitCode = ExitCode.RETRY) -> Failure:
        log = self._attempt.worker_log(name)
        message = f"{name} on {self._hosts[name]} {problem.rstrip('.')}. Its log is {log}"
        return Failure(message, exit_code)

    def _find_silent_worker(self, limit_seconds: float) -> Failure | None:
        """Finds a process without heartbeat.

        A chief that waits for a stopped server starves with it and may seem silent first. The cause
        is the process that is stopped.
        """
        now, running = time.monotonic(), self._running
        silent = [name for name in running if now - self._last_heartbeat[name] > limit_seconds]
        if not silent:
            return None
        stopped = [name for names in self._stopped.values() for name in names if name in running]
        name = [*stopped, *silent][0]
        return self._blame(
            name,
            f"has sent no heartbeat for {now - self._last_heartbeat[name]:.0f} s "
            f"(train.heartbeat_timeout_seconds is {self._config.heartbeat_timeout_seconds}). "
            "It is stopped, or its machine hangs",
        )

    def _find_late_worker(self) -> Failure | None:
        now = time.monotonic()
        late = [name for name in self.unfinished if name not in self._last_step]
        if late and now - self._started > self._config.start_timeout_seconds:
            states = ", ".join(
                f"{name} on {self._hosts[name]} {self._last_phase.get(name, 'has not started')}"
                for name in self._running
            )
            return Failure(
                f"no step within {self._config.start_timeout_seconds} s "
                f"(train.start_timeout_seconds): {states}. "
                f"The log of {late[0]} is {self._attempt.worker_log(late[0])}"
            )
        for name in self.unfinished:
            silent = now - self._last_progress[name]
            if name in self._last_step and silent > self._config.step_timeout_seconds:
                return self._blame(
                    name,
                    f"has reported no progress for {silent:.0f} s "
                    f"(train.step_timeout_seconds is {self._config.step_timeout_seconds})",
                )
        return None


def _open_reader_at_end(path: Path) -> ProgressReader:
    """A reader that skips the lines of earlier incarnations in the same file."""
    reader = ProgressReader(open_path(path))
    reader.seek_end()
    return reader
