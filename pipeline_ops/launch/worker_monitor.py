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
from pipeline_ops.errors import DataError, ExitCode, TrainyardError, error_of
from pipeline_ops.jobs.gang_protocol import BEAT_SECONDS, Event
from pipeline_ops.jobs.progress import Progress, ProgressReader
from pipeline_ops.jobs.request import Status
from pipeline_ops.launch.plan import LaunchPlan, status_file

_MISSED_BEATS = 3
_JOINING = "is joining"


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first failure in a gang, in words, with an exit code that says if a retry may help."""

    message: str
    exit_code: ExitCode = ExitCode.RETRY

    def error(self) -> TrainyardError:
        return error_of(self.exit_code, self.message)


class WorkerMonitor:
    """The processes of one incarnation.

    Args:
      plan: the processes.
      config: the training section, for its timeouts.
      attempt: the folder with their files.
    """

    def __init__(self, plan: LaunchPlan, config: Train, attempt: Attempt):
        self._config, self._attempt = config, attempt
        self._hosts = {worker.name: worker.host for worker in plan.workers}
        self._awaited = plan.awaited
        self._chief = next(worker.name for worker in plan.workers if worker.is_chief)
        self._servers = {worker.name for worker in plan.workers if worker.is_server}
        self._readers = {
            worker.name: _reader_from_end(Path(worker.progress)) for worker in plan.workers
        }
        self._started = time.monotonic()
        self._last_progress = dict.fromkeys(self._awaited, self._started)
        self._last_beat = dict.fromkeys(self._hosts, self._started)
        self._stopped: dict[str, list[str]] = {}
        """By host: the processes that are stopped by a signal, from its agent's last report."""
        self._last_step: dict[str, int] = {}
        self._last_phase: dict[str, str] = {}
        self._ended: dict[str, int] = {}
        """Exit codes, in the order in which the processes ended."""
        self.started_from = 0
        """The step of the checkpoint from which the gang continued."""
        self.has_stepped = False
        self.has_saved = False
        """Whether the chief has saved its state and left, because a process was asked to stop."""
        self._preempted_servers: set[str] = set()

    @property
    def unfinished(self) -> list[str]:
        """The processes whose end is still awaited."""
        return [name for name in self._awaited if name not in self._ended]

    @property
    def living(self) -> list[str]:
        return [name for name in self._hosts if name not in self._ended]

    def note(self, host: str, event: Event) -> None:
        match event.event:
            case "ended" if event.name in self._hosts:
                self._ended.setdefault(event.name, event.code)
            case "alive":
                self._stopped[host] = event.stopped
                beating = [
                    name
                    for name, where in self._hosts.items()
                    if where == host and self._is_living(name, event)
                ]
                self._last_beat |= dict.fromkeys(beating, time.monotonic())

    def _is_living(self, name: str, event: Event) -> bool:
        """Returns whether a process lives.

        A process that joins waits for its peers inside TensorFlow, where none of its threads
        advances. It lives unless it is stopped.
        """
        return name in event.names or (
            self._last_phase.get(name) == _JOINING and name not in event.stopped
        )

    def progress(self) -> list[Progress]:
        """Returns the chief's reports since the last call, and records those of all processes."""
        of_chief: list[Progress] = []
        for name, reader in self._readers.items():
            moments = reader.new()
            for moment in moments:
                self._note_progress(name, moment)
            if name == self._chief:
                of_chief = moments
        return of_chief

    def _note_progress(self, name: str, moment: Progress) -> None:
        self._last_progress[name], self._last_phase[name] = time.monotonic(), f"is {moment.phase}"
        match moment.phase:
            case "restored" if name == self._chief:
                self.started_from = moment.done or 0
            case "train":
                self._last_step[name] = moment.done or 0
                self.has_stepped = True
            case "preempted" if name in self._servers:
                self._preempted_servers.add(name)
            case "preempted" if name == self._chief:
                self.has_saved = True

    def take_preempted_servers(self) -> set[str]:
        """Returns the servers that were newly asked to stop. They cannot notify the chief."""
        found, self._preempted_servers = self._preempted_servers, set()
        return found

    def failure(self) -> Failure | None:
        """The first process that ended badly, hangs or has not come."""
        bad = next(
            (name for name, code in self._ended.items() if code != 0 or name in self._servers), None
        )
        return (
            self._exit_failure(bad)
            if bad
            else self._no_beat(self._config.heartbeat_timeout_seconds) or self._no_progress()
        )

    def cause(self, first: Failure) -> Failure:
        """The failure that explains most, after the peers have had a moment to report theirs.

        An error of config, data or code comes before a killed process, and a killed process before
        one that hangs. A peer's report of a lost connection comes last.
        """
        bad = [name for name, code in self._ended.items() if code != 0]
        failures = [self._exit_failure(name) for name in bad]
        lasting = next((failure for failure in failures if not failure.exit_code.is_retried), None)
        killed = next(
            (failure for name, failure in zip(bad, failures, strict=True) if self._ended[name] < 0),
            None,
        )
        return lasting or killed or self._no_beat(_MISSED_BEATS * BEAT_SECONDS) or first

    @property
    def is_explained(self) -> bool:
        """Returns whether a process was killed, so that reports of its peers add nothing."""
        return any(code < 0 for code in self._ended.values())

    def _exit_failure(self, name: str) -> Failure:
        code, log, step = (
            self._ended[name],
            self._attempt.worker_log(name),
            self._last_step.get(name, 0),
        )
        who = f"{name} on {self._hosts[name]}"
        if code < 0:
            return Failure(
                f"{who} was killed by signal {-code} ({signal.Signals(-code).name}) "
                f"at step {step}; its log is {log}"
            )
        file = status_file(self._attempt, name)
        try:
            status = self._attempt.read(Status, file)
        except DataError as error:
            return Failure(f"{who} ended with {code} at step {step}: {error}; its log is {log}")
        if status is None:
            return Failure(
                f"{who} ended with {code} at step {step} and left no {file.name}; its log is {log}"
            )
        if status.exit_code == ExitCode.SUCCESS:
            return Failure(
                f"{who} ended at step {step}, though it should have served until the end; "
                f"its log is {log}"
            )
        return Failure(
            f"{who} failed at step {step}: {status.message}; its log is {log}", status.exit_code
        )

    def _no_beat(self, limit_seconds: float) -> Failure | None:
        """Finds a process without heartbeat.

        A chief that waits for a stopped server starves with it and may seem silent first. The cause
        is the process that is stopped.
        """
        now = time.monotonic()
        silent = [name for name in self.living if now - self._last_beat[name] > limit_seconds]
        if not silent:
            return None
        name = next(
            (name for names in self._stopped.values() for name in names if name in self.living),
            silent[0],
        )
        return Failure(
            f"{name} on {self._hosts[name]} has given no sign of life for "
            f"{now - self._last_beat[name]:.0f} s (train.heartbeat_timeout_seconds is "
            f"{self._config.heartbeat_timeout_seconds}): it is stopped, or its machine hangs; "
            f"its log is {self._attempt.worker_log(name)}"
        )

    def _no_progress(self) -> Failure | None:
        now = time.monotonic()
        late = [name for name in self.unfinished if name not in self._last_step]
        if late and now - self._started > self._config.start_timeout_seconds:
            return Failure(
                f"no step within {self._config.start_timeout_seconds} s "
                "(train.start_timeout_seconds): "
                + ", ".join(
                    f"{name} on {self._hosts[name]} {self._last_phase.get(name, 'has not come')}"
                    for name in self.living
                )
                + f"; the log of the first is {self._attempt.worker_log(late[0])}"
            )
        for name in self.unfinished:
            who, log = f"{name} on {self._hosts[name]}", self._attempt.worker_log(name)
            silent = now - self._last_progress[name]
            if name in self._last_step and silent > self._config.step_timeout_seconds:
                return Failure(
                    f"{who} has reported nothing for {silent:.0f} s (train.step_timeout_seconds is "
                    f"{self._config.step_timeout_seconds}); its log is {log}"
                )
        return None


def _reader_from_end(path: Path) -> ProgressReader:
    """A reader that skips the lines of earlier incarnations in the same file."""
    reader = ProgressReader(path)
    reader.seek_end()
    return reader
