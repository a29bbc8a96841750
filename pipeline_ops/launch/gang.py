"""The supervisor: starts a gang, all or none, watches every worker, and restarts the whole gang when one fails.

It knows nothing of TensorFlow. A worker is judged by three signs: its exit, its progress file, and, before its first
step, the clock. Whatever happens to one worker, the whole gang is ended and a new one goes on from the last
checkpoint, with new addresses; after `max_restarts` of that the job fails and names the worker that failed first.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.errors import ConfigError, DataError, ExitCode, MachineError, TrainyardError
from pipeline_ops.contracts.files import read_json, write_json
from pipeline_ops.contracts.gang import Event
from pipeline_ops.contracts.layout import Attempt
from pipeline_ops.contracts.progress import Progress, ProgressReader
from pipeline_ops.contracts.request import Status
from pipeline_ops.launch.local import LocalHost, free_ports
from pipeline_ops.launch.plan import LaunchPlan, Place, build_launch_plan, seats_of, spec_file, status_file

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_PEERS_SECONDS = 1.0
"""After the first failure the others get so long to say what they saw; one of them may know the reason."""
_BACK_OFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first thing that went wrong in a gang, in words, and whether another gang may fare better."""

    message: str
    exit_code: ExitCode = ExitCode.RETRY

    def error(self) -> TrainyardError:
        kinds = {ExitCode.CONFIG: ConfigError, ExitCode.DATA: DataError, ExitCode.RETRY: MachineError}
        return kinds.get(self.exit_code, TrainyardError)(self.message)


@dataclasses.dataclass
class Gang:
    """All workers of one training, through all incarnations.

    Args:
      config: the training section.
      attempt: the train job's folder.
      work: the folder of checkpoints.
      host: where the workers run.
      report: is called with what the chief reports.
    """

    config: Train
    attempt: Attempt
    work: Path
    host: LocalHost
    report: Callable[[Progress], None]
    steps_limit: int | None = None
    restarts: int = 0

    def run(self) -> None:
        """Returns when every worker has ended well. Raises what the table of exit codes says otherwise."""
        while failure := self._run_once():
            if not failure.exit_code.is_retried:
                raise failure.error()
            if self.restarts >= self.config.max_restarts:
                raise MachineError(f"{failure.message}\nThe gang was restarted {self.restarts} times (train.max_restarts).")
            back_off = _BACK_OFF_SECONDS[min(self.restarts, len(_BACK_OFF_SECONDS) - 1)]
            self.restarts += 1
            message = f"{failure.message}; restart {self.restarts} of {self.config.max_restarts} in {back_off:.0f} s"
            _log.warning(message)
            self.report(Progress(time=time.time(), phase="restart", message=message))
            time.sleep(back_off)

    def _run_once(self) -> Failure | None:
        """One incarnation, from start to end; nothing of it is left when this returns."""
        try:
            if not self.host.is_up:
                self.host.start(self.config.start_timeout_seconds)
            here = Place(name="localhost", address="127.0.0.1", workers=self.config.workers, cores=os.cpu_count() or 1)
            seats = seats_of(self.config, [here], self.config.workers)
            plan = build_launch_plan(self.config, [here], seats, {here.name: free_ports(len(seats))}, self.attempt, self.work, self.restarts,
                                     self.steps_limit)
            watch = Watch(plan, self.config, self.attempt)
            for worker in plan.workers:
                write_json(spec_file(self.attempt, worker.name), worker.model_dump(mode="json"))
                status_file(self.attempt, worker.name).unlink(missing_ok=True)
                self.host.fork(plan.fork(worker, self.attempt))
            return self._follow(watch)
        except MachineError as error:
            return Failure(str(error))
        finally:
            self._end()

    def _follow(self, watch: Watch) -> Failure | None:
        while watch.unfinished:
            for event in self.host.events(_POLL_SECONDS):
                watch.note(event)
            for moment in watch.progress():
                self.report(moment)
            if failure := watch.failure() or self._lost_host():
                return self._ask_peers(watch, failure)
        return None

    def _lost_host(self) -> Failure | None:
        return None if self.host.is_up else Failure("the preloaded process, from which the workers are forked, was killed")

    def _ask_peers(self, watch: Watch, first: Failure) -> Failure:
        """The first failure, unless a worker that ended a moment later has the reason: a peer's exit is only its echo."""
        deadline = time.monotonic() + _PEERS_SECONDS
        while watch.unfinished and self.host.is_up and time.monotonic() < deadline:
            for event in self.host.events(_POLL_SECONDS):
                watch.note(event)
        return watch.final_failure() or first

    def _end(self) -> None:
        """Kills what is left of the gang, and waits until it is gone."""
        if not self.host.is_up:
            self.host.stop()
            return
        deadline = time.monotonic() + 10
        while self.host.living:
            self.host.kill_forks(signal.SIGKILL)
            self.host.events(_POLL_SECONDS)
            if not self.host.is_up or time.monotonic() > deadline:
                self.host.stop()


class Watch:
    """What is known of the workers of one incarnation."""

    def __init__(self, plan: LaunchPlan, config: Train, attempt: Attempt):
        self._config, self._attempt = config, attempt
        self._started = time.monotonic()
        self._awaited = plan.awaited
        self._chief = next(worker.name for worker in plan.workers if worker.is_chief)
        self._last_sign = dict.fromkeys(self._awaited, self._started)
        self._last_step: dict[str, int] = {}
        self._readers = {w.name: _reader_from_end(Path(w.progress)) for w in plan.workers}
        self._ended: dict[str, int] = {}
        """Exit codes, in the order in which the workers ended."""

    @property
    def unfinished(self) -> list[str]:
        return [worker for worker in self._awaited if worker not in self._ended]

    def note(self, event: Event) -> None:
        if event.event == "ended" and event.name in self._readers:
            self._ended[event.name] = event.code

    def progress(self) -> list[Progress]:
        """What the chief has reported since the last call; notes of everybody's signs of life."""
        of_chief: list[Progress] = []
        for worker, reader in self._readers.items():
            moments = reader.new()
            if moments:
                self._last_sign[worker] = time.monotonic()
                self._note_step(worker, moments)
            if worker == self._chief:
                of_chief = moments
        return of_chief

    def _note_step(self, worker: str, moments: list[Progress]) -> None:
        for moment in moments:
            if moment.phase == "train" and moment.done is not None:
                self._last_step[worker] = moment.done

    def failure(self) -> Failure | None:
        """The first worker that ended badly, is hung, or has not come."""
        return next((self._exit_failure(worker, code) for worker, code in self._ended.items() if code != 0), None) or self._silence()

    def final_failure(self) -> Failure | None:
        """The exit that explains most: an error of config, data or code before a lost peer."""
        failures = [self._exit_failure(worker, code) for worker, code in self._ended.items() if code != 0]
        return next((failure for failure in failures if not failure.exit_code.is_retried), failures[0] if failures else None)

    def _exit_failure(self, worker: str, code: int) -> Failure:
        log, step = self._attempt.worker_log(worker), self._last_step.get(worker, 0)
        if code < 0:
            return Failure(f"{worker} was killed by signal {-code} ({signal.Signals(-code).name}) at step {step}; its log is {log}")
        status = read_json(status_file(self._attempt, worker))
        if status is None:
            return Failure(f"{worker} ended with {code} at step {step} and left no status; its log is {log}")
        status = Status.model_validate(status)
        return Failure(f"{worker} failed at step {step}: {status.message}; its log is {log}", status.exit_code)

    def _silence(self) -> Failure | None:
        now = time.monotonic()
        for worker in self.unfinished:
            has_stepped, silent = worker in self._last_step, now - self._last_sign[worker]
            log = self._attempt.worker_log(worker)
            if not has_stepped and now - self._started > self._config.start_timeout_seconds:
                return Failure(f"{worker} made no step within {self._config.start_timeout_seconds} s (train.start_timeout_seconds); "
                               f"its log is {log}")
            if has_stepped and silent > self._config.step_timeout_seconds:
                return Failure(f"{worker} has reported nothing for {silent:.0f} s (train.step_timeout_seconds is "
                               f"{self._config.step_timeout_seconds}); its log is {log}")
        return None


def _reader_from_end(path: Path) -> ProgressReader:
    """Earlier incarnations have written to the same file."""
    return ProgressReader(path, path.stat().st_size if path.exists() else 0)
