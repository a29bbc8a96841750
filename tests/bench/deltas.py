"""The cost of a run when nothing, or one file in a hundred, has changed: the work grows with the
change.

    python tests/bench/deltas.py [--images 12000] [--listed 1000000] [--rounds 3]

Makes its own data in a temporary folder, and removes it: `--listed` tiny files, and `--images` JPEG
files of about 40 kB that the job decodes, resizes to 320x320 and encodes anew. Start-up is what a
run for a single new file takes, with the import of Beam, its workers, the index and the links. Work
is CPU time of whole processes: wall time says little on a machine that does other things, too.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.request import read_status, write_request
from pipeline_ops.planning.plan import JobPlan, plan_job

_LIST = """
import resource, sys, time
from pathlib import Path
from pipeline_ops.raw_data.listing import list_raw_files
start, cpu = time.monotonic(), time.process_time()
listing = list_raw_files(Path(sys.argv[1]), Path(sys.argv[2]))
digest = listing.digest
print(
    len(listing.files),
    time.monotonic() - start,
    time.process_time() - cpu,
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
)
"""


def bench_listing(folder: Path, num_files: int) -> None:
    """Lists `num_files` tiny files, of which none has changed since the last time."""
    for first in range(0, num_files, 1000):
        part = folder / "tiny" / f"class_{first // 1000 % 20:02d}" / f"{first:07d}"
        part.mkdir(parents=True)
        for index in range(first, min(first + 1000, num_files)):
            (part / f"{index:07d}.jpg").write_bytes(b"%d" % index)
    time.sleep(2.5)  # files that were just written are read again
    for what in ("first time", "unchanged"):
        argv = [sys.executable, "-c", _LIST, str(folder / "tiny"), str(folder / "index")]
        count, seconds, cpu, gigabytes = subprocess.run(
            argv, check=True, capture_output=True, text=True
        ).stdout.split()
        print(
            f"list {int(count):>9,} files, {what:<11} {float(seconds):7.2f} s wall "
            f"{float(cpu):7.2f} s CPU {float(gigabytes):.2f} GB"
        )
    print("=> goal for 1,000,000 unchanged files: 30 s, 1 GB")
    shutil.rmtree(folder / "tiny")


class Bench:
    """A pipeline over generated photographs."""

    def __init__(self, folder: Path):
        self.folder, self.raw, self._runs = folder, folder / "raw", 0
        self.config_file = folder / "bench.yaml"
        self.config_file.write_text(
            yaml.safe_dump(
                {
                    "pipeline": "bench",
                    "storage": {"root": "root"},
                    "preprocess": {
                        "source": {"type": "image_folder", "path": "raw"},
                        "shards": 16,
                        "stages": ["decode", {"resize": {"height": 320, "width": 320}}],
                        "split": {"train": 0.8, "validation": 0.1, "test": 0.1},
                    },
                    "train": {"model": "digits_cnn"},
                    "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.5}]},
                    "export": {"model": "bench"},
                }
            )
        )

    def photograph(self, index: int) -> None:
        """About 40 kB; the class follows from the number."""
        import cv2
        import numpy as np

        generator = np.random.default_rng(index)
        coarse = generator.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        image = cv2.resize(coarse, (500, 375), interpolation=cv2.INTER_CUBIC) + generator.normal(
            0, 6, (375, 500, 3)
        )
        file = self.raw / f"class_{index % 20:02d}" / f"{index:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(
            cv2.imencode(
                ".jpg", np.clip(image, 0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 80]
            )[1].tobytes()
        )

    def plan(self) -> JobPlan:
        return plan_job("preprocess", load_config(self.config_file), "bench", {})

    def run(self) -> tuple[float, float]:
        """Wall and CPU seconds of the job's process."""
        plan = self.plan()
        assert not plan.is_cached
        self._runs += 1
        attempt = Attempt(self.folder / "attempts" / str(self._runs))
        write_request(attempt, plan.request)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "beam_jobs.preprocess", "--request", str(attempt.request)],
            stderr=subprocess.DEVNULL,
            check=False,
        )
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
        status = read_status(attempt)
        assert status.exit_code is ExitCode.SUCCESS, status
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench_changes(folder: Path, num_images: int, rounds: int) -> None:
    """A full run, then rounds of: one file gone; one new; one in a hundred new; nothing changed."""
    bench = Bench(folder)
    for index in range(num_images):
        bench.photograph(index)
    time.sleep(2.5)
    start = time.monotonic()
    bench.plan()
    print(f"first listing of {num_images:,} images {time.monotonic() - start:.2f} s")
    full = bench.run()
    print(f"full run           {full[0]:7.2f} s wall {full[1]:7.2f} s CPU")
    gone, one, small, nothing = [], [], [], []
    for number in range(rounds):
        next(iter(sorted((bench.raw / "class_00").iterdir()))).unlink()
        gone.append(bench.run())
        bench.photograph(num_images * (number + 1))
        one.append(bench.run())
        for index in range(num_images // 100):
            bench.photograph(num_images * (number + 1) + 1 + index)
        small.append(bench.run())
        time.sleep(2.5)
        bench.plan()
        start = time.monotonic()
        assert bench.plan().is_cached
        nothing.append(time.monotonic() - start)
    for what, costs in (("one file gone", gone), ("one file new", one), ("1 % new", small)):
        print(
            f"{what:<18} {statistics.median(wall for wall, _ in costs):7.2f} s wall "
            f"{statistics.median(cpu for _, cpu in costs):7.2f} s CPU"
        )
    print(
        f"nothing changed    {statistics.median(nothing):7.2f} s wall, listing and all; "
        "goal 1 s for 12,000 images"
    )
    start_up = statistics.median(cpu for _, cpu in one)
    share = (statistics.median(cpu for _, cpu in small) - start_up) / (full[1] - start_up)
    print(f"1 % new is {share:.1%} of the full run's work beyond start-up, by CPU; goal 3 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--listed", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryDirectory() as folder:
        if arguments.listed:
            bench_listing(Path(folder), arguments.listed)
        if arguments.images:
            bench_changes(Path(folder), arguments.images, arguments.rounds)


if __name__ == "__main__":
    main()
