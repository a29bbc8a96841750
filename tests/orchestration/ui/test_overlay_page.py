"""Runs over each other, from the manifests that they have left."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from collections.abc import Mapping

import pytest
from airflow_database import DAG, RUN
from manifests import make_manifest
from pages import SCRIPT, Page

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import Maker, write_manifest
from pipeline_ops.contract.results import (
    TEST_SPLIT,
    ClassFigures,
    Epoch,
    EvaluationFigures,
    ModelEvaluation,
    TrainingFigures,
)
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.orchestration.airflow_models import DagRun, create_session

START = dt.datetime(2026, 11, 20, 3, tzinfo=dt.UTC)


def make_training(losses: list[float], **changes) -> TrainingFigures:
    history = [
        Epoch(
            epoch=number,
            step=10 * (number + 1),
            metrics={"loss": loss, "validation_loss": 2 * loss, "validation_accuracy": 0.5},
            learning_rate=0.01,
        )
        for number, loss in enumerate(losses)
    ]
    fields = {
        "strategy": "one_device",
        "workers": 1,
        "steps": 10 * len(losses),
        "restarts": 0,
        "weights_digest": "0" * 32,
        "worker_weights_digests": [],
        "num_parameters": 1234,
        "best_epoch": 0,
        "stopped_early": False,
        "history": history,
        "seconds": 12.0,
        "class_names": ["0", "1"],
        "image_shape": (28, 28, 1),
    }
    return TrainingFigures(**fields | changes)


def make_evaluation(accuracy: float, recall: float) -> EvaluationFigures:
    model = ModelEvaluation(
        metrics={"accuracy": accuracy, "macro_roc_auc": 0.9, "top_k_accuracy": 0.99},
        classes=[
            ClassFigures(name="0", precision=1, recall=recall, f1=1, support=5),
            ClassFigures(name=SCRIPT, precision=1, recall=1, f1=1, support=5),
        ],
        confusion=[],
        intervals={"accuracy": (accuracy - 0.01, accuracy + 0.01)},
    )
    return EvaluationFigures(
        num_examples=10,
        challenger=model,
        champion=None,
        champion_version=None,
        gate_passed=True,
        rules=[],
    )


@pytest.fixture
def leave_run(run_writer, set_states):
    """Adds a finished run with the manifests of its jobs."""
    set_states("success")
    added = []

    def leave(
        run_id: str,
        accuracy: float = 0.9,
        config: Mapping = {},
        losses=(0.9, 0.5, 0.3),
        split: str = "a",
        top_k: int = 3,
        code: str = "0",
    ) -> str:
        started = START + dt.timedelta(hours=len(added))
        with create_session() as session:
            session.add(
                DagRun(
                    dag_id=DAG,
                    run_id=run_id,
                    run_type="manual",
                    state="success",
                    run_after=started,
                    start_date=started,
                    conf={},
                )
            )
        added.append(run_id)
        jobs = {
            "train": (
                Fingerprint(
                    config={"epochs": 3} | config,
                    inputs={},
                    code={"model.py": code},
                    versions={"keras": "3.12"},
                ),
                make_training(list(losses)),
            ),
            "evaluate": (
                Fingerprint(
                    config={"top_k": top_k}, inputs={TEST_SPLIT: split}, code={}, versions={}
                ),
                make_evaluation(accuracy, accuracy),
            ),
        }
        for job, (fingerprint, figures) in jobs.items():
            folder = run_writer.layout.artifact(job, f"{len(added)}" * 32).local
            folder.mkdir(parents=True)
            write_manifest(folder, make_manifest(job, fingerprint, figures))
            record = TaskRecord(state="success", manifest=str(folder / "manifest.json"))
            write_record(run_writer.layout.task_record(run_id, job), record)
        return run_id

    yield leave
    with create_session() as session:
        for run_id in added:
            session.delete(session.query(DagRun).filter_by(dag_id=DAG, run_id=run_id).one())


def ask(client, *run_ids: str):
    return client("viewer").get(f"/pipelines/{DAG}/overlay", params={"run_id": list(run_ids)})


def look(client, *run_ids: str) -> str:
    answer = ask(client, *run_ids)
    assert answer.status_code == 200, answer.text
    return " ".join(Page(answer.text).text.split())


def read_rows(client, *run_ids: str) -> dict[str, list[str]]:
    """The cells of each row of all tables, by the text of its first one."""
    rows = {}
    for row in re.findall(r"<tr>(.*?)</tr>", ask(client, *run_ids).text, re.DOTALL):
        cells = re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)
        title, *values = (
            " ".join(html.unescape(re.sub("<.*?>", " ", cell)).split()) for cell in cells
        )
        rows[title] = values
    return rows


def read_curves(client, *run_ids: str) -> dict:
    [found] = re.findall(
        r'<script type="application/json" id="curves">(.*?)</script>', ask(client, *run_ids).text
    )
    return json.loads(found)


def test_metrics_settings_facts_and_classes_stand_side_by_side(client, leave_run):
    first = leave_run("one", 0.9, {"model": "fair", "optimizer": {"name": "sgd"}})
    second = leave_run("two", 0.95, {"model": "good", "optimizer": {"name": "sgd"}}, code="1")
    text, rows = look(client, second, first), read_rows(client, second, first)
    assert "2 runs of digits" in text and "20 Nov 03:00" in text and "different test" not in text
    assert rows["Accuracy share of images that were classified correctly"] == [
        "0.9000 0.8900 to 0.9100",
        "0.9500 0.9400 to 0.9600",
    ]
    assert rows["train.model"] == ['"fair"', '"good"']
    assert len({*rows["Code of train"]}) == 2
    assert not {"train.epochs", "train.optimizer.name", "keras"} & rows.keys()
    assert "4 other settings are the same in all of them" in text
    assert rows["Steps"] == ["30", "30"] and rows["0"] == ["0.9000", "0.9500"]


def test_the_script_gets_the_points_of_all_curves_and_those_without_a_script_get_a_drawing(
    client, leave_run
):
    run_ids = leave_run("one"), leave_run("two", losses=(float("nan"), 400.0))
    curves = read_curves(client, *run_ids)
    assert [run["style"] for run in curves["runs"]] == ["series-0", "series-1"]
    loss, accuracy = curves["metrics"]
    assert (loss["title"], accuracy["title"]) == ("Loss", "Accuracy")
    assert loss["training"] == [
        [[1, 10, 0.9], [2, 20, 0.5], [3, 30, 0.3]],
        [[1, 10, None], [2, 20, 400.0]],
    ]
    assert loss["validation"][0][0] == [1, 10, 1.8] and accuracy["training"] == [[], []]
    assert ask(client, *run_ids).text.count('<svg class="chart"') == 2


def test_the_run_of_the_version_in_service_is_behind_them(client, leave_run, run_writer):
    maker, other = leave_run("maker"), leave_run("other")
    run_writer.publish(0.9)
    folder = run_writer.config.registry.local / "1"
    manifest = make_manifest("export", figures={}, made_by=Maker(run_id=maker, time=START))
    (folder / "manifest.json").unlink()
    write_manifest(folder, manifest)
    curves = read_curves(client, other)
    assert [run["style"] for run in curves["runs"]] == ["series-0", "champion"]
    assert "1 run of digits" in look(client, other)
    assert "in service, of 20 Nov 03:00" in look(client, other)
    assert len(read_curves(client, other, maker)["runs"]) == 2


def test_other_test_splits_and_another_top_k_are_not_compared_in_silence(client, leave_run):
    text = look(client, leave_run("one"), leave_run("two", split="b", top_k=5))
    assert "The runs have different test splits." in text
    assert "Top-" not in text.partition("What differs")[0]
    assert "Top-3 accuracy" in look(client, "one")


def test_a_run_that_has_left_nothing_and_a_damaged_one_are_said_so(client, leave_run, run_writer):
    whole, damaged = leave_run("whole"), leave_run("damaged")
    (run_writer.layout.artifact("train", "2" * 32).local / "manifest.json").write_text("{}")
    text = look(client, whole, damaged, RUN)
    assert "manifest.json" in text and text.count("It has left no training.") == 2
    assert "Accuracy" in text


@pytest.mark.parametrize("run_ids", [[], [f"run-{number}" for number in range(9)], ["no such run"]])
def test_none_too_many_and_unknown_runs_are_refused_in_words(client, leave_run, run_ids):
    answer = ask(client, *run_ids)
    assert answer.status_code == 404
    assert ("Tick 1 to 8 runs" in answer.text) != (run_ids == ["no such run"])


def test_nothing_of_a_run_can_become_a_script(client, leave_run):
    answer = ask(client, leave_run("one", config={"model": f"</script>{SCRIPT}"}), leave_run("two"))
    assert SCRIPT not in answer.text and Page(answer.text).text.count("alert") >= 1
