"""A trial that the pruner of a search stops: a real train job, and what stays of it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from orchestration.test_search import Run
from processes import wait_until

from pipeline_ops.cli.commands.explain import _forecast_trials
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.manifest import NAME, read_manifest
from pipeline_ops.contract.pruning import PlannedTrial, read_figures
from pipeline_ops.contract.request import read_request
from pipeline_ops.places.local import read_identity
from pipeline_ops.planning.trials import read_search
from pipeline_ops.storage.open_store import open_path

HOPELESS = 1e-9
SEARCH = {
    "parameters": {"train.optimizer.learning_rate": [0.01, HOPELESS]},
    "monitor": "validation_accuracy",
    "pruner": "asha",
}


def start_run(root: Path, dataset: str, run_id: str = "manual__1", **author) -> Run:
    return Run(root, dataset, run_id=run_id, **{"train.epochs": 4, "search": SEARCH} | author)


def read_trial(run: Run, name: str) -> PlannedTrial:
    return read_request(run.layout.newest_attempt(run.run_id, name).request).trial


def list_processes(text: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if text in f"{process.info['cmdline']} {process.info['environ']}"
    ]


@pytest.mark.training
def test_a_trial_with_a_number_of_steps_is_pruned_before_its_last_epoch(dataset, tmp_path):
    run = start_run(tmp_path, dataset, **{"train.epochs": None, "train.steps": 80})
    good, hopeless = run.search()
    history = read_manifest(open_path(run.try_out(good))).figures["history"]
    assert [epoch["step"] for epoch in history] == [22, 44, 66, 80]
    with pytest.raises(AirflowSkipException, match="pruned after epoch 1: validation_accuracy 0"):
        run.try_out(hopeless)


@pytest.mark.airflow
def test_a_hopeless_trial_is_pruned_and_stays_pruned(dataset, tmp_path):
    run = start_run(tmp_path, dataset)
    good, hopeless = run.search()
    manifest = run.try_out(good)
    with pytest.raises(AirflowSkipException, match="pruned after epoch 1: validation_accuracy 0"):
        run.try_out(hopeless)
    record = run.record("trial-001")
    assert (record.state, record.exit_code, record.manifest) == ("pruned", 4, None)
    assert record.message.startswith("pruned after epoch 1: validation_accuracy 0")
    artifact = open_path(read_request(open_path(f"{record.attempt}/request.json")).artifact)
    assert not (artifact / NAME).exists()
    assert work_folder(artifact).walk() == []
    assert list_processes(record.attempt) == []
    log = Path(record.attempt, "gang.log").read_text()
    assert "pruned after epoch 1" in log.splitlines()[-1]
    assert "FAILED" not in log

    assert run.choose() == manifest
    assert read_search(run.layout, run.run_id).format_table()[1:] == [
        f"  trial-001  {record.message}  optimizer.learning_rate 1e-09"
    ]

    config = load_config(Path(run.config))
    manifests = {"preprocess": run.manifests["preprocess"]}
    forecasts = {each.task: each for each in _forecast_trials(config, manifests, [])}
    assert forecasts["trial-001"].action == "skipped"
    assert forecasts["trial-001"].reason.startswith(record.message)
    assert forecasts["search"].action == forecasts["train"].action == "cached"

    for again in (run, start_run(tmp_path, dataset, "manual__2")):
        attempts = again.layout.attempts(again.run_id, "trial-001").walk()
        assert again.try_out(again.search()[0]) == manifest
        with pytest.raises(AirflowSkipException, match=record.message):
            again.try_out(hopeless)
        assert again.layout.attempts(again.run_id, "trial-001").walk() == attempts
        assert again.record("trial-001").message == record.message


@pytest.mark.training
def test_a_training_that_was_cached_before_its_search_competes(dataset, tmp_path):
    """And a search whose trials are not drawn yet has no forecast of its trials."""
    run = start_run(tmp_path, dataset, search=SEARCH | {"pruner": "none"})
    config, manifests = load_config(Path(run.config)), {"preprocess": run.manifests["preprocess"]}
    forecasts = [(each.task, each.action) for each in _forecast_trials(config, manifests, [])]
    assert forecasts == [("search", "runs"), ("trial", "runs"), ("train", "runs")]
    run.try_out(run.search()[0])

    searched = start_run(tmp_path, dataset, "manual__2")
    good, hopeless = searched.search()
    searched.try_out(good)
    assert searched.record("trial-000").cached
    with pytest.raises(AirflowSkipException, match="pruned after epoch 1: validation_accuracy 0"):
        searched.try_out(hopeless)


@pytest.mark.faults
def test_a_trial_whose_launcher_is_killed_goes_on_with_its_number(dataset, tmp_path):
    run = start_run(tmp_path, dataset, **{"train.epochs": 40, "train.early_stopping": None})
    good, _ = run.search()
    errors = []

    def try_out() -> None:
        with pytest.raises(AirflowException) as error:
            run.try_out(good)
        errors.append(error)

    thread = threading.Thread(target=try_out)
    thread.start()
    found = wait_until(lambda: list_epochs(run), 120)
    attempt = run.layout.newest_attempt(run.run_id, "trial-000")
    os.kill(read_identity(attempt.process).pid, signal.SIGKILL)
    thread.join(timeout=60)
    assert errors
    assert run.record("trial-000").state == "failed"

    manifest = run.try_out(good)
    assert run.record("trial-000").manifest == manifest
    assert max(found) < 40
    assert list_epochs(run) == list(range(1, 41))


def list_epochs(run: Run) -> list[int]:
    """The epochs with a recorded figure."""
    if run.layout.newest_attempt(run.run_id, "trial-000") is None:
        return []
    listed = read_figures(read_trial(run, "trial-000"), ()).values()
    return sorted(epoch for figures in listed for _, epoch, _ in figures)
