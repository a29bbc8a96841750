"""What training costs: starting, going on after a kill, stepping, scaling; saving and reading are
in `training_state.py`. Part of `make bench`.

What is compared runs in turn, so that what else the machine does hits both alike, and medians of
ratios are what counts. Ours is always the train job as the operator starts it, read off its
progress files; beside it stand Keras's `fit` in one process (`fit.py`) and PyTorch's
DistributedDataParallel (`ddp.py`, where an interpreter with PyTorch is named).

    python tests/bench/training.py [--cache FOLDER] [--rounds 5] [--torch PYTHON]
                                   [--only start kill fit scale]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import psutil
import yaml
from sklearn.datasets import load_digits

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.progress import Progress, ProgressReader
from pipeline_ops.jobs.request import read_status, write_request
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job

HERE = Path(__file__).resolve().parent
NUM_IMAGES = 24_000
QUIET = {
    "early_stopping": None,
    "reduce_learning_rate": None,
    "best_checkpoint": None,
    "checkpoint_every_steps": 100_000,
}
"""Of the train section: nothing but steps, as the peers do."""
MODELS = {"cnn": "nets:build_cnn", "dense": "nets:build_dense"}


# The data -----------------------------------------------------------------------------------------


def make_images(folder: Path) -> Path:
    """scikit-learn's digits as 28x28 PNG files, each shifted and noisy in its own way; made
    once."""
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
            place = folder / str(digits.target[source]) / f"{number:05d}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(place), np.clip(canvas, 0, 255).astype(np.uint8))
        (folder.parent / f"{folder.name}.made").touch()
    return folder


class Bench:
    """A storage root with one data set in it, and train jobs on that."""

    def __init__(self, cache: Path):
        self._cache = cache
        raw = make_images(cache / "digits-28")
        self._yaml = {
            "pipeline": "bench",
            "storage": {"root": str(cache / "root")},
            "preprocess": {
                "source": {"type": "image_folder", "path": str(raw)},
                "stages": [{"decode": {"channels": 1}}],
                "shards": 8,
                "split": {"train": 0.97, "validation": 0.015, "test": 0.015},
            },
            "train": {"model": "digits_cnn"},
            "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.5}]},
            "export": {"model": "bench"},
        }
        with tempfile.TemporaryDirectory() as folder:
            self.dataset = self._preprocess(Path(folder))

    def _preprocess(self, folder: Path) -> str:
        plan = plan_job("preprocess", self._config(folder, {}), "bench", {})
        if not plan.is_cached:
            attempt = self._attempt(folder, plan)
            subprocess.run(
                self._argv("preprocess", attempt),
                check=True,
                env=environment(),
                capture_output=True,
            )
        return str(plan.manifest)

    def _config(self, folder: Path, train: dict):
        file = folder / "bench.yaml"
        file.write_text(yaml.safe_dump(self._yaml | {"train": {"model": "digits_cnn"} | train}))
        return load_config(file)

    def _attempt(self, folder: Path, plan) -> Attempt:
        attempt = Attempt(folder / "attempt")
        request = (
            plan.request.model_copy(update={"artifact": str(folder / "artifact")})
            if plan.request.job == "train"
            else plan.request
        )
        write_request(attempt, request)
        return attempt

    def _argv(self, job: str, attempt: Attempt) -> list[str]:
        return [sys.executable, "-m", KINDS[job].module, "--request", str(attempt.request)]

    @contextlib.contextmanager
    def training(self, train: dict, cores: Sequence[int] = ()) -> Iterator[Training]:
        """A train job that has just been started."""
        with tempfile.TemporaryDirectory() as folder:
            plan = plan_job(
                "train", self._config(Path(folder), train), "bench", {"preprocess": self.dataset}
            )
            attempt = self._attempt(Path(folder), plan)
            pin = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
            with open(attempt.log, "wb") as log:
                process = subprocess.Popen(
                    [*pin, *self._argv("train", attempt)],
                    env=environment(),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            training = Training(process, attempt)
            try:
                yield training
                process.wait()
                status = read_status(attempt)
                if status is None or status.exit_code is not ExitCode.SUCCESS:
                    raise SystemExit(
                        f"the training ended with {status}:\n{attempt.log.read_text()[-3000:]}"
                    )
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"}


@dataclasses.dataclass
class Training:
    """A running train job, seen from outside."""

    process: subprocess.Popen
    attempt: Attempt

    def __post_init__(self):
        self.started = time.time()
        self._reader = ProgressReader(self.attempt.worker_progress("worker 0"))
        self._seen: list[Progress] = []

    def wait_for(self, wanted: Callable[[Progress], bool], after: float = 0.0) -> Progress:
        """The chief's first moment after a time for which it holds."""
        while True:
            self._seen += self._reader.new()
            if found := next(
                (moment for moment in self._seen if moment.time > after and wanted(moment)), None
            ):
                return found
            if self.process.poll() is not None:
                raise SystemExit(
                    f"the training ended early:\n{self.attempt.log.read_text()[-3000:]}"
                )
            time.sleep(0.01)

    def wait_for_new_step_after(self, act: Callable[[], None]) -> float:
        """Seconds from an act to the first step that had not been done before it."""
        acted, done = time.time(), max(moment.done for moment in self._seen if is_step(moment))
        act()
        restarted = self.wait_for(lambda moment: moment.phase == "joining", after=acted)
        return (
            self.wait_for(
                lambda moment: is_step(moment) and moment.done > done, after=restarted.time
            ).time
            - acted
        )

    def worker_pids(self) -> dict[str, int]:
        """By the name of its log."""
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
        """Of all workers."""
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.worker_pids().values())


def is_step(moment: Progress) -> bool:
    return moment.phase == "train" and bool(moment.done)


def ends_epoch(number: int) -> Callable[[Progress], bool]:
    """Whether so many epochs are done."""
    seen: set[int] = set()

    def holds(moment: Progress) -> bool:
        if is_step(moment) and "validation_loss" in (moment.metrics or {}):
            seen.add(moment.done)
        return len(seen) >= number

    return holds


@dataclasses.dataclass(frozen=True)
class Rate:
    """Steps in a window; `cpu_seconds` are of all processes."""

    steps: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_ms(self) -> float:
        return self.cpu_seconds / self.steps * 1e3

    def __str__(self) -> str:
        return f"{self.per_second:7.1f} steps/s, {self.cpu_ms:6.2f} ms CPU/step"


def config_of(net: str, workers: int, global_batch: int, epochs: int) -> dict:
    strategy = "one_device" if workers == 1 else "multi_worker_mirrored"
    return QUIET | {
        "model": MODELS[net],
        "strategy": strategy,
        "workers": workers,
        "global_batch": global_batch,
        "epochs": epochs,
    }


def rate_with_validation(bench: Bench, net: str, global_batch: int, epochs: int) -> Rate:
    """Of one worker, between the end of the first and of the last epoch but one: the last one ends
    the workers."""
    with bench.training(config_of(net, 1, global_batch, epochs + 1)) as training:
        first = training.wait_for(ends_epoch(1))
        start_cpu = training.cpu_seconds()
        last = training.wait_for(ends_epoch(epochs))
        return Rate(
            last.done - first.done, last.time - first.time, training.cpu_seconds() - start_cpu
        )


def rate_of_steps(
    bench: Bench, workers: int, global_batch: int, epochs: int, cores: Sequence[int] = ()
) -> Rate:
    """Of the CNN's steps alone, with a core for each worker: from the second epoch on a part in the
    middle of each, so that nothing is in it but steps, as with `ddp.py`."""
    num_steps = int(0.6 * NUM_IMAGES / global_batch)
    steps, seconds, cpu_seconds = 0, 0.0, 0.0
    with bench.training(config_of("cnn", workers, global_batch, epochs), cores) as training:
        for epoch in range(1, epochs):
            before = training.wait_for(ends_epoch(epoch)).done
            training.pin()
            first = training.wait_for(
                lambda moment, before=before: is_step(moment) and moment.done > before
            )
            start_cpu = training.cpu_seconds()
            last = training.wait_for(
                lambda moment, first=first: (
                    is_step(moment) and moment.done >= first.done + num_steps
                )
            )
            cpu_seconds += training.cpu_seconds() - start_cpu
            steps, seconds = steps + last.done - first.done, seconds + last.time - first.time
    return Rate(steps, seconds, cpu_seconds)


def said_by(argv: Sequence[object]) -> dict:
    """The JSON that a program prints as its last line."""
    done = subprocess.run(
        list(map(str, argv)), env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{argv} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# What is measured ---------------------------------------------------------------------------------


def measure_start(bench: Bench, rounds: int) -> None:
    """The first step of a worker that was forked, and of one whose process imports TensorFlow
    first."""
    forked, fresh = [], []
    for _ in range(rounds):
        with bench.training(
            QUIET | {"workers": 1, "strategy": "one_device", "global_batch": 64, "epochs": 1}
        ) as training:
            fresh.append(training.wait_for(is_step).time - training.started)
            joined = training.wait_for(lambda moment: moment.phase == "joining").time
            forked.append(training.wait_for(is_step).time - joined)
    print(
        f"=> first step: {statistics.median(forked):.2f} s after the fork, "
        f"{statistics.median(fresh):.2f} s after the start of a fresh process "
        f"({statistics.median(f / g for f, g in zip(forked, fresh, strict=True)):.2f} of it)\n",
        flush=True,
    )


def measure_kill(bench: Bench, rounds: int) -> None:
    """`kill -9` of one of two workers of the digits CNN: seconds to the first step that had not
    been done before."""
    seconds = []
    for _ in range(rounds):
        config = QUIET | {
            "model": "digits_cnn",
            "workers": 2,
            "strategy": "multi_worker_mirrored",
            "global_batch": 64,
            "epochs": 4,
            "checkpoint_every_steps": 50,
        }
        with bench.training(config) as training:
            training.wait_for(lambda moment: is_step(moment) and moment.done >= 200)
            seconds.append(
                training.wait_for_new_step_after(
                    lambda: os.kill(training.worker_pids()["worker-1.log"], signal.SIGKILL)
                )
            )
    print(
        f"=> kill -9 to the next new step: {statistics.median(seconds):.2f} s "
        f"({' '.join(f'{s:.2f}' for s in seconds)})\n",
        flush=True,
    )


def measure_fit(bench: Bench, rounds: int) -> None:
    for net, epochs in (("cnn", 3), ("dense", 12)):
        pairs = []
        for _ in range(rounds):
            theirs = Rate(
                **said_by([sys.executable, HERE / "fit.py", bench.dataset, net, 64, epochs])
            )
            pairs.append((rate_with_validation(bench, net, 64, epochs), theirs))
            print(f"{net}\n  fit  {pairs[-1][1]}\n  ours {pairs[-1][0]}", flush=True)
        ratios = [ours.per_second / theirs.per_second for ours, theirs in pairs]
        print(
            f"=> steps per second, {net}: {spread(ratios)} of fit's; CPU per step "
            f"{spread(ours.cpu_ms / theirs.cpu_ms for ours, theirs in pairs)}\n",
            flush=True,
        )


def measure_scaling(bench: Bench, rounds: int, torch: Path | None) -> None:
    """One core for each worker. Weak: 32 examples each. Strong: 64 together."""
    one_core, measured = sorted(os.sched_getaffinity(0))[:1], []
    for _ in range(rounds):
        ours = [
            rate_of_steps(bench, 1, 32, 2, one_core),
            rate_of_steps(bench, 1, 64, 2, one_core),
            rate_of_steps(bench, 2, 64, 3),
        ]
        theirs = (
            [
                Rate(**said_by([torch, HERE / "ddp.py", workers, batch, 300]))
                for workers, batch in ((1, 32), (1, 64), (2, 32))
            ]
            if torch
            else []
        )
        measured.append((ours, theirs))
        for name, rates in (("ours", ours), ("DDP ", theirs)):
            for label, rate in zip(("1 x 32", "1 x 64", "2 x 32"), rates, strict=False):
                print(f"  {name} {label}: {rate}", flush=True)
    for name, place in (("ours", 0), ("DDP", 1)):
        if rounds_of := [sides[place] for sides in measured if sides[place]]:
            weak = spread(two.per_second / small.per_second for small, _, two in rounds_of)
            strong = spread(two.per_second / large.per_second for _, large, two in rounds_of)
            print(
                f"=> {name}: weak scaling {weak}, strong scaling {strong} of two workers",
                flush=True,
            )
    if torch:
        print(
            "=> CPU per step of two workers: "
            f"{spread(ours[2].cpu_ms / theirs[2].cpu_ms for ours, theirs in measured)} of DDP's\n",
            flush=True,
        )
    else:
        print("PyTorch was not run: name an interpreter that has it with --torch\n", flush=True)


def spread(ratios: Iterable[float]) -> str:
    """The median, and what each round gave."""
    all_ratios = list(ratios)
    return (
        f"{statistics.median(all_ratios):.2f} ({' '.join(f'{ratio:.2f}' for ratio in all_ratios)})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(".trainyard/bench"),
        help="where images and shards are kept",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", type=Path, help="an interpreter with PyTorch")
    parser.add_argument("--only", nargs="+", default=("start", "kill", "fit", "scale"))
    arguments = parser.parse_args()
    bench = Bench(arguments.cache.resolve())
    measures = {
        "start": measure_start,
        "kill": measure_kill,
        "fit": measure_fit,
        "scale": lambda bench, rounds: measure_scaling(bench, rounds, arguments.torch),
    }
    for name in arguments.only:
        measures[name](bench, arguments.rounds)


if __name__ == "__main__":
    main()
