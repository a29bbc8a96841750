"""The note of a run, in a real database of Airflow."""

from __future__ import annotations

import pytest
from airflow_database import DAG, RUN

from pipeline_ops.contract.outcome import OUTCOME_KEY
from pipeline_ops.orchestration.airflow_models import DagRun, DagRunNote, XComModel, create_session
from pipeline_ops.orchestration.run_note import on_dag_run_failed, on_dag_run_success


@pytest.fixture
def run(run_writer, set_states):
    """Ends the run, and takes its note back after the test."""
    set_states("success", preprocess="success", train="success", export="success")
    yield find
    with create_session() as session:
        session.query(DagRunNote).delete()
        session.query(XComModel).filter_by(key=OUTCOME_KEY).delete()


def find(session) -> DagRun:
    return session.query(DagRun).filter_by(dag_id=DAG, run_id=RUN).one()


def say(task: str, sentence: object) -> None:
    with create_session() as session:
        XComModel.set(OUTCOME_KEY, sentence, dag_id=DAG, task_id=task, run_id=RUN, session=session)
        # The API of tasks stores a value as it is.
        session.query(XComModel).filter_by(key=OUTCOME_KEY).update({"value": sentence})


def read_note() -> tuple[str, str | None] | None:
    with create_session() as session:
        note = session.query(DagRunNote).one_or_none()
        return note and (note.content, note.user_id)


def end(hook=on_dag_run_success) -> None:
    with create_session() as session:
        hook(dag_run=find(session))


def test_the_sentence_of_the_last_task_becomes_the_note_and_a_new_one_replaces_it(run):
    say("export", "Published.")
    end()
    assert read_note() == ("Published.", None)
    say("export", "Unchanged." + "x" * 2000)
    end()
    content, user = read_note()
    assert content.startswith("Unchanged.") and len(content) == 1000 and user is None


def test_a_note_of_a_person_stays(run):
    with create_session() as session:
        find(session).note = ("looked at it", "7")
    say("export", "Published.")
    end()
    assert read_note() == ("looked at it", "7")


def test_a_failed_run_takes_no_sentence_of_a_task_that_has_not_failed(run, set_states):
    say("export", "Published.")  # of an earlier try
    set_states("failed", preprocess="success", train="failed")
    end(on_dag_run_failed)
    assert read_note()[0].startswith("Failed in train, which left no message.")


def test_a_note_that_another_process_writes_meanwhile_is_no_conflict(run):
    say("export", "Published.")
    with create_session(scoped=False) as late:
        dag_run = find(late)
        assert dag_run.dag_run_note is None  # It is loaded, as in a request that reads the run.
        with create_session(scoped=False) as other:
            on_dag_run_success(dag_run=find(other))
        on_dag_run_success(dag_run=dag_run)
        dag_run.note = "and a note in the same request"
    assert read_note()[0] == "and a note in the same request"
