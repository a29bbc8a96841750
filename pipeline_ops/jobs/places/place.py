"""The interface of a place where jobs run.

A place knows a job by its attempt. All names that it gives (of a container, of a Kubernetes object,
of a Slurm job) follow from the folder of the attempt, so that the next try of a task, or another
component of Airflow, finds the job again without a record of the place. The job reports its
progress and its outcome in the store, and not through its place. The place is asked whether a job
without an outcome still runs, and why it has ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.errors import ExitCode
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host_check import Finding


@dataclasses.dataclass(frozen=True)
class JobLaunch:
    """All that a place needs to start a job.

    Attributes:
      attempt: the folder of the job. Its request is there already.
      module: the module to run.
      environment: variables of the job, among them the access to the store. They are secret.
      deadline_seconds: the job ends itself after this long.
      pipeline: the name of the pipeline, for people who look at the place.
      job: the name of the job, for people.
    """

    attempt: Attempt[StorePath]
    module: str
    environment: Mapping[str, str]
    deadline_seconds: int
    pipeline: str = ""
    job: str = ""


@dataclasses.dataclass(frozen=True)
class JobState:
    """The knowledge of a place about a job.

    Attributes:
      phase: `absent` if the place does not know the job: it was not started, or is long gone.
        `waiting` if it is not running yet, in a queue or while its image is pulled.
      message: for people: what it waits for, or why it has ended.
      exit_code: how a job counts that has ended without an outcome in the store.
    """

    phase: Literal["absent", "waiting", "running", "ended"]
    message: str = ""
    exit_code: ExitCode = ExitCode.RETRY

    @property
    def may_run(self) -> bool:
        return self.phase in ("waiting", "running")


OWN_NAMES = "trainyard-"
"""The beginning of all names that places give."""


class Place(Protocol):
    """A place where jobs run.

    Each method raises MachineError if the place can't be reached, and ConfigError if the place
    refuses because of its settings. It then says what to change.
    """

    check_seconds: float = 5.0
    """How often it may be asked about a job."""

    queue_seconds: int = 0
    """How long a job may wait there before it runs."""

    def start(self, launch: JobLaunch) -> None:
        """Starts a job, unless it was started before. Returns before the job has ended.

        Two calls at the same time start one job.
        """

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        """The state of a job, which another process may have started."""

    def read_output(self, attempt: Attempt[StorePath]) -> str:
        """The end of what the job has printed, as far as the place has kept it.

        The log in the store has more, but is missing if the job never began.
        """

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        """Ends a job with all of its processes within five seconds. An unknown job is ignored."""

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        """Removes what a job has left in this place after its end.

        Returns:
          Whether nothing of the job is left here.
        """

    def check(self) -> Iterator[Finding]:
        """Yields what is wrong with the place, with the cures, for `trainyard doctor`.

        It starts and changes nothing there.
        """
        yield from ()

    def check_for_gang(self) -> Iterator[Finding]:
        """Yields what keeps this process from starting a gang there, like `check`."""
        return self.check()

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        """The environment in which jobs run here, for the fingerprint.

        It has the versions of the packages, or the digest of the image that holds them.
        """


def name_job(attempt: Attempt[StorePath]) -> str:
    """The name of a job in a place that others use, too. Unique, and valid as a DNS name."""
    return f"{OWN_NAMES}{compute_digest(str(attempt.folder))[:20]}"
