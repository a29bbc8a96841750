"""The JSON object of a run: names that scripts read, whatever became of the run."""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.cli.commands.run import compute_exit_status
from pipeline_ops.cli.run_view import RunStatus, TaskStatus
from pipeline_ops.cli.summary import summarize_run
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.remarks import describe_small_splits
from pipeline_ops.contract.task_record import TaskRecord
from pipeline_ops.planning.job_kinds import JOBS

SHAPE = {
    "pipeline": None,
    "run_id": None,
    "state": None,
    "seconds": None,
    "outcome": dict.fromkeys(("kind", "sentence", "reason", "next_step")),
    "tasks": {
        job: {"state": None, "seconds": None, "cached": None, "manifest": None} for job in JOBS
    },
    "dataset": {
        "examples": dict.fromkeys(("train", "validation", "test")),
        "shards": dict.fromkeys(("train", "validation", "test")),
        "digest": None,
        "rejected": None,
        "page": None,
    },
    "training": dict.fromkeys(
        ("strategy", "workers", "steps", "restarts", "weights_digest", "warm_start", "early_stop")
    ),
    "search": None,
    "metrics": None,
    "baseline": None,
    "overfitting": None,
    "gate": dict.fromkeys(("passed", "champion_version", "reasons")),
    "model": dict.fromkeys(("name", "version", "uri")),
    "report": None,
    "predictions": None,
    "store": {"requests": None, "bytes_read": None, "bytes_written": None},
}


def same_names(value, shape) -> bool:
    if shape is None:
        return True
    return list(value) == list(shape) and all(
        same_names(value[name], inner) for name, inner in shape.items()
    )


def make_run(state: str, *tasks: TaskStatus) -> RunStatus:
    named = {task.name: task for task in tasks}
    tasks = tuple(named.get(job, TaskStatus(job)) for job in JOBS)
    return RunStatus("manual__1", state, 12.3456, tasks)


def done(job: str, manifest: str | None, state: str = "success", **values) -> TaskStatus:
    record = TaskRecord(state=state, manifest=manifest, **values)
    return TaskStatus(job, state, 1.5, 1, record=record)


def test_a_whole_run(config_file, make_artifact):
    data = make_artifact("preprocess", {})
    trained = make_artifact("train", {"preprocess": data})
    note = "The training data are too few."
    inputs = {"preprocess": data, "train": trained}
    verdict = make_artifact("evaluate", inputs, baseline={"accuracy": 0.5}, overfitting=note)
    exported = make_artifact("export", {"train": trained, "evaluate": verdict})
    made = [("train", trained), ("evaluate", verdict), ("export", exported)]
    cached = done("preprocess", data, cached=True)
    run = make_run("success", cached, *(done(*each) for each in made))
    summary = summarize_run(load_config(config_file), run)
    assert same_names(summary, SHAPE)
    task = {"state": "success", "seconds": 1.5, "cached": True, "manifest": data}
    assert summary["tasks"]["preprocess"] == task
    assert summary["dataset"]["examples"] == {"train": 8, "validation": 1, "test": 2}
    assert summary["dataset"]["shards"] == {"train": 1, "validation": 1, "test": 1}
    assert summary["training"] == {
        "strategy": "multi_worker_mirrored",
        "workers": 2,
        "steps": 30,
        "restarts": 1,
        "weights_digest": "abc",
        "warm_start": None,
        "early_stop": None,
    }
    assert summary["metrics"]["accuracy"] == 0.98
    assert summary["baseline"] == {"accuracy": 0.5}
    assert summary["overfitting"] == note
    reasons = ["accuracy 0.9800 is at least 0.9750"]
    assert summary["gate"] == {"passed": True, "champion_version": None, "reasons": reasons}
    uri = str(config_file.parent / "root" / "models" / "digits" / "3")
    assert summary["model"] == {"name": "digits", "version": 3, "uri": uri}
    # The report that also has the publication.
    assert summary["report"] == str(Path(exported).parent / "report.html")
    assert summary["predictions"] == str(Path(verdict).parent / "predictions.png")
    assert compute_exit_status(run) == 0


def test_a_small_test_split_is_among_the_reasons(config_file, make_artifact):
    [warning] = describe_small_splits({"test": 2})
    data = make_artifact("preprocess", {})
    trained = make_artifact("train", {"preprocess": data})
    inputs = {"preprocess": data, "train": trained}
    verdict = make_artifact("evaluate", inputs, warnings=[warning])
    run = make_run("success", done("evaluate", verdict))
    assert summarize_run(load_config(config_file), run)["gate"]["reasons"][-1] == warning


def test_a_run_that_failed_at_once_has_all_names_too(config_file):
    failed = done("preprocess", None, "failed", message="no", exit_code=65)
    run = make_run("failed", failed, TaskStatus("train", "upstream_failed"))
    summary = summarize_run(load_config(config_file), run)
    assert same_names(summary, SHAPE)
    assert (summary["metrics"], summary["baseline"], summary["overfitting"]) == ({}, {}, None)
    assert summary["model"] == {"name": "digits", "version": None, "uri": None}
    assert summary["predictions"] is None
    assert compute_exit_status(run) == 65


def test_a_gate_that_was_not_passed_is_a_success_without_a_version(config_file, make_artifact):
    data = make_artifact("preprocess", {})
    trained = make_artifact("train", {"preprocess": data})
    verdict = make_artifact("evaluate", {"preprocess": data, "train": trained}, gate_passed=False)
    made = [("preprocess", data), ("train", trained), ("evaluate", verdict)]
    skipped = done("export", None, "skipped", reason="trained, not published")
    run = make_run("success", *(done(*each) for each in made), skipped)
    summary = summarize_run(load_config(config_file), run)
    assert summary["gate"]["passed"] is False
    assert summary["model"]["version"] is None
    assert compute_exit_status(run) == 0


def test_a_task_that_a_person_marked_failed_has_no_exit_code_of_its_own():
    assert compute_exit_status(make_run("failed", TaskStatus("train", "failed"))) == 1
