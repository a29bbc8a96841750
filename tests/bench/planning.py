"""The cost of planning a data set in the driver of a preprocess job: seconds, and peak memory.

The records are made up: 20 to 80 kB each, in ten classes. Only what they are when planning begins
is counted: listing the files and reading the source come before. Each number of records runs in a
process of its own. The plan is written to a folder.

    python tests/bench/planning.py [--records 100000 1000000 10000000]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import DIGITS

from beam_jobs.exchange import Exchange
from beam_jobs.planning.duplicates import decide_collection
from beam_jobs.planning.generations import plan_delta
from beam_jobs.planning.plan import Record, collect_class_names
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest
from pipeline_ops.storage.open_store import open_root


def make_records(count: int) -> list[Record]:
    labels = [f"class {number}" for number in range(10)]
    records = []
    for index in range(count):
        label = labels[index * 10 // count]
        digest = compute_digest(index.to_bytes(8, "big"))
        num_bytes, version = 20_000 + digest % 60_000, 1_732_600_000.123456 + index
        records.append(
            Record(RawFile(f"{label}/{index:08d}.jpg", num_bytes, digest, version), label)
        )
    return records


def plan(count: int, folder: Path) -> None:
    config = load_config(DIGITS, {"preprocess.shard_megabytes": 200}).preprocess
    records = make_records(count)
    before = read_memory()
    start = time.perf_counter()
    decision = decide_collection(config, records, {})
    decided = time.perf_counter()
    delta = plan_delta(decision.by_split, None, config, collect_class_names(records))
    planned = time.perf_counter()
    tasks = Exchange(open_root(folder)).write_plans(delta.shards)
    end = time.perf_counter()
    print(
        f"{count:10,} records: {end - start:6.1f} s ({decided - start:.1f} split and duplicates, "
        f"{planned - decided:.1f} shards, {end - planned:.1f} plans), {len(tasks)} tasks, "
        f"{sum(task.num_bytes for task in tasks) / 1e6:.0f} MB of plans, "
        f"peak {read_memory():.0f} MB, of which records {before:.0f} MB",
        flush=True,
    )


def read_memory() -> float:
    """The peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--here", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        with tempfile.TemporaryDirectory() as folder:
            plan(arguments.here, Path(folder))
        return
    for count in arguments.records:
        subprocess.run([sys.executable, __file__, "--here", str(count)], check=True)


if __name__ == "__main__":
    main()
