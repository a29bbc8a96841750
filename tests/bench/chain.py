"""The cost of the four jobs without Airflow, next to a plain script that does the same work.

The two run in turn, several times. The CPU times of the whole process trees are compared.

    python tests/bench/chain.py [--epochs 5] [--rounds 3] [--raw .trainyard/raw/digits]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from measuring import (
    HERE,
    Cost,
    add_digits_arguments,
    compute_median,
    format_spread,
    load_digits_config,
    make_parser,
    measure,
    run_job,
    sum_costs,
)

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.planning.job_kinds import JOBS


def run_chain(root: Path, raw: Path, epochs: int) -> dict[str, Cost]:
    """Runs the four jobs one after the other, as the operators start them."""
    quiet = {"train__early_stopping": None, "train__reduce_learning_rate": None}
    config = load_digits_config(root, raw, epochs, **quiet)
    manifests: dict[str, str] = {}
    costs = {job: run_job(job, config, manifests)[0] for job in JOBS}
    accuracy = read_manifest(manifests["evaluate"]).figures["challenger"]["metrics"]["accuracy"]
    print(f"accuracy {accuracy:.4f}")
    return costs


def main() -> None:
    parser = make_parser(__doc__)
    add_digits_arguments(parser)
    arguments = parser.parse_args()
    raw, epochs, chains, plains = arguments.raw.resolve(), arguments.epochs, [], []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            chains.append(run_chain(Path(folder), raw, epochs))
        with tempfile.TemporaryDirectory() as folder:
            plains.append(measure([HERE / "plain.py", raw, folder, epochs])[0])
    wholes = [sum_costs(chain.values()) for chain in chains]
    for job in JOBS:
        print(f"{job:12} {compute_median(chain[job] for chain in chains)}")
    print(f"{'chain':12} {compute_median(wholes)}")
    print(f"{'plain script':12} {compute_median(plains)}")
    ratios = [whole.cpu / plain.cpu for whole, plain in zip(wholes, plains, strict=True)]
    print(f"chain / plain script, CPU, pair by pair: {format_spread(ratios)}")


if __name__ == "__main__":
    main()
