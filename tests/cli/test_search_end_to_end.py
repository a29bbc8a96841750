"""A search by `trainyard run` on real digits, in a real Airflow. One trial cannot succeed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from config_files import set_words, write_config, write_digits

RATE = "train.optimizer.learning_rate"

pytestmark = pytest.mark.airflow


class Trainyard:
    """The command, with a home, a config and raw data of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        changes = {
            "storage.root": "storage",
            "preprocess.source.path": "raw",
            "train.epochs": 1,
            "train.global_batch_size": 64,
            "train.workers": 1,
            "train.strategy": "one_device",
            "train.on_divergence": {"max_loss": 100.0},
            "train.optimizer": {"name": "sgd", "learning_rate": 0.01},
            "train.best_checkpoint": {"monitor": "validation_accuracy"},
            "search": {"parameters": {RATE: [0.0001, 10.0, 0.05]}},
            "evaluate.gate": [{"metric": "accuracy", "at_least": 0.2}],
        }
        self.config = write_config(folder, changes)
        write_digits(folder / "raw")

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "pipeline_ops.cli.main", *words],
            text=True,
            env={**os.environ, "TRAINYARD_HOME": str(self.folder)},
            capture_output=True,
            timeout=280,
        )


@pytest.fixture(scope="module")
def trainyard(tmp_path_factory):
    return Trainyard(tmp_path_factory.mktemp("trainyard"))


@pytest.fixture(scope="module")
def first(trainyard):
    return trainyard("run", str(trainyard.config), "--json")


def test_the_best_trial_goes_on_and_a_failed_one_does_no_harm(first):
    assert first.returncode == 0, first.stderr[-3000:]
    summary = json.loads(first.stdout.splitlines()[-1])
    assert summary["state"] == "success"
    states = {name: task["state"] for name, task in summary["tasks"].items()}
    assert states == {
        "preprocess": "success",
        "search": "success",
        "trial-000": "success",
        "trial-001": "success",
        "trial-002": "failed",
        "train": "success",
        "evaluate": "success",
        "export": "success",
    }
    search = summary["search"]
    assert (search["monitor"], search["best"]) == ("validation_accuracy", "trial-001")
    assert [trial["parameters"][RATE] for trial in search["trials"]] == [0.0001, 0.05, 10.0]
    assert "diverged at step" in search["trials"][2]["message"]
    assert summary["tasks"]["train"]["manifest"] == search["trials"][1]["manifest"]
    assert "* trial-001  validation_accuracy" in first.stderr
    assert "optimizer.learning_rate 0.05" in first.stderr


def test_what_was_tried_is_not_tried_again_and_explain_knows_it(first, trainyard):
    explained = trainyard("explain", str(trainyard.config)).stdout.splitlines()
    verdicts = {line.split()[0]: line.split()[1] for line in explained}
    assert verdicts["trial-000"] == verdicts["trial-001"] == "cached"
    assert verdicts["trial-002"] == verdicts["train"] == "runs"
    words = set_words(f"search.parameters={{{RATE}: [0.05, 0.0001]}}")
    again = trainyard("run", str(trainyard.config), "--json", *words)
    summary = json.loads(again.stdout.splitlines()[-1])
    assert {name for name, task in summary["tasks"].items() if task["cached"]} >= {
        "preprocess",
        "trial-000",
        "trial-001",
        "evaluate",
        "export",
    }
    assert summary["search"]["best"] == "trial-000"


def test_a_pruned_trial_is_skipped_and_explain_knows_it(first, trainyard):
    words = set_words(
        "train.epochs=20",  # the pruner needs an epoch after the one it decides on
        "search.pruner=asha",
        f"search.parameters={{{RATE}: [0.05, 1e-7]}}",
    )
    done = trainyard("run", str(trainyard.config), "--json", *words)
    summary = json.loads(done.stdout.splitlines()[-1])
    trials = summary["search"]["trials"]
    assert (summary["state"], summary["search"]["best"]) == ("success", "trial-000")
    assert summary["tasks"]["trial-001"]["state"] == "skipped"
    assert trials[1]["pruned"]
    assert trials[1]["message"].startswith("pruned after epoch 1: validation_accuracy")
    explained = trainyard("explain", str(trainyard.config), *words).stdout
    assert f"trial-001  skipped {trials[1]['message']}" in explained
    assert "train      cached" in explained


def test_validate_says_what_will_be_tried_and_names_a_trial_that_can_not_be(trainyard):
    fine = trainyard("validate", str(trainyard.config))
    assert (
        "search     3 trials (grid) over train.optimizer.learning_rate; 1 at a time; "
        "the trial with the best validation_accuracy is used"
    ) in fine.stdout
    wrong = trainyard(
        "validate", str(trainyard.config), "--set", f"search.parameters={{{RATE}: [0.05, -1]}}"
    )
    assert wrong.returncode == 78
    assert "trial-001 (optimizer.learning_rate -1)" in wrong.stderr + wrong.stdout


def test_the_number_of_trials_at_a_time_is_part_of_the_dag(trainyard):
    words = set_words("search.max_parallel=2")
    refused = trainyard("run", str(trainyard.config), *words)
    assert refused.returncode == 78
    assert "--set search.max_parallel: cannot be set for a single run" in refused.stderr
