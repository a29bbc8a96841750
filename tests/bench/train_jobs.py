"""A data set for the benchmarks of training, and train jobs that are observed from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
from measuring import make_environment, run_job, write_config
from sklearn.datasets import load_digits

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.request import read_status, write_request
from pipeline_ops.errors import ExitCode
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import start_detached

NUM_IMAGES = 24_000


def make_images(folder: Path) -> Path:
    """Makes 28x28 PNG files of scikit-learn's digits, each with its own shift and noise, once."""
    if not (folder.parent / f"{folder.name}.made").exists():
        digits = load_digits()
        for number in range(NUM_IMAGES):
            random, source = np.random.default_rng(number), number % len(digits.images)
            image = cv2.resize(
                digits.images[source] * 15.9, (22, 22), interpolation=cv2.INTER_CUBIC
            )
            top, left = random.integers(0, 7, 2)
            canvas = random.normal(8, 8, (28, 28))
            canvas[top : top + 22, left : left + 22] += image
            path = folder / str(digits.target[source]) / f"{number:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.clip(canvas, 0, 255).astype(np.uint8))
        (folder.parent / f"{folder.name}.made").touch()
    return folder


class Bench:
    """A storage root with one data set in it, and train jobs on that."""

    def __init__(self, cache: Path):
        self._root, self._raw = cache / "root", make_images(cache / "digits-28")
        with tempfile.TemporaryDirectory() as folder:
            config = self._load_config(Path(folder), {})
            plan = plan_job("preprocess", config, "bench", {})
            if not plan.is_cached:
                run_job("preprocess", config, {})
        self.dataset = str(plan.manifest)

    def _load_config(self, folder: Path, train: dict) -> PipelineConfig:
        preprocess = {
            "stages": [{"decode": {"channels": 1}}],
            "shards": 8,
            "split": {"train": 0.97, "validation": 0.015, "test": 0.015},
        }
        return load_config(write_config(folder, self._root, self._raw, preprocess, train))

    @contextlib.contextmanager
    def training(self, train: dict, cores: Sequence[int] = ()) -> Iterator[Training]:
        """A train job that has just been started. Waits for its end."""
        with tempfile.TemporaryDirectory() as folder:
            config = self._load_config(Path(folder), train)
            with start_training(config, self.dataset, cores) as training:
                yield training
                training.finish()


@contextlib.contextmanager
def start_training(
    config: PipelineConfig, dataset: str, cores: Sequence[int] = ()
) -> Iterator[Training]:
    """Starts a train job on a data set, and kills it in the end."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_job("train", config, "bench", {"preprocess": dataset})
        attempt = Attempt(open_root(folder) / "attempt")
        artifact = str(Path(folder) / "artifact")
        write_request(attempt, plan.request.model_copy(update={"artifact": artifact}))
        argv = ["-m", KINDS["train"].module, "--request", str(attempt.request)]
        pin = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        process = start_detached(
            [*pin, sys.executable, *argv], attempt.log.local, make_environment()
        )
        try:
            yield Training(process, attempt)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclasses.dataclass
class Training:
    """A running train job, seen from outside."""

    process: subprocess.Popen
    attempt: Attempt[StorePath]

    def __post_init__(self):
        self.started = time.time()
        self._reader = ProgressReader(self.attempt.worker_progress("worker 0"))
        self._seen: list[ProgressEvent] = []

    def wait_for(
        self, predicate: Callable[[ProgressEvent], bool], after: float = 0.0
    ) -> ProgressEvent:
        """The chief's first progress event after a time for which the predicate holds."""
        while True:
            self._seen += self._reader.read_new()
            if found := next(
                (event for event in self._seen if event.time > after and predicate(event)), None
            ):
                return found
            if self.process.poll() is not None:
                raise SystemExit(
                    f"the training ended early:\n{self.attempt.log.local.read_text()[-3000:]}"
                )
            time.sleep(0.01)

    def wait_for_new_step_after(self, act: Callable[[], None]) -> float:
        """Measures the seconds from an action to the first new step."""
        acted, done = time.time(), max(event.done for event in self._seen if is_step(event))
        act()
        restarted = self.wait_for(lambda event: event.phase == "joining", after=acted)
        return (
            self.wait_for(
                lambda event: is_step(event) and event.done > done, after=restarted.time
            ).time
            - acted
        )

    def finish(self) -> dict[str, Any]:
        """Waits for the end of the job. Returns its figures."""
        self.process.wait()
        status = read_status(self.attempt)
        if status is None or status.exit_code is not ExitCode.SUCCESS:
            log = self.attempt.log.local.read_text()
            raise SystemExit(f"the training ended with {status}:\n{log[-3000:]}")
        return read_manifest(open_path(status.manifest)).figures

    def worker_pids(self) -> dict[str, int]:
        """The pids of the workers, by the names of their logs."""
        pids = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(OSError):
                log = Path(os.readlink(f"/proc/{process.pid}/fd/1")).name
                if log.startswith("worker-"):
                    pids[log] = process.pid
        return pids

    def pin(self) -> None:
        """Each worker to a core of its own, as `ddp.py` does, or Slurm, or a container with a set
        of CPUs."""
        cores = sorted(os.sched_getaffinity(0))
        for number, (_, pid) in enumerate(sorted(self.worker_pids().items())):
            for thread in psutil.Process(pid).threads():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, {cores[number % len(cores)]})

    def cpu_seconds(self) -> float:
        """The CPU time of all workers."""
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.worker_pids().values())


def is_step(event: ProgressEvent) -> bool:
    return event.phase == "train" and bool(event.done)


def ends_epoch(number: int) -> Callable[[ProgressEvent], bool]:
    """Returns a predicate that holds once `number` epochs have ended."""
    seen: set[int] = set()

    def holds(event: ProgressEvent) -> bool:
        if is_step(event) and "validation_loss" in (event.metrics or {}):
            seen.add(event.done)
        return len(seen) >= number

    return holds
