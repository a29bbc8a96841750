"""Runs for the pages to show."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from airflow_database import DAG, RUN

from pipeline_ops.contract.outcome import RunOutcome
from pipeline_ops.contract.run_summary import RunSummary, write_summary
from pipeline_ops.orchestration.airflow_models import DagRun, TaskInstance, create_session
from pipeline_ops.orchestration.ui import runs

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
TASKS = ("preprocess", "train", "evaluate", "export")


@pytest.fixture
def whole_run(run_writer, set_states):
    """A finished run with all that it leaves."""
    set_states(
        "success", preprocess="success", train="success", evaluate="success", export="success"
    )
    run_writer.dataset()
    run_writer.report("<h1>Gate passed</h1>")
    run_writer.publish(0.9, 0.95)
    return run_writer


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
            for number, task in enumerate(TASKS):
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
