"""Train jobs as an operator starts them, and what is looked for around them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml
from conftest import DIGITS

from pipeline_ops.contracts.errors import ExitCode
from pipeline_ops.contracts.figures import WEIGHTS, TrainingFigures
from pipeline_ops.contracts.job import Job
from pipeline_ops.contracts.manifest import find_damage, read_manifest
from pipeline_ops.contracts.processes import ProcessIdentity, kill_group, start_detached
from pipeline_ops.contracts.progress import Progress, ProgressReader
from pipeline_ops.contracts.request import read_status
from pipeline_ops.training.state import read_arrays

QUICK = {"train__epochs": 6, "train__checkpoint_every_steps": 7, "train__steps_per_call": 5, "train__early_stopping": None}


def config_with_hosts(folder: Path, content: dict) -> Path:
    """A pipeline beside a hosts file `lab`. One core for each worker: another number of threads is another order of summing up."""
    (folder / "hosts").mkdir(parents=True, exist_ok=True)
    (folder / "hosts" / "lab.yaml").write_text(yaml.safe_dump(content))
    return Path(shutil.copy(DIGITS, folder / "digits.yaml"))


class RunningJob:
    """A train job as an operator starts it."""

    def __init__(self, job: Job):
        self.job = job
        self.process = start_detached([sys.executable, "-m", "pipeline_ops.launch.train", "--request", str(job.attempt.request)], job.attempt.log,
                                      cwd=job.attempt.folder)
        self.identity = ProcessIdentity.of(self.process.pid)
        self._progress = ProgressReader(job.attempt.progress)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda moment: moment.phase == "train" and (moment.done or 0) >= step)

    def wait_for(self, is_it: Callable[[Progress], bool], seconds: float = 90) -> Progress:
        """The first new moment of the job that is the one."""
        deadline = time.monotonic() + seconds
        while True:
            for moment in self._progress.new():
                if is_it(moment):
                    return moment
            assert self.process.poll() is None, self.job.attempt.log.read_text()
            assert time.monotonic() < deadline, f"the training does not get there\n{self.job.attempt.log.read_text()}"
            time.sleep(0.02)

    def all(self) -> list[int]:
        """Every living process of the job, on any host: the hosts of the tests share their processes with this machine.

        All have the job's folder on their command line or in their environment.
        """
        return sorted(pid for pid in pids() if pid != os.getpid() and str(self.job.attempt.folder) in command(pid) + environment(pid))

    def agents(self) -> list[int]:
        return [pid for pid in self.all() if "-m pipeline_ops.launch.agent" in command(pid) and not command(pid).startswith(("ssh", "srun", "env"))
                and "-c" not in command(pid).split()[:2]]

    def preloaded(self) -> list[int]:
        return [pid for pid in self.all() if "training.preloaded" in command(pid) and parent(pid) in self.agents()]

    def worker(self, name: str) -> int:
        """The process of that name, as the plan has it: `worker 0`."""
        log = os.path.realpath(self.job.attempt.worker_log(name))
        return next(pid for pid in self.all() if "training.preloaded" in command(pid) and os.path.realpath(f"/proc/{pid}/fd/1") == log)

    def end(self, seconds: float = 150) -> ExitCode:
        return ExitCode(self.process.wait(seconds))

    def message(self) -> str:
        return read_status(self.job.attempt).message

    def messages(self, phase: str) -> list[str]:
        return [moment.message for moment in ProgressReader(self.job.attempt.progress).new() if moment.phase == phase]

    def steps(self, phase: str, worker: str = "worker 0") -> list[int]:
        return [moment.done for moment in ProgressReader(self.job.attempt.worker_progress(worker)).new() if moment.phase == phase]

    def figures(self) -> TrainingFigures:
        uri = read_status(self.job.attempt).manifest
        manifest = read_manifest(uri)
        assert find_damage(uri, manifest, checksums=True) == []
        return TrainingFigures.model_validate(manifest.figures)

    def survivors(self, seconds: float = 5.0) -> list[str]:
        """What still lives after so long."""
        deadline = time.monotonic() + seconds
        while (left := self.all()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"{pid}: {command(pid)}" for pid in left]

    def put_an_end_to_it(self) -> None:
        """For tests that have failed."""
        kill_group(self.identity, 1.0)
        for pid in self.all():
            os.kill(pid, signal.SIGKILL)


def assert_same(job: RunningJob, undisturbed: RunningJob) -> None:
    """The same training, whatever has happened on the way: weights and final loss."""
    mine, theirs = (read_arrays(running.job.folder / WEIGHTS) for running in (job, undisturbed))
    assert max(float(np.abs(a - b).max()) for a, b in zip(mine, theirs, strict=True)) <= 1e-6
    mine, theirs = (running.figures().history[-1].metrics["loss"] for running in (job, undisturbed))
    assert abs(mine - theirs) <= 1e-6


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and state(int(entry)) not in "ZX"]


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
