"""The processes of one incarnation of a gang, as the supervisor sees them.

It finds the process that failed, hangs or is late, and tells the cause of a failure from its
echoes. It judges by the events of agents, the files of workers and the clock. It sends no command,
ends no process and knows nothing of lost hosts. `gang.py` uses it and acts.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Sequence

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import (
    COMPILING_PHASE,
    HEARTBEAT_SECONDS,
    JOINING_PHASE,
    TRAIN_PHASE,
    WAITING_PHASE,
    Event,
    WorkerSpec,
)
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.request import Status
from pipeline_ops.errors import (
    DataError,
    ExitCode,
    MachineError,
    OutOfMemory,
    TrainyardError,
    make_error,
)
from pipeline_ops.launch.plan import LaunchPlan, get_status_path
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as

SELF_EXPLANATORY = (ExitCode.CONFIG, ExitCode.DATA)
"""The message of such an error names place and cure, so it needs no log."""
_LOST = Status(exit_code=ExitCode.RETRY)
"""What counts as the status of a process that has left none."""
_MISSED_HEARTBEATS = 3
_MAX_NAMES = 4
_WAITING_RANKS = {COMPILING_PHASE: 1, TRAIN_PHASE: 2, WAITING_PHASE: 2}
"""Phases in which a worker may wait for others. Every other phase has rank 0. If all workers are
silent, the others wait for one of the lowest rank."""


@dataclasses.dataclass(eq=False)
class _Process:
    """The state of one process. Times are those of the monotonic clock."""

    spec: WorkerSpec
    reader: ProgressReader
    last_heartbeat: float
    last_progress: float
    phase: str = ""
    step: int | None = None
    """None until its first step."""
    done_text: str = ""
    """The finished part of the phase, if it reports one."""
    rate: float | None = None
    """Steps per second. None until it reports them."""
    exit_code: int | None = None
    """None while it runs."""
    cause_of_end: str = ""
    """The explanation of its end by its host."""

    def __post_init__(self) -> None:
        self.reader.seek_end()  # earlier incarnations have written to the same file

    def __str__(self) -> str:
        return f"{self.spec.name} on {self.spec.host}"

    @property
    def has_met(self) -> bool:
        """Returns whether it has passed the start, where all workers wait for each other."""
        return self.phase not in ("", JOINING_PHASE)

    @property
    def has_crashed(self) -> bool:
        """Returns whether it crashed, as TensorFlow may when it gives up a collective."""
        return self.exit_code in (-signal.SIGSEGV, -signal.SIGABRT)

    @property
    def was_killed(self) -> bool:
        return self.exit_code is not None and self.exit_code < 0 and not self.has_crashed

    def record_progress(self, event: ProgressEvent) -> None:
        self.last_progress = time.monotonic()
        if event.phase == "warning":
            return
        self.phase = event.phase
        self.done_text = f"{event.done} of {event.total} {event.unit}" if event.total else ""
        if event.phase == TRAIN_PHASE:
            self.step = event.done or 0
            self.rate = event.rate or self.rate


class WorkerMonitor:
    """The processes of one incarnation: their state, and the one that failed first.

    A process is judged by its exit, its heartbeat, its progress file and, until the workers have
    met, the clock. When a process is lost, its peers fail a moment later with a connection error.
    Such an echo counts as the cause only if nothing else explains the failure.
    """

    def __init__(self, plan: LaunchPlan, config: Train, attempt: Attempt):
        self.plan = plan
        self._config, self._attempt = config, attempt
        self._started = now = time.monotonic()
        # The launcher's own files: the agent of a host with another disk sends their content.
        files = {spec.name: attempt.worker_progress(spec.name) for spec in plan.workers}
        self._processes = {
            spec.name: _Process(spec, ProgressReader(open_path(files[spec.name])), now, now)
            for spec in plan.workers
        }
        self._ended: list[_Process] = []
        """In the order of their ends."""
        self.start_step = 0
        """The step of the checkpoint from which the gang continued."""
        self.is_growing = False
        """Whether the gang was asked to stop for a larger one."""
        self.has_saved = False
        """Whether the chief has saved its state and exited, because a process got SIGTERM."""

    @property
    def unfinished(self) -> list[str]:
        """The processes that must still end. Servers never end by themselves."""
        return [process.spec.name for process in self._awaited]

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

    @property
    def _awaited(self) -> list[_Process]:
        return [process for process in self._running if not process.spec.is_server]

    def record_event(self, host: str, event: Event) -> None:
        match event.event:
            case "ended" if process := self._processes.get(event.name):
                if process.exit_code is None:
                    process.exit_code, process.cause_of_end = event.code, event.message
                    self._ended.append(process)
            case "alive":
                for process in self._processes.values():
                    if process.spec.host == host and process.spec.name in event.names:
                        process.last_heartbeat = time.monotonic()

    def read_progress(self) -> list[tuple[WorkerSpec, ProgressEvent]]:
        """Returns the reports of all processes since the last call, and records them."""
        events = []
        for process in self._processes.values():
            for event in process.reader.read_new():
                events.append((process.spec, event))
                process.record_progress(event)
                match event.phase:
                    case "restored" if process.spec.is_chief:
                        self.start_step = event.done or 0
                    case "preempted" if process.spec.is_chief:
                        self.has_saved = True
        return events

    def find_failure(self) -> TrainyardError | None:
        """Finds the first process that ended badly, hangs or has not started."""
        for process in self._ended:
            if process.exit_code != 0 or process.spec.is_server:
                return self._explain_exit(process)
        return (
            self._find_silent_process(self._config.heartbeat_timeout_seconds)
            or self._find_stuck_worker()
        )

    def find_cause(self, first: TrainyardError) -> TrainyardError:
        """Finds the cause of a failure, after the peers have had a moment to report theirs.

        An error of config, data or code comes before a lack of memory, this before a killed
        process, and a killed process before one that hangs. Then comes a crash, and last the report
        of a lost connection.
        """
        exits = [(each, self._explain_exit(each)) for each in self._ended if each.exit_code]
        permanent = [failure for _, failure in exits if not failure.exit_code.is_retried]
        permanent += [failure for _, failure in exits if isinstance(failure, OutOfMemory)]
        killed = [failure for process, failure in exits if process.was_killed]
        if permanent or killed:
            return [*permanent, *killed][0]
        if silent := self._find_silent_process(_MISSED_HEARTBEATS * HEARTBEAT_SECONDS):
            return silent
        crashed = [failure for process, failure in exits if process.has_crashed]
        return (self._find_stuck_worker() or crashed[0]) if crashed else first

    def _explain_exit(self, process: _Process) -> TrainyardError:
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
        failure = self._blame(process, f"failed {step}: {status.problem}", status)
        failure.place = f"{process} failed {step}"
        return OutOfMemory(*failure.args) if status.is_out_of_memory else failure

    def _find_silent_process(self, limit_seconds: float) -> TrainyardError | None:
        """Finds a process without a recent heartbeat: its agent has not seen it run."""
        now = time.monotonic()
        for process in self._running:
            if (silent_seconds := now - process.last_heartbeat) > limit_seconds:
                return self._blame(
                    process,
                    f"has not been seen running for {silent_seconds:.0f} s "
                    + (f"in the phase {process.phase} " if process.phase else "")
                    + "(train.heartbeat_timeout_seconds is "
                    f"{self._config.heartbeat_timeout_seconds}). "
                    "It is stopped, or its machine hangs",
                )
        return None

    def _find_stuck_worker(self) -> TrainyardError | None:
        """Finds a worker that has not met the others in time, or that makes no progress."""
        awaited = self._awaited
        if late := [process for process in awaited if not process.has_met]:
            return self._find_missed_start(late[0])
        return self._find_hanging_worker(awaited) if awaited else None

    def _find_missed_start(self, late: _Process) -> TrainyardError | None:
        if time.monotonic() - self._started <= self._config.start_timeout_seconds:
            return None
        states = ", ".join(
            f"{process} is {process.phase}" if process.phase else f"{process} has not started"
            for process in self._running
        )
        return MachineError(
            f"the workers have not met within {self._config.start_timeout_seconds} s "
            f"(train.start_timeout_seconds): {states}. "
            f"The log of {late.spec.name} is {self._attempt.worker_log(late.spec.name)}"
        )

    def _find_hanging_worker(self, awaited: Sequence[_Process]) -> TrainyardError | None:
        """Finds the worker for which the others wait, once all have been silent for too long.

        Workers wait for each other, so the gang advances as long as one of them does. The one that
        hangs is in no phase in which workers wait, or has been in such a phase for longest.
        """
        silent_seconds = time.monotonic() - max(process.last_progress for process in awaited)
        process = min(
            awaited, key=lambda each: (_WAITING_RANKS.get(each.phase, 0), each.last_progress)
        )
        if process.phase == TRAIN_PHASE:
            limit_seconds = self._compute_call_limit(process)
            rule = f"train.step_timeout_seconds is {self._config.step_timeout_seconds}"
        else:
            limit_seconds = self._config.phase_timeout_seconds
            rule = f"train.phase_timeout_seconds is {limit_seconds}"
        if silent_seconds <= limit_seconds:
            return None
        problem = (
            f"has reported no progress for {silent_seconds:.0f} s in the phase {process.phase} "
            f"({rule})" + (f", after {process.done_text}" if process.done_text else "")
        )
        if peers := [each for each in awaited if each.phase == process.phase and each != process]:
            names = ", ".join(map(str, peers[:_MAX_NAMES]))
            more = f" and {len(peers) - _MAX_NAMES} more" if len(peers) > _MAX_NAMES else ""
            problem += f". It may be waiting for its peers in this phase: {names}{more}"
        return self._blame(process, f"{problem}. Raise the limit if this may take longer")

    def _compute_call_limit(self, process: _Process) -> float:
        """Returns the limit in seconds of a call of `steps_per_call` steps, which reports nothing.

        Once the rate is known, it is twice the usual time of a call, and the limit of one step.
        """
        step_seconds, steps = self._config.step_timeout_seconds, self._config.steps_per_call
        limit: float = step_seconds * steps
        return min(limit, step_seconds + 2 * steps / process.rate) if process.rate else limit

    def _blame(self, process: _Process, problem: str, status: Status = _LOST) -> TrainyardError:
        cures = [status.cure]
        if status.exit_code not in SELF_EXPLANATORY:
            cures.append(f"See {self._attempt.worker_log(process.spec.name)}.")
        cure = " ".join(filter(None, cures))
        message = f"{process} {problem.rstrip('.')}"
        return make_error(status.exit_code, message, cure, status.location)
