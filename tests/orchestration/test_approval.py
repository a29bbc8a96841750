"""The task that asks a person: when it does not ask. That it waits, and what an answer leads to, is
shown on a real Airflow in `tests/cli`."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from config_files import DIGITS, write_config
from task_contexts import make_context
from upstream_artifacts import copy_artifacts

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import EvaluationFigures
from pipeline_ops.contract.task_record import read_record
from pipeline_ops.orchestration.approval import ApproveOperator, _clean, _format_question
from pipeline_ops.orchestration.factory import make_dag
from pipeline_ops.orchestration.tasks import ExportOperator
from pipeline_ops.storage.open_store import open_root

APPROVAL = {"timeout_seconds": 60}


def with_approval(folder: Path, root: Path) -> Path:
    """configs/digits.yaml with another root, and a person to ask."""
    return write_config(folder, {"storage.root": str(root), "evaluate.approval": APPROVAL})


def make_task(folder: Path, sandbox) -> ApproveOperator:
    config = with_approval(folder, sandbox.root)
    approval = load_config(config).evaluate.approval
    return ApproveOperator(config_file=str(config), approval=approval)


def context(train: str, evaluate: str) -> dict:
    layout = Layout(open_root(Path(train).parents[4]), "digits")
    manifests = {"train": train, "evaluate": evaluate}
    return make_context(copy_artifacts(layout, "manual__1", manifests))


def test_the_task_stands_before_export_and_other_runs_may_go_on_meanwhile(tmp_path):
    dag = make_dag(load_config(with_approval(tmp_path, tmp_path / "root")))
    tasks = [task.task_id for task in dag.topological_sort()]
    assert tasks == ["preprocess", "train", "evaluate", "approve", "export"]
    without = make_dag(load_config(DIGITS))
    assert dag.max_active_runs > 1 and without.max_active_runs == 1
    assert "approve" not in [task.task_id for task in without.tasks]


def test_a_gate_that_was_not_passed_is_not_asked_about(sandbox, tmp_path):
    train = sandbox.train("poor")
    reason = "trained, not published: accuracy 0.4700 is below 0.7000"
    with pytest.raises(AirflowSkipException, match=reason):
        make_task(tmp_path, sandbox).execute(context(train, sandbox.evaluate(train)))
    layout = Layout(open_root(sandbox.root), "digits")
    record = read_record(layout.task_record("manual__1", "export"))
    assert (record.state, record.reason) == ("skipped", reason)


def test_a_model_that_is_published_already_is_not_asked_about(sandbox, tmp_path):
    train = sandbox.publish("good")
    task = make_task(tmp_path, sandbox)
    assert task.execute(context(train, sandbox.evaluate(train))) is None


def test_an_approval_that_no_task_of_the_dag_would_ask_for_is_refused(sandbox, tmp_path):
    train = sandbox.train("good")
    config = with_approval(tmp_path, sandbox.root)
    message = "the DAG has no task that asks. Set it in .*digits.yaml"
    with pytest.raises(AirflowFailException, match=message):
        ExportOperator(config_file=str(config)).execute(context(train, sandbox.evaluate(train)))


def test_the_question_has_the_verdict_and_no_markdown_of_a_hostile_class(sandbox, tmp_path):
    train = sandbox.train("good")
    figures = EvaluationFigures.model_validate(read_manifest(sandbox.evaluate(train)).figures)
    text = "recall of class ``` [x](javascript:alert(1)) <script> 0.9"
    hostile = figures.rules[0].model_copy(update={"text": text})
    changes = {"rules": [*figures.rules, hostile], "warnings": ["Only 2 images"]}
    figures = figures.model_copy(update=changes)
    config = sandbox.config(evaluate__approval=APPROVAL)
    subject, body = _format_question(config, config.evaluate.approval, figures, "run")
    assert subject == "Publish a new version of digits?"
    report = "http://localhost:8080/trainyard/pipelines/digits/report?run_id=run"
    assert f"[The report]({report})" in body
    assert body.endswith(" UTC, it is not published.\n")
    assert (
        "accuracy 0.8700 is at least 0.7000" in body
        and "There was no champion when it was evaluated." in body
    )
    assert body.index("Only 2 images") < body.rindex("```")
    assert body.count("```") == 2 and body.index("<script>") < body.rindex("```")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("  too slow\non phones ", "too slow on phones"),
        ("a\x1b[31m \u202eb\u200bc", "a[31m bc"),
        ('say "no"', "say 'no'"),
        ("x" * 400, "x" * 299 + "…"),
        ("", ""),
    ],
)
def test_a_reason_is_one_clean_line(given, kept):
    assert _clean(given) == kept
