"""Train jobs started as an operator starts them, their processes and their results."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import yaml
from processes import Stopwatch, T, is_running, query_process

from pipeline_ops.contract.gang_protocol import AGENT_MODULE, AgentSpec, Command, Event
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.manifest import find_damage, read_manifest
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.request import read_status
from pipeline_ops.contract.results import TrainingFigures
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.runner import Job
from pipeline_ops.places.place import HOSTS_VARIABLE
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.system.processes import ProcessIdentity, kill_group, start_detached

INTERVAL = 15
"""Steps between two checkpoints."""
STEPS_PER_EPOCH = 22

QUICK = {
    "train__epochs": 6,
    "train__checkpoint_every_steps": INTERVAL,
    "train__steps_per_call": 5,
    "train__early_stopping": None,
    "train__callbacks": ["holding:Hold"],
    "train__hosts": "lab",
}


DIGITS = CODE_ROOT / "configs" / "digits.yaml"


def config_with_hosts(folder: Path, content: dict, pipeline: Path = DIGITS) -> Path:
    """Writes a pipeline next to a hosts file `lab` and to modules of a user.

    Each worker has one core, because another number of threads would sum in another order.
    """
    (folder / "hosts").mkdir(parents=True, exist_ok=True)
    (folder / "hosts" / "lab.yaml").write_text(yaml.safe_dump(content))
    shutil.copy(Path(__file__).with_name("holding.py"), folder)
    shutil.copytree(
        Path(__file__).parents[1] / "own" / "acme_vision",
        folder / "acme_vision",
        dirs_exist_ok=True,
    )
    return Path(shutil.copy(pipeline, folder))


def make_agent_spec(folder: Path, **values: object) -> AgentSpec:
    """The specification of an agent on this machine whose run is a folder."""
    return AgentSpec(
        **{
            "host": "here",
            "run": str(folder),
            "lock": str(folder),
            "token_file": str(folder / "token"),
            "silence_timeout_seconds": 60,
        }
        | values
    )


class Agent:
    """One agent and the pipe to it."""

    def __init__(self, spec: AgentSpec):
        self.spec = spec
        self.process = subprocess.Popen(
            [sys.executable, "-m", AGENT_MODULE, spec.run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.process.stdin.write(spec.model_dump_json().encode() + b"\n")
        self.process.stdin.flush()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.__exit__(*error)

    def order(self, **values: object) -> None:
        self.process.stdin.write(Command(**values).model_dump_json().encode() + b"\n")
        self.process.stdin.flush()

    def hears(self, kind: str) -> Event:
        for line in self.process.stdout:
            if (event := Event.parse(line)) and event.event == kind:
                return event
        raise AssertionError(f"the agent ended without the event {kind}")

    def below(self) -> list[int]:
        """The processes that it has started."""
        return [pid for pid in pids() if environment(pid).get("TRAINYARD_RUN") == self.spec.run]


@contextlib.contextmanager
def starting(
    make_job_in, dataset: str, folder: Path, hosts: dict, pipeline: Path = DIGITS, **defaults
) -> Iterator[Callable[..., RunningJob]]:
    """Yields a function that starts jobs in a folder, on the hosts of a hosts file.

    The remaining processes are killed afterwards. All hosts share one temporary folder.
    """
    started, temporary = [], folder / "temporary"
    temporary.mkdir(parents=True)

    def start(
        name: str = "attempt",
        lab: dict | None = None,
        is_held: bool = False,
        prefix: Sequence[str] = (),
        **overrides,
    ) -> RunningJob:
        content = {"environment": {"TMPDIR": str(temporary)}} | hosts | (lab or {})
        make = make_job_in(folder, dataset, config_with_hosts(folder, content, pipeline))
        job = make(name, **(QUICK | defaults | overrides))
        started.append(RunningJob(job, temporary, content["environment"], is_held, prefix))
        return started[-1]

    try:
        yield start
    finally:
        for job in started:
            job.kill_all()


class RunningJob:
    """A train job as an operator starts it.

    Args:
      job: its request and its folder.
      temporary: the temporary folder of its hosts.
      environment: that of its hosts file.
      is_held: whether it stops at the end of its first epoch until `release` is called.
      prefix: the command that starts the job's command.
    """

    def __init__(
        self,
        job: Job,
        temporary: Path,
        environment: dict[str, str],
        is_held: bool = False,
        prefix: Sequence[str] = (),
    ):
        self.job, self.temporary = job, temporary
        self._attempt = Attempt(open_root(job.attempt.folder))
        if is_held:
            self._hold.touch()
        self.process = start_detached(
            [
                *prefix,
                sys.executable,
                "-m",
                "pipeline_ops.launch.train",
                "--request",
                str(job.attempt.request),
            ],
            job.attempt.log,
            env=os.environ | {"TMPDIR": str(temporary), HOSTS_VARIABLE: json.dumps(environment)},
            cwd=job.attempt.folder,
        )
        self.identity = ProcessIdentity.from_pid(self.process.pid)
        self._progress = ProgressReader(self._attempt.progress)

    @property
    def _hold(self) -> Path:
        return self.job.attempt.folder / "hold"

    def wait_until_held(self) -> None:
        """Waits until the chief is held and the checkpoints of the first epoch are written."""
        newest = self.job.work / f"checkpoint-{STEPS_PER_EPOCH:09d}.npz"
        self.wait_until(lambda: newest.exists() and self._hold.with_name("held").exists())

    def release(self) -> None:
        self._hold.unlink()

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda event: event.phase == "train" and (event.done or 0) >= step)

    def wait_for(
        self, predicate: Callable[[ProgressEvent], bool], seconds: float = 180
    ) -> ProgressEvent:
        """Returns the first new progress event of the job that meets the predicate."""
        found: list[ProgressEvent] = []

        def is_reported() -> bool:
            found.extend(filter(predicate, self._progress.read_new()))
            return bool(found)

        self.wait_until(is_reported, seconds)
        return found[0]

    def wait_until(self, is_so: Callable[[], object], seconds: float = 180) -> None:
        """Waits for a condition while the job runs. Fails with the log of the job."""

        def is_so_while_running() -> object:
            is_running = self.process.poll() is None
            result = is_so()
            assert result or is_running, self.job.attempt.log.read_text()
            return result

        wait_until(is_so_while_running, seconds, self.job.attempt.log.read_text)

    def all(self) -> list[int]:
        """The living processes of the job on all hosts, which share this machine's processes.

        All have the job's folder on their command line or in their environment.
        """
        return find_by_text(str(self.job.attempt.folder))

    def agents(self) -> list[int]:
        return [
            pid
            for pid in self.all()
            if "-m pipeline_ops.launch.agent" in command(pid)
            and not command(pid).startswith(("ssh", "srun", "env"))
            and "-c" not in command(pid).split()[:2]
        ]

    def fork_servers(self) -> list[int]:
        return [
            pid
            for pid in self.all()
            if "training.fork_server" in command(pid) and parent(pid) in self.agents()
        ]

    def worker(self, name: str) -> int:
        """The process with a name of the plan, for example `worker 0`."""
        found = self.forks(self.job.attempt.worker_log(name))
        assert found, f"{name} does not run\n{self.job.attempt.log.read_text()}"
        return found[0]

    def forks(self, log: Path) -> list[int]:
        """The forks of the fork servers that write to a log."""
        log = log.resolve()
        return [pid for pid in self.all() if Path(f"/proc/{pid}/fd/1").resolve() == log]

    def end(self, seconds: float = 240) -> ExitCode:
        return ExitCode(self.process.wait(seconds))

    def message(self) -> str:
        return read_status(self._attempt).message

    def messages(self, phase: str) -> list[str]:
        return [
            event.message
            for event in ProgressReader(self._attempt.progress).read_new()
            if event.phase == phase
        ]

    def steps(self, phase: str, worker: str = "worker 0") -> list[int]:
        return [event.done for event in self.read_events(worker) if event.phase == phase]

    def read_events(self, worker: str = "worker 0") -> list[ProgressEvent]:
        """Reads all reports of a worker."""
        return ProgressReader(self._attempt.worker_progress(worker)).read_new()

    def figures(self) -> TrainingFigures:
        path = open_path(read_status(self._attempt).manifest)
        manifest = read_manifest(path)
        assert find_damage(path, manifest, checksums=True) == []
        return TrainingFigures.model_validate(manifest.figures)

    def survivors(self, seconds: float = 5.0) -> list[str]:
        """Returns the processes that still run after that time of a `Stopwatch`."""
        watch = Stopwatch()
        while (left := self.all()) and watch.seconds < seconds:
            time.sleep(0.05)
        return [f"{pid}: {command(pid)}" for pid in left]

    def kill_launcher(self) -> None:
        """Kills the job itself and asserts that no other process survives it."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.survivors() == []

    def kill_all(self) -> None:
        """Kills the processes of a failed test."""
        kill_group(self.identity, 1.0)
        for pid in self.all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until(
    is_so: Callable[[], object], seconds: float = 60, explain: Callable[[], object] = str
) -> None:
    """Waits for a condition. Fails after the time with the explanation."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.02)


def pids() -> list[int]:
    return [process.pid for process in psutil.process_iter() if is_running(process)]


def command(pid: int) -> str:
    return " ".join(_query(pid, "cmdline", gone=[]))


def environment(pid: int) -> dict[str, str]:
    return _query(pid, "environ", gone={})


def parent(pid: int) -> int:
    return _query(pid, "ppid", gone=0)


def _query(pid: int, method: str, gone: T) -> T:
    return query_process(lambda: getattr(psutil.Process(pid), method)(), gone)


def find_by_text(text: str) -> list[int]:
    """The living processes with a text on their command line or in their environment."""
    return sorted(
        pid
        for pid in pids()
        if pid != os.getpid() and text in "\0".join([command(pid), *environment(pid).values()])
    )
