"""The cost of the chain without Airflow, and of a plain script that does the same work:
`make bench`.

The two run in turn, several times, and what is compared is the CPU time of the whole process trees:
wall time says little on a machine that does other things, too.

    python tests/bench/chain.py [--epochs 5] [--rounds 3] [--raw .trainyard/raw/digits]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.request import read_status, write_request
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import plan_job

HERE = Path(__file__).resolve().parent
DIGITS = HERE.parents[1] / "configs" / "digits.yaml"


@dataclasses.dataclass
class Cost:
    wall: float
    cpu: float


def measure(argv: list[str]) -> Cost:
    """Runs a program and charges it with the CPU time of everything that it started and waited
    for."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
        "TF_CPP_MIN_LOG_LEVEL": "3"
    }
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        argv,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return Cost(
        time.monotonic() - begin,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def run_chain(root: Path, raw: Path, epochs: int) -> dict[str, Cost]:
    """The four jobs one after the other, as the operators would start them."""
    config = load_config(
        DIGITS,
        {
            "storage.root": str(root),
            "preprocess.source.path": str(raw),
            "train.epochs": epochs,
            "train.early_stopping": None,
            "train.reduce_learning_rate": None,
            "evaluate.gate": [{"metric": "accuracy", "at_least": 0.5}],
        },
    )
    manifests, costs = {}, {}
    for job in JOBS:
        plan = plan_job(job, config, "bench", manifests)
        attempt = Attempt(Layout(config.root, config.pipeline).attempts("bench", job) / "attempt-1")
        write_request(attempt, plan.request)
        costs[job] = measure(
            [sys.executable, "-m", KINDS[job].module, "--request", str(attempt.request)]
        )
        status = read_status(attempt)
        assert status.exit_code is ExitCode.SUCCESS, status
        manifests[job] = status.manifest
    accuracy = read_manifest(manifests["evaluate"]).figures["challenger"]["metrics"]["accuracy"]
    print(f"accuracy {accuracy:.4f}")
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--raw", type=Path, default=DIGITS.parents[1] / ".trainyard" / "raw" / "digits"
    )
    arguments = parser.parse_args()
    chains, plains = [], []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            chains.append(run_chain(Path(folder), arguments.raw.resolve(), arguments.epochs))
        with tempfile.TemporaryDirectory() as folder:
            plains.append(
                measure(
                    [
                        sys.executable,
                        str(HERE / "plain.py"),
                        str(arguments.raw),
                        folder,
                        str(arguments.epochs),
                    ]
                )
            )
    for job in JOBS:
        print(
            f"{job:12} {statistics.median(c[job].wall for c in chains):6.2f} s wall "
            f"{statistics.median(c[job].cpu for c in chains):6.2f} s CPU"
        )
    ratios = [
        sum(cost.cpu for cost in chain.values()) / plain.cpu
        for chain, plain in zip(chains, plains, strict=True)
    ]
    print(
        f"{'chain':12} "
        f"{statistics.median(sum(x.wall for x in c.values()) for c in chains):6.2f} s wall "
        f"{statistics.median(sum(x.cpu for x in c.values()) for c in chains):6.2f} s CPU"
    )
    print(
        f"{'plain script':12} {statistics.median(p.wall for p in plains):6.2f} s wall "
        f"{statistics.median(p.cpu for p in plains):6.2f} s CPU"
    )
    print(
        f"chain / plain script, CPU, pair by pair: {' '.join(f'{ratio:.2f}' for ratio in ratios)}"
    )


if __name__ == "__main__":
    main()
