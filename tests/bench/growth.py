"""Seconds and memory of each task by the number of images, and how fast they grow.

An exponent of 1 means that ten times the images take ten times as long. It is that of the two
largest sizes, because small ones mostly pay for the start of processes. Memory is that of the
largest process of a task.

    python tests/bench/growth.py [--kind scenes] [--cache disk] [--sizes 2000 20000 200000]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from measuring import ROOT, Cost, run_job

from pipeline_ops.planning.job_kinds import JOBS

sys.path.append(str(ROOT / "tests" / "support"))

from large_data import make_config, write_pictures, write_scenes  # noqa: E402

_SIZES = {"pictures": [2000, 20_000, 200_000], "scenes": [300, 3000, 30_000]}
_CLASSES, _BOXES = 100, 60


def run_size(kind: str, count: int, cache: str) -> dict[str, Cost]:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        if kind == "pictures":
            write_pictures(raw, count, _CLASSES)
        else:
            write_scenes(raw, count, _BOXES)
        config = make_config(Path(folder), raw, kind, cache)
        manifests: dict[str, str] = {}
        costs = {job: run_job(job, config, manifests)[0] for job in JOBS}
        pages = config.root.local.rglob("*.html")
        print(f"{count:8,} {kind}, pages: {format_pages(pages)}")
        return costs


def format_pages(pages: Iterable[Path]) -> str:
    return ", ".join(f"{page.name} {page.stat().st_size / 1000:.0f} kB" for page in sorted(pages))


def print_table(costs: Mapping[int, Mapping[str, Cost]]) -> None:
    sizes = sorted(costs)
    for job in JOBS:
        cells = [
            f"{costs[size][job].wall:7.1f} s {costs[size][job].peak_mb:6.0f} MB" for size in sizes
        ]
        exponents = ""
        if len(sizes) > 1:
            before, after = (costs[size][job] for size in sizes[-2:])
            span = math.log(sizes[-1] / sizes[-2])
            exponents = (
                f"   n^{math.log(after.cpu / before.cpu) / span:.2f} CPU, "
                f"n^{math.log(after.peak_mb / before.peak_mb) / span:.2f} memory"
            )
        print(f"{job:12} {'  '.join(cells)}{exponents}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=list(_SIZES), default="pictures")
    parser.add_argument("--cache", choices=["none", "memory", "disk"], default="none")
    parser.add_argument("--sizes", type=int, nargs="+")
    arguments = parser.parse_args()
    costs = {}
    for size in arguments.sizes or _SIZES[arguments.kind]:
        costs[size] = run_size(arguments.kind, size, arguments.cache)
        print_table(costs)


if __name__ == "__main__":
    main()
