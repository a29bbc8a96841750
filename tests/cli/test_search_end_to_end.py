"""A search by `trainyard run` on real digits, in a real Airflow. One trial cannot succeed."""

from __future__ import annotations

import pytest
from cli.trainyard_command import Trainyard, cached_tasks, parse_summary
from config_files import set_words

from pipeline_ops.planning.job_kinds import JOBS

RATE = "train.optimizer.learning_rate"

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def trainyard(tmp_path_factory):
    return Trainyard(
        tmp_path_factory.mktemp("trainyard"),
        train__epochs=1,
        train__workers=1,
        train__strategy="one_device",
        train__on_divergence={"max_loss": 100.0},
        train__optimizer={"name": "sgd", "learning_rate": 0.01},
        train__best_checkpoint={"monitor": "validation_accuracy"},
        search={"parameters": {RATE: [0.0001, 10.0, 0.05]}},
        evaluate__gate=[{"metric": "accuracy", "at_least": 0.2}],
    )


@pytest.fixture(scope="module")
def first(trainyard):
    return trainyard.run()


def test_the_best_trial_goes_on_and_a_failed_one_does_no_harm(first):
    summary = parse_summary(first)
    assert summary["state"] == "success"
    states = {name: task["state"] for name, task in summary["tasks"].items()}
    done = (*JOBS, "search", "trial-000", "trial-001")
    assert states == dict.fromkeys(done, "success") | {"trial-002": "failed"}
    search = summary["search"]
    assert (search["monitor"], search["best"]) == ("validation_accuracy", "trial-001")
    assert [trial["parameters"][RATE] for trial in search["trials"]] == [0.0001, 0.05, 10.0]
    assert "diverged at step" in search["trials"][2]["message"]
    assert summary["tasks"]["train"]["manifest"] == search["trials"][1]["manifest"]
    assert "* trial-001  validation_accuracy" in first.stderr
    assert "optimizer.learning_rate 0.05" in first.stderr


def test_what_was_tried_is_not_tried_again_and_explain_knows_it(first, trainyard):
    explained = trainyard.call("explain").stdout.splitlines()
    verdicts = {line.split()[0]: line.split()[1] for line in explained}
    assert verdicts["search"] == "cached"
    assert verdicts["trial-000"] == verdicts["trial-001"] == "cached"
    assert verdicts["trial-002"] == verdicts["train"] == "runs"
    words = set_words(f"search.parameters={{{RATE}: [0.05, 0.0001]}}")
    summary = parse_summary(trainyard.run(*words))
    cached = {"preprocess", "trial-000", "trial-001", "evaluate", "export"}
    assert cached_tasks(summary) >= cached
    assert summary["search"]["best"] == "trial-000"


def test_a_pruned_trial_is_skipped_and_explain_knows_it(first, trainyard):
    words = set_words(
        "train.epochs=20",  # the pruner needs an epoch after the one it decides on
        "search.pruner=asha",
        f"search.parameters={{{RATE}: [0.05, 1e-7]}}",
    )
    summary = parse_summary(trainyard.run(*words))
    trials = summary["search"]["trials"]
    assert (summary["state"], summary["search"]["best"]) == ("success", "trial-000")
    assert summary["tasks"]["trial-001"]["state"] == "skipped"
    assert trials[1]["pruned"]
    assert trials[1]["message"].startswith("pruned after epoch 1: validation_accuracy")
    explained = trainyard.call("explain", *words).stdout
    assert f"trial-001  skipped {trials[1]['message']}" in explained
    assert "train      cached" in explained


def test_validate_says_what_will_be_tried_and_names_a_trial_that_can_not_be(trainyard):
    fine = trainyard.call("validate")
    assert (
        "search     3 trials (grid) over train.optimizer.learning_rate; 1 at a time; "
        "the trial with the best validation_accuracy is used"
    ) in fine.stdout
    wrong = trainyard.call("validate", "--set", f"search.parameters={{{RATE}: [0.05, -1]}}")
    assert wrong.returncode == 78
    assert "trial-001 (optimizer.learning_rate -1)" in wrong.stderr + wrong.stdout


def test_the_number_of_trials_at_a_time_is_part_of_the_dag(trainyard):
    refused = trainyard.run(*set_words("search.max_parallel=2"))
    assert refused.returncode == 78
    assert "--set search.max_parallel: cannot be set for a single run" in refused.stderr
