"""The list of models, the page of a model, and the page on which a change is confirmed."""

from __future__ import annotations

import datetime as dt
import json
import re
from urllib.parse import urlencode

import pytest
from airflow_database import DAG, RUN
from manifests import make_manifest
from pages import BREAKOUT, SCRIPT, Page
from publishers import make_model_figures
from sqlalchemy import select

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import Input, Maker, list_files, write_manifest
from pipeline_ops.contract.outcome import RunOutcome
from pipeline_ops.contract.results import FormatFigures
from pipeline_ops.contract.run_summary import (
    MetricSummary,
    RunSummary,
    TaskSummary,
    write_summary,
)
from pipeline_ops.orchestration.airflow_models import Log, create_session

SAME_SITE = {"sec-fetch-site": "same-origin"}


def publish(run_writer, number: int, accuracy: float, promote=True, low=0.001, **changes):
    """Publishes a version with all that a run leaves of it. `changes` replace parts of the run."""
    champion = run_writer.registry.read_aliases().names.get("champion")
    run_id = f"scheduled__2026-11-01T03:00:{number:05d}"
    training = Fingerprint(config={"epochs": number}, inputs={}, code={}, versions={})
    digest = f"{number:032x}"
    folder = run_writer.layout.artifact("train", digest).local
    folder.mkdir(parents=True)
    write_manifest(folder, make_manifest("train", training))
    before = run_writer.registry.get_version(champion).read_manifest() if champion else None
    last = before.figures["metrics"]["accuracy"] if before else None
    summary = {
        "outcome": RunOutcome(kind="published", sentence=f"Published as version {number}."),
        "metrics": {
            "accuracy": MetricSummary(
                value=accuracy, champion=last, low=low if champion else None, high=0.02
            )
        },
        "version": number,
        "champion": champion,
        "num_examples": {"train": 1400, "test": 234},
        "tasks": {"train": TaskSummary(state="success", fingerprint=digest)},
    }
    write_summary(run_writer.layout, RunSummary(run_id=run_id, ended=1.8e9, **(summary | changes)))
    formats = [
        FormatFigures(
            name=name,
            path="",
            num_bytes=4,
            num_checked=1,
            max_difference=0,
            tolerance=0,
            top1_agreement=1,
            min_top1_agreement=1,
            latency_seconds=0.0042,
            seconds=1,
        )
        for name in ("saved_model", "onnx")
    ]
    metrics = {"top_k_accuracy": 1.0, "accuracy": accuracy, "macro_f1": accuracy - 0.01}
    figures = make_model_figures(number).model_copy(
        update={"compared_with": champion, "metrics": metrics, "formats": formats}
    )
    version = run_writer.config.registry.local / str(number)
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_bytes(b"x" * 300_000)
    manifest = make_manifest(
        "export",
        figures=figures,
        files=list_files(version),
        inputs={"train": Input(uri=f"{folder}/manifest.json", digest="d")},
        made_by=Maker(run_id=run_id, time=dt.datetime(2026, 11, number % 28 + 1, 3, tzinfo=dt.UTC)),
    )
    write_manifest(version, manifest)
    if promote:
        run_writer.registry.promote(number, f"run {run_id} of digits: accuracy is better")


def read_words(page: str) -> str:
    """Returns the text of a page with single spaces, also between cells."""
    return " ".join(Page(page.replace("<", " <")).text.split())


@pytest.fixture
def look(client, run_writer):
    """Opens the page of the model, or another one beside it, as words with single spaces."""

    def open_page(path: str = "models", user: str = "viewer", **query) -> str:
        answer = client(user).get(run_writer.address(path, **query))
        assert answer.status_code == 200, answer.text
        return read_words(answer.text)

    return open_page


# The model


def test_a_version_has_the_time_and_the_report_of_the_run_that_made_it(client, whole_run):
    page = client("viewer").get(whole_run.address("models")).text
    found = re.findall(
        r'/dags/digits/runs/(manual__[^/]*)/plugin/trainyard_report" [^>]*>(.*?)<', page
    )
    assert [time for _, time in found] == [
        "2026-11-02 03:00 UTC",  # of the version in service
        "2026-11-02 03:00 UTC",
        "2026-11-01 03:00 UTC",
    ]
    assert "Metrics of these versions" not in page  # two points are no chart
    whole_run.publish(0.9, 0.95, 0.97)
    assert "Metrics of these versions" in client("viewer").get(whole_run.address("models")).text


def test_the_head_says_what_is_in_service_since_when_and_what_was_before(run_writer, look):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    today = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")
    page = look()
    assert re.search(rf"Version 2 is in service since {today} \d\d:\d\d UTC", page)
    assert "Before: version 1." in page
    assert "of digits: accuracy is better" in page


def test_a_difference_is_that_of_the_gate_and_grey_within_noise(run_writer, client):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    publish(run_writer, 3, 0.961, low=-0.01)
    page = client("viewer").get(run_writer.address("models")).text
    assert '<small class="is-real">+0.0100 against 1</small>' in page
    assert '<small class="soft">+0.0010 against 2, within noise</small>' in page
    assert page.count("<small class=") == 2, "the first one had no champion"
    head = page[page.index("<thead>") : page.index("</thead>")]
    assert "Accuracy" in head and "F1" not in head and "Top-k" not in head


def test_a_difference_to_another_champion_than_that_of_the_publication_is_not_shown(
    run_writer, client
):
    """Such a run was cleared, and has evaluated again after its version came into service."""
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96, champion=2)
    publish(run_writer, 3, 0.97, version=9)
    assert "<small class=" not in client("viewer").get(run_writer.address("models")).text


def test_a_row_opens_to_metrics_changes_and_how_to_load_it(run_writer, look):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    page = look()
    assert "1,634 0.3 MiB 4.2 ms saved_model, onnx" in page
    details = page[page.index("Details of version 2") :]
    assert "F1 0.9500" in details
    assert "Changed since version 1 config epochs: 1 -> 2" in details
    assert (
        'trainyard models fetch digits.yaml 2 FOLDER tf.saved_model.load("FOLDER/2") '
        f"from {run_writer.registry.location}/2"
    ) in details
    assert re.search("saved_model.pb SHA-256 [0-9a-f]{64}", details)


def test_what_is_gone_is_not_known_and_the_row_stays(run_writer, look):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    run_writer.layout.artifact("train", f"{1:032x}").remove_tree()
    run_writer.layout.runs.remove_tree()
    page = look()
    assert "Unknown, because one of the two trainings is not stored any longer." in page
    assert "0.9600" in page and "1,634" not in page


def test_badges_say_what_was_rolled_back_never_in_service_or_retired(run_writer, look):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    out_of_date = RunOutcome(kind="out_of_date", sentence="Out of date: version 2 was faster.")
    publish(run_writer, 3, 0.97, promote=False, version=None, outcome=out_of_date)
    publish(run_writer, 4, 0.97, promote=False)
    run_writer.registry.roll_back("customers complained")
    run_writer.registry.retire_version(4, "wrong labels")
    page = look()
    table = page[page.index("Formats") : page.index("History")]
    rows = dict(re.findall(r"Version (\d) ((?:champion|rolled|never|retired).*?) \d\d", table))
    assert {number: row.split(" 20")[0] for number, row in rows.items()} == {
        "4": "retired",
        "3": "never in service",
        "2": "rolled back",
        "1": "champion",
    }
    assert "UTC: wrong labels" in table
    assert "Its run: Out of date: version 2 was faster." in table


def test_a_version_of_another_pipeline_has_no_link_to_a_run_of_this_one(run_writer, client):
    publish(run_writer, 1, 0.95)
    file = run_writer.config.registry.local / "1" / "manifest.json"
    file.write_text(file.read_text().replace('"pipeline": "digits"', '"pipeline": "letters"'))
    page = client("viewer").get(run_writer.address("models")).text
    assert "by pipeline letters" in page and "trainyard_report" not in page


@pytest.mark.parametrize("content", ["{", '{"run_id": 1}', "[" * 100_000])
def test_a_damaged_summary_is_named_and_its_version_is_shown(run_writer, look, content):
    publish(run_writer, 1, 0.95)
    [summary] = run_writer.layout.runs.local.rglob("summary.json")
    summary.write_text(content)
    page = look()
    assert "summary.json: not a valid RunSummary" in page and "0.9500" in page


def test_nothing_of_a_version_or_of_a_reason_is_taken_for_a_program(run_writer, client):
    publish(run_writer, 1, 0.95)
    file = run_writer.config.registry.local / "1" / "manifest.json"
    hostile = (SCRIPT + BREAKOUT).replace("\\", "\\\\").replace('"', '\\"')
    file.write_text(file.read_text().replace("macro_f1", hostile).replace("onnx", hostile))
    run_writer.registry.set_alias("canary", 1, SCRIPT + BREAKOUT)
    here = f"/pipelines/{DAG}/models"
    for path in ("/models", here, f"{here}/change?action=promote&version=1"):
        tags = Page(client("admin").get(path).text).tags
        scripts = [values for name, values in tags if name == "script"]
        assert all(values["src"].endswith(".js") for values in scripts), scripts
        assert "img" not in {name for name, _ in tags}


def test_many_versions_are_fifty_on_a_page_and_only_those_are_read(run_writer, client):
    for number in range(1, 121):
        publish(run_writer, number, 0.9 + number / 1e4, promote=number % 40 == 0)
    unread = run_writer.config.registry.local / "60" / "manifest.json"
    unread.write_text("{")
    page = client("viewer").get(run_writer.address("models")).text
    assert list_rows(page) == [*range(120, 70, -1)] and "not a manifest" not in page
    assert len(page.encode()) < 300_000
    older = client("viewer").get(run_writer.address("models", page="1")).text
    assert list_rows(older) == [*range(70, 20, -1)] and "not a manifest" in older
    assert "Newer" in older and "Newer" not in page
    oldest = client("viewer").get(run_writer.address("models", page="2")).text
    assert list_rows(oldest) == [*range(20, 0, -1)]
    assert "Older" in older and "Older" not in oldest
    nothing = client("viewer").get(run_writer.address("models", page="3")).text
    assert "There are no versions on this page." in nothing


def list_rows(page: str) -> list[int]:
    return [int(each) for each in re.findall(r'<th scope="row"><span.*?</span>(\d+)</th>', page)]


# The list


def test_the_list_has_what_is_in_service_its_course_and_the_last_run(
    run_writer, set_states, client
):
    set_states("running", preprocess="running")
    for number, accuracy in enumerate((0.95, 0.97, 0.96), 1):
        publish(run_writer, number, accuracy)
    run_writer.registry.set_alias("canary", 2, "try it")
    page = client("viewer").get("/models").text
    text = read_words(page)
    today = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")
    assert re.search(rf"digits version 3 of 3 versions {today} \d\d:\d\d UTC", text)
    assert "Accuracy 0.9600" in text and "canary 2 previous 2" in text
    assert 'aria-label="Accuracy of versions 1 to 3: from 0.9500 to 0.9600"' in page
    assert "running Running: preprocess." in text
    assert 'href="../dags/digits/runs/manual__' in page


def test_pipelines_without_a_version_are_one_line(run_writer, client, set_states):
    set_states("running", preprocess="running")
    page = client("viewer").get("/models").text
    assert "<summary>1 pipeline without a version</summary>" in page
    assert "<table" not in page and "Running: preprocess." in page


def test_a_course_has_at_most_twenty_versions_and_the_one_in_service(run_writer, client):
    for number in range(1, 31):
        publish(run_writer, number, 0.9, promote=number == 2)
    page = client("viewer").get("/models").text
    assert "Accuracy of versions 2 to 30" in page
    [points] = re.findall('points="(.*?)"', page)
    assert len(points.split()) == 21 and page.count("<circle") == 1


def test_a_run_whose_record_is_damaged_does_not_hide_the_model(run_writer, set_states, client):
    set_states("success", preprocess="success", train="success")
    publish(run_writer, 1, 0.95)
    run_writer.layout.task_record(RUN, "train").write(b"{")
    text = Page(client("viewer").get("/models").text).text
    assert "version 1" in text and "train.json: not a valid TaskRecord" in text


# A change


def test_who_may_not_change_a_model_sees_no_form_and_no_button(run_writer, client):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    for user, sees in (("viewer", False), ("user", True), ("admin", True)):
        page = client(user).get(run_writer.address("models")).text
        assert ("<form" in page, "models/change" in page) == (sees, sees)
        assert "0.9600" in page


def test_what_a_promotion_changes_is_shown_before_and_then_done(run_writer, client, look):
    for number, accuracy in enumerate((0.965, 0.951, 0.97), 1):
        publish(run_writer, number, accuracy)
    page = look("models/change", "user", action="promote", version="2")
    assert "champion version 3 version 2" in page and "previous version 2 version 1" in page
    assert "Accuracy 0.9700 0.9510 \u22120.0190" in page
    assert run_writer.registry.find_champion().number == 3, "nothing is done yet"
    form = read_form(client("user").get(change(action="promote", version=2)).text)
    assert form == {"action": "promote", "version": "2", "expected": "3"}
    answer = send(client("user"), form)
    assert answer.status_code == 303
    assert answer.headers["location"] == "../models?done=Version+2+is+in+service."
    assert run_writer.registry.find_champion().number == 2
    moved = run_writer.registry.read_history().moves[-1]
    assert moved.reason == "it was better (user, in the UI)"


def test_other_classes_are_said_before_a_promotion(run_writer, look):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    assert "different classes" not in look("models/change", "user", action="promote", version="1")
    file = run_writer.config.registry.local / "1" / "manifest.json"
    figures = make_model_figures(1).model_copy(
        update={"metrics": {"accuracy": 0.95}, "class_names": ["0", "1", "2"]}
    )
    write_manifest(file.parent, make_manifest("export", figures=figures))
    page = look("models/change", "user", action="promote", version="1")
    assert "different classes: 2 now, 3 then" in page


def test_a_roll_back_is_shown_before_and_then_done(run_writer, client, look):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    page = look("models/change", "user", action="rollback")
    assert "champion version 2 version 1" in page and "previous version 1 none" in page
    form = read_form(client("user").get(change(action="rollback")).text)
    assert send(client("user"), form).status_code == 303
    assert run_writer.registry.find_champion().number == 1


def test_an_alias_is_set_and_removed_with_a_reason_and_in_the_audit_log(run_writer, client):
    publish(run_writer, 1, 0.95)
    publish(run_writer, 2, 0.96)
    user = client("user")
    form = read_form(user.get(change(action="alias", version=1, alias="canary")).text)
    assert form == {"action": "alias", "alias": "canary", "version": "1", "expected": ""}
    done = send(user, form).headers["location"]
    assert done == "../models?done=canary+names+version+1."
    assert run_writer.registry.find_by_alias("canary").number == 1
    form = read_form(user.get(change(action="alias", alias="canary")).text)
    assert form == {"action": "alias", "alias": "canary", "expected": "1"}
    send(user, form)
    assert run_writer.registry.find_by_alias("canary") is None
    moves = run_writer.registry.read_history().moves[-2:]
    assert [(move.version, move.reason) for move in moves] == [
        (1, "it was better (user, in the UI)"),
        (None, "it was better (user, in the UI)"),
    ]
    assert read_log("trainyard_alias")[-2:] == [
        ("user", DAG, {"alias": "canary", "version": 1}),
        ("user", DAG, {"alias": "canary", "version": None}),
    ]


def test_a_version_is_retired_with_a_reason_and_in_the_audit_log(run_writer, client, look):
    for number in (1, 2, 3):
        publish(run_writer, number, 0.95)
    page = look("models/change", "user", action="retire", version="1")
    assert "Version 1 is removed from the registry for good: 1 file, 0.3 MiB." in page
    form = read_form(client("user").get(change(action="retire", version=1)).text)
    assert send(client("user"), form).status_code == 303
    assert not (run_writer.config.registry.local / "1").exists()
    assert run_writer.registry.read_history().moves[-1].retired == [1]
    assert read_log("trainyard_retire")[-1] == ("user", DAG, {"version": 1})


@pytest.mark.parametrize(
    "query, complaint",
    [
        ({"action": "promote", "version": 9}, "there is no version 9"),
        ({"action": "promote"}, "Which version?"),
        ({"action": "rollback"}, "There is no earlier champion"),
        ({"action": "alias", "version": 1, "alias": "champion"}, "cannot be set"),
        ({"action": "alias", "version": 1, "alias": "Canary!"}, "an alias must begin"),
        ({"action": "retire", "version": 1}, "cannot be retired, because it is champion"),
    ],
)
def test_what_the_registry_refuses_is_refused_before_the_form(run_writer, client, query, complaint):
    publish(run_writer, 1, 0.95)
    answer = client("user").get(change(**query))
    assert answer.status_code == 409 and complaint in answer.text
    assert "<form" not in answer.text


def test_a_change_that_changes_nothing_has_no_form(run_writer, client):
    publish(run_writer, 1, 0.95)
    page = client("user").get(change(action="promote", version=1)).text
    assert "Nothing: champion names version 1 already." in page and "<form" not in page


@pytest.mark.parametrize(
    "query", [{"action": "promote", "version": 1}, {"action": "rollback"}], ids=str
)
def test_a_change_that_was_shown_for_another_champion_is_refused(run_writer, client, query):
    for number in (1, 2, 3):
        publish(run_writer, number, 0.95)
    form = read_form(client("user").get(change(**query)).text)
    run_writer.registry.promote(2, "meanwhile")
    answer = send(client("user"), form)
    assert answer.status_code == 409 and "version 2 is in service now" in answer.text
    assert run_writer.registry.find_champion().number == 2


def test_an_alias_that_was_moved_meanwhile_is_not_moved_again(run_writer, client):
    for number in (1, 2, 3):
        publish(run_writer, number, 0.95)
    form = read_form(client("user").get(change(action="alias", version=1, alias="canary")).text)
    run_writer.registry.set_alias("canary", 2, "meanwhile")
    answer = send(client("user"), form)
    assert answer.status_code == 409 and "canary names version 2 now" in answer.text
    assert run_writer.registry.find_by_alias("canary").number == 2


def test_a_version_that_got_an_alias_meanwhile_is_not_retired(run_writer, client):
    for number in (1, 2, 3):
        publish(run_writer, number, 0.95)
    form = read_form(client("user").get(change(action="retire", version=1)).text)
    run_writer.registry.set_alias("audit", 1, "meanwhile")
    answer = send(client("user"), form)
    assert answer.status_code == 409 and "because it is audit" in answer.text
    assert (run_writer.config.registry.local / "1" / "saved_model.pb").is_file()


def change(**query) -> str:
    return f"/pipelines/{DAG}/models/change?{urlencode(query)}"


def read_form(page: str) -> dict[str, str]:
    """Returns the address of the only form, as `action`, and its hidden fields."""
    tags = Page(page).tags
    [form] = [attributes for name, attributes in tags if name == "form"]
    hidden = [each for name, each in tags if name == "input" and each.get("type") == "hidden"]
    return {"action": form["action"]} | {each["name"]: each["value"] for each in hidden}


def send(browser, form: dict[str, str]):
    address = f"/pipelines/{DAG}/models/{form['action']}"
    fields = {name: value for name, value in form.items() if name != "action"}
    return browser.post(address, data=fields | {"reason": "it was better"}, headers=SAME_SITE)


def read_log(event: str) -> list[tuple[str, str, dict]]:
    """Returns the entries of an event in Airflow's audit log, oldest first."""
    with create_session() as session:
        found = session.scalars(select(Log).where(Log.event == event).order_by(Log.id))
        return [(entry.owner, entry.dag_id, json.loads(entry.extra)) for entry in found]
