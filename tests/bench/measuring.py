"""Runs programs and jobs for the benchmarks, and measures what they cost."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Attempt, Layout
from pipeline_ops.contract.request import read_status, write_request
from pipeline_ops.errors import ExitCode
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.store_path import StorePath

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DIGITS = ROOT / "configs" / "digits.yaml"


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a program: seconds, and peak memory in MB of the largest of its processes.

    The CPU time includes all processes that the program has started and waited for. Wall time says
    little on a machine that does other things, too.
    """

    wall: float
    cpu: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.wall:7.2f} s wall {self.cpu:7.2f} s CPU"


def compute_median(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(statistics.median, zip(*map(dataclasses.astuple, costs), strict=True)))


def sum_costs(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(sum, zip(*map(dataclasses.astuple, costs), strict=True)))


def format_spread(ratios: Iterable[float]) -> str:
    """The median, and the value of each round."""
    values = list(ratios)
    return f"{statistics.median(values):.2f} ({' '.join(f'{value:.2f}' for value in values)})"


def make_environment() -> dict[str, str]:
    """The environment of measured programs, which may import the modules of this folder."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    folders = [str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(folders)}


# A program's peak memory includes that of the process it was forked from, which in a run of all
# tests is a gigabyte. So a small process starts it, and writes what it took.
_MEASURED = """
import json, os, sys, time
begin = time.monotonic()
pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[2:]], os.environ)
_, status, usage = os.wait4(pid, 0)
cost = time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
with open(sys.argv[1], "w") as file:
    json.dump(cost, file)
sys.exit(os.waitstatus_to_exitcode(status) % 256)
"""


def measure(argv: Sequence[object]) -> tuple[Cost, str]:
    """Runs a program to its end. Returns its cost and its output, of stdout and stderr."""
    with tempfile.NamedTemporaryFile() as cost, tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _MEASURED, cost.name, *map(str, argv)],
            env=make_environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        output.seek(0)
        text = output.read()
        if done.returncode:
            raise SystemExit(f"{argv[0]} ended with {done.returncode}:\n{text[-3000:]}")
        return Cost(*json.load(cost)), text


def run_job(
    job: str, config: PipelineConfig, manifests: dict[str, str], run_id: str = "bench"
) -> tuple[Cost, Attempt[StorePath]]:
    """Runs a job as an operator starts it, and adds its manifest to `manifests`."""
    plan = plan_job(job, config, run_id, manifests)
    assert not plan.is_cached
    attempt = Attempt(Layout(config.root, config.pipeline).attempts(run_id, job) / "attempt-1")
    write_request(attempt, plan.request)
    cost, _ = measure(["-m", KINDS[job].module, "--request", str(attempt.request)])
    status = read_status(attempt)
    assert status is not None and status.exit_code is ExitCode.SUCCESS, status
    manifests[job] = str(status.manifest)
    return cost, attempt


def write_config(
    folder: Path,
    root: Path,
    raw: Path,
    preprocess: Mapping[str, Any],
    train: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the YAML of a pipeline over a folder of images."""
    values = {
        "pipeline": "bench",
        "storage": {"root": str(root)},
        "preprocess": {"source": {"type": "image_folder", "path": str(raw)}, **preprocess},
        "train": {"model": "digits_cnn", **(train or {})},
        "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.5}]},
        "export": {"model": "bench"},
    }
    file = folder / "bench.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def load_digits_config(root: Path, raw: Path, epochs: int, **more: Any) -> PipelineConfig:
    """The config of the digits, with other overrides by key: `export__formats=[...]`."""
    overrides = {key.replace("__", "."): value for key, value in more.items()}
    return load_config(
        DIGITS,
        {
            "storage.root": str(root),
            "preprocess.source.path": str(raw),
            "train.epochs": epochs,
            "evaluate.gate": [{"metric": "accuracy", "at_least": 0.5}],
            **overrides,
        },
    )


def make_parser(description: str | None, rounds: int = 3) -> argparse.ArgumentParser:
    """A parser with the number of rounds. Its description is the first paragraph of a docstring."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"Default: {rounds}.")
    return parser


def add_digits_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--raw", type=Path, default=ROOT / ".trainyard" / "raw" / "digits")
