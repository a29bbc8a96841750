"""The sentence of a run, for each of its outcomes."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
from publishers import make_model_figures

from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import Maker
from pipeline_ops.contract.outcome import (
    RunFacts,
    describe_outcome,
    find_failed,
    is_ending_event,
)
from pipeline_ops.contract.results import EvaluationFigures, ModelEvaluation, RuleVerdict
from pipeline_ops.contract.run_summary import (
    find_outcome,
    read_summary,
    summarize,
    write_summary,
)
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.storage.open_store import open_root

DONE = TaskRecord(state="success")
FOUND = TaskRecord(
    state="success",
    cached=True,
    made_by=Maker(run_id="night", time=dt.datetime(2026, 11, 27, 3, 12, tzinfo=dt.UTC)),
)
BELOW = "accuracy 0.9800 is below 0.9850"


def evaluated(*failed: str, champion: float | None = 0.986) -> EvaluationFigures:
    def model(accuracy):
        return ModelEvaluation(metrics={"accuracy": accuracy}, classes=[], confusion=[])

    rules = [RuleVerdict(metric="accuracy", passed=True, text="accuracy 0.9900 is fine")]
    rules += [RuleVerdict(metric="accuracy", passed=False, text=text) for text in failed]
    return EvaluationFigures(
        num_examples=100,
        challenger=model(0.99),
        champion=None if champion is None else model(champion),
        champion_version=None if champion is None else 2,
        gate_passed=not failed,
        rules=rules,
        differences={"accuracy": (-0.001, 0.009)},
    )


def facts(record: TaskRecord = DONE, **changes) -> RunFacts:
    names = ("preprocess", "train", "evaluate", "export")
    records = dict.fromkeys(names, record) | changes.pop("records", {})
    return dataclasses.replace(RunFacts(records, evaluation=evaluated(), root="/data"), **changes)


def failing(code: ExitCode, message: str, task: str = "train") -> RunFacts:
    record = TaskRecord(state="failed", message=message, exit_code=code)
    return facts(failed=task, records={"export": None, task: record})


def skipped(kind: str, evaluation: EvaluationFigures | None = None, **fields) -> RunFacts:
    record = TaskRecord(state="skipped", unpublished=kind, **fields)
    return facts(records={"export": record}, evaluation=evaluation or evaluated())


VERSION = make_model_figures(3).model_copy(update={"name": "digits"})
KEPT_BACK = "this model was in service before, as version 1, and was replaced by version 2"


@pytest.mark.parametrize(
    ("run", "kind", "sentence"),
    [
        (
            facts(model=VERSION),
            "published",
            "Published as version 3 of digits, in service (accuracy 0.9900, version 2 has 0.9860).",
        ),
        (
            facts(model=VERSION, evaluation=evaluated(champion=None)),
            "published",
            "Published as version 3 of digits, in service (accuracy 0.9900, and there was no "
            "version to compare it with).",
        ),
        (
            facts(model=VERSION.model_copy(update={"not_in_service": KEPT_BACK})),
            "not_in_service",
            f"Published as version 3 of digits, not in service: {KEPT_BACK}.",
        ),
        (
            facts(FOUND, model=VERSION),
            "unchanged",
            "Unchanged: data, config and code are those of the run of 2026-11-27 03:12 UTC, which "
            "published version 3.",
        ),
        (
            facts(FOUND, evaluation=evaluated(BELOW), records={"export": None}),
            "unchanged",
            "Unchanged: data, config and code are those of the run of 2026-11-27 03:12 UTC, which "
            f"the gate refused: {BELOW}.",
        ),
        (
            facts(FOUND, model=VERSION, records={"search": FOUND, "train": DONE}),
            "unchanged",
            "Unchanged: data, config and code are those of the run of 2026-11-27 03:12 UTC, which "
            "published version 3.",
        ),
        (
            facts(FOUND.model_copy(update={"made_by": None}), model=VERSION),
            "unchanged",
            "Unchanged: data, config and code are those of an earlier run, which published "
            "version 3.",
        ),
        (
            skipped("refused", evaluated(BELOW)),
            "refused",
            f"Refused by the gate: {BELOW}. Version 2 stays in service.",
        ),
        (
            skipped("refused", evaluated(BELOW, "b", "c", champion=None)),
            "refused",
            f"Refused by the gate: {BELOW} (and 2 more rules). Nothing was published.",
        ),
        (
            skipped("rejected", rejected_by="anna"),
            "rejected",
            "Rejected by anna. Version 2 stays in service.",
        ),
        (
            skipped("unanswered"),
            "unanswered",
            "Not published, because nobody answered in time. Version 2 stays in service.",
        ),
        (
            facts(is_finished=False, current="train"),
            "running",
            "Running: train.",
        ),
        (
            facts(
                is_finished=False,
                is_waiting=True,
                waits_until=dt.datetime(2026, 11, 27, 15, 8, tzinfo=dt.UTC),
            ),
            "waiting",
            "Waits for your decision until 2026-11-27 15:08 UTC: publish this model, or reject it.",
        ),
        (
            failing(ExitCode.BUG, "worker 0 failed at step 45: KeyError 'lose' (/data/boom.py:6)"),
            "failed",
            "Failed in train: worker 0 failed at step 45: KeyError 'lose' (boom.py:6).",
        ),
        (
            failing(ExitCode.DATA, "13 of 1,797 files are unusable\nmore", "preprocess"),
            "data_refused",
            "Data refused: 13 of 1,797 files are unusable.",
        ),
        (
            failing(ExitCode.DATA, "the shards are damaged."),
            "failed",
            "Failed in train: the shards are damaged.",
        ),
        (
            failing(ExitCode.OUT_OF_DATE, "version 1 is in service now", "export"),
            "out_of_date",
            "Out of date: version 1 is in service now.",
        ),
        (
            facts(failed="evaluate", ended_by="admin", records={"evaluate": None}),
            "cancelled",
            "Cancelled by admin in evaluate. Nothing was published.",
        ),
        (
            failing(ExitCode.CANCELLED, "cancelled by SIGTERM"),
            "cancelled",
            "Cancelled, by a signal to its job, in train. Nothing was published.",
        ),
        (
            facts(failed="train", records={"train": None}),
            "failed",
            "Failed in train, which left no message. The log in Airflow says more.",
        ),
        (
            failing(ExitCode.BUG, "x" * 400),
            "failed",
            f"Failed in train: {'x' * 299}…",
        ),
    ],
)
def test_each_outcome_has_its_sentence(run, kind, sentence):
    outcome = describe_outcome(run)
    assert (outcome.kind, outcome.sentence) == (kind, sentence)


def test_the_sentence_of_a_failure_has_neither_the_cure_nor_the_folders_of_a_host():
    record = TaskRecord(
        state="failed",
        exit_code=ExitCode.BUG,
        message="boom (/home/anna/boom.py:6) in /data/runs/x/attempt-0/job.log:\n  more. See it.",
        cure="See it.",
        attempt="/data/runs/x/attempt-0",
        config_folder="/home/anna",
    )
    outcome = describe_outcome(facts(failed="train", records={"export": None, "train": record}))
    assert outcome.sentence == "Failed in train: boom (boom.py:6) in job.log."
    assert record.hide_folders("/mnt/data/x, /database/y, /data/z", "/data") == (
        "/mnt/data/x, /database/y, z"
    )


def test_a_failure_keeps_its_whole_message_and_says_what_to_do_next():
    outcome = describe_outcome(failing(ExitCode.CONFIG, "/data/a.yaml:3: no\nsecond line"))
    assert outcome.reason == "/data/a.yaml:3: no\nsecond line"
    assert outcome.next_step.startswith("Correct it, then clear the task train")


def test_what_was_served_wrongly_is_a_reason_of_the_gate():
    served = evaluated().as_served.model_copy(update={"passed": False, "reason": "no files"})
    figures = evaluated().model_copy(update={"as_served": served, "gate_passed": False})
    outcome = describe_outcome(skipped("refused", figures))
    assert outcome.sentence.startswith("Refused by the gate: not measured as served: no files.")


def test_the_summary_counts_until_the_run_is_started_again(tmp_path):
    layout = Layout(open_root(tmp_path), "digits")
    summary = summarize(facts(model=VERSION), "run", started=100.0, values={"train.epochs": 3})
    write_summary(layout, summary)
    assert read_summary(layout, "run") == summary
    assert summary.metrics["accuracy"].model_dump() == {
        "value": 0.99,
        "champion": 0.986,
        "low": -0.001,
        "high": 0.009,
    }
    state = {"tries": {"train": 2}, "failed": "train"}
    assert find_outcome(layout, "run", 100.0, **state) == summary.outcome
    for number, said in ((1, "left no message"), (2, "Failed in train: no.")):
        record = TaskRecord(state="failed", message="no", try_number=number)
        write_record(layout.task_record("run", "train"), record)
        assert said in find_outcome(layout, "run", 200.0, **state).sentence
    assert find_outcome(layout, "run", 100.0, {}, is_finished=False).kind == "running"


def test_a_damaged_summary_is_an_error_with_its_path(tmp_path):
    layout = Layout(open_root(tmp_path), "digits")
    layout.run_summary("run").write(b"{}")
    with pytest.raises(DataError, match=r"summary.json: not a valid RunSummary"):
        find_outcome(layout, "run", 100.0, {})


def test_the_first_failed_task_is_named():
    states = {"preprocess": "success", "train": "failed", "evaluate": "upstream_failed"}
    assert find_failed(states, "failed") == "train"
    assert find_failed(states, "success") == ""
    assert find_failed({"preprocess": "success", "train": "skipped"}, "failed") == "train"


@pytest.mark.parametrize(
    ("event", "extra", "is_end"),
    [
        ("patch_dag_run", '{"state": "failed", "method": "PATCH"}', True),
        ("patch_task_instance", '{"new_state": "failed"}', True),
        ("patch_dag_run", '{"note": "failed"}', False),
        ("trigger_dag_run", '{"state": "failed"}', False),
        ("patch_dag_run", "[]", False),
        ("patch_dag_run", "{", False),
        ("patch_dag_run", None, False),
    ],
)
def test_an_entry_of_the_audit_log_that_ends_a_run_is_known(event, extra, is_end):
    assert is_ending_event(event, extra) == is_end
