"""The card of a failed run: on its report, and first on its progress."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import time

import pytest
from airflow_database import DAG, RUN
from manifests import make_manifest
from pages import SCRIPT
from playwright.sync_api import sync_playwright

from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.contract.request import Request
from pipeline_ops.errors import CodeLocation
from pipeline_ops.orchestration.airflow_models import Log, create_session
from pipeline_ops.orchestration.ui.pages import FILES

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SOURCE = ("def step(self):", "    loss = self.loss(x)", f'    return logs["lose"]  # {SCRIPT}', "")


def to_text(page: str) -> str:
    """Returns the words of a page."""
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split())


@pytest.fixture
def read_page(client):
    """Reads the text of a page of a run."""
    return lambda run, path="report", **query: client("viewer").get(run.address(path, **query)).text


@pytest.fixture
def failed_training(run_writer, set_states):
    """A training that has failed in the author's code, at step 45, after a checkpoint."""
    set_states("failed", preprocess="success", train="failed", evaluate="upstream_failed")
    run_writer.dataset()
    event = ProgressEvent(time=time.time(), phase="train", unit="steps", total=330, done=45)
    attempt = run_writer.attempt("train", [event], {"worker 0": [event]})
    attempt.log.local.write_text("".join(f"line {number}\n" for number in range(100)))
    attempt.worker_log("worker 0").local.write_text("Traceback <b>\n")
    artifact = run_writer.layout.artifact("train", "0" * 32)
    work = run_writer.layout.artifacts("train") / f".{'0' * 32}.work"
    (work / "checkpoint-000000040.npz").write(b"")
    (work / "best-00001.npz").write(b"")
    run_writer.record(
        "train",
        state="failed",
        exit_code=78,
        message="worker 0 on localhost failed at step 45: train.callbacks: boom:Boom raised "
        "KeyError: 'lose' (/home/anna/boom.py:12). Correct it, then retry.",
        cure="Correct it, then retry.",
        place="worker 0 on localhost failed at step 45",
        location=CodeLocation("boom.py", 12, "step", "/home/anna", SOURCE, 10),
        artifact=str(artifact),
        attempt=str(attempt.folder),
    )
    return run_writer


@pytest.mark.parametrize("path", ["report", "progress"])
def test_a_failed_run_says_what_where_how_to_cure_it_and_where_to_look(
    read_page, failed_training, path
):
    page = read_page(failed_training, path)
    text = to_text(page)
    assert "raised KeyError: 'lose' (boom.py:12)" in text and "/home/anna" not in text
    assert "What train.callbacks: boom:Boom raised KeyError: 'lose' (boom.py:12) Where" in text
    assert "Task train, worker 0 on localhost failed at step 45" in text
    assert "boom.py, line 12, in step" in text and "def step(self):" in text
    marked = re.findall(r"12</span><mark>([^<]*)</mark>", page)
    assert len(marked) == 1 and "return logs[" in marked[0]
    assert SCRIPT not in page, "the author's code is escaped"
    assert "Cure Correct it, then retry." in text
    assert "unchanged, it continues at step 40." in text
    assert "line 99" in text and "line 69 " not in text
    assert re.search(r"/tasks/train\" target=\"_top\">Log in Airflow", page)
    assert "Not in this run" not in text
    assert str(failed_training.layout.root) not in page
    if path == "progress":
        assert page.index('class="failure"') < page.index('id="train"')


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_card_fits_a_screen_and_a_phone(read_page, failed_training, width, scheme):
    failed_training.publish(0.9)
    pages = {path: read_page(failed_training, path) for path in ("report", "progress")}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        screen = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        for path, page in pages.items():
            screen.set_content(page)
            screen.add_style_tag(content=FILES["style.css"])
            assert screen.evaluate("document.documentElement.scrollWidth") <= width
            card = screen.get_by_role("region", name="Failure")
            assert card.bounding_box()["width"] > 0.9 * min(width, 1000)
            for row in ("What", "Where", "Cure", "Look"):
                assert card.get_by_role("term").filter(has_text=row).is_visible()
            assert card.get_by_role("link", name="Log in Airflow").is_visible()
            log = card.get_by_text("line 99")
            assert not log.is_visible(), "folded"
            card.get_by_text("End of the job's log").press("Enter")
            assert log.is_visible()
            if folder := os.environ.get("TRAINYARD_SCREENSHOTS"):
                file = f"{folder}/failed-{path}-{width}-{scheme}.png"
                screen.screenshot(path=file, full_page=True)
        browser.close()


def test_a_log_of_the_failed_job_is_shown_as_plain_text(client, failed_training, read_page):
    page = read_page(failed_training)
    [address] = re.findall(r'href="(job-file[^"]*worker-0.log)"', page)
    answer = client("viewer").get(f"/pipelines/{DAG}/{address.replace('&amp;', '&')}")
    assert answer.text == "Traceback <b>\n"
    assert answer.headers["content-type"].startswith("text/plain")
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("name", ["request.json", "../train.json", "job.log/..", "hosts.token"])
def test_no_other_file_of_a_job_is_shown(client, failed_training, name):
    answer = client("viewer").get(failed_training.address("job-file", task="train", name=name))
    assert answer.status_code == 404


def test_without_a_checkpoint_nothing_is_said_to_continue(read_page, failed_training):
    (failed_training.layout.artifacts("train") / f".{'0' * 32}.work").remove_tree()
    text = read_page(failed_training)
    assert (
        "continues at step" not in text
        and "begins at step 0, because there is no checkpoint" in text
    )


def test_a_damaged_location_is_named_and_the_page_stays(read_page, failed_training):
    file = failed_training.layout.task_record(RUN, "train")
    record = json.loads(file.read())
    record["location"]["source"] = ["x" * 1000] * 1000
    file.write(json.dumps(record).encode())
    page = read_page(failed_training, "progress")
    assert "train.json: not a valid TaskRecord: location" in page and "xxxx" not in page


def test_refused_data_link_to_their_page_and_to_the_rejected_files(
    read_page, client, run_writer, set_states
):
    set_states("failed", preprocess="failed")
    attempt = run_writer.attempt("preprocess", [])
    file = attempt.folder / "rejected.jsonl"
    file.write(b'{"key": "<no>"}\n')
    (attempt.folder / "data.html").write(b"<h1>Data</h1>")
    names = "".join(f"\n  {number}.png: truncated" for number in range(5))
    cure = "Correct or remove them, or raise preprocess.rejects in /home/anna/digits.yaml."
    run_writer.record(
        "preprocess",
        state="failed",
        exit_code=65,
        message=f"13 of 1797 raw files are <no> images:{names}\n{file} lists all. {cure}",
        cure=cure,
        attempt=str(attempt.folder),
        config_folder="/home/anna",
    )
    page = read_page(run_writer, "progress")
    text = to_text(page)
    assert "Data refused: 13 of 1797 raw files are <no> images." in text
    assert "What 13 of 1797 raw files are <no> images: 0.png: truncated Whole message" in text
    assert "raise preprocess.rejects in digits.yaml." in text and "/home/anna" not in text
    assert str(run_writer.layout.root) not in page
    assert "page=data" in page
    address = run_writer.address("job-file", task="preprocess", name="rejected.jsonl")
    assert client("viewer").get(address).text == '{"key": "<no>"}\n'


def test_a_cancelled_run_says_who_when_and_in_which_task(read_page, run_writer, set_states):
    set_states("failed", preprocess="success", train="success", evaluate="failed")
    with create_session() as session:
        extra = json.dumps({"new_state": "failed"})
        log = Log("patch_task_instance", owner="anna", dag_id=DAG, run_id=RUN, extra=extra)
        session.add(log)
        session.flush()
        key, when = log.id, log.dttm
    try:
        text = to_text(read_page(run_writer))
    finally:
        with create_session() as session:
            session.delete(session.get(Log, key))
    assert "Cancelled by anna in evaluate. Nothing was published." in text
    assert f"What anna has ended it in Airflow at {when:%Y-%m-%d %H:%M} UTC. Where" in text
    assert "Clear the task evaluate: the run goes on with what is done." in text
    assert "Cure" not in text


def test_a_cancelled_training_without_a_record_continues_at_its_checkpoint(
    read_page, failed_training
):
    failed_training.layout.task_record(RUN, "train").remove()
    text = to_text(read_page(failed_training))
    assert "Clear the task train: it continues at its last checkpoint, if there is one." in text
    attempt = failed_training.layout.newest_attempt(RUN, "train")
    root = failed_training.layout.root
    request = Request(
        job="train",
        pipeline=DAG,
        run_id=RUN,
        config_file="digits.yaml",
        config={},
        root=str(root),
        artifact=str(failed_training.layout.artifact("train", "0" * 32)),
        fingerprint=make_manifest("train").fingerprint,
        deadline_seconds=1,
    )
    attempt.request.write(request.model_dump_json().encode())
    text = to_text(read_page(failed_training))
    assert "Clear the task train: it continues at step 40." in text


def test_the_card_names_the_version_in_service_and_the_last_good_run(read_page, failed_training):
    failed_training.publish(0.9)
    text = to_text(read_page(failed_training))
    assert "Version 1 is in service now. There is no earlier good run among the last ones." in text


def test_a_run_that_goes_on_has_no_card(read_page, run_writer, set_states):
    set_states("running", preprocess="success", train="up_for_retry")
    run_writer.dataset()
    run_writer.record("train", state="failed", exit_code=75, message="a host went down")
    assert 'class="failure"' not in read_page(run_writer, "progress")
