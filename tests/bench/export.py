"""The cost and the size of each format of a published model, and its distance from the trained
model: `make bench`.

A small network is trained once; then the export job runs with the SavedModel alone, with each other
format beside it, and with all. What a format costs is the difference to the SavedModel alone.
Latencies are those that the job measures.

    python tests/bench/export.py [--epochs 5] [--rounds 3] [--raw .trainyard/raw/digits]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from chain import DIGITS, Cost, measure

from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import FormatFigures, ModelFigures
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.request import read_status, write_request
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import plan_job

OTHERS = ("tflite", "tflite_int8", "onnx")


def load(root: Path, raw: Path, epochs: int, formats: list[str], run: int) -> PipelineConfig:
    """Every run has a tolerance of its own, so that no export is found made."""
    return load_config(
        DIGITS,
        {
            "storage.root": str(root),
            "preprocess.source.path": str(raw),
            "train.epochs": epochs,
            "export.formats": formats,
            "export.tolerance": 1e-3 + run * 1e-9,
            "evaluate.gate": [{"metric": "accuracy", "at_least": 0.5}],
        },
    )


def run_job(job: str, config: PipelineConfig, run: int, manifests: dict[str, str]) -> Cost:
    plan = plan_job(job, config, f"bench-{run}", manifests)
    attempt = Attempt(
        Layout(config.root, config.pipeline).attempts(f"bench-{run}", job) / "attempt-1"
    )
    write_request(attempt, plan.request)
    cost = measure([sys.executable, "-m", KINDS[job].module, "--request", str(attempt.request)])
    status = read_status(attempt)
    assert status.exit_code is ExitCode.SUCCESS, status
    manifests[job] = status.manifest
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--raw", type=Path, default=DIGITS.parents[1] / ".trainyard" / "raw" / "digits"
    )
    arguments = parser.parse_args()
    kinds = (
        {"saved_model": ["saved_model"]}
        | {name: ["saved_model", name] for name in OTHERS}
        | {"all": ["saved_model", *OTHERS]}
    )
    costs: dict[str, list[Cost]] = {name: [] for name in kinds}
    found: dict[str, list[FormatFigures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root, manifests = Path(folder), {}
        for job in JOBS[:-1]:
            run_job(
                job,
                load(root, arguments.raw.resolve(), arguments.epochs, kinds["saved_model"], 0),
                0,
                manifests,
            )
        for turn in range(arguments.rounds):
            for index, (name, formats) in enumerate(kinds.items()):
                run = 1 + turn * len(kinds) + index
                costs[name].append(
                    run_job(
                        "export",
                        load(root, arguments.raw.resolve(), arguments.epochs, formats, run),
                        run,
                        manifests,
                    )
                )
                for each in ModelFigures.model_validate(
                    read_manifest(manifests["export"]).figures
                ).formats:
                    found.setdefault(each.name, []).append(each)
    report(costs, found)


def report(costs: dict[str, list[Cost]], found: dict[str, list[FormatFigures]]) -> None:
    wall = {name: statistics.median(cost.wall for cost in each) for name, each in costs.items()}
    cpu = {name: statistics.median(cost.cpu for cost in each) for name, each in costs.items()}
    for name in costs:
        more = (
            ""
            if name == "saved_model"
            else (
                f"  (+{wall[name] - wall['saved_model']:.2f} s wall, "
                f"+{cpu[name] - cpu['saved_model']:.2f} s CPU)"
            )
        )
        print(f"export of {name:12} {wall[name]:6.2f} s wall {cpu[name]:6.2f} s CPU{more}")
    for name, each in found.items():
        print(
            f"{name:12} {each[0].num_bytes:9,} bytes, "
            f"{1000 * statistics.median(f.latency_seconds for f in each):7.3f} ms an image, "
            f"difference {max(f.max_difference for f in each):.2g}, "
            f"top-1 agreement {min(f.top1_agreement for f in each):.1%} "
            f"of {each[0].num_checked}, made in {statistics.median(f.seconds for f in each):.2f} s"
        )


if __name__ == "__main__":
    main()
