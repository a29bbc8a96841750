"""Train jobs as an operator starts them, and what is looked for around them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import yaml
from processes import Stopwatch

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.artifacts.layout import work_folder
from pipeline_ops.artifacts.manifest import find_damage, read_manifest
from pipeline_ops.artifacts.results import WEIGHTS, TrainingFigures
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.progress import Progress, ProgressReader
from pipeline_ops.jobs.request import read_status
from pipeline_ops.jobs.runner import Job
from pipeline_ops.system.processes import ProcessIdentity, kill_group, start_detached
from pipeline_ops.training.checkpointing.state import read_arrays

INTERVAL = 15
"""Steps between two checkpoints."""
STEPS_OF_EPOCH = 22

QUICK = {
    "train__epochs": 6,
    "train__checkpoint_every_steps": INTERVAL,
    "train__steps_per_call": 5,
    "train__early_stopping": None,
    "train__callbacks": ["holding:Hold"],
    "train__hosts": "lab",
}


def config_with_hosts(folder: Path, content: dict) -> Path:
    """A pipeline beside a hosts file `lab`, and beside modules of a user's own.

    One core for each worker: another number of threads is another order of summing up.
    """
    (folder / "hosts").mkdir(parents=True, exist_ok=True)
    (folder / "hosts" / "lab.yaml").write_text(yaml.safe_dump(content))
    shutil.copy(Path(__file__).with_name("holding.py"), folder)
    shutil.copytree(
        Path(__file__).parents[1] / "own" / "acme_vision",
        folder / "acme_vision",
        dirs_exist_ok=True,
    )
    return Path(shutil.copy(CODE_ROOT / "configs" / "digits.yaml", folder / "digits.yaml"))


@contextlib.contextmanager
def starting(
    make_job_in, dataset: str, folder: Path, hosts: dict, **defaults
) -> Iterator[Callable[..., RunningJob]]:
    """Gives a function that starts jobs in a folder, on hosts as a hosts file describes them; what
    is left of them is ended afterwards.

    All of their hosts have the same temporary folder, which is their own.
    """
    started, temporary = [], folder / "temporary"
    temporary.mkdir(parents=True)

    def start(
        name: str = "attempt", lab: dict | None = None, is_held: bool = False, **overrides
    ) -> RunningJob:
        content = {"environment": {"TMPDIR": str(temporary)}} | hosts | (lab or {})
        make = make_job_in(folder, dataset, config_with_hosts(folder, content))
        started.append(RunningJob(make(name, **(QUICK | defaults | overrides)), temporary, is_held))
        return started[-1]

    try:
        yield start
    finally:
        for job in started:
            job.put_an_end_to_it()


class RunningJob:
    """A train job as an operator starts it.

    Args:
      job: its request and its folder.
      temporary: the temporary folder of its hosts.
      is_held: it stops at the end of its first epoch, until it is let go.
    """

    def __init__(self, job: Job, temporary: Path, is_held: bool = False):
        self.job, self.temporary = job, temporary
        if is_held:
            self._hold.touch()
        self.process = start_detached(
            [
                sys.executable,
                "-m",
                "pipeline_ops.launch.train",
                "--request",
                str(job.attempt.request),
            ],
            job.attempt.log,
            env=os.environ | {"TMPDIR": str(temporary)},
            cwd=job.attempt.folder,
        )
        self.identity = ProcessIdentity.of(self.process.pid)
        self._progress = ProgressReader(job.attempt.progress)

    @property
    def _hold(self) -> Path:
        return self.job.attempt.folder / "hold"

    def wait_until_held(self) -> None:
        """Returns once the first epoch is over, all of its checkpoints are on the disk, and the
        chief does nothing."""
        every = self.job.request.config["checkpoint_every_steps"]
        newest = (
            work_folder(self.job.folder) / f"checkpoint-{STEPS_OF_EPOCH // every * every:09d}.npz"
        )
        deadline = time.monotonic() + 180
        while not (newest.exists() and self._hold.with_name("held").exists()):
            assert self.process.poll() is None and time.monotonic() < deadline, (
                self.job.attempt.log.read_text()
            )
            time.sleep(0.02)

    def let_go(self) -> None:
        self._hold.unlink()

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda moment: moment.phase == "train" and (moment.done or 0) >= step)

    def wait_for(self, is_it: Callable[[Progress], bool], seconds: float = 180) -> Progress:
        """The first new moment of the job that is the one."""
        deadline = time.monotonic() + seconds
        while True:
            for moment in self._progress.new():
                if is_it(moment):
                    return moment
            assert self.process.poll() is None, self.job.attempt.log.read_text()
            assert time.monotonic() < deadline, (
                f"the training does not get there\n{self.job.attempt.log.read_text()}"
            )
            time.sleep(0.02)

    def all(self) -> list[int]:
        """Every living process of the job, on any host: the hosts of the tests share their
        processes with this machine.

        All have the job's folder on their command line or in their environment.
        """
        return sorted(
            pid
            for pid in pids()
            if pid != os.getpid()
            and str(self.job.attempt.folder) in command(pid) + environment(pid)
        )

    def agents(self) -> list[int]:
        return [
            pid
            for pid in self.all()
            if "-m pipeline_ops.launch.agent" in command(pid)
            and not command(pid).startswith(("ssh", "srun", "env"))
            and "-c" not in command(pid).split()[:2]
        ]

    def preloaded(self) -> list[int]:
        return [
            pid
            for pid in self.all()
            if "training.fork_server" in command(pid) and parent(pid) in self.agents()
        ]

    def worker(self, name: str) -> int:
        """The process of that name, as the plan has it: `worker 0`."""
        log = os.path.realpath(self.job.attempt.worker_log(name))
        found = [
            pid
            for pid in self.all()
            if "training.fork_server" in command(pid)
            and os.path.realpath(f"/proc/{pid}/fd/1") == log
        ]
        assert found, f"{name} does not run\n{self.job.attempt.log.read_text()}"
        return found[0]

    def end(self, seconds: float = 240) -> ExitCode:
        return ExitCode(self.process.wait(seconds))

    def message(self) -> str:
        return read_status(self.job.attempt).message

    def messages(self, phase: str) -> list[str]:
        return [
            moment.message
            for moment in ProgressReader(self.job.attempt.progress).new()
            if moment.phase == phase
        ]

    def steps(self, phase: str, worker: str = "worker 0") -> list[int]:
        return [moment.done for moment in self.moments(worker) if moment.phase == phase]

    def moments(self, worker: str = "worker 0") -> list[Progress]:
        """All that a worker has reported."""
        return ProgressReader(self.job.attempt.worker_progress(worker)).new()

    def figures(self) -> TrainingFigures:
        uri = read_status(self.job.attempt).manifest
        manifest = read_manifest(uri)
        assert find_damage(uri, manifest, checksums=True) == []
        return TrainingFigures.model_validate(manifest.figures)

    def survivors(self, seconds: float = 5.0) -> list[str]:
        """What still lives after so long, by a `Stopwatch`."""
        watch = Stopwatch()
        while (left := self.all()) and watch.seconds < seconds:
            time.sleep(0.05)
        return [f"{pid}: {command(pid)}" for pid in left]

    def put_an_end_to_it(self) -> None:
        """For tests that have failed."""
        kill_group(self.identity, 1.0)
        for pid in self.all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def assert_same(job: RunningJob, undisturbed: RunningJob) -> None:
    """The same training, whatever has happened on the way: weights and final loss."""
    mine, theirs = (read_arrays(running.job.folder / WEIGHTS) for running in (job, undisturbed))
    assert max(float(np.abs(a - b).max()) for a, b in zip(mine, theirs, strict=True)) <= 1e-6
    mine, theirs = (running.figures().history[-1].metrics["loss"] for running in (job, undisturbed))
    assert abs(mine - theirs) <= 1e-6


def assert_went_on(
    undisturbed: RunningJob,
    *tries: RunningJob,
    chief: str = "worker 0",
    survive_seconds: float = 5.0,
) -> None:
    """The last of these tries has ended as if nothing had happened, at the price of at most one
    checkpoint interval each time, and nobody is left.

    Nor is any temporary file of any of them, on any host: the hosts of the tests share their disks
    with this machine.
    """
    last = tries[-1]
    assert last.end() == ExitCode.SUCCESS, last.message()
    assert_same(last, undisturbed)
    repeated = repeated_steps([moment for one in tries for moment in one.moments(chief)])
    assert repeated, "nothing was interrupted"
    assert max(repeated) <= last.job.request.config["checkpoint_every_steps"], (
        f"steps that were done again: {repeated}"
    )
    assert [survivor for one in tries for survivor in one.survivors(survive_seconds)] == []
    assert [file for one in tries for file in one.temporary.rglob("*")] == []


def repeated_steps(of_chief: Sequence[Progress]) -> list[int]:
    """For each incarnation but the first: how many steps it has done again, from what the chiefs of
    all have reported.

    A chief reports a few times a second, and at the end of each epoch; so the numbers are exact for
    a training that was held.
    """
    reached, begun = 0, []
    for moment in of_chief:
        match moment.phase:
            case "building":
                begun.append([reached, 0])  # from the very beginning, unless it says otherwise
            case "restored":
                begun[-1][1] = moment.done
            case "train" | "preempted":
                reached = moment.done
    return [reached - start for reached, start in begun[1:]]


def pids() -> list[int]:
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and state(int(entry)) not in "ZX"
    ]


def command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def environment(pid: int) -> str:
    return _read(pid, "environ")


def parent(pid: int) -> int:
    fields = _read(pid, "stat").rsplit(")", 1)
    return int(fields[1].split()[1]) if len(fields) == 2 else 0


def state(pid: int) -> str:
    fields = _read(pid, "stat").rsplit(")", 1)
    return fields[1].split()[0] if len(fields) == 2 else "X"


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
