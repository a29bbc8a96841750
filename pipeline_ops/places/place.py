"""The interface of a place where jobs run.

A place knows a job by its attempt. All names that it gives (of a container, an object of
Kubernetes, a Slurm job) follow from the folder of the attempt. The next try of a task, or another
component of Airflow, therefore finds the job again without a record of the place. The job reports
its progress and its outcome in the store. The place is only asked whether a job without an outcome
still runs, and why it has ended.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from pipeline_ops.config.hosts import Hosts
from pipeline_ops.config.train import Train
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, ExitCode, TrainyardError
from pipeline_ops.job.runner import Job
from pipeline_ops.places.launcher import Host, Launcher
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.open_store import STORES_VARIABLE
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import JOB_PYTHON


@dataclasses.dataclass(frozen=True)
class JobLaunch:
    """All that a place needs to start a job, whose request is in the folder of `attempt` already.

    The `environment` has the access to the store, and is secret. The job ends itself after
    `deadline_seconds`. `pipeline` and `job` are for people who look at the place. `versions` are
    those of the plan, as `Place.find_versions` returned them.
    """

    attempt: Attempt[StorePath]
    module: str
    environment: Mapping[str, str]
    deadline_seconds: int
    pipeline: str = ""
    job: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class JobState:
    """The state of a job, as its place sees it."""

    phase: Literal["absent", "waiting", "running", "ended"]
    """`absent`: it was not started, or is long gone. `waiting`: in a queue, or for its image."""
    message: str = ""
    """For people: what it waits for, or why it has ended."""
    exit_code: ExitCode = ExitCode.RETRY
    """How the task treats a job that ended without writing a status."""

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

    is_this_host: bool = False
    """Whether its jobs share this host's files and code."""

    check_seconds: float = 5.0
    """How often it may be asked about a job."""

    queue_seconds: int = 0
    """How long a job may wait there before it runs."""

    def start(self, launch: JobLaunch) -> None:
        """Starts a job, unless it was started before. Two calls at the same time start one job."""

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        """The state of a job, which another process may have started."""

    def read_output(self, attempt: Attempt[StorePath]) -> str:
        """The end of the job's output, also of a job that never began and has no log."""

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        """Ends a job with all of its processes within five seconds. An unknown job is ignored."""

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        """Removes the leftovers of a job after its end. Returns whether nothing is left."""

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        """The versions of packages, or the digest of the image, for the fingerprint."""


class PlaceSection(Hosts):
    """A kind of place: the keys of its hosts files, and what follows from them.

    A place that runs jobs overrides `open_place`, and one that has hosts for a gang `capacity`,
    `make_launcher` and `list_hosts`.
    """

    has_image: ClassVar[bool] = False
    """Whether Python and this project are in an image."""

    def open_place(self) -> Place:
        """The place where jobs run. Libraries that only it needs are imported here."""
        raise NotImplementedError

    def split(self) -> Mapping[str, PlaceSection]:
        """The hosts among which a job may choose, each as a place, by name.

        Just this place, named "", if its jobs run where a cluster decides.
        """
        return {"": self}

    def make_launcher(self, job: Job) -> Launcher:
        """What allocates the hosts of a gang, for a train job."""
        raise NotImplementedError

    def list_hosts(self) -> list[Host]:
        """All hosts that a gang may get. Those that a cluster will allocate have made-up names."""
        raise NotImplementedError

    def describe_gang(self, pipeline: str, run: Path, deadline_seconds: int) -> Iterator[str]:
        """Yields what a cluster is asked for the hosts of a gang, for `trainyard explain`.

        Args:
          pipeline: the name of the pipeline.
          run: the folder of the attempt.
          deadline_seconds: the time after which the cluster ends them.
        """
        yield from ()

    def find_job_problems(self, task: str, file: str, gang: Hosts | None) -> Iterator[str]:
        if missing := self._list_missing("open_place"):
            has_gangs = not self._list_missing("make_launcher")
            cure = f"Name it in train.hosts, and remove {task}.runs_on." if has_gangs else ""
            yield f"{file} has launcher: {self.launcher}, which runs no jobs: {missing}. {cure}"

    def validate_gang(self, train: Train, location: str) -> None:
        if missing := self._list_missing("make_launcher", "capacity", "list_hosts"):
            has_jobs = not self._list_missing("open_place")
            cure = f"Write runs_on: {train.hosts} instead" if has_jobs else ""
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} has launcher: {self.launcher}, which has "
                f"no hosts for a gang: {missing}. {cure}".rstrip()
            )
        super().validate_gang(train, location)

    def _list_missing(self, *names: str) -> str:
        """Names the methods that the class does not have. Empty if it has all of them."""
        kind = type(self)
        missing = [name for name in names if getattr(kind, name) is getattr(PlaceSection, name)]
        if not missing:
            return ""
        return f"its class {kind.__name__} does not override {', '.join(missing)}"


def name_job(attempt: Attempt[StorePath]) -> str:
    """The name of a job in a place that others use, too. Unique, and valid as a DNS name."""
    return f"{OWN_NAMES}{compute_digest(str(attempt.folder))[:20]}"


_TAIL_BYTES = 2000


def read_tail(log: StorePath) -> str:
    """The end of a log; empty if it can't be read."""
    try:
        _, tail = log.read_log_end(_TAIL_BYTES)
    except (OSError, TrainyardError):
        return ""
    return tail.decode(errors="replace").strip()


HOSTS_VARIABLE = "TRAINYARD_HOSTS_ENVIRONMENT"
"""A variable of a training with the `environment` of its hosts file as JSON, for its gang."""
CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")
_KEY_FILE, _KEY = "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"
_AIRFLOW_PREFIXES = ("AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_")


def build_job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Makes the environment that a job inherits, without Airflow's settings and keys."""
    inherited = {
        name: value for name, value in environment.items() if not name.startswith(_AIRFLOW_PREFIXES)
    }
    return inherited | JOB_PYTHON


def collect_store_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The secret variables with which another host reaches the bucket as this one does.

    The key of a Google service account travels as a text. Other files that a variable names must be
    at the same path on the other host.
    """
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(CREDENTIALS) or name == STORES_VARIABLE
    }
    if _KEY_FILE in found:
        file = found.pop(_KEY_FILE)
        try:
            found[_KEY] = Path(file).read_text()
        except OSError as error:
            raise ConfigError(f"{_KEY_FILE}: {file} can't be read: {error.strerror}") from None
    return found


def make_hosts_variable(hosts: Hosts | None) -> dict[str, str]:
    """The variable that tells a training the environment of its gang. Empty if there is none."""
    return {HOSTS_VARIABLE: json.dumps(hosts.environment)} if hosts and hosts.environment else {}


def read_hosts_variable(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the gang, from the variables of the training."""
    return dict(json.loads(environment.get(HOSTS_VARIABLE, "{}")))


INIT_MODULE = "pipeline_ops.places.init_process"


def build_init_command(hosts: PlaceSection, launch: JobLaunch) -> list[str]:
    """The command of the first process of a job on a host."""
    return build_python_command(hosts, INIT_MODULE, launch.module, str(launch.attempt.request))


def build_python_command(hosts: PlaceSection, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this project on a host."""
    variables = build_python_environment(hosts)
    return [
        "env",
        *(f"{name}={value}" for name, value in variables.items()),
        *(hosts.python or ("python" if hosts.has_image else sys.executable), "-m", module),
        *arguments,
    ]


def build_python_environment(hosts: PlaceSection) -> dict[str, str]:
    """The variables with which Python finds this project on a host."""
    if hosts.has_image:
        return JOB_PYTHON | ({"PYTHONPATH": hosts.code} if hosts.code else {})
    return JOB_PYTHON | {"PYTHONPATH": hosts.code or str(CODE_ROOT)}
