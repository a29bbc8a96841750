"""The tab Data of a pipeline, and the list of rejected records."""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import re

import pytest
from airflow_database import DAG
from manifests import make_manifest
from pages import Page

from pipeline_ops.config.preprocess import Drift
from pipeline_ops.contract.dataset import REFUSED, DatasetFigures, Distance, RejectedRecord
from pipeline_ops.contract.manifest import BASE, Input, Maker, read_manifest, write_manifest
from pipeline_ops.storage.open_store import open_path

FIGURES = {
    "class_names": ["0", "1"],
    "image_shape": (28, 28, 1),
    "num_examples": {"train": 1437, "validation": 180, "test": 178},
    "labels": {},
    "num_rejected": 0,
    "rejected_by_reason": {},
}


def look(client, **query) -> Page:
    answer = client("viewer").get(f"/pipelines/{DAG}/data", params=query)
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    page.html, page.text = answer.text, " ".join(page.text.split())
    return page


def add_datasets(run_writer, *figures: dict) -> list[str]:
    """Writes data sets, each made upon the one before. Returns their manifests."""
    inputs, made = {}, []
    for number, more in enumerate(figures, 1):
        folder = run_writer.layout.artifact("preprocess", f"{number:032x}").local
        folder.mkdir(parents=True)
        made_at = dt.datetime(2026, 11, number, tzinfo=dt.UTC)
        manifest = make_manifest(
            figures=DatasetFigures(**FIGURES | more),
            inputs=inputs,
            files=[{"path": "data.html", "num_bytes": number, "crc32c": "0" * 8}],
            made_by=Maker(run_id=f"run {number}", time=made_at),
        )
        (folder / "data.html").write_text("<h1>Data</h1>")
        write_manifest(folder, manifest)
        os.utime(folder / "manifest.json", (number, number))
        made.append(str(folder / "manifest.json"))
        inputs = {BASE: Input(uri=made[-1], digest=manifest.digest)}
    return made


def drift(value: float) -> dict:
    found = Distance(
        feature="brightness", jensen_shannon=value, l_infinity=0.01, is_above=value > 0.1
    )
    return {"drift": [found], "drift_limits": Drift()}


def test_without_a_run_the_page_says_so(client, run_writer, set_states):
    set_states("running")
    assert "No run has left a data set yet." in look(client).text


def test_the_newest_data_set_says_what_came_and_left_since_when(client, run_writer, set_states):
    set_states("success", preprocess="success")
    manifests = add_datasets(run_writer, {}, {"came": 50, "left": 12})
    run_writer.record("preprocess", manifest=manifests[-1])
    page = look(client)
    assert "1,795 examples: 50 images came, 12 left since 01 Nov 2026 00:00 UTC." in page.text
    [frame] = [attributes for tag, attributes in page.tags if tag == "iframe"]
    assert frame["sandbox"] == ""
    content = client("viewer").get(f"/pipelines/{DAG}/{frame['src']}")
    assert content.text == "<h1>Data</h1>"
    assert "Rejected records" not in page.text  # it has none


def test_refused_data_are_shown_first_with_a_link_to_the_newest_good_ones(
    client, run_writer, set_states, add_run
):
    manifests = add_datasets(run_writer, {})
    set_states("failed", preprocess="failed")
    message = "13 of 1797 raw files are unusable, and the budget is 5:\n  a.png: truncated"
    run_writer.record("preprocess", state="failed", message=message, exit_code=65)
    attempt = run_writer.attempt("preprocess", [])
    (attempt.folder / "data.html").write(b"<h1>Refused data</h1>")
    record = RejectedRecord(key="a.png", stage="decode", reason="truncated")
    (attempt.folder / REFUSED).write(f"{record.model_dump_json()}\n".encode())
    good = add_run("published")
    run_writer.record("preprocess", good, manifest=manifests[0])
    page = look(client)
    assert "Data refused: 13 of 1797 raw files are unusable, and the budget is 5." in page.text
    assert "The newest good data set" in page.text and "Rejected records as CSV" in page.text
    assert "1,795 examples." in look(client, tab="good").text


def test_the_drift_of_the_last_data_sets_is_a_chart_of_each_feature_that_drifted(
    client, run_writer, set_states
):
    set_states("success", preprocess="success")
    more = {"class_names": ["0", "1", "2"], "num_rejected": 3}
    later = [drift(0.05), drift(0.3) | more, drift(0.04)]
    manifests = add_datasets(run_writer, {}, *later)
    run_writer.record("preprocess", manifest=manifests[-1])
    page = look(client, tab="history")
    assert "Drift of Brightness, Jensen-Shannon" in page.text
    assert "L-infinity" not in page.text  # it never was above its limit
    assert "1 of 4 data sets have no figures of drift, and are left out there" in page.text
    assert page.html.count("<polyline") == 4  # examples, classes, distance, threshold
    assert "303 Nov 2026 00:00 UTC1,79533Brightness" in page.text


def test_the_history_lists_the_versions_by_which_a_run_finds_its_data_set(
    client, run_writer, set_states
):
    set_states("success", preprocess="success")
    manifests = add_datasets(run_writer, {}, {"came": 50})
    run_writer.record("preprocess", manifest=manifests[-1])
    versions = re.findall(r"<code>(\w+)</code>", look(client, tab="history").html)
    digests = [read_manifest(open_path(path)).digest for path in reversed(manifests)]
    assert versions == [digest[:12] for digest in digests], "the newest first"


def test_of_many_data_sets_the_newest_twenty_are_read(client, run_writer, set_states):
    set_states("success", preprocess="success")
    manifests = add_datasets(run_writer, *[{}] * 23)
    run_writer.record("preprocess", manifest=manifests[-1])
    page = look(client, tab="history")
    assert "History" in page.text and "3 older data sets are not shown." in page.text


def test_a_damaged_manifest_is_named_and_the_others_are_shown(client, run_writer, set_states):
    set_states("success", preprocess="success")
    manifests = add_datasets(run_writer, {}, {})
    run_writer.record("preprocess", manifest=manifests[1])
    with open(manifests[0], "w") as file:
        file.write("[]")
    text = look(client, tab="history").text
    assert "not a manifest of this version" in text and "History" in text


def read_csv(answer) -> list[list[str]]:
    return [*csv.reader(io.StringIO(answer.text))]


def test_the_rejected_records_are_a_table_for_a_spreadsheet(client, whole_run):
    viewer = client("viewer")
    assert "Rejected records as CSV" in viewer.get(whole_run.address("report", page="data")).text
    assert "Rejected records as CSV" not in viewer.get(whole_run.address("report")).text
    answer = viewer.get(whole_run.address("report/rejected.csv"))
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert read_csv(answer) == [
        ["key", "stage", "reason", "detail", "file"],
        ["a.png", "decode", "not an image", "", ""],
        ["b.png", "decode", "not an image", "", ""],
    ]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_spreadsheet_takes_no_name_of_a_file_for_a_formula(client, run_writer, set_states, start):
    set_states("failed", preprocess="failed")
    attempt = run_writer.attempt("preprocess", [])
    record = RejectedRecord(key=f'{start}cmd|"x",y', stage="decode", reason="truncated")
    (attempt.folder / REFUSED).write(f"{record.model_dump_json()}\n".encode())
    answer = client("viewer").get(run_writer.address("report/rejected.csv"))
    [_, [key, *_]] = csv.reader(io.StringIO(answer.text, newline=""))
    assert key == f'\'{start}cmd|"x",y'


def test_a_damaged_list_is_refused_with_its_line(client, run_writer, set_states):
    set_states("failed", preprocess="failed")
    attempt = run_writer.attempt("preprocess", [])
    record = RejectedRecord(key="a", stage="decode", reason="truncated").model_dump_json()
    (attempt.folder / REFUSED).write(f'{record}\n{{"key": 3}}\n'.encode())
    answer = client("viewer").get(run_writer.address("report/rejected.csv"))
    assert answer.status_code == 409 and "line 2: not a valid RejectedRecord" in answer.text


def test_a_run_without_a_list_has_none(client, run_writer, set_states):
    set_states("running")
    answer = client("viewer").get(run_writer.address("report/rejected.csv"))
    assert answer.status_code == 404
