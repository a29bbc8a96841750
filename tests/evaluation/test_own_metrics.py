"""Rules of the gate on the user's own metrics."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from evaluation.evaluations import read_figures

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.contract.request import read_status
from pipeline_ops.contract.results import REPORT
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.job.job_code import check_environment
from pipeline_ops.user_code.models import check_names, read_user_code

MODULE = "acme_vision.objectives"
TOP_3 = {"metric": f"{MODULE}:top3", "mode": "max"}
BRIER = {"metric": f"{MODULE}:brier", "mode": "min"}
pytestmark = pytest.mark.usefixtures("user_package")


def test_own_metrics_are_judged_for_both_models_and_on_slices(sandbox):
    sandbox.publish("fair")
    gate = [
        TOP_3 | {"at_least": 0.9, "max_regression": 0.02, "confidence": 0.95},
        BRIER | {"at_most": 1.5, "max_regression": 0.01, "confidence": 0.95},
        TOP_3 | {"at_least": 0.5, "of_slice": "size"},
    ]
    slices = [{"by": "image_bytes", "edges": [145], "name": "size"}]
    plan = sandbox.plan(
        "evaluate",
        sandbox.train("good"),
        evaluate__gate=gate,
        evaluate__slices=slices,
        evaluate__top_k=3,
    )
    assert "acme_vision/objectives.py" in plan.request.fingerprint.code
    code, folder = sandbox.run(plan)
    figures = read_figures(folder)
    assert code == ExitCode.SUCCESS, [rule.text for rule in figures.rules]
    for model in (figures.challenger, figures.champion):
        assert model.metrics["top3"] == pytest.approx(model.metrics["top_k_accuracy"])
        assert 0 < model.metrics["brier"] < 1
    top, compared, brier, margin, *parts = figures.rules
    assert (top.metric, compared.champion) == ("top3", figures.champion.metrics["top3"])
    assert compared.low <= compared.value - compared.champion <= compared.high
    # A lower error is a gain.
    assert brier.text.startswith("brier 0.") and " is at most 1.5000" in brier.text
    assert margin.low < margin.high < 0 and margin.passed and "shown" in margin.text
    assert {rule.subject for rule in parts} == {"size=below 145", "size=145 and more"}
    mean = sum(part.num_examples * part.challenger["top3"] for part in figures.slices) / 100
    assert mean == pytest.approx(top.value)
    low, high = figures.challenger.intervals["top3"]
    assert low < top.value < high
    page = (folder / REPORT).read_text()
    assert "brier" in page and f"{low:.4f} to {high:.4f}" in page


def test_a_worse_error_is_refuted_at_the_confidence(sandbox):
    sandbox.publish("good")
    gate = [BRIER | {"max_regression": 0.01, "confidence": 0.95}]
    plan = sandbox.plan("evaluate", sandbox.train("poor"), evaluate__gate=gate)
    code, folder = sandbox.run(plan)
    [verdict] = read_figures(folder).rules
    assert code == ExitCode.GATE_NOT_PASSED
    assert 0 < verdict.low < verdict.high and "refuted" in verdict.text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("mean_loss", "must return a value for each example, a tensor of rank 1"),
        ("nothing", "the module acme_vision.objectives has no function 'nothing'"),
        ("first_example", "evaluate.gate: .* returns 1 values for a batch of 32 images"),
        ("undefined", "must return a finite number for each example, got nan"),
    ],
)
def test_an_own_metric_that_can_not_be_used_is_an_error_of_the_config(sandbox, function, message):
    gate = [{"metric": f"{MODULE}:{function}", "at_most": 0.5}]
    plan = sandbox.plan("evaluate", sandbox.train("good"), evaluate__gate=gate)
    with pytest.raises(ConfigError, match=message):
        sandbox.run(plan)


def test_a_module_beside_the_config_travels_to_a_job_on_another_host(sandbox, tmp_path):
    code = "def top_2(labels, logits): ...\n"
    (tmp_path / "beside.py").write_text(code)
    gate = [{"metric": "beside:top_2", "at_least": 0.5}]
    request = sandbox.plan("evaluate", sandbox.train("good")).request
    own = read_user_code(Evaluate.model_validate(request.config | {"gate": gate}), tmp_path)
    assert own.files == {"beside.py": code.encode()}
    request = request.model_copy(update={"config": request.config | {"gate": gate}})
    with pytest.raises(ConfigError, match=r"beside\.py on .* is not the one that Airflow has"):
        check_environment(request, tmp_path)


@pytest.mark.models
@pytest.mark.parametrize("edit", ["0 * ", "<<<<<<< HEAD\n", None])
def test_an_edit_after_the_plan_changes_no_metric(sandbox, tmp_path, edit):
    code = (
        "from pathlib import Path\nimport keras\n"
        "def top(labels, logits):\n"
        "    k = int((Path(__file__).parent / 'k.txt').read_text())\n"
        "    return keras.metrics.sparse_top_k_categorical_accuracy(labels, logits, k)\n"
    )
    beside = Path(shutil.copy(sandbox.file, tmp_path)).with_name("own_top.py")
    beside.write_text(code)
    beside.with_name("k.txt").write_text("3")
    sandbox = dataclasses.replace(sandbox, file=tmp_path / "digits.yaml")
    gate = [TOP_3 | {"at_least": 0.5}, {"metric": "own_top:top", "at_least": 0.5}]
    plan = sandbox.plan(
        "evaluate", sandbox.train("good"), evaluate__gate=gate, evaluate__files=["*.txt"]
    )
    assert {"own_top.py", "k.txt"} <= plan.request.fingerprint.code.keys()
    if edit is None:
        beside.unlink()
    else:
        beside.write_text(code.replace("keras.metrics", f"{edit}keras.metrics"))
    beside.with_name("k.txt").write_text("1")
    process, attempt = sandbox.start(plan)
    assert process.wait(timeout=120) == ExitCode.SUCCESS, read_status(attempt).message
    metrics = read_figures(Path(plan.request.artifact)).challenger.metrics
    assert metrics["top"] == metrics["top3"]


@pytest.mark.models
def test_an_edit_of_an_installed_metric_ends_the_job(sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "top_elsewhere.py").write_text("def top(labels, logits): ...\n")
    gate = [{"metric": "top_elsewhere:top", "at_least": 0.5}]
    plan = sandbox.plan("evaluate", sandbox.train("good"), evaluate__gate=gate)
    (tmp_path / "top_elsewhere.py").write_text("def top(labels, logits): pass\n")
    process, attempt = sandbox.start(plan)
    assert process.wait(timeout=120) == ExitCode.CONFIG
    message = read_status(attempt).message
    assert f"{tmp_path}/top_elsewhere.py on " in message and "Clear the task" in message


def test_a_metric_that_does_not_exist_is_found_before_a_run(sandbox):
    gate = [{"metric": f"{MODULE}:top4", "at_least": 0.5}]
    config = sandbox.config(evaluate__gate=gate)
    message = "evaluate.gate.0.metric: acme_vision.objectives:top4: .* defines no 'top4'"
    with pytest.raises(ConfigError, match=message):
        check_names(config.evaluate, config.file.parent)
