"""The speed of the preprocess job, next to a program that was written by hand for one purpose.

The programs run in turn, so that other load of the machine affects all alike, and medians of ratios
are compared. The others are the hand-written program (`by_hand.py`) and the writers of TensorFlow
Datasets (`tfds_writers.py`). The output goes to memory (`/dev/shm`) where available, so that the
disk does not affect the next program.

    python tests/bench/preprocess.py [--cache FOLDER] [--images 12000] [--rounds 5] [--tfds 2000]
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path

from measuring import HERE, Cost, format_spread, make_parser, measure, run_job, write_config
from photographs import SIZES, build_photograph_path, compute_photograph_size, make_photographs

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.progress import ProgressReader

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_MANY = 5
ENCODING = "jpeg"  # of all programs, of quality 90 and with colours at half the resolution
RESIZE = [
    {"decode": {"channels": 3}},
    {"resize": {"height": 240, "width": 320}},
    {"encode": {"format": ENCODING}},
]
PASS_THROUGH = [{"decode": {"channels": 3}}]


@dataclasses.dataclass(frozen=True)
class PreprocessCost:
    """The cost of a preprocessing. `running` leaves out imports and planning."""

    images: int
    running: float
    cost: Cost

    @property
    def images_per_second(self) -> float:
        return self.images / self.running

    @property
    def images_per_wall_second(self) -> float:
        """Counts from the start to the end of the process."""
        return self.images / self.cost.wall

    def __str__(self) -> str:
        return (
            f"{self.images_per_second:7.0f} images/s running, "
            f"{self.images_per_wall_second:7.0f} as a whole process, "
            f"{self.cost.cpu / self.images * 1e3:6.2f} ms CPU/image, {self.cost.peak_mb:5.0f} MB"
        )


def run_other(program: str, raw: Path, folder: Path, *arguments: object) -> PreprocessCost:
    """Runs a program whose last line of output has the number of images and the seconds."""
    cost, output = measure([HERE / program, raw, folder / "out", *arguments])
    result = json.loads(output.splitlines()[-1])
    return PreprocessCost(result["images"], result["running_seconds"], cost)


def run_ours(raw: Path, folder: Path, stages: list, workers: int) -> PreprocessCost:
    """Runs the job as the operator starts it.

    As for the others, its running time begins when its packages are imported, Beam among them, and
    ends with the last shard. It includes the start of the worker processes.
    """
    config = load_preprocess_config(folder, raw, stages, {"workers": workers})
    cost, attempt = run_job("preprocess", config, {})
    events = [
        event
        for event in ProgressReader(attempt.progress).read_new()
        if event.phase == "preprocess"
    ]
    return PreprocessCost(events[-1].done, events[-1].time - events[0].time, cost)


def load_preprocess_config(folder: Path, raw: Path, stages: list, runner: dict) -> PipelineConfig:
    """A pipeline whose data set has 66 shards. The others write 64, also an even number."""
    preprocess = {
        "stages": stages,
        "shards": 22,
        "duplicates": "keep",
        "split": {"train": 0.34, "validation": 0.33, "test": 0.33},
        "runner": runner,
    }
    return load_config(write_config(folder, folder / "root", raw, preprocess))


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
    running = [ours.images_per_second / other.images_per_second for other, ours in pairs]
    whole = [ours.images_per_wall_second / other.images_per_wall_second for other, ours in pairs]
    print(
        f"=> {name}: {format_spread(running)} running, "
        f"{format_spread(whole)} with start-up; goal {goals}\n",
        flush=True,
    )


def link_subset(source: Path, target: Path, indexes: list[int], count: int) -> Path:
    """A folder of `count` links to some of the images, each under several names where they do not
    suffice."""
    for number in range(count):
        photograph = build_photograph_path(target, number)
        photograph.parent.mkdir(parents=True, exist_ok=True)
        if not photograph.exists():
            os.link(build_photograph_path(source, indexes[number % len(indexes)]), photograph)
    return target


def compare_memory(small: Path, large: Path, workers: int) -> None:
    peaks = []
    for raw in (small, large):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            peaks.append(run_ours(raw, Path(folder), RESIZE, workers))
    print(
        f"=> peak memory: {peaks[0].cost.peak_mb:.0f} MB for {peaks[0].images} images, "
        f"{peaks[1].cost.peak_mb:.0f} MB for {peaks[1].images}\n",
        flush=True,
    )


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--cache", type=Path, default=Path(".trainyard/bench"), help="where the images are kept"
    )
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--tfds",
        type=int,
        default=2000,
        help="images for the comparison with the writers of TensorFlow Datasets",
    )
    arguments = parser.parse_args()
    cache, count, workers = arguments.cache.resolve(), arguments.images, arguments.workers
    raw = make_photographs(cache / f"photographs-{count}", count)
    same = link_subset(
        raw,
        cache / f"same-size-{_MANY * count}",
        [index for index in range(count) if compute_photograph_size(index) == SIZES[0]],
        _MANY * count,  # else it would be over before it has begun
    )
    few = link_subset(raw, cache / f"tfds-{arguments.tfds}", list(range(count)), arguments.tfds)
    tenth = link_subset(raw, cache / f"tenth-{count}", list(range(count)), count // 10)

    def ours(images: Path, stages: list):
        return lambda folder: run_ours(images, folder, stages, workers)

    def other(program: str, images: Path, *words: object):
        return lambda folder: run_other(program, images, folder, *words)

    comparisons = [
        ("resize / by hand", ours(raw, RESIZE), "resize", raw, "0.95 and 0.85"),
        ("pass-through / by hand", ours(same, PASS_THROUGH), "pass", same, "0.60 running"),
    ]
    for name, job, chain, images, goals in comparisons:
        peer = other("by_hand.py", images, chain, ENCODING, workers)
        in_turn(name, arguments.rounds, job, peer, goals)
    for mode, goals in (
        ("generator", "2 running"),
        ("multi_threading", "5 running"),
        ("multi_processing", "5 running"),
    ):
        peer = other("tfds_writers.py", few, mode, ENCODING, arguments.tfds)
        rounds = arguments.rounds if mode == "generator" else min(3, arguments.rounds)
        in_turn(f"resize / TFDS {mode}", rounds, ours(few, RESIZE), peer, goals)
    compare_memory(tenth, raw, workers)


if __name__ == "__main__":
    main()
