"""Two runs side by side, from the outputs of real evaluations."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import SCRIPT, Page
from sandbox import Sandbox, copy_dataset

from pipeline_ops.cli.main import main
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.evaluation.compare import (
    ComparedRun,
    build_metric_rows,
    read_run,
    render_comparison,
)
from pipeline_ops.storage.open_store import open_path, open_root


def leave_run(shop: Sandbox, run_id: str, model: str, **overrides) -> Path:
    """Evaluates a model, and leaves the records that operators would; the run's folder."""
    layout, train = Layout(open_root(shop.root), "digits"), shop.train(model)
    plan = shop.plan("evaluate", train, **overrides)
    shop.run(plan)
    for job, manifest in {
        "preprocess": shop.dataset,
        "train": train,
        "evaluate": str(plan.manifest),
    }.items():
        write_record(
            layout.task_record(run_id, job), TaskRecord(state="success", manifest=manifest)
        )
    return layout.run_folder(run_id).local


@pytest.fixture
def runs(sandbox) -> tuple[Path, Path]:
    return leave_run(sandbox, "manual__2026-11-20", "fair"), leave_run(
        sandbox, "manual__2026-11-21", "good"
    )


def test_a_table_and_a_page_show_both_runs_and_what_changed(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, runs), "--output", str(page)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"Accuracy +0\.7400 +0\.8700 +\+0\.1300", output)
    assert re.search(r"Calibration error +0\.0839 +0\.1015 +\+0\.0177", output)
    assert 'train      config model: "fair" -> "good"' in output and str(page) in output
    assert "different test splits" not in output
    shown = Page(page.read_text()).text
    assert (
        "manual__2026-11-20" in shown
        and 'config model: "fair" -> "good"' in shown
        and "+0.1300" in shown
    )


def test_a_page_of_two_runs_runs_nothing_loads_nothing_and_escapes_what_is_hostile(
    sandbox, dataset, tmp_path
):
    hostile = copy_dataset(dataset, tmp_path / "hostile", class_names=[SCRIPT, *"123456789"])
    shop = Sandbox(sandbox.root, hostile, sandbox.saved_models)
    runs = leave_run(shop, "<b>first", "fair"), leave_run(shop, "second", "good")
    assert main(["compare", *map(str, runs), "--output", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert SCRIPT in page.text and SCRIPT not in text and "<b>first" not in text
    assert not {tag for tag, _ in page.tags} & {
        "script",
        "iframe",
        "link",
        "img",
    } and not re.search(r"url\(|@import|https?://", text)


def test_the_same_run_twice_has_no_difference(runs, tmp_path, capsys):
    assert (
        main(["compare", str(runs[0]), str(runs[0]), "--output", str(tmp_path / "page.html")]) == 0
    )
    assert (
        "Nothing: the same data, config, code and package versions."
        in (tmp_path / "page.html").read_text()
    )


def test_runs_on_other_test_splits_are_told_of(runs, sandbox, dataset, tmp_path, capsys):
    other = Sandbox(
        sandbox.root,
        copy_dataset(dataset, tmp_path / "other", key_prefix="other/"),
        sandbox.saved_models,
    )
    assert (
        main(
            [
                "compare",
                str(runs[0]),
                str(leave_run(other, "third", "poor")),
                "--output",
                str(tmp_path / "page.html"),
            ]
        )
        == 0
    )
    assert "different test splits" in capsys.readouterr().out
    assert "different test splits" in (tmp_path / "page.html").read_text()


def test_a_run_can_be_named_by_its_id_and_one_that_is_not_there_lists_those_that_are(
    runs, sandbox, tmp_path, capsys
):
    config = tmp_path / "digits.yaml"
    config.write_text(
        sandbox.config().file.read_text().replace("root: ../.trainyard", f"root: {sandbox.root}")
    )
    words = ["--config", str(config), "--output", str(tmp_path / "page.html")]
    assert main(["compare", "manual__2026-11-20", "manual__2026-11-21", *words]) == 0
    assert main(["compare", "manual__2026-11-20", "manual__1999", *words]) == 78
    assert "Existing runs: manual__2026-11-20, manual__2026-11-21." in capsys.readouterr().err


def test_a_run_that_never_evaluated_can_not_be_compared(runs, capsys):
    (runs[1] / "evaluate.json").unlink()
    assert main(["compare", *map(str, runs)]) == 65
    assert "evaluate of this run did not succeed" in capsys.readouterr().err


@pytest.mark.models
def test_comparing_imports_only_what_airflow_s_environment_has():
    heavy = {"tensorflow", "keras", "apache_beam", "sklearn", "scipy", "PIL"}
    code = f"import sys, pipeline_ops.evaluation.compare; print(sys.modules.keys() & {heavy!r})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


def test_a_run_without_a_curve_is_compared_by_what_it_has(runs):
    """A detector whose test split had no true boxes has neither figures nor curves."""
    first, second = (read_run(open_path(run)) for run in runs)
    challenger = first.evaluation.challenger
    classes = [each.model_copy(update={"support": 0}) for each in challenger.classes]
    bare = challenger.model_copy(update={"metrics": {}, "classes": classes})
    evaluation = first.evaluation.model_copy(update={"challenger": bare})
    empty = dataclasses.replace(first, curves={}, evaluation=evaluation)
    for pair in ((empty, second), (second, empty), (empty, empty)):
        page = Page(render_comparison("digits", *pair)).text
        assert "–" in page


def test_figures_that_are_not_finite_are_shown_as_such(runs, capsys, tmp_path):
    """Neither as a gain nor as a loss. Of a metric of one's own, nobody may know which it is."""
    first, second = (read_run(open_path(str(folder))) for folder in runs)
    metrics = {"accuracy": math.nan, "macro_f1": math.inf, "own": 0.5}
    first = change_figures(first, {"accuracy": 0.5, "macro_f1": 0.5, "own": 0.1})
    second = change_figures(second, metrics)
    shown = Page(render_comparison("digits", first, second)).text
    assert shown.count("not finite") == 3 and "nan" not in shown and "inf" not in shown.split()
    assert [row["direction"] for row in build_metric_rows(first, second)] == [1, 1, 0]


def change_figures(run: ComparedRun, metrics: dict[str, float]) -> ComparedRun:
    """Returns the run with other metrics, and with a validation loss that is NaN at first."""
    challenger = run.evaluation.challenger.model_copy(update={"metrics": metrics, "intervals": {}})
    evaluation = run.evaluation.model_copy(update={"challenger": challenger})
    history = [each.model_copy(deep=True) for each in run.training.history]
    history[0].metrics["validation_loss"] = math.nan
    training = run.training.model_copy(update={"history": history})
    return dataclasses.replace(run, evaluation=evaluation, training=training)
