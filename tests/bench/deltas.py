"""The cost of a run after no change, and after a change of one file in a hundred.

    python tests/bench/deltas.py [--images 12000] [--listed 1000000] [--rounds 3]

The data are made in a temporary folder: `--listed` tiny files, and `--images` JPEG files of about
40 kB that the job decodes, resizes to 320x320 and encodes again. Start-up is the cost of a run for
a single new file, with the import of Beam, its workers, the index and the references. Work is CPU
time of whole process trees.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Cost, compute_median, make_environment, make_parser, run_job, write_config
from photographs import build_photograph_path, photograph

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.planning.plan import JobPlan, plan_job

_LIST = """
import resource, sys, time
from pathlib import Path
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root
start, cpu = time.monotonic(), time.process_time()
listing = list_raw_files(Path(sys.argv[1]), open_root(sys.argv[2]))
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
            argv, check=True, capture_output=True, text=True, env=make_environment()
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
        self.raw, self._runs = folder / "raw", 0
        self._config_file = write_config(
            folder,
            folder / "root",
            self.raw,
            {
                "shards": 16,
                "stages": ["decode", {"resize": {"height": 320, "width": 320}}],
                "split": {"train": 0.8, "validation": 0.1, "test": 0.1},
            },
        )

    def add_photographs(self, first: int, count: int) -> None:
        for index in range(first, first + count):
            path = build_photograph_path(self.raw, index)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(photograph(index))

    def plan(self) -> JobPlan:
        return plan_job("preprocess", load_config(self._config_file), "bench", {})

    def run(self) -> Cost:
        self._runs += 1
        return run_job("preprocess", load_config(self._config_file), {}, f"bench-{self._runs}")[0]


def bench_changes(folder: Path, num_images: int, rounds: int) -> None:
    """Measures a full run, then rounds of changes: one file removed, one added, 1 % added, none."""
    bench = Bench(folder)
    bench.add_photographs(0, num_images)
    time.sleep(2.5)
    start = time.monotonic()
    bench.plan()
    print(f"first listing of {num_images:,} images {time.monotonic() - start:.2f} s")
    full = bench.run()
    print(f"full run           {full}")
    gone, one, small, nothing = [], [], [], []
    for number in range(rounds):
        min((bench.raw / "class_00").iterdir()).unlink()
        gone.append(bench.run())
        bench.add_photographs(num_images * (number + 1), 1)
        one.append(bench.run())
        bench.add_photographs(num_images * (number + 1) + 1, num_images // 100)
        small.append(bench.run())
        time.sleep(2.5)
        bench.plan()
        start = time.monotonic()
        assert bench.plan().is_cached
        nothing.append(time.monotonic() - start)
    for what, costs in (("one file gone", gone), ("one file new", one), ("1 % new", small)):
        print(f"{what:<18} {compute_median(costs)}")
    print(
        f"nothing changed    {statistics.median(nothing):7.2f} s wall, listing and all; "
        "goal 1 s for 12,000 images"
    )
    start_up = compute_median(one).cpu
    share = (compute_median(small).cpu - start_up) / (full.cpu - start_up)
    print(f"1 % new is {share:.1%} of the full run's work beyond start-up, by CPU; goal 3 %")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--listed", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.listed:
            bench_listing(Path(folder), arguments.listed)
        if arguments.images:
            bench_changes(Path(folder), arguments.images, arguments.rounds)


if __name__ == "__main__":
    main()
