"""Notifications by a user's own notifier and by Airflow's notifier for mail.

`tests/cli` has the failures of a real Airflow.
"""

from __future__ import annotations

import datetime as dt
import email
import json
import socketserver
import threading
from email.policy import default
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException
from config_files import write_config
from manifests import make_manifest
from task_contexts import make_context
from upstream_artifacts import copy_artifacts

from pipeline_ops.config.notify import check_notifiers
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.dataset import STATISTICS
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import NAME, list_files, write_manifest
from pipeline_ops.contract.outcome import RunFacts
from pipeline_ops.contract.results import EvaluationFigures, ModelEvaluation, RuleVerdict
from pipeline_ops.contract.run_summary import summarize, write_summary
from pipeline_ops.contract.task_record import TaskRecord
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.orchestration.factory import make_dag
from pipeline_ops.orchestration.notification import (
    Notification,
    notify_drift,
    notify_failure,
    notify_skew,
)
from pipeline_ops.orchestration.task_run import TaskRun
from pipeline_ops.orchestration.tasks import EvaluateOperator
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.store_path import StorePath

SMTP = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
EVENTS = ["failed", "gate_not_passed", "drift"]
STARTED = dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)
DONE = TaskRecord(state="success", manifest="/m")

pytestmark = pytest.mark.usefixtures("user_package")


def notifying(folder: Path, *entries: dict, root: Path | None = None, **more) -> Path:
    """Writes configs/digits.yaml with notifiers."""
    changes = {
        "storage.root": str(root or folder / "root"),
        "evaluate.batch_size": 32,
        "evaluate.gate": [{"metric": "accuracy", "at_least": 0.7}],
        "notify": list(entries),
    }
    return write_config(folder, changes | more)


@pytest.fixture
def mailbox(tmp_path) -> Path:
    (tmp_path / "mail").mkdir()
    return tmp_path / "mail"


def to(mailbox: Path, *events: str) -> dict:
    arguments = {"folder": str(mailbox), "subject": "{{ notification.title }} in {{ run_id }}"}
    entry = {"notifier": "acme_notifier.Mailbox", "arguments": arguments}
    return entry | {"events": list(events or EVENTS)}


def letters(mailbox: Path) -> list[dict]:
    files = sorted(mailbox.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text()) for file in files]


def failed(message: str = "train: CONFIG: no", **conf) -> dict:
    """The context in which Airflow calls when a task has failed."""
    return {
        "run_id": "manual__1",
        "dag_run": SimpleNamespace(conf=conf, start_date=STARTED),
        "ti": SimpleNamespace(task_id="train"),
        "exception": AirflowFailException(message),
    }


def evaluate(config: Path, sandbox, model: str, run_id: str) -> None:
    """Runs the task evaluate, which finds the evaluation of a model."""
    train = sandbox.train(model)
    sandbox.evaluate(train)
    manifests = {"preprocess": sandbox.dataset, "train": train}
    copied = copy_artifacts(Layout(open_root(sandbox.root), "digits"), run_id, manifests)
    EvaluateOperator(config_file=str(config)).execute(make_context(copied, run_id))


def test_a_gate_that_was_not_passed_is_told_with_the_rules_and_a_link(sandbox, tmp_path, mailbox):
    config = notifying(tmp_path, to(mailbox), root=sandbox.root)
    evaluate(config, sandbox, "poor", "manual__1+00:00")
    [letter] = letters(mailbox)
    assert letter["subject"] == "digits: gate not passed in manual__1+00:00"
    expected = {
        "pipeline": "digits",
        "run_id": "manual__1+00:00",
        "event": "gate_not_passed",
        "verdict": "Refused by the gate: accuracy 0.4700 is below 0.7000. Nothing was published.",
        "link": "http://localhost:8080/trainyard/pipelines/digits/report?run_id=manual__1%2B00%3A00",
    }
    assert expected.items() <= letter.items()
    [rule] = letter["rules"]
    assert (rule["metric"], rule["passed"]) == ("accuracy", False)
    assert (rule["value"], rule["bound"]) == (0.47, 0.7)


def test_nobody_is_told_of_a_gate_that_was_passed_or_of_what_they_have_not_asked_for(
    sandbox, tmp_path, mailbox
):
    for model, events in (("good", EVENTS), ("poor", ["failed"])):
        config = notifying(tmp_path, to(mailbox, *events), root=sandbox.root)
        evaluate(config, sandbox, model, model)
    assert letters(mailbox) == []


def test_a_run_that_failed_is_told_with_what_the_first_failed_task_has_left(tmp_path, mailbox):
    config = notifying(tmp_path, to(mailbox))
    layout = Layout(open_root(tmp_path / "root"), "digits")
    gone = {"state": "failed", "message": "worker 1 has gone", "exit_code": ExitCode.RETRY}
    records = {"preprocess": DONE, "train": TaskRecord(**gone)}
    for started in (STARTED.timestamp() - 60, STARTED.timestamp()):  # before and after a clear
        facts = RunFacts(records, failed="train")
        write_summary(layout, summarize(facts, "manual__1", started=started))
        notify_failure(str(config), failed())
    old, new = letters(mailbox)
    assert old["verdict"] == "train: train: CONFIG: no"
    assert new["event"] == "failed" and new["verdict"] == (
        "Failed in train: worker 1 has gone. Correct it, then clear the task train: the run goes "
        "on with what is done."
    )


def test_a_run_that_failed_by_its_own_conf_is_told_too(tmp_path, mailbox):
    config = notifying(tmp_path, to(mailbox))
    error = "override train.epocs: unknown key"
    notify_failure(str(config), failed(error, **{"train.epocs": 3}))
    [letter] = letters(mailbox)
    assert letter["verdict"] == f"train: {error}"


def test_a_notifier_that_fails_fails_nothing(tmp_path, mailbox, caplog):
    config = notifying(tmp_path, to(mailbox), to(mailbox, "failed"))
    (mailbox / "down").touch()
    manifest = drifting(tmp_path)
    notify_drift(TaskRun(load_config(config), {"run_id": "manual__1"}), manifest)
    assert "drift was not sent by acme_notifier.Mailbox" in caplog.text
    assert "the mailbox is down" in caplog.text
    assert letters(mailbox) == []
    (mailbox / "down").unlink()
    notify_failure(str(config), failed())
    assert [letter["event"] for letter in letters(mailbox)] == ["failed", "failed"]


def drifting(folder: Path) -> StorePath:
    """The manifest of a data set that has drifted."""
    distances = [
        {"feature": "brightness", "jensen_shannon": 0.3, "l_infinity": 0.25, "is_above": True},
        {"feature": "width", "jensen_shannon": 0.02, "l_infinity": 0.01, "is_above": False},
    ]
    return compared(folder / "drifting", {"drift": distances})


def compared(folder: Path, comparison: dict | None) -> StorePath:
    """The manifest of a data set with the result of its comparison."""
    folder.mkdir()
    (folder / STATISTICS).write_text(json.dumps({"comparison": comparison}))
    write_manifest(folder, make_manifest(files=list_files(folder)))
    return open_path(folder / NAME)


def test_drift_is_told_feature_by_feature_and_no_drift_or_no_reference_is_not(tmp_path, mailbox):
    config = load_config(notifying(tmp_path, to(mailbox)))
    notify_drift(TaskRun(config, {"run_id": "one"}), drifting(tmp_path))
    notify_drift(TaskRun(config, {"run_id": "two"}), compared(tmp_path / "without", None))
    [letter] = letters(mailbox)
    verdict = "further from the champion's data than preprocess.drift allows: brightness"
    assert letter["verdict"] == verdict
    [rule] = letter["rules"]
    assert (rule["subject"], rule["value"], rule["bound"]) == ("brightness", 0.3, 0.1)


@pytest.mark.parametrize(
    "section, distance, told",
    [({"days": 1}, 0.3, True), ({"days": 1}, 0.02, False), (None, 0.3, False)],
)
def test_requests_that_differ_from_training_are_told_like_a_drift(
    tmp_path, mailbox, section, distance, told
):
    changes = {"evaluate.serving_skew": section} if section else {}
    config = load_config(notifying(tmp_path, to(mailbox), **changes))
    skew = {"feature": "red", "jensen_shannon": distance, "l_infinity": 0.01, "is_above": False}
    model = ModelEvaluation(metrics={}, classes=[], confusion=[])
    figures = EvaluationFigures(
        num_examples=1,
        challenger=model,
        champion=None,
        champion_version=None,
        gate_passed=True,
        rules=[],
        serving={"num_images": 500, "distances": [skew]},
    )
    (tmp_path / "made").mkdir()
    write_manifest(tmp_path / "made", make_manifest(job="evaluate", figures=figures))
    notify_skew(TaskRun(config, {"run_id": "one"}), open_path(tmp_path / "made" / NAME))
    assert [(letter["event"], letter["verdict"]) for letter in letters(mailbox)] == told * [
        (
            "drift",
            "the requests in production are further from the training data than "
            "preprocess.drift allows: red",
        )
    ]
    if told:
        [rule] = letters(mailbox)[0]["rules"]
        assert (rule["metric"], rule["text"][:24]) == ("serving_skew", "red differs from trainin")


class Post(socketserver.StreamRequestHandler):
    """A mail server with the commands that a client needs. `server.mails` has the messages."""

    def handle(self) -> None:
        self.wfile.write(b"220 post\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                self.server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))
            self.wfile.write(b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 ok\r\n")


def test_airflows_own_notifier_sends_a_mail_with_the_link_and_nothing_in_it_is_taken_for_html(
    tmp_path, monkeypatch
):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post) as server:
        server.mails, server.daemon_threads = [], True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        extra = {"disable_ssl": True, "disable_tls": True, "from_email": "trainyard@example.org"}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": server.server_address[1]}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection | {"extra": extra}))
        arguments = {
            "to": "team@example.org",
            "subject": "{{ notification.title }}",
            "html_content": "{{ notification.html }}",
        }
        entry = {"notifier": SMTP, "arguments": arguments, "events": ["failed"]}
        config = notifying(tmp_path, entry)
        notify_failure(str(config), failed("class <script> is unknown"))
        server.shutdown()
    [mail] = [email.message_from_bytes(mail, policy=default) for mail in server.mails]
    assert (mail["to"], mail["subject"]) == ("team@example.org", "digits: run failed")
    page = mail.get_body(("html",)).get_content()
    assert "class &lt;script&gt; is unknown" in page
    assert '/pipelines/digits/report?run_id=manual__1">' in page


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        (
            {"notifier": "airflow.providers.slak.notifications.SlackNotifier"},
            "ModuleNotFoundError: No module named 'airflow.providers.slak'. Correct it",
        ),
        ({"notifier": SMTP.replace("Notifier", "Notifer")}, "has no attribute 'SmtpNotifer'"),
        ({"notifier": SMTP}, "missing 1 required positional argument: 'to'"),
        (
            {"notifier": "acme_notifier.Mailbox", "arguments": {"folder": "/m", "subjekt": ""}},
            "got an unexpected keyword argument 'subjekt'",
        ),
        ({"notifier": "acme_notifier.Letterbox"}, "has no attribute 'Letterbox'"),
    ],
)
def test_a_notifier_that_is_not_there_is_refused_with_its_line_and_the_cure(tmp_path, entry, wrong):
    config = notifying(tmp_path, {"arguments": {}, "events": ["failed"]} | entry)
    with pytest.raises(ConfigError, match=r"yaml:\d+: notify.0.notifier: ") as error:
        check_notifiers(load_config(config).notify, config)
    assert wrong in str(error.value) and str(config) in str(error.value)


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (
            {"notify": [to(Path("/m"), "fails")]},
            "notify.0.events.0: must be one of failed, gate_not_passed, drift, got 'fails'",
        ),
        ({"notify": [{"notifier": "os", "events": ["failed"]}]}, "notify.0.notifier"),
    ],
)
def test_what_can_not_be_told_is_refused(tmp_path, more, wrong):
    with pytest.raises(ConfigError) as error:
        load_config(notifying(tmp_path, **more))
    assert wrong in str(error.value)


def test_who_is_told_can_not_be_chosen_for_a_run(tmp_path, mailbox):
    config = notifying(tmp_path, to(mailbox))
    conf = {"notify.0.notifier": "os.system"}
    message = "conf notify.0.notifier: cannot be overridden for a single run"
    with pytest.raises(AirflowFailException, match=message):
        EvaluateOperator(config_file=str(config)).execute(make_context({}, conf=conf))
    notify_failure(str(config), failed(**conf))
    assert len(letters(mailbox)) == 1


def test_a_dag_that_tells_is_the_same_dag_each_time_it_is_read(tmp_path, mailbox):
    """Airflow makes a version of whatever differs."""
    from airflow.serialization.serialized_objects import DagSerialization

    config = notifying(tmp_path, to(mailbox))
    dag, again = (make_dag(load_config(config)) for _ in range(2))
    values = (DagSerialization.to_dict(each) for each in (dag, again))
    first, second = (json.dumps(value, sort_keys=True, default=str) for value in values)
    assert first == second and " at 0x" not in first
    assert all(task.on_failure_callback for task in dag.tasks)


def test_of_a_trial_that_fails_nobody_is_told(tmp_path, mailbox):
    search = {"parameters": {"train.optimizer.learning_rate": [0.001, 0.01]}}
    dag = make_dag(load_config(notifying(tmp_path, to(mailbox), search=search)))
    tell = {task.task_id for task in dag.tasks if getattr(task, "on_failure_callback", None)}
    assert tell == {"preprocess", "search", "train", "evaluate", "export"}


def test_a_notice_as_text_says_which_rule_failed():
    rules = [
        RuleVerdict(metric="accuracy", passed=True, text="accuracy is fine"),
        RuleVerdict(metric="map", passed=False, text="map is not"),
    ]
    notification = Notification(
        event="gate_not_passed",
        pipeline="p",
        run_id="r",
        verdict="trained, not published: map is not",
        rules=rules,
        link="http://a/b",
    )
    expected = (
        "p: gate not passed\nrun r\n\ntrained, not published: map is not\n"
        "passed  accuracy is fine\nFAILED  map is not\n\nhttp://a/b"
    )
    assert notification.text.splitlines() == expected.splitlines()
