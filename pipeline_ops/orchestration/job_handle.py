"""A job as its task sees it: observed through the store, and started and ended where it runs.

It knows nothing of Airflow. A job outlives its starter. The name of its attempt is enough to find
it again, and this name exists before the job does. A kill in between leaves a folder without a
job, and never an unknown job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time

from pipeline_ops.contract.cancellation import LOST, read_cancellation_reason, request_cancellation
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.request import Request, Status, read_request, read_status
from pipeline_ops.errors import ConfigError, DataError, MachineError, TrainyardError
from pipeline_ops.places.local import LocalPlace
from pipeline_ops.places.place import JobState, Place
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StorePath

_FINAL_CHECK_SECONDS = 0.5
_LOST_SECONDS = 300.0
_REQUEST_SECONDS = 10
"""How long the end of a job waits for a store that is away, before its processes are killed."""
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class SilenceClock:
    """Measures for how long a place has not answered while its job made no progress."""

    _since: float | None = None
    _progress_bytes: int = -1

    def reset(self) -> None:
        """The place has answered."""
        self._since = None

    def measure(self, now: float, progress_bytes: int) -> float:
        """Returns the seconds at a time at which the place does not answer.

        `progress_bytes` is the length of the job's progress file. Silence and a file that has grown
        both begin anew, with 0.
        """
        if self._since is None or progress_bytes != self._progress_bytes:
            self._since, self._progress_bytes = now, progress_bytes
        return now - self._since


class JobHandle:
    """A job, given by its folder and the place where it runs. The default is this host.

    Other jobs of the pipeline can write to the folder, so each file is checked when it is read. A
    job without progress counts as lost once its place could not be reached for `lost_seconds`.
    """

    def __init__(
        self,
        attempt: Attempt[StorePath],
        place: Place | None = None,
        lost_seconds: float = _LOST_SECONDS,
    ):
        self.attempt, self.place = attempt, place or LocalPlace()
        self.request_digest = ""
        """The digest of the request, in the process that has written it."""
        self._lost_seconds = lost_seconds
        self._next_check = 0.0
        self._silence = SilenceClock()

    def read_request(self) -> Request | None:
        """Returns its request, or None if that cannot be read."""
        try:
            return read_request(self.attempt.request)
        except (TrainyardError, OSError):
            return None

    @property
    def reason(self) -> str:
        """The reason why it was started; "" if its request cannot be read."""
        request = self.read_request()
        return request.reason if request else ""

    def is_alive(self) -> bool:
        """Returns whether the job runs, or may run. It may if its place can't be asked."""
        try:
            return self.place.find(self.attempt).may_run
        except (MachineError, ConfigError) as error:
            _log.warning("%s", error)
            return True

    def is_cancellation_requested(self) -> bool:
        """Returns whether the job was asked to end, so that it will not run for long."""
        return read_cancellation_reason(self.attempt) is not None

    def has_ended(self) -> bool:
        """Returns whether the job has reported its outcome."""
        return self._try_read_status()[0] is not None

    def read_outcome(self) -> Status | None:
        """Returns the outcome of the job, or None while it runs."""
        status, _ = self._try_read_status()
        if status or time.monotonic() < self._next_check:
            return status
        self._next_check = time.monotonic() + self.place.check_seconds
        try:
            state = self.place.find(self.attempt)
        except (MachineError, ConfigError) as error:  # a login may have expired meanwhile
            if not self._is_lost(problem := str(error)):
                return None
            state = self._make_lost_state(problem)
        else:
            self._silence.reset()
        if state.may_run:
            return None
        time.sleep(_FINAL_CHECK_SECONDS)  # it may have ended between the two checks
        status, problem = self._try_read_status()
        if status or problem:
            return status or Status(exit_code=state.exit_code, message=problem)
        return self._explain_exit(state)

    def end(self, reason: str) -> None:
        """Ends the job and every process that it started.

        The request is written first: the job ends even if the caller is killed, or its place can't
        be reached from here.
        """
        try:
            with wait_at_most(_REQUEST_SECONDS):
                request_cancellation(self.attempt, reason)
        finally:  # a full disk must not keep it alive
            try:
                self.place.cancel(self.attempt)
                self.place.clean(self.attempt)
            except (MachineError, ConfigError) as error:
                _log.warning("The job was asked to end, and not killed: %s", error)

    def clean_up(self) -> bool:
        """Removes the processes, files, containers and pods of an ended job.

        Returns whether nothing is left. False if the place can't be reached.
        """
        try:
            return self.place.clean(self.attempt)
        except (MachineError, ConfigError) as error:
            _log.warning("The remains of the job were not removed: %s", error)
            return False

    def _is_lost(self, problem: str) -> bool:
        """Returns whether the job counts as lost, because its place cannot be reached.

        A lost job is asked to end through the store, because it may still run. The next process
        that looks at the job learns from this request that it is lost.
        """
        if read_cancellation_reason(self.attempt) == LOST:
            return True
        offset, tail = self.attempt.progress.read_log_end(1)
        seconds = self._silence.measure(time.monotonic(), offset + len(tail))
        if not seconds:
            _log.warning("The place of the job can't be reached, and the job goes on: %s", problem)
        if seconds < self._lost_seconds:
            return False
        request_cancellation(self.attempt, LOST)
        return True

    def _make_lost_state(self, problem: str) -> JobState:
        return JobState(
            "ended",
            f"the job has made no progress for {self._lost_seconds:.0f} s, and the place where it "
            f"runs can't be reached, so its host is lost: {problem}",
        )

    def _try_read_status(self) -> tuple[Status | None, str]:
        """Returns the outcome of the job, and the problem with its status file."""
        try:
            return read_status(self.attempt), ""
        except DataError as error:
            return None, f"the job has left no usable status: {error}"

    def _explain_exit(self, state: JobState) -> Status:
        """Explains the end of a job that has left no status, with the end of its output."""
        if state.phase == "absent":
            absent = f"the job in {self.attempt.folder} was not started, or is gone"
            return Status(exit_code=state.exit_code, message=state.message or absent)
        output = ""
        with contextlib.suppress(TrainyardError):
            output = self.place.read_output(self.attempt).strip()
        tail = f"\nThe end of its output:\n{output}\n" if output else " "
        cure = f"See {self.attempt.log}."
        message = f"{state.message.rstrip('.')}.{tail}{cure}"
        return Status(exit_code=state.exit_code, message=message, cure=cure)
