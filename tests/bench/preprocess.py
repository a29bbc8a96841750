"""How fast the preprocess job is, beside a program that was written by hand for one purpose:
`make bench`.

The programs run in turn, so that what else the machine does hits all alike, and medians of ratios
are what counts. Beside the hand-written program (`by_hand.py`) stand the writers of TensorFlow
Datasets (`tfds_writers.py`). What they write goes to memory (`/dev/shm`) where there is such a
place: programs are compared, and not how a disk catches up with the one before.

    python tests/bench/preprocess.py [--cache FOLDER] [--images 12000] [--rounds 5] [--tfds 2000]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from photographs import SIZES, make_photographs, path_of, size_of

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.progress import ProgressReader
from pipeline_ops.jobs.request import read_status, write_request
from pipeline_ops.planning.plan import plan_job

HERE = Path(__file__).resolve().parent
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ENCODING = "jpeg"  # of all programs, of quality 90 and with colours at half the resolution
RESIZE = [
    {"decode": {"channels": 3}},
    {"resize": {"height": 240, "width": 320}},
    {"encode": {"format": ENCODING}},
]
PASS_THROUGH = [
    {"decode": {"channels": 3, "check": "header"}}
]  # as the hand-written program does: headers, size, end


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one program. `running` leaves out imports and planning, `whole` is from start to end of
    the process.

    `peak_mb` is that of its largest process.
    """

    images: int
    running: float
    whole: float
    cpu: float
    peak_mb: float

    def __str__(self) -> str:
        return (
            f"{self.images / self.running:7.0f} images/s running, "
            f"{self.images / self.whole:7.0f} as a whole process, "
            f"{self.cpu / self.images * 1e3:6.2f} ms CPU/image, {self.peak_mb:5.0f} MB"
        )


def start(argv: list[str], log: Path) -> tuple[float, float, float]:
    """Runs a program to its end: wall seconds, CPU seconds, and peak memory in MB of the largest of
    its processes."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}",
    }
    begin = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            argv, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=HERE.parents[1]
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(
            f"{' '.join(argv)} ended with {os.waitstatus_to_exitcode(status)}:\n"
            f"{log.read_text()[-3000:]}"
        )
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def run_other(program: str, raw: Path, folder: Path, *arguments: object) -> Cost:
    """A program that prints how many images it has made, and in which time, as its last line."""
    wall, cpu, peak = start(
        [sys.executable, str(HERE / program), str(raw), str(folder / "out"), *map(str, arguments)],
        folder / "log",
    )
    said = json.loads((folder / "log").read_text().splitlines()[-1])
    return Cost(said["images"], said["running_seconds"], wall, cpu, peak)


def run_ours(raw: Path, folder: Path, stages: list, workers: int) -> Cost:
    """The job as the operator starts it. It runs from the moment when Beam is imported to the last
    shard."""
    config_file = folder / "bench.yaml"
    config_file.write_text(
        yaml.safe_dump(
            {
                "pipeline": "bench",
                "storage": {"root": str(folder / "root")},
                "preprocess": {
                    "source": {"type": "image_folder", "path": str(raw)},
                    "stages": stages,
                    "shards": 21,
                    "duplicates": "keep",
                    "split": {"train": 0.34, "validation": 0.33, "test": 0.33},
                    "runner": {"mode": "multi_processing", "workers": workers},
                },
                "train": {"model": "digits_cnn"},
                "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.5}]},
                "export": {"model": "bench"},
            }
        )
    )
    plan = plan_job(
        "preprocess", load_config(config_file), "bench", {}
    )  # lists and digests all files: the operator's time
    attempt = Attempt(folder / "attempt")
    write_request(attempt, plan.request)
    wall, cpu, peak = start(
        [sys.executable, "-m", "beam_jobs.preprocess", "--request", str(attempt.request)],
        folder / "log",
    )
    assert read_status(attempt).exit_code is ExitCode.SUCCESS
    moments = [
        moment for moment in ProgressReader(attempt.progress).new() if moment.phase == "preprocess"
    ]
    return Cost(moments[-1].done, moments[-1].time - moments[0].time, wall, cpu, peak)


def in_turn(name: str, rounds: int, ours, other, goals: str) -> None:
    """Prints both programs' costs, and the ratios of pairs: 1 is as fast, more is faster."""
    pairs = []
    for number in range(rounds):
        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as one,
            tempfile.TemporaryDirectory(dir=MEMORY) as another,
        ):
            pairs.append((other(Path(one)), ours(Path(another))))
        print(
            f"{name} {number + 1}/{rounds}\n  other {pairs[-1][0]}\n  ours  {pairs[-1][1]}",
            flush=True,
        )
    running = [ours.images / ours.running / (other.images / other.running) for other, ours in pairs]
    whole = [ours.images / ours.whole / (other.images / other.whole) for other, ours in pairs]
    print(
        f"=> {name}: {statistics.median(running):.2f} running, "
        f"{statistics.median(whole):.2f} with start-up; goal {goals} "
        f"(running, pair by pair: {' '.join(f'{ratio:.2f}' for ratio in running)})\n",
        flush=True,
    )


def link_subset(source: Path, target: Path, indexes: list[int], count: int) -> Path:
    """A folder of `count` links to some of the images, each under several names where they do not
    suffice."""
    for number in range(count):
        place = path_of(target, number)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            os.link(path_of(source, indexes[number % len(indexes)]), place)
    return target


def compare_memory(small: Path, large: Path, workers: int) -> None:
    peaks = []
    for raw in (small, large):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            peaks.append(run_ours(raw, Path(folder), RESIZE, workers))
    print(
        f"=> peak memory: {peaks[0].peak_mb:.0f} MB for {peaks[0].images} images, "
        f"{peaks[1].peak_mb:.0f} MB for {peaks[1].images}\n",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--cache", type=Path, default=Path(".trainyard/bench"), help="where the images are kept"
    )
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--tfds",
        type=int,
        default=2000,
        help="images for the writers of TensorFlow Datasets, and for ours beside them",
    )
    arguments = parser.parse_args()
    cache, count, workers = arguments.cache.resolve(), arguments.images, arguments.workers
    raw = make_photographs(cache / f"photographs-{count}", count)
    same = link_subset(
        raw,
        cache / f"same-size-{count}",
        [index for index in range(count) if size_of(index) == SIZES[0]],
        count,
    )
    few = link_subset(raw, cache / f"tfds-{arguments.tfds}", list(range(count)), arguments.tfds)
    tenth = link_subset(raw, cache / f"tenth-{count}", list(range(count)), count // 10)

    def ours(images: Path, stages: list):
        return lambda folder: run_ours(images, folder, stages, workers)

    in_turn(
        "resize / by hand",
        arguments.rounds,
        ours(raw, RESIZE),
        lambda folder: run_other("by_hand.py", raw, folder, "resize", ENCODING, workers),
        "0.95 and 0.85",
    )
    in_turn(
        "pass-through / by hand",
        arguments.rounds,
        ours(same, PASS_THROUGH),
        lambda folder: run_other("by_hand.py", same, folder, "pass", ENCODING, workers),
        "0.65 running",
    )
    in_turn(
        "resize / TFDS generator",
        arguments.rounds,
        ours(few, RESIZE),
        lambda folder: run_other(
            "tfds_writers.py", few, folder, "generator", ENCODING, arguments.tfds
        ),
        "2 running",
    )
    for mode in ("multi_threading", "multi_processing"):
        in_turn(
            f"resize / TFDS Beam, {mode}",
            min(3, arguments.rounds),
            ours(few, RESIZE),
            lambda folder, mode=mode: run_other(
                "tfds_writers.py", few, folder, mode, ENCODING, arguments.tfds
            ),
            "5 running",
        )
    compare_memory(tenth, raw, workers)


if __name__ == "__main__":
    main()
