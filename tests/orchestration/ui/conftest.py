"""Runs for the pages to show."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid

import numpy as np
import pytest
from airflow_database import DAG, RUN
from evaluation.report_pages import make_findings

from pipeline_ops.contract.outcome import RunOutcome
from pipeline_ops.contract.run_summary import RunSummary, write_summary
from pipeline_ops.evaluation.answers import count_by_threshold, write_answers
from pipeline_ops.evaluation.detector import compute_findings as compute_boxes
from pipeline_ops.orchestration.airflow_models import DagRun, TaskInstance, create_session
from pipeline_ops.orchestration.ui import runs
from pipeline_ops.served.client import ImageDetections, TrueBoxes

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
_TASKS = ("preprocess", "train", "evaluate", "export")


@pytest.fixture
def whole_run(run_writer, set_states, write_classifier):
    """A finished run with all that it leaves."""
    set_states(
        "success", preprocess="success", train="success", evaluate="success", export="success"
    )
    run_writer.dataset()
    write_classifier()
    run_writer.report("<h1>Gate passed</h1>")
    run_writer.publish(0.9, 0.95)
    return run_writer


@pytest.fixture
def write_classifier(run_writer):
    """Writes the answers of two classifiers into the run's evaluation, and returns the findings."""

    def write(num_classes: int = 3, num_examples: int = 400, names=None, champion: bool = True):
        found = make_findings(num_classes, num_examples, 0.3, champion)
        keys = [f"{row}<b>.png" for row in range(num_examples)]
        predictions = dataclasses.replace(found.predictions, keys=keys)
        found = dataclasses.replace(found, predictions=predictions)
        _write(run_writer, found, names or [f"class {i}" for i in range(num_classes)])
        return found

    return write


@pytest.fixture
def write_detector(run_writer):
    """Writes the answers of a detector into the run's evaluation."""

    def write():
        generator = np.random.default_rng(1)
        scenes, answers = [], []
        for number in range(40):
            corners = generator.uniform(0, 0.5, (3, 2))
            boxes = np.concatenate([corners, corners + 0.3], axis=1)
            classes = np.array([0, 1, 1])
            scenes.append(TrueBoxes(f"{number}", b"", boxes, classes, np.zeros(3, bool)))
            near = boxes + generator.normal(0, 0.03, boxes.shape)
            answers.append(ImageDetections(near, classes, generator.random(3)))
        found = compute_boxes(scenes, [answers], (100, 100), ["cat", "dog"], [{}], lambda keys: {})
        _write(run_writer, found, ["cat", "dog"])
        return found

    return write


def _write(run_writer, found, names):
    folder = run_writer.layout.artifact("evaluate", "0" * 32).local
    folder.mkdir(parents=True, exist_ok=True)
    write_answers(folder, found, count_by_threshold(found, names, 2))
    run_writer.artifact("evaluate", {})


@pytest.fixture
def add_run(run_writer, set_states):
    """Adds finished runs with their summaries, each an hour older than the one before."""
    added = []

    def add(kind: str, started: dt.datetime | None = None, *, leaves=True, note="", **fields):
        started = started or NOW - dt.timedelta(hours=1 + len(added))
        run_id = f"run-{len(added)}+{kind}"
        state = "failed" if kind in ("failed", "cancelled", "data_refused") else "success"
        with create_session() as session:
            dag_run = DagRun(
                dag_id=DAG,
                run_id=run_id,
                run_type="manual",
                state=state,
                run_after=started,
                start_date=started,
                conf={},
                triggering_user_name="anna",
            )
            dag_run.end_date = started + dt.timedelta(minutes=5)
            session.add(dag_run)
            if note:
                dag_run.note = (note, "1")
            session.flush()
            first = session.query(TaskInstance).filter_by(run_id=RUN).first()
            for number, task in enumerate(_TASKS):
                session.execute(
                    TaskInstance.__table__.insert().values(
                        id=uuid.uuid4(),
                        task_id=task,
                        dag_id=DAG,
                        run_id=run_id,
                        map_index=-1,
                        state="failed" if state == "failed" and task == "train" else "success",
                        try_number=1,
                        max_tries=0,
                        pool="default_pool",
                        pool_slots=1,
                        dag_version_id=first.dag_version_id,
                        start_date=started + dt.timedelta(minutes=number),
                        end_date=started + dt.timedelta(minutes=number, seconds=30),
                    )
                )
        if leaves:
            outcome = RunOutcome(kind=kind, sentence=f"The sentence of {kind}.")
            summary = RunSummary(
                run_id=run_id,
                outcome=outcome,
                started=started.timestamp(),
                ended=dag_run.end_date.timestamp(),
                **fields,
            )
            write_summary(run_writer.layout, summary)
        added.append(run_id)
        return run_id

    set_states("running")
    runs._kept.clear()
    yield add
    with create_session() as session:
        for run_id in added:
            session.delete(session.query(DagRun).filter_by(dag_id=DAG, run_id=run_id).one())
