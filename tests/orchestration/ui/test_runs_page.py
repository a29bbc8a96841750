"""The table of runs, with runs in Airflow's database and summaries in the store."""

from __future__ import annotations

import datetime as dt
import re
from typing import get_args

from airflow_database import DAG
from pages import Page

from pipeline_ops.contract.outcome import Kind
from pipeline_ops.contract.run_summary import MetricSummary
from pipeline_ops.orchestration.airflow_models import DagRun, create_session
from pipeline_ops.orchestration.ui import runs

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)


def metric(value: float, low: float = -0.001, high: float = 0.009) -> MetricSummary:
    return MetricSummary(value=value, champion=0.986, low=low, high=high)


def look(client, **query) -> Page:
    answer = client("viewer").get(f"/pipelines/{DAG}/runs", params=query)
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    page.text = " ".join(page.text.split())
    return page


def count_rows(page: Page, kind: str) -> int:
    return sum(values.get("class") == f"state kind-{kind}" for _, values in page.tags)


def test_every_run_has_its_sentence_metrics_version_data_and_who(client, add_run):
    add_run(
        "published",
        metrics={"accuracy": metric(0.99, 0.001, 0.007)},
        version=3,
        num_examples={"train": 1437, "test": 178},
        num_rejected=2,
        num_came=50,
        num_left=12,
        values={"train.epochs": 4},
    )
    add_run("refused", metrics={"accuracy": metric(0.98)}, note="look at <this>")
    text = look(client).text
    assert re.search(
        r"published The sentence of published\. 0\.9900 \+0\.0040 3 1,615 ▲50 ▼12 2 rejected "
        r"2 min 00 s preprocess 30 s, train 30 s, evaluate 30 s, export 30 s train\.epochs=4 anna",
        text,
    ), text
    assert "refused The sentence of refused. Note: look at <this>" in text
    assert "−0.0060 within noise" in text
    assert "Accuracy by run, the newest" in text
    assert "In the last 24 hours: 1 running, 1 published, 1 refused." in text


def test_unchanged_runs_are_hidden_where_they_are_most_and_every_kind_is_a_filter(client, add_run):
    for _ in range(4):
        add_run("unchanged")
    add_run("failed")
    page = look(client)
    assert "The sentence of failed." in page.text and "sentence of unchanged" not in page.text
    assert "4 more are hidden" in page.text
    assert count_rows(look(client, all=1), "unchanged") == 4
    only = look(client, kind="unchanged")
    assert count_rows(only, "unchanged") == 4 and count_rows(only, "failed") == 0
    assert client("viewer").get(f"/pipelines/{DAG}/runs", params={"kind": "x"}).status_code == 422


def test_a_run_without_a_summary_of_its_last_start_is_read_from_its_records(client, add_run):
    cancelled = add_run("cancelled", leaves=False)
    stale = add_run("failed", started=NOW - dt.timedelta(hours=9))
    with create_session() as session:
        again = session.query(DagRun).filter_by(dag_id=DAG, run_id=stale).one()
        again.start_date = NOW - dt.timedelta(hours=8)  # it was cleared
    text = look(client).text
    assert text.count("Failed in train, which left no message.") == 2, cancelled
    assert "The sentence of failed." not in text


def test_a_damaged_summary_is_named_and_the_others_are_shown(client, add_run, run_writer):
    damaged = add_run("published")
    add_run("refused")
    run_writer.layout.run_summary(damaged).write(b"{")
    runs._kept.clear()
    text = look(client).text
    assert "summary.json: not a valid RunSummary" in text and "The sentence of refused." in text


def test_a_page_has_fifty_runs_and_reads_each_summary_once(client, add_run, monkeypatch):
    for _ in range(runs.ROWS + 5):
        add_run("published", metrics={"accuracy": metric(0.99)}, version=1)
    read, original = [], runs.read_summary

    def count(layout, run_id):
        read.append(run_id)
        return original(layout, run_id)

    monkeypatch.setattr(runs, "read_summary", count)
    first = client("viewer").get(f"/pipelines/{DAG}/runs")
    again = look(client)
    assert len(read) == len({*read}) == runs.ROWS + 5
    assert len(first.content) < 300_000
    assert "Next page" in again.text and "Previous page" not in again.text
    older = look(client, page=1)
    assert count_rows(older, "published") == 6 and "Previous page" in older.text


def test_runs_before_a_span_are_a_link_away_and_no_request_reads_them(client, add_run, monkeypatch):
    monkeypatch.setattr(runs, "SPAN", 3)
    for number in range(4):
        add_run("published", metrics={"accuracy": metric(0.9 + number / 100)}, version=number + 1)
    newest = look(client)
    assert "The 500 runs before these" in newest.text and count_rows(newest, "published") == 2
    older = look(client, span=1)
    assert count_rows(older, "published") == 2 and "Newer runs" in older.text


def test_each_column_sorts_both_ways_and_runs_without_a_value_are_last(client, add_run):
    for accuracy, examples in ((0.97, 30), (0.99, 10), (0.98, 20)):
        add_run(
            "refused",
            metrics={"accuracy": metric(accuracy)},
            num_examples={"train": examples},
            version=examples,
        )
    add_run("failed")

    def list_accuracies(sort: str) -> list[str]:
        return re.findall(r"0\.9[789]00", look(client, sort=sort).text)

    assert list_accuracies("-accuracy") == ["0.9900", "0.9800", "0.9700"]
    assert list_accuracies("accuracy") == ["0.9700", "0.9800", "0.9900"]
    assert list_accuracies("examples") == ["0.9900", "0.9800", "0.9700"]
    assert list_accuracies("-version") == ["0.9700", "0.9800", "0.9900"]
    page = look(client, sort="-accuracy")
    assert page.text.rindex("sentence of failed") > page.text.rindex("sentence of refused")
    assert ("th", "descending") in {(tag, values.get("aria-sort")) for tag, values in page.tags}
    assert (
        'href="runs?sort=accuracy"'
        in client("viewer").get(f"/pipelines/{DAG}/runs", params={"sort": "-accuracy"}).text
    )


def test_words_find_a_sentence_a_note_a_value_and_a_version(client, add_run):
    add_run("published", version=7)
    add_run("refused", note="after the Big move", values={"train.epochs": 40})
    add_run("failed")
    for text, kind in (
        ("of FAILED", "failed"),
        ("big move", "refused"),
        ("epochs=40", "refused"),
        ("version 7", "published"),
    ):
        found = look(client, text=text)
        assert count_rows(found, kind) == 1 and "ANNA" not in found.text, text
        assert found.text.count("The sentence of") == 1 + 3 * ("by run" in found.text), text
    assert "No such run." in look(client, text="<script>").text


def test_a_mark_of_the_chart_is_a_link_to_its_run_and_shows_its_outcome(client, add_run):
    run_ids = [
        add_run("published", metrics={"accuracy": metric(0.99)}),
        add_run("refused", metrics={"accuracy": metric(0.98)}),
        add_run("failed"),
    ]
    text = client("viewer").get(f"/pipelines/{DAG}/runs").text
    [chart] = re.findall(r'<svg class="chart[^"]*".*?</svg>', text, re.DOTALL)
    for run_id, shape in zip(run_ids, ("dot", "ring", "cross"), strict=True):
        quoted = run_id.replace("+", "%2B")
        found = re.findall(rf'<a href="([^"]*{quoted}/[^"]*)".*?class="(\w+)"', chart)
        assert found == [(f"../../../dags/{DAG}/runs/{quoted}/plugin/trainyard_report", shape)], (
            chart
        )
    assert 'class="curve champion"' in chart


def test_every_kind_has_a_word():
    assert {*runs.WORDS} == {*get_args(Kind)}


def test_the_runs_of_the_last_day_are_those_that_its_numbers_count(client, add_run):
    add_run("published")
    add_run("published", NOW - dt.timedelta(days=3))
    page = look(client)
    assert "In the last 24 hours: 1 running, 1 published." in page.text
    assert count_rows(look(client, kind="published"), "published") == 2
    recent = look(client, kind="published", recent=True)
    assert count_rows(recent, "published") == 1
    assert "Only runs of the last 24 hours." in recent.text
