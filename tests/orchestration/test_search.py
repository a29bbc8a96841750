"""The tasks of a search. A trial is a real train job, a failed trial does not fail the search, and
the best one is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from config_files import write_config
from task_contexts import make_context
from upstream_artifacts import copy_artifacts

from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.contract.results import Epoch
from pipeline_ops.contract.task_record import TaskRecord, read_record, write_record
from pipeline_ops.orchestration.search import ChooseOperator, SearchOperator, TrialOperator
from pipeline_ops.planning.trials import read_search
from pipeline_ops.storage.open_store import open_root

RATE, RATES = "train.optimizer.learning_rate", [0.001, 0.1, 0.01]
"""In the order of the trials."""


class Run:
    """The tasks of one run, by hand."""

    def __init__(self, root: Path, dataset: str | None, run_id: str = "manual__1", **author):
        self.run_id = run_id
        quick = {
            "storage.root": str(root),
            "train.epochs": 1,
            "train.workers": 1,
            "train.strategy": "one_device",
            "search": {
                "parameters": {RATE: sorted(RATES)},
                "monitor": "validation_accuracy",
            },
        }
        self.config = str(write_config(root / "configs", quick | author))
        self.layout = Layout(open_root(root), "digits")
        self.manifests = copy_artifacts(self.layout, run_id, {"preprocess": dataset})

    def context(self) -> dict:
        return make_context(self.manifests, self.run_id)

    def search(self) -> list[dict]:
        operator = SearchOperator(config_file=self.config)
        operator.defer_after_seconds = 240  # the test has no triggerer
        self.manifests["search"] = operator.execute(self.context())
        return self.manifests["search"]

    def try_out(self, trial: dict) -> str:
        operator = TrialOperator(task_id="trial", config_file=self.config, trial=trial)
        operator.defer_after_seconds = 240  # the test has no triggerer
        return operator.execute(self.context())

    def choose(self) -> str:
        return ChooseOperator(config_file=self.config).execute(self.context())

    def record(self, name: str) -> TaskRecord | None:
        return read_record(self.layout.task_record(self.run_id, name))


@pytest.mark.airflow
def test_a_trial_is_a_training_with_its_own_record_and_artifact_and_is_not_done_twice(
    dataset, tmp_path
):
    run = Run(tmp_path, dataset)
    trials = run.search()
    manifest = run.try_out(trials[1])
    assert read_manifest(manifest).fingerprint.config["optimizer"]["learning_rate"] == RATES[1]
    record = run.record("trial-001")
    assert (record.state, record.cached, record.manifest) == ("success", False, manifest)
    assert Path(record.attempt).parent == run.layout.attempts("manual__1", "trial-001").local
    assert run.try_out(trials[1]) == manifest
    assert run.record("trial-001").cached


def finished(run: Run, sandbox, accuracies: list[float | None]) -> list[str]:
    """Writes the records of finished trials. None is a failed trial."""
    manifests = []
    for number, accuracy in enumerate(accuracies):
        if accuracy is None:
            message = "the loss diverged at step 3\nand more"
            record = TaskRecord(state="failed", message=message, exit_code=78)
        else:
            made = sandbox.train("good", tag=str(number))
            uri = copy_artifacts(run.layout, "another run", {"train": made})["train"]
            metrics = {"validation_accuracy": accuracy, "validation_loss": 1 - accuracy}
            epoch = Epoch(epoch=0, step=1, metrics=metrics, learning_rate=0.1)
            made = read_manifest(uri)
            figures = made.figures | {"history": [epoch.model_dump()], "best_epoch": 0}
            write_manifest(Path(uri).parent, made.model_copy(update={"figures": figures}))
            record = TaskRecord(state="success", manifest=uri)
        manifests.append(record.manifest)
        write_record(run.layout.task_record("manual__1", f"trial-{number:03d}"), record)
    return manifests


def test_the_best_goes_on_and_the_table_is_kept(sandbox, dataset, tmp_path):
    run = Run(tmp_path, dataset)
    run.search()
    manifests = finished(run, sandbox, [0.8, 0.95, None])
    assert run.choose() == manifests[1]
    assert run.record("train").manifest == manifests[1]
    reason = "trial-001 of 3 has the best validation_accuracy, 0.9500: optimizer.learning_rate 0.1"
    assert run.record("train").reason == reason
    assert read_search(run.layout, "manual__1").format_table() == [
        "* trial-001  validation_accuracy 0.9500  optimizer.learning_rate 0.1",
        "  trial-000  validation_accuracy 0.8000  optimizer.learning_rate 0.001",
        "  trial-002  failed: the loss diverged at step 3  optimizer.learning_rate 0.01",
    ]


@pytest.mark.parametrize(
    "trial",
    [
        {"number": 1, "parameters": {"train.runs_on": "other", "storage.root": "/srv"}},
        {"number": 7},
        {},
        [],
        "x",
    ],
)
def test_of_what_the_search_has_left_only_the_number_of_a_trial_counts(dataset, tmp_path, trial):
    """F9: an edited XCom can name another trial of this search, and nothing else."""
    run = Run(tmp_path, dataset)
    run.search()
    operator = TrialOperator(task_id="trial", config_file=run.config, trial=trial)
    if trial and trial != "x" and trial["number"] == 1:
        assert operator._load_run(run.context()).config.train.optimizer.learning_rate == RATES[1]
        assert operator._load_run(run.context()).config.train.runs_on is None
    else:
        with pytest.raises(AirflowFailException, match="has no trial"):
            operator._load_run(run.context())


def test_a_trial_that_somebody_has_ended_counts_as_failed(sandbox, dataset, tmp_path):
    run = Run(tmp_path, dataset)
    run.search()
    manifests = finished(run, sandbox, [0.8, 0.7])
    assert run.choose() == manifests[0]
    ended = read_search(run.layout, "manual__1").results[2]
    assert ended.message == "ended by Airflow, or by a user in its UI"


def test_where_all_trials_have_failed_the_search_has_too_and_says_why(sandbox, dataset, tmp_path):
    run = Run(tmp_path, dataset)
    run.search()
    finished(run, sandbox, [None, None, None])
    first = "trial-000 .optimizer.learning_rate 0.001.: the loss diverged"
    with pytest.raises(AirflowFailException, match=f"no trial was finished:\n{first}"):
        run.choose()
    assert run.record("train").state == "failed"


def test_without_data_there_is_no_trial_to_choose_from(tmp_path):
    run = Run(tmp_path, None)
    run.search()
    with pytest.raises(AirflowFailException, match="search or preprocess has failed"):
        run.choose()


HOSTILE = [
    [{"number": 0, "parameters": {"train.runs_on": "other"}}],
    [{"number": 0, "parameters": {RATE: 0.1, "storage.root": "/srv"}}],
    [{"number": 0, "parameters": {RATE: 0.5}}],
    [{"number": 1, "parameters": {RATE: 0.1}}],
    [{"number": 0, "parameters": {}}],
]


@pytest.mark.parametrize("trials", HOSTILE)
def test_of_an_artifact_only_trials_of_the_search_in_the_yaml_count(dataset, tmp_path, trials):
    """F9: nor can everybody who writes to the storage choose a program or a folder."""
    run = Run(tmp_path, dataset)
    [drawn, *_] = run.search()
    manifest = Path(run.record("search").manifest)
    made = read_manifest(manifest)
    write_manifest(manifest.parent, made.model_copy(update={"figures": {"trials": trials}}))
    message = "is not one of the search in .*digits.yaml. Clear the task search"
    with pytest.raises(AirflowFailException, match=message):
        run.search()
    assert run.record("search").state == "failed"
    write_record(
        run.layout.task_record(run.run_id, "search"),
        TaskRecord(state="success", manifest=str(manifest)),
    )
    with pytest.raises(AirflowFailException, match=message):
        run.try_out(drawn)
    with pytest.raises(AirflowFailException, match=message):
        run.choose()


def test_without_trials_in_the_store_no_xcom_starts_a_trial(dataset, tmp_path):
    run = Run(tmp_path, dataset)
    with pytest.raises(AirflowFailException, match="search has left no trials"):
        run.try_out({"number": 0, "parameters": {RATE: 0.1}})


def test_an_unchanged_search_is_drawn_once(dataset, tmp_path):
    run = Run(tmp_path, dataset)
    trials = run.search()
    assert not run.record("search").cached
    assert run.search() == trials
    assert run.record("search").cached


def test_a_trial_that_can_not_be_trained_fails_the_search_before_any_is(dataset, tmp_path):
    run = Run(tmp_path, dataset, search={"parameters": {"train.epochs": [1, 0]}})
    with pytest.raises(AirflowFailException, match=r"search, trial-00. \(epochs 0\)"):
        run.search()


def test_a_trial_that_fails_is_recorded_under_its_own_name(dataset, tmp_path):
    run = Run(tmp_path, dataset)
    Path(run.manifests["preprocess"]).unlink()
    with pytest.raises(AirflowException, match="there is no such manifest"):
        run.try_out(run.search()[0])
    assert run.record("trial-000").state == "failed"
    assert run.record("train") is None


def test_what_the_search_hands_to_airflow_is_json(tmp_path, dataset):
    trials = Run(tmp_path, dataset).search()
    assert json.loads(json.dumps(trials)) == trials
