"""A random search of the digits with ASHA, next to the same one without a pruner.

    python tests/bench/search.py [--trials 16] [--epochs 16] [--seeds 1 2 3]

Both try the same parameters in the same order, one after the other, in train jobs as an operator
starts them. The figure of a search is the best validation accuracy of its finished trials. Its cost
are the optimizer steps of all its trials, also of the pruned ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
from measuring import ROOT, load_digits_config, make_environment, run_job  # noqa: E402

from pipeline_ops.config.pipeline import PipelineConfig  # noqa: E402
from pipeline_ops.contract.layout import Attempt, Layout  # noqa: E402
from pipeline_ops.contract.progress import ProgressReader  # noqa: E402
from pipeline_ops.contract.request import read_status, write_request  # noqa: E402
from pipeline_ops.contract.results import Trial  # noqa: E402
from pipeline_ops.errors import ExitCode  # noqa: E402
from pipeline_ops.job.study import draw_trials  # noqa: E402
from pipeline_ops.planning.job_kinds import KINDS  # noqa: E402
from pipeline_ops.planning.plan import plan_job  # noqa: E402
from pipeline_ops.planning.trials import (  # noqa: E402
    build_trial_config,
    plan_pruning,
    read_history,
)
from pipeline_ops.storage.open_store import open_path  # noqa: E402

MONITOR = "validation_accuracy"


@dataclasses.dataclass
class Outcome:
    """The end of a search."""

    figure: float = 0.0
    steps: int = 0
    pruned: int = 0


def run_search(config: PipelineConfig, manifests: dict[str, str], run_id: str) -> Outcome:
    """Runs all trials of a search, one after the other."""
    outcome = Outcome()
    for trial in draw_trials(config.search) if config.search else []:
        attempt = run_trial(config, trial, manifests, run_id)
        status = read_status(attempt)
        events = ProgressReader(attempt.progress).read_new()
        outcome.steps += max(event.done or 0 for event in events if event.phase == "train")
        if status is not None and status.exit_code is ExitCode.PRUNED:
            outcome.pruned += 1
            continue
        assert status is not None and status.exit_code is ExitCode.SUCCESS, status
        figures = read_history(open_path(str(status.manifest)), MONITOR)
        outcome.figure = max(outcome.figure, *figures)
    return outcome


def run_trial(
    config: PipelineConfig, trial: Trial, manifests: dict[str, str], run_id: str
) -> Attempt:
    """Runs one train job."""
    request = plan_job("train", build_trial_config(config, trial), run_id, manifests).request
    planned = plan_pruning(config, request.fingerprint)
    request = request.model_copy(update={"trial": planned})
    layout = Layout(config.root, config.pipeline)
    attempt = Attempt(layout.attempts(run_id, trial.name) / "attempt-1")
    write_request(attempt, request)
    argv = [sys.executable, "-m", KINDS["train"].module, "--request", str(attempt.request)]
    subprocess.run(argv, env=make_environment(), cwd=ROOT, capture_output=True, check=False)
    return attempt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--raw", type=Path, default=ROOT / ".trainyard" / "raw" / "digits")
    args = parser.parse_args()
    for seed in args.seeds:
        outcomes = {}
        for pruner in ("none", "asha"):
            with tempfile.TemporaryDirectory() as folder:
                search = {
                    "method": "random",
                    "trials": args.trials,
                    "pruner": pruner,
                    "monitor": MONITOR,
                    "parameters": {
                        "train.optimizer.learning_rate": {
                            "low": 1e-5,
                            "high": 1e-1,
                            "scale": "log",
                        },
                        "train.global_batch_size": [16, 32, 64, 128],
                    },
                }
                config = load_digits_config(
                    Path(folder),
                    args.raw,
                    args.epochs,
                    search=search,
                    train__strategy="one_device",
                    train__seed=seed,
                    train__workers=1,
                    train__early_stopping=None,
                    train__reduce_learning_rate=None,
                    train__best_checkpoint={"monitor": MONITOR},
                )
                manifests: dict[str, str] = {}
                run_job("preprocess", config, manifests)
                outcomes[pruner] = run_search(config, manifests, "bench")
        random, asha = outcomes["none"], outcomes["asha"]
        print(
            f"seed {seed}  random {random.figure:.4f} in {random.steps} steps   "
            f"asha {asha.figure:.4f} in {asha.steps} steps, {asha.pruned} pruned   "
            f"figure {asha.figure / random.figure:.3f}, steps {asha.steps / random.steps:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
