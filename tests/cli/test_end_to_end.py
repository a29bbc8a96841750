"""`trainyard run` and `trainyard ui` from end to end: real digits, Airflow and browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import yaml
from airflow_ui import needs_chromium, open_browser
from cli.journey import approve, assert_refused, fill_in, follow_progress, read_report, roll_back
from cli.trainyard_command import Trainyard, cached_tasks, find_job_processes, parse_summary
from config_files import set_words, write_config
from listeners import ListenerMonitor, filter_non_loopback
from PIL import Image
from processes import Stopwatch, is_running, wait_until

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.task_record import read_record
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_root

pytestmark = pytest.mark.timeout(900)

PNG = b"\x89PNG\r\n\x1a\n"
PICTURES = {"Examples": (1052, 1154), "Pictures": (704, 1154)}
"""Width and height: three rows of three images, and three rows of two."""


@pytest.fixture(scope="module")
def trainyard(tmp_path_factory) -> Trainyard:
    return Trainyard(tmp_path_factory.mktemp("trainyard"))


@pytest.fixture(scope="module")
def first_run(trainyard, whole_module_survivors) -> subprocess.CompletedProcess:
    """The first run, in an Airflow of its own."""
    with ListenerMonitor(trainyard.listening, seconds=0.5) as trainyard.listeners:
        process = trainyard.run(environment=whole_module_survivors.environment)
    whole_module_survivors.wait_for_none(0.0)
    return process


@pytest.fixture(scope="module")
def ui(trainyard, first_run):
    """A running `trainyard ui` with two pipelines: its address, user and password."""
    changes = {"pipeline": "warm", "export.model": "warm", "train.seed": 5}
    changes["train.warm_start"] = "champion"
    trainyard.warm = write_config(trainyard.folder, changes, trainyard.config, "warm.yaml")
    with trainyard.ui(trainyard.warm) as login:
        yield login


def test_the_first_run_publishes_version_1(first_run, trainyard):
    summary = parse_summary(first_run)
    assert summary["state"] == "success"
    states = {name: task["state"] for name, task in summary["tasks"].items()}
    assert states == dict.fromkeys(JOBS, "success")
    assert cached_tasks(summary) == set()
    assert sum(summary["dataset"]["examples"].values()) == 1797
    assert summary["dataset"]["shards"] == {"train": 8, "validation": 8, "test": 8}
    assert (summary["training"]["workers"], summary["training"]["restarts"]) == (2, 0)
    assert summary["metrics"]["accuracy"] > 0.5
    assert 0.1 < summary["baseline"]["accuracy"] < 0.15
    assert summary["gate"]["passed"] is True
    assert summary["gate"]["champion_version"] is None
    assert summary["model"]["version"] == 1
    assert (Path(summary["model"]["uri"]) / "saved_model.pb").is_file()
    assert Path(summary["report"]).is_file()
    assert Path(summary["predictions"]).read_bytes().startswith(PNG)
    assert "Examples  " not in first_run.stderr  # a person looks at them, and no program


def test_a_run_leaves_no_temporary_file(first_run, trainyard):
    """Beam, the killed workers and the killed programs of Airflow all make temporary files."""
    assert list(trainyard.temporary.rglob("*")) == []


def test_a_run_listens_on_loopback_alone(first_run, trainyard):
    """F5: in each job and in the embedded Airflow. The only listener is Airflow's API."""
    assert trainyard.listeners.num_polls > 20
    assert filter_non_loopback(trainyard.listeners.seen) == set()
    assert len(trainyard.listeners.seen) == 1


@pytest.mark.parametrize(
    "route", ["/api/v2/dags", "/api/v2/connections", "/execution/variables/any"]
)
@pytest.mark.airflow
def test_a_client_on_loopback_without_credentials_gets_nothing(ui, route):
    """F5."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{ui[0]}{route}", timeout=60)
    refused.value.close()
    assert refused.value.code in (401, 403)


def test_the_address_the_progress_and_the_result_are_shown(first_run):
    shown = first_run.stderr
    assert re.search(
        r"Airflow +http://127\.0\.0\.1:\d+ +user admin +password in \S+/passwords.json", shown
    )
    assert re.search(r"train +train \d+/\d+ steps .* loss ", shown)
    assert re.search(r"Baseline +Better than a model that has not looked at the images", shown)
    assert re.search(r"Gate +passed", shown)
    assert "models/digits/1" in shown


def test_an_unchanged_second_run_is_cached(ui, trainyard):
    process = trainyard.run()
    summary = parse_summary(process)
    assert cached_tasks(summary) == set(JOBS)
    assert summary["model"]["version"] == 1
    assert f"Pictures  {summary['predictions']}\n" in process.stderr
    unchanged = "unchanged: same inputs, config, code and package versions"
    assert process.stderr.count(unchanged) >= len(JOBS)


@pytest.mark.airflow
def test_another_learning_rate_trains_but_does_not_preprocess(ui, trainyard):
    summary = parse_summary(trainyard.run("--set", "train.optimizer.learning_rate=0.002"))
    assert cached_tasks(summary) == {"preprocess"}
    assert summary["gate"]["champion_version"] == 1


@pytest.mark.airflow
def test_with_a_warm_start_the_second_training_begins_with_the_first_ones_weights(ui, trainyard):
    """The model is new, so there is no champion at first. The third run repeats the second one."""
    runs = (
        trainyard.run(*set_words(f"train.epochs={count}"), config=trainyard.warm)
        for count in (3, 4, 4)
    )
    first, second, third = runs
    assert "there is no champion yet. Starts from random weights." in first.stderr
    assert parse_summary(first)["training"]["warm_start"] is None
    begun = parse_summary(second)
    version_1 = str(trainyard.folder / "storage" / "models" / "warm" / "1" / "manifest.json")
    assert begun["training"]["warm_start"] == version_1
    assert f"starts from the weights of {version_1}" in second.stderr, "while it trains"
    assert f"Start     from the weights of {version_1}\n" in second.stderr, "when it has ended"
    before, after = (list_losses(summary) for summary in (parse_summary(first), begun))
    assert after[0] < min(before[0] / 2, before[-1] * 1.5)
    assert cached_tasks(parse_summary(third)) == set(JOBS)


def list_losses(summary: dict) -> list[float]:
    """The losses of the epochs of a training."""
    history = read_manifest(summary["tasks"]["train"]["manifest"]).figures["history"]
    return [epoch["metrics"]["loss"] for epoch in history]


def test_unusable_files_over_the_budget_fail_the_run_and_are_named(ui, trainyard, tmp_path):
    shutil.copytree(trainyard.folder / "raw", tmp_path / "raw")
    broken = sorted((tmp_path / "raw" / "3").iterdir())[0]
    broken.write_bytes(broken.read_bytes()[:60])
    raw = f"preprocess.source.path={tmp_path / 'raw'}"
    no_budget = ("preprocess.rejects.max_count=0", "preprocess.rejects.max_fraction=0")
    process = trainyard.run(*set_words(raw, *no_budget))
    assert process.returncode == 65
    assert f"3/{broken.name}" in process.stderr
    assert "job.log" in process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    assert summary["tasks"]["train"]["state"] == "upstream_failed"


@pytest.mark.airflow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_in_the_middle_leaves_no_process_and_no_temporary_file(
    trainyard, first_run, tmp_path, temporary, survivors, number
):
    """After SIGKILL, the next run ends what is left."""
    aside = {**survivors.environment, "TRAINYARD_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "pipeline_ops.cli.main", "run", str(trainyard.config)]
    argv += set_words("train.epochs=2000")
    with subprocess.Popen(argv, env=aside, stdout=subprocess.PIPE, text=True) as process:
        assert any(re.search(r"\d/\d+ steps", line) for line in process.stdout)
        assert len(survivors.look()) > 8
        stopwatch = Stopwatch()
        process.send_signal(number)
        assert process.wait(timeout=60) == (-9 if number == signal.SIGKILL else 128 + number)
        assert stopwatch.seconds < 5.0
    if number == signal.SIGKILL:
        argv[-1] = "train.epochs=1"
        subprocess.run(argv, env=aside, check=True, stdout=subprocess.DEVNULL, timeout=300)
    survivors.wait_for_none(5.0 if number == signal.SIGKILL else 0.0)
    assert list(temporary.rglob("*")) == []


@pytest.mark.parametrize("state", ["running", pytest.param("deferred", marks=pytest.mark.airflow)])
def test_marking_the_task_failed_ends_its_processes_within_5_seconds(ui, trainyard, state):
    words = set_words("train.epochs=3000", "train.early_stopping=null")
    process = trainyard.start("run", str(trainyard.config), *words, stdout=subprocess.PIPE)
    # The launcher, the agent, the fork server, and two workers.
    at_least = {"running": 3, "deferred": 5}[state]
    seen = {"running": "train +running", "deferred": r"\d/\d+ steps"}[state]
    assert any(re.search(seen, line) for line in process.stdout)
    with AirflowApi(*ui) as api:
        api.log_in()
        [run_id] = api.list_active_runs("digits")
        run = trainyard.folder / "storage" / "runs" / "digits" / run_id
        wait_until(lambda: len(find_job_processes(run)) >= at_least)
        train = f"/api/v2/dags/digits/dagRuns/{quote(run_id, safe='')}/taskInstances/train"
        wait_until(lambda: api._call("GET", train)["state"] == state)
        tree = find_job_processes(run)
        api._call("PATCH", train, {"new_state": "failed"})
    stopwatch = Stopwatch()
    wait_until(lambda: not any(is_running(member) for member in tree))
    assert stopwatch.seconds < 5.0
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "train failed" in output


@pytest.mark.airflow
@pytest.mark.parametrize("victim", ["launcher", "worker"])
def test_a_killed_process_of_the_training_costs_a_restart_and_not_the_run(ui, trainyard, victim):
    seed = f"train.seed={100 + len(victim)}"
    words = set_words("train.epochs=15", "train.early_stopping=null", seed)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = trainyard.start("run", str(trainyard.config), "--json", *words, **streams)
    assert any(re.search(r"\d/\d+ steps", line) for line in process.stderr)
    with AirflowApi(*ui) as api:
        api.log_in()
        [run_id] = api.list_active_runs("digits")
    job, *_ = find_job_processes(trainyard.folder / "storage" / "runs" / "digits" / run_id)
    [agent] = job.children()
    [fork_server] = agent.children()
    {"launcher": job, "worker": fork_server.children()[-1]}[victim].kill()
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["state"] == "success"
    assert summary["training"]["steps"] == -(-15 * summary["dataset"]["examples"]["train"] // 64)
    # A killed launcher is started again by Airflow, and goes on from the checkpoint.
    if victim != "launcher":
        assert summary["training"]["restarts"] == 1
        assert "Restart 1" in errors
    assert not any(process.is_running() for process in (job, agent, fork_server))


@pytest.fixture
def asking(ui, trainyard):
    """The API of the running Airflow, after a change of the YAML that adds an approval."""

    def has_approval() -> bool:
        tasks = api._call("GET", "/api/v2/dags/digits/tasks")["tasks"]
        return "approve" in [task["task_id"] for task in tasks]

    def rewrite(text: str, asks: bool) -> None:
        trainyard.config.write_text(text)
        api.request_parse(api.dag("digits")["file_token"])
        wait_until(lambda: has_approval() == asks)

    plain = trainyard.config.read_text()
    values = yaml.safe_load(plain)
    values["evaluate"]["approval"] = {"timeout_seconds": 600}
    with AirflowApi(*ui) as api:
        api.log_in()
        rewrite(yaml.safe_dump(values, sort_keys=False), asks=True)
        yield api
        rewrite(plain, asks=False)


@needs_chromium
@pytest.mark.airflow
def test_a_person_with_nothing_but_a_browser_retrains_watches_approves_and_rolls_back(
    asking, first_run, trainyard
):
    storage = trainyard.folder / "storage"
    layout, registry = Layout(open_root(storage), "digits"), Registry(storage / "models" / "digits")
    before = registry.find_champion().number
    dataset = dataset_version(layout, parse_summary(first_run)["run_id"])
    with open_browser(asking) as person:
        person.log_in()
        form = person.open_form("digits")
        assert_refused(person, form, asking)
        fill_in(person, form, dataset)
        run = person.send(form)
        run_id = unquote(run.rsplit("/", 1)[-1])
        filled_in = {
            "train.epochs": 30,
            "train.early_stopping.patience_epochs": 30,
            "train.warm_start": "version 1",
            "preprocess.dataset": dataset,
        }
        assert filled_in.items() <= asking.run("digits", run_id)["conf"].items()
        follow_progress(person)
        [request] = layout.attempts(run_id, "train").local.glob("*/request.json")
        assert json.loads(request.read_text())["config"]["epochs"] == 30
        read_report(person, "Gate passed")
        approve(person, run)
        wait_until(lambda: asking.run("digits", run_id)["state"] == "success", seconds=400)
        challenger = registry.find_champion().number
        assert challenger > before
        read_report(person, f"Published as version {challenger}")
        roll_back(person, challenger, before)
        for name, path in {
            "progress": f"pipelines/digits/progress?run_id={quote(run_id)}",
            "model": "pipelines/digits/models",
        }.items():
            person.look_on_a_phone(f"/trainyard/{path}", name)
        assert person.outside == []
    assert registry.find_champion().number == before
    reason = f"rolled back from version {challenger}: customers complained (admin, in the UI)"
    assert registry.read_history().moves[-1].reason == reason


def dataset_version(layout: Layout, run_id: str) -> str:
    """The version of a data set as the events of its asset show it, shortened."""
    return Path(read_record(layout.task_record(run_id, "preprocess")).manifest).parent.name[:12]


@pytest.mark.airflow
def test_a_run_says_where_pictures_of_a_new_data_set_and_of_predictions_are(ui, trainyard):
    words = set_words("preprocess.split.seed=5", "train.epochs=1")
    outputs = []
    for _ in range(2):
        process = trainyard.start("run", str(trainyard.config), *words, stdout=subprocess.PIPE)
        outputs.append(process.communicate(timeout=400)[0])
    places = {key: re.findall(rf"^{key}  (\S+)$", outputs[0], re.M) for key in PICTURES}
    sizes = {key: Image.open(place).size for key, [place] in places.items()}
    assert sizes == PICTURES
    assert "Examples" not in outputs[1] and f"Pictures  {places['Pictures'][0]}\n" in outputs[1]


@pytest.mark.airflow
def test_a_run_in_an_airflow_that_exists_is_followed_to_its_end(ui, trainyard):
    password = {"TRAINYARD_AIRFLOW_PASSWORD": ui.password}
    words = ("--airflow", ui.url, "--user", ui.user, "--set", "train.seed=9")
    done = trainyard.run(*words, environment=os.environ | password)
    assert parse_summary(done)["tasks"]["train"]["state"] == "success"
    words_of_an_author = (*words[:4], "--set", "export.model=x")
    refused = trainyard.run(*words_of_an_author, environment=os.environ | password)
    assert refused.returncode == 78 and "conf export.model: cannot be overridden" in refused.stderr
    stranger = {"TRAINYARD_AIRFLOW_PASSWORD": "wrong"}
    refused = trainyard.run(*words, environment=os.environ | stranger)
    assert refused.returncode == 78 and "Correct --user or TRAINYARD_AIRF" in refused.stderr
    assert f"Page      {ui.url}/dags/digits/runs/manual__" in done.stderr
