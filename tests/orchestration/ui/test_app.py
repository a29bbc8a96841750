"""The plugin's routes: permissions, and the content of the pages.

The tests use Airflow's users and database, and no browser.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, parse_qsl

import pytest
from airflow_database import DAG, RUN, sync_dags
from pages import Page

from pipeline_ops.orchestration.airflow_models import DagModel, create_session

FORM = {"version": "1", "expected": "2", "reason": "it was better"}
FORMS = {"models/alias": FORM | {"alias": "canary", "expected": ""}}
ADDRESSES = {
    "GET /{name}.{suffix}": "/style.css",
    "GET /models": "/models",
    "GET /pipelines/{dag_id}/runs": "runs",
    "GET /pipelines/{dag_id}/overlay": "overlay",
    "GET /pipelines/{dag_id}/progress": "progress",
    "GET /pipelines/{dag_id}/report": "report",
    "GET /pipelines/{dag_id}/report/content": "report/content",
    "GET /pipelines/{dag_id}/thresholds": "thresholds",
    "GET /pipelines/{dag_id}/thresholds/content": "thresholds/content",
    "GET /pipelines/{dag_id}/predictions": "predictions",
    "GET /pipelines/{dag_id}/report/rejected.csv": "report/rejected.csv",
    "GET /pipelines/{dag_id}/data": "data",
    "GET /pipelines/{dag_id}/job-file": "job-file?task=train&name=job.log",
    "GET /pipelines/{dag_id}/models": "models",
    "GET /pipelines/{dag_id}/models/change": "models/change?action=promote&version=1",
    "POST /pipelines/{dag_id}/models/promote": "models/promote",
    "POST /pipelines/{dag_id}/models/rollback": "models/rollback",
    "POST /pipelines/{dag_id}/models/alias": "models/alias",
    "POST /pipelines/{dag_id}/models/retire": "models/retire",
}
"""An example of every route: a new one without a line here fails the test."""
CHANGING = {name for name in ADDRESSES if name.startswith("POST")}
FOR_EDITORS = {*CHANGING, "GET /pipelines/{dag_id}/models/change"}
SAME_SITE = {"sec-fetch-site": "same-origin"}


def ask(browser, name: str, run_writer):
    """The answer to an example of a route."""
    method, example = name.split()[0], ADDRESSES[name]
    path, _, query = example.partition("?")
    address = path if path.startswith("/") else run_writer.address(path, **dict(parse_qsl(query)))
    form = {"data": FORMS.get(example, FORM)} if name in CHANGING else {}
    return browser.request(method, address, headers=SAME_SITE, **form)


def test_every_route_has_an_example(plugin):
    from fastapi.routing import APIRoute

    kinds = {type(route) for route in plugin.routes}
    assert kinds == {APIRoute}, "a mount or a websocket needs a rule of its own"
    routes = {f"{method} {route.path}" for route in plugin.routes for method in route.methods}
    assert routes == set(ADDRESSES)


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("live.js", "text/javascript"),
        ("thresholds.js", "text/javascript"),
        ("models.svg", "image/svg+xml"),
        ("models-dark.svg", "image/svg+xml"),
        ("other.svg", "application/json"),
    ],
)
def test_the_files_of_the_pages_are_served_and_no_others(client, name, media_type):
    answer = client("viewer").get(f"/{name}")
    assert answer.headers["content-type"].split(";")[0] == media_type
    assert answer.status_code == (404 if name.startswith("other") else 200)


@pytest.mark.parametrize("who", [None, "viewer", "user", "op", "admin"])
@pytest.mark.parametrize("name", ADDRESSES)
def test_who_may_do_what(client, whole_run, name, who):
    if name.endswith("retire"):
        whole_run.publish(0.9, 0.95, 0.97)  # version 1 is neither champion nor previous
    if name.endswith("job-file"):
        whole_run.attempt("train", []).log.local.write_text("line\n")
    before = whole_run.registry.read_aliases()
    answer = ask(client(who), name, whole_run)
    expected = 303 if name in CHANGING else 200
    if who == "viewer" and name in FOR_EDITORS:
        expected = 403
    if who is None:
        expected = 401
    assert answer.status_code == expected, answer.text
    assert (whole_run.registry.read_aliases() == before) == (answer.status_code != 303)


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_token_that_is_none_of_airflows_opens_nothing(client, whole_run, name):
    browser = client(None)
    token = "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJhZG1pbiJ9.bm9wZQ"
    browser.cookies.set("_token", token)
    answer = ask(browser, name, whole_run)
    assert answer.status_code in (401, 403)
    assert whole_run.registry.find_champion().number == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://elsewhere.example"},
        {"origin": "null"},
        {},
    ],
)
def test_a_form_from_another_site_is_refused(client, whole_run, headers):
    answer = client("admin").post(whole_run.address("models/promote"), data=FORM, headers=headers)
    assert answer.status_code == 403
    assert whole_run.registry.find_champion().number == 2


def test_a_form_from_our_own_page_is_taken_where_the_browser_only_tells_the_origin(
    client, whole_run
):
    address, headers = whole_run.address("models/promote"), {"origin": "http://airflow.example"}
    assert client("admin").post(address, data=FORM, headers=headers).status_code == 303


@pytest.mark.parametrize("action", ["promote", "rollback", "alias", "retire"])
def test_who_changes_a_model_says_why(client, whole_run, action):
    before, address = whole_run.registry.read_aliases(), whole_run.address(f"models/{action}")
    form = FORMS.get(f"models/{action}", FORM) | {"reason": " "}
    answer = client("admin").post(address, data=form, headers=SAME_SITE)
    assert answer.status_code == 422 and "Say why" in answer.text
    assert whole_run.registry.read_aliases() == before


def test_a_promotion_that_was_decided_on_another_champion_is_refused(client, whole_run):
    whole_run.publish(0.9, 0.95, 0.97)
    answer = client("user").post(whole_run.address("models/promote"), data=FORM, headers=SAME_SITE)
    assert answer.status_code == 409
    assert "version 3 is in service now" in answer.text
    assert whole_run.registry.find_champion().number == 3


def test_a_promotion_is_signed_and_in_the_audit_log(client, whole_run):
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    answer = client("user").post(whole_run.address("models/promote"), data=FORM, headers=SAME_SITE)
    assert answer.headers["location"] == "../models?done=Version+1+is+in+service."
    assert whole_run.registry.read_history().moves[-1].reason == "it was better (user, in the UI)"
    promotions = select(Log).where(Log.event == "trainyard_promote").order_by(Log.id.desc())
    with create_session() as session:
        entry = session.scalars(promotions).first()
        assert (entry.owner, entry.dag_id, entry.extra) == ("user", "digits", '{"version": 1}')


def test_a_roll_back_leads_to_the_champion_before(client, whole_run):
    client("user").post(whole_run.address("models/rollback"), data=FORM, headers=SAME_SITE)
    assert whole_run.registry.find_champion().number == 1
    reason = whole_run.registry.read_history().moves[-1].reason
    assert reason == "rolled back from version 2: it was better (user, in the UI)"


@pytest.mark.parametrize("name", ADDRESSES)
def test_every_answer_has_a_strict_policy(client, whole_run, name):
    headers = ask(client("admin"), name, whole_run).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert "base-uri 'none'" in policy
    assert re.search(r"unsafe-eval|\*|https?:", policy) is None
    assert "'unsafe-inline'" not in policy or policy.startswith("sandbox;")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_report_is_served_without_script_and_without_an_origin(client, whole_run):
    answer = client("viewer").get(whole_run.address("report/content"))
    assert answer.text == "<h1>Gate passed</h1>"
    directives = answer.headers["content-security-policy"].split("; ")
    assert directives[:2] == ["sandbox", "default-src 'none'"]
    assert not any(directive.startswith(("script-src", "connect-src")) for directive in directives)
    assert 'sandbox=""' in client("viewer").get(whole_run.address("report")).text


def test_the_report_of_a_run_that_published_says_what(client, whole_run):
    whole_run.report("<h1>Gate passed</h1>", published="<h1>Gate passed, published</h1>")
    answer = client("viewer").get(whole_run.address("report/content"))
    assert answer.text == "<h1>Gate passed, published</h1>"


def test_the_page_of_the_data_is_another_tab_of_the_report(client, whole_run):
    viewer = client("viewer")
    assert viewer.get(whole_run.address("report/content", page="data")).text == "<h1>Data</h1>"
    assert viewer.get(whole_run.address("report", page="../../passwords")).status_code == 422


def test_the_page_of_refused_data_is_the_tab_of_the_data_set(client, run_writer, set_states):
    set_states("failed", preprocess="failed")
    run_writer.record("preprocess", state="failed", message="refused", exit_code=65)
    attempt = run_writer.attempt("preprocess", [])
    (attempt.folder / "data.html").write(b"<h1>Refused data</h1>")
    report = Page(client("viewer").get(run_writer.address("report", page="data")).text)
    assert "This run has ended without it." not in report.text
    answer = client("viewer").get(run_writer.address("report/content", page="data"))
    assert answer.text == "<h1>Refused data</h1>"
    assert answer.headers["content-security-policy"].startswith("sandbox;")


def test_a_run_without_a_report_says_so(client, run_writer, set_states):
    set_states("running", preprocess="running")
    page = client("viewer").get(run_writer.address("report")).text
    assert "when it ends." in page and "data-live" in page
    assert client("viewer").get(run_writer.address("report/content")).status_code == 404


@pytest.mark.parametrize(
    "page",
    ["progress", "report", "report/content", "thresholds", "thresholds/content", "predictions"],
)
def test_no_such_run_and_no_such_pipeline(client, run_writer, page):
    assert client("viewer").get(f"/pipelines/digits/{page}?run_id=none").status_code == 404
    answer = client("viewer").get(f"/pipelines/%3Cb%3E/{page}?run_id=none")
    assert answer.status_code == 404
    assert "<b>" not in answer.text


def test_a_registry_that_cant_be_read_does_not_hide_the_page(client, whole_run):
    (whole_run.layout.root.local / "models" / "digits" / "2" / "manifest.json").write_text("{")
    page = client("viewer").get(whole_run.address("models")).text
    assert "not a manifest of this version" in page
    assert "0.9000" in page
    assert client("viewer").get("/models").status_code == 200


PAGES = ("progress", "report", "report/content", "thresholds", "predictions", "models")


def test_pages_work_while_the_yaml_is_broken(client, whole_run, airflow_folder, monkeypatch):
    file = airflow_folder / "digits.yaml"
    text = file.read_text()
    monkeypatch.setenv("TRAINYARD_CONFIGS", str(file))
    expected = [client("viewer").get(whole_run.address(page)).text for page in PAGES]
    for broken in (text.replace("epochs:", "epoch:"), "train: {"):
        file.write_text(broken)
        try:
            with create_session() as session:
                sync_dags(session)
                tags = {tag.name for tag in DagModel.get_dagmodel(DAG, session=session).tags}
            answers = [client("viewer").get(whole_run.address(page)) for page in PAGES]
            listed = client("viewer").get("/models").text
        finally:
            file.write_text(text)
            with create_session() as session:
                sync_dags(session)
        assert tags == {"trainyard", "broken"}
        assert [answer.status_code for answer in answers] == [200] * len(PAGES)
        assert [answer.text for answer in answers[1:]] == expected[1:]  # the first has clocks
        assert "0.9500" in listed


BAD_FILES = [b"", b"{", b"null", b"[]", b'{"state": 1}', b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("content", BAD_FILES, ids=lambda content: repr(content[:12]))
def test_a_damaged_record_is_a_sentence_on_the_page_and_the_other_tasks_are_shown(
    client, whole_run, content
):
    """F8, F16."""
    whole_run.layout.task_record(RUN, "evaluate").write(content)
    answer = client("viewer").get(whole_run.address("progress"))
    assert answer.status_code == 200
    assert "evaluate.json: not a valid TaskRecord" in answer.text
    assert "1,437" in answer.text
    assert client("viewer").get(whole_run.address("report")).status_code == 409


@pytest.mark.parametrize("page, file", [("report", "evaluate"), ("data", "preprocess")])
def test_no_page_is_served_through_a_link(client, whole_run, tmp_path, page, file):
    """F8: a link to the API server's configuration was served."""
    (tmp_path / "airflow.cfg").write_text("fernet_key = secret")
    folder = whole_run.layout.artifact(file, "0" * 32).local
    [html] = folder.glob("*.html")
    html.unlink()
    html.symlink_to(tmp_path / "airflow.cfg")
    answer = client("admin").get(whole_run.address("report/content", page=page))
    assert answer.status_code in (404, 409) and "secret" not in answer.text
    html.unlink()
    html.write_text("secret")
    for number, linked in enumerate((folder, folder.parent, folder.parents[1])):
        aside = tmp_path / f"aside-{number}"
        linked.rename(aside)
        linked.symlink_to(aside)
        answer = client("admin").get(whole_run.address("report/content", page=page))
        assert answer.status_code in (404, 409) and "secret" not in answer.text
        linked.unlink()
        aside.rename(linked)
    answer = client("admin").get(whole_run.address("report/content", page=page))
    assert answer.status_code == 200, "without links"


ELSEWHERE = "/etc/passwd http://127.0.0.1:1/m.json ../../m.json {root}/artifacts/other/evaluate/x"


@pytest.mark.parametrize("manifest", ELSEWHERE.split())
def test_a_record_leads_no_page_outside_of_the_pipelines_artifacts(client, whole_run, manifest):
    """F8."""
    whole_run.record("evaluate", manifest=manifest.format(root=whole_run.layout.root))
    answer = client("viewer").get(whole_run.address("report/content"))
    assert answer.status_code == 409
    assert "is not a manifest of the job evaluate" in answer.text
    whole_run.record("preprocess", manifest=manifest.format(root=whole_run.layout.root))
    assert client("viewer").get(whole_run.address("progress")).status_code == 200


def test_the_pages_need_no_file_of_the_author(client, whole_run, airflow_folder):
    """The API server may be on a host without the DAG folder."""
    file = airflow_folder / "digits.yaml"
    of_run = [whole_run.address(page) for page in ("progress", "report", "report/content")]
    pages = [*of_run, f"/pipelines/{DAG}/models"]
    shown = [client("viewer").get(page).text for page in pages]
    hidden = file.rename(airflow_folder / "elsewhere")
    try:
        answers = [client("viewer").get(page) for page in pages]
    finally:
        hidden.rename(file)
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [len(answer.text) for answer in answers] == [len(text) for text in shown]


def test_a_person_without_a_session_logs_in_and_comes_back_and_a_program_gets_the_status(
    client, run_writer
):
    """Otherwise the link in a notification ends at a line of JSON."""
    address = run_writer.address("report")
    answer = client(None).get(address, headers={"accept": "text/html,*/*"})
    assert answer.status_code == 307
    login, _, query = answer.headers["location"].partition("?")
    assert login == "../../../api/v2/auth/login"
    assert parse_qs(query)["next"] == [f"http://airflow.example{address}"]
    assert client(None).get(address).status_code == 401
    form = client(None).post(
        run_writer.address("models/promote"), headers={"accept": "text/html"} | SAME_SITE, data=FORM
    )
    assert form.status_code == 401


def test_who_may_not_change_a_model_is_told_in_words(client, whole_run):
    page = Page(client("viewer").get(whole_run.address("models")).text).text
    assert "Whoever may edit this DAG may change the version in service." in page
    address = f"/pipelines/{DAG}/models/change?action=rollback"
    answer = client("viewer").get(address, headers={"accept": "text/html"})
    assert answer.status_code == 403
    assert "Your role in Airflow does not allow this." in Page(answer.text).text
    assert client("viewer").get(address).json() == {"detail": "Forbidden"}
