"""The handle of a job: it is found again, ended, and ended even before it has started. Its process
is real and idle."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from airflow.sdk.exceptions import TaskDeferralTimeout
from config_files import write_config
from launch.running import config_with_hosts
from manifests import make_request
from processes import wait_until
from task_contexts import Store, make_context

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.cancellation import (
    STORE_KEY,
    read_cancellation_reason,
    request_cancellation,
)
from pipeline_ops.contract.layout import Layout, lock_file
from pipeline_ops.contract.progress import read_last_event
from pipeline_ops.contract.request import read_status
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.job_start import prepare_job, start_job
from pipeline_ops.orchestration.task_run import TaskRun, find_running_job
from pipeline_ops.orchestration.tasks import TrainOperator
from pipeline_ops.places.local import LocalPlace, build_bridge_environment, read_identity
from pipeline_ops.places.place import HOSTS_VARIABLE, build_job_environment
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.system.lease import hold_lease
from pipeline_ops.system.processes import (
    ATTEMPT_VARIABLE,
    ProcessIdentity,
    find_group_members,
    kill_group,
    start_detached,
)


@pytest.fixture
def operator(tmp_path) -> TrainOperator:
    """The operator of a pipeline whose root is the test's folder."""
    file = write_config(tmp_path, {"storage.root": str(tmp_path)})
    return TrainOperator(config_file=str(file))


def running(operator: TrainOperator, task: dict) -> JobHandle | None:
    run = TaskRun.load(operator.config_file, task)
    return find_running_job(run, operator.record_name, LocalPlace())


@pytest.fixture
def plan(tmp_path) -> JobPlan:
    request, artifact = make_request(tmp_path), open_root(tmp_path) / "artifact"
    request = request.model_copy(update={"artifact": str(artifact)})
    manifest = artifact / "manifest.json"
    return JobPlan(request, manifest, is_cached=False, reason="never made before")


@pytest.fixture
def handle(plan, tmp_path) -> JobHandle:
    """The handle of a job that is not started."""
    return prepare_job(plan, Layout(open_root(tmp_path), "digits"), "train")


@pytest.fixture
def process(handle, tmp_path) -> Iterator[ProcessIdentity]:
    """The idle process of the job."""
    environment = os.environ | {ATTEMPT_VARIABLE: str(handle.attempt.folder)}
    sleeping = start_detached(["sleep", "600"], tmp_path / "log", environment)
    found = ProcessIdentity.from_pid(sleeping.pid)
    write_json(handle.attempt.process.local, found.to_json())
    yield found
    kill_group(found, 1.0)


def context(handle: JobHandle, max_tries: int = 2) -> dict:
    """The context of the second try of a task whose first try has claimed the job."""
    owner = {"task_instance": "first", "max_tries": 2, "clear_number": 0}
    store = Store({STORE_KEY: {"attempt": handle.attempt.folder.name, "owner": owner}})
    return make_context({}, "run", store=store, id="second", max_tries=max_tries)


def test_who_is_killed_before_it_has_started_its_job_leaves_a_folder_that_says_so(handle):
    assert read_identity(handle.attempt.process) is None
    assert not handle.is_alive()
    message = f"the job in {handle.attempt.folder} was not started"
    assert handle.read_outcome().message.startswith(message)
    assert handle.reason == "never made before"


def test_the_environment_of_a_hosts_file_reaches_the_job_but_no_file(dataset, tmp_path):
    """N4: it may hold secrets, and a bucket has readers."""
    content = {"launcher": "local", "environment": {"HF_TOKEN": "s3cret"}}
    file = config_with_hosts(tmp_path / "configs", content)
    values = {"train.hosts": "lab", "storage.root": str(tmp_path / "root")}
    config = load_config(file, values)
    plan = plan_job("train", config, "run", {"preprocess": dataset})
    assert json.loads(plan.environment[HOSTS_VARIABLE]) == {"HF_TOKEN": "s3cret"}
    prepare_job(plan, Layout(config.root, config.pipeline), "train")
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert files and not any(b"s3cret" in path.read_bytes() for path in files)


def test_a_damaged_artifact_loses_its_manifest_once_the_job_holds_its_lease(plan, tmp_path):
    """Other artifacts may refer to its files. Another run may be making it again."""
    folder = plan.manifest.parent
    for name in ("manifest.json", "shard"):
        (folder / name).write(b"")
    request = plan.request.model_copy(update={"is_damaged": True})
    damaged = dataclasses.replace(plan, request=request, damage=("page is missing",))
    handle = prepare_job(damaged, Layout(open_root(tmp_path), "digits"), "train")
    with hold_lease(lock_file(folder), "the artifact"):
        start_job(damaged, handle)
        process = read_identity(handle.attempt.process)
        wait_until(lambda: read_last_event(handle.attempt.progress))
        assert read_last_event(handle.attempt.progress).phase == "wait"
        assert plan.manifest.exists()
    wait_until(lambda: not process.is_alive())
    assert [entry.name for entry in folder.list_folder()] == ["shard"]


def test_a_job_that_is_ended_before_it_is_started_does_not_begin(plan, handle):
    """A user ends it between the claim and the start."""
    handle.end("its task was ended in Airflow")
    assert handle.clean_up()
    start_job(plan, handle)
    late = read_identity(handle.attempt.process)
    wait_until(lambda: not late.is_alive())
    assert read_status(handle.attempt).exit_code == ExitCode.CANCELLED
    assert read_status(handle.attempt).message == "its task was ended in Airflow"


def test_the_next_try_takes_over_the_job_that_still_runs(operator, handle, process):
    task = context(handle)
    assert running(operator, task).attempt == handle.attempt
    assert process.is_alive()
    assert task["task_state_store"][STORE_KEY]["owner"]["task_instance"] == "second"


def test_the_next_try_does_not_follow_a_job_that_is_about_to_end(operator, handle, process):
    """Airflow may take a living task for dead. It kills the task, which asks its job to end, and
    starts the next try at the same time."""
    request_cancellation(handle.attempt, "its task was ended in Airflow")
    assert running(operator, context(handle)) is None
    assert find_group_members(process.pid) == []


def test_a_cleared_task_ends_the_job_that_still_runs(operator, handle, process):
    assert running(operator, context(handle, max_tries=3)) is None
    assert find_group_members(process.pid) == []
    assert read_cancellation_reason(handle.attempt) == "another try of its task has begun"


def test_a_job_that_outlives_its_own_deadline_is_ended_and_not_found_again(
    operator, handle, process
):
    with pytest.raises(TaskDeferralTimeout):
        operator.resume_execution("__fail__", {"error": "Trigger timeout"}, context(handle))
    assert find_group_members(process.pid) == []
    assert read_cancellation_reason(handle.attempt) == "it did not end by its own deadline"


def test_a_job_on_another_host_is_told_to_end_and_no_process_of_this_one_is_taken_for_it(
    handle, process
):
    elsewhere = dataclasses.replace(process, host="elsewhere")
    write_json(handle.attempt.process.local, elsewhere.to_json())
    assert handle.is_alive()
    assert handle.read_outcome() is None
    handle.end("its task was ended in Airflow")
    assert process.is_alive()
    assert read_cancellation_reason(handle.attempt) == "its task was ended in Airflow"
    write_json(handle.attempt.process.local, process.to_json())


def test_a_job_that_can_not_be_told_is_killed_all_the_same(handle, process):
    handle.attempt.cancellation.local.mkdir()  # as a full disk would refuse the file
    with pytest.raises(MachineError):
        handle.end("its task was ended in Airflow")
    assert find_group_members(process.pid) == []


def test_a_file_that_names_the_process_of_another_job_ends_nothing_of_it(handle, tmp_path):
    """F8: the readers of `process.json` killed the process group in it."""
    other = ProcessIdentity.from_pid(start_detached(["sleep", "600"], tmp_path / "log").pid)
    write_json(handle.attempt.process.local, other.to_json())
    try:
        handle.end("its task was ended in Airflow")
        assert handle.clean_up()
        assert other.is_alive()
        dead = dataclasses.replace(other, start_ticks=other.start_ticks + 1)
        write_json(handle.attempt.process.local, dead.to_json())
        assert handle.clean_up()
        assert other.is_alive()
    finally:
        assert kill_group(other, 1.0)


def test_what_a_killed_leader_leaves_of_its_own_group_is_ended(handle, tmp_path):
    """The members inherit the mark of the attempt, so they are found without the leader."""
    environment = os.environ | {ATTEMPT_VARIABLE: str(handle.attempt.folder)}
    leader = start_detached(["sh", "-c", "sleep 600 & sleep 600"], tmp_path / "log", environment)
    process = ProcessIdentity.from_pid(leader.pid)
    write_json(handle.attempt.process.local, process.to_json())
    wait_until(lambda: len(find_group_members(process.pid)) == 3)
    leader.kill()
    leader.wait()
    assert len(find_group_members(process.pid)) == 2
    assert handle.clean_up()
    assert find_group_members(process.pid) == []


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"host": "x", "pid": -1, "start_ticks": 0}',
        b'{"host": "x", "pid": 0, "start_ticks": 0}',
        b'{"host": "", "pid": 7, "start_ticks": 7}',
        b'{"host": "x", "pid": "all", "start_ticks": 0}',
    ],
)
def test_a_damaged_process_file_is_no_process(handle, content):
    handle.attempt.process.write(content)
    assert read_identity(handle.attempt.process) is None
    assert "was not started, or process.json there is damaged" in handle.read_outcome().message
    handle.end("its task was ended in Airflow")
    assert handle.clean_up()


@pytest.mark.parametrize(
    "content", [b"{", b"null", b'{"exit_code": 1}', b'{"exit_code": 0, "manifest": []}']
)
def test_a_damaged_status_counts_as_none(handle, process, content):
    handle.attempt.status.write(content)
    assert handle.read_outcome() is None, "it still runs"
    kill_group(process, 1.0)
    assert handle.read_outcome().exit_code == ExitCode.RETRY
    assert f"{handle.attempt.status}: not a valid Status" in handle.read_outcome().message


def test_the_folder_of_an_attempt_is_for_its_owner_only(handle):
    """F10, F17: the request may hold the environment of hosts."""
    assert handle.attempt.folder.local.stat().st_mode & 0o777 == 0o700
    assert handle.attempt.request.local.stat().st_mode & 0o777 == 0o600


def test_a_value_that_a_user_has_put_into_the_store_makes_the_task_end_its_newest_job(
    operator, handle, process
):
    """F8: no folder is taken from there."""
    task = context(handle)
    task["task_state_store"][STORE_KEY] = {"attempt": "/etc", "reason": "", "owner": {}}
    assert running(operator, task) is None
    assert find_group_members(process.pid) == []


DROPPED = "import pathlib; pathlib.Path({!r}).touch()"


def test_a_module_that_was_dropped_into_the_folder_of_a_job_is_not_imported(plan, handle, tmp_path):
    """F10: the folder of the attempt was the first in `sys.path`."""
    for name in ("json.py", "logging.py", "argparse.py", "sitecustomize.py", "pipeline_ops.py"):
        (handle.attempt.folder.local / name).write_text(DROPPED.format(str(tmp_path / "victim")))
    start_job(plan, handle)
    job = read_identity(handle.attempt.process)
    wait_until(lambda: not job.is_alive())
    assert read_status(handle.attempt) is not None, handle.attempt.log.local.read_text()
    assert not (tmp_path / "victim").exists()


def test_another_interpreter_finds_our_packages_outside_of_the_attempt(plan, handle, tmp_path):
    """F10: links in the attempt's folder were on its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    environment = build_job_environment(os.environ) | build_bridge_environment({})
    script = (
        "import importlib.util, sys; names = ('pipeline_ops.storage', 'beam_jobs.stages'); "
        "print(*(importlib.util.find_spec(name).origin for name in names), *sys.path)"
    )
    argv, folder = (
        [tmp_path / "other" / "bin" / "python", "-c", script],
        handle.attempt.folder.local,
    )
    done = subprocess.run(argv, env=environment, cwd=folder, capture_output=True, text=True)
    found = done.stdout.split()
    packages = ("pipeline_ops/storage", "beam_jobs/stages")
    assert found[:2] == [str(CODE_ROOT / each / "__init__.py") for each in packages], done.stderr
    assert not {"", str(CODE_ROOT)} & {*found[2:]}
    assert not [path for path in found[2:] if path.startswith(str(folder))]
