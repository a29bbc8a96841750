"""The cost and the size of each format of a published model, and its distance from the model.

A small network is trained once. Then the export job runs with the SavedModel alone, with each other
format in addition, and with all. The cost of a format is the difference to the SavedModel alone.
Latencies are those that the job measures.

    python tests/bench/export.py [--epochs 5] [--rounds 3] [--raw .trainyard/raw/digits]
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from measuring import (
    Cost,
    add_digits_arguments,
    compute_median,
    load_digits_config,
    make_parser,
    run_job,
)

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import FormatFigures, ModelFigures
from pipeline_ops.planning.job_kinds import JOBS

OTHERS = ("tflite", "tflite_int8", "onnx")


def main() -> None:
    parser = make_parser(__doc__)
    add_digits_arguments(parser)
    arguments = parser.parse_args()
    raw, epochs = arguments.raw.resolve(), arguments.epochs
    kinds = {"saved_model": (), **{name: (name,) for name in OTHERS}, "all": OTHERS}
    costs: dict[str, list[Cost]] = defaultdict(list)
    found: dict[str, list[FormatFigures]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        root, manifests = Path(folder), {}
        for job in JOBS[:-1]:
            run_job(job, load_digits_config(root, raw, epochs), manifests)
        runs = (kind for _ in range(arguments.rounds) for kind in kinds.items())
        for run, (name, formats) in enumerate(runs, 1):
            # Every run has a tolerance of its own, so that no export is cached.
            changes = {"formats": ["saved_model", *formats], "tolerance": 1e-3 + run * 1e-9}
            more = {f"export__{key}": value for key, value in changes.items()}
            config = load_digits_config(root, raw, epochs, **more)
            costs[name].append(run_job("export", config, manifests, f"bench-{run}")[0])
            figures = ModelFigures.model_validate(read_manifest(manifests["export"]).figures)
            for each in figures.formats:
                found[each.name].append(each)
    report(costs, found)


def report(costs: dict[str, list[Cost]], found: dict[str, list[FormatFigures]]) -> None:
    medians = {name: compute_median(each) for name, each in costs.items()}
    alone = medians["saved_model"]
    for name, cost in medians.items():
        more = f"  (+{cost.wall - alone.wall:.2f} s wall, +{cost.cpu - alone.cpu:.2f} s CPU)"
        print(f"export of {name:12} {cost}{'' if cost is alone else more}")
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
