"""Gangs of workers that somebody else has started with TF_CONFIG, as a training operator does."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from launch.outcomes import assert_same, assert_went_on
from launch.running import config_with_hosts, starting

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.launch.joining import PROBLEM, read_tf_config
from pipeline_ops.places.launcher import wait_until
from pipeline_ops.places.tf_config import TfConfigHosts, TfConfigLauncher

HOSTS = {"launcher": "tf_config", "workers": 2, "network": "trusted", "environment": {}}
OPTIONS = {
    "train__workers": 2,
    "train__heartbeat_timeout_seconds": 6,
    "train__start_timeout_seconds": 90,
}


class Manager:
    """Starts one process for each worker, and another one in the place of one that has failed."""

    def __init__(self, folder, temporary, roles=("chief", "worker")):
        with socket.create_server(("", 0)) as a, socket.create_server(("", 0)) as b:
            self.addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (a, b)]
        cluster: dict[str, list[str]] = {}
        self._tasks = []
        for role, address in zip(roles, self.addresses, strict=True):
            cluster.setdefault(role, []).append(address)
            self._tasks.append({"type": role, "index": len(cluster[role]) - 1})
        self._cluster, self._folder, self._temporary = cluster, folder, temporary
        self.processes = [self._start(task) for task in self._tasks]
        self.ended = []

    def _start(self, task):
        config = json.dumps({"cluster": self._cluster, "task": task})
        return subprocess.Popen(
            # One core for each, as the other gang has it.
            [
                "taskset",
                "-c",
                "0",
                sys.executable,
                "-m",
                "pipeline_ops.launch.joining",
                self._folder,
            ],
            env=os.environ | {"TF_CONFIG": config, "TMPDIR": str(self._temporary)},
        )

    def restart(self, index):
        """Waits for the end of a process, and starts another one."""
        code = self.processes[index].wait(60)
        self.processes[index] = self._start(self._tasks[index])
        return code

    def wait(self):
        return [process.wait(60) for process in self.processes]

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def start(dataset, make_job_in, tmp_path):
    """Starts a job and its manager."""
    managers = []
    with starting(make_job_in, dataset, tmp_path, HOSTS, **OPTIONS) as start_job:

        def start_both(roles=("chief", "worker"), **options):
            root = tmp_path / "root"
            root.mkdir(exist_ok=True)  # Mounted before a worker starts.
            job = start_job(**options)
            managers.append(Manager(root / "joining" / "digits", job.temporary, roles))
            return job, managers[-1]

        yield start_both
        for manager in managers:
            manager.kill()


@pytest.fixture(scope="module")
def undisturbed(dataset, make_job_in, tmp_path_factory):
    folder, hosts = tmp_path_factory.mktemp("undisturbed"), {"launcher": "local", "cores": 2}
    with starting(make_job_in, dataset, folder, hosts, train__workers=2) as start_job:
        job = start_job()
        assert job.end() == ExitCode.SUCCESS, job.message()
        yield job


@pytest.mark.hosts
@pytest.mark.parametrize("roles", [("chief", "worker"), ("worker", "worker")])
def test_workers_that_join_train_what_our_own_gang_trains(start, undisturbed, roles):
    job, manager = start(roles)
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert_same(job, undisturbed)
    assert job.figures().workers == 2 and job.figures().restarts == 0
    assert manager.wait() == [0, 0]
    plan = json.loads((job.job.attempt.folder / "launch-plan.json").read_text())
    assert plan["workers"][0]["cluster"] == {"worker": manager.addresses}
    assert "train 132/132 steps" in (job.job.attempt.folder / "gang.log").read_text()
    assert job.survivors() == []


@pytest.mark.hosts
@pytest.mark.parametrize(("number", "index"), [(signal.SIGKILL, 1), (signal.SIGTERM, 0)])
def test_a_worker_that_its_manager_starts_again_goes_on_from_the_checkpoint(
    start, undisturbed, number, index
):
    job, manager = start(is_held=True)
    job.wait_until_held()
    manager.processes[index].send_signal(number)
    if number == signal.SIGKILL:
        manager.restart(index)
        job.release()
    else:
        job.release()
        assert manager.restart(index) == ExitCode.CANCELLED
    assert_went_on(undisturbed, job)
    assert job.figures().restarts >= 1
    assert manager.wait() == [0, 0]


@pytest.mark.hosts
def test_a_worker_process_that_is_killed_is_restarted_by_us(start, undisturbed):
    job, manager = start(is_held=True)
    job.wait_until_held()
    os.kill(job.worker("worker 1"), signal.SIGKILL)
    job.release()
    assert_went_on(undisturbed, job)
    assert manager.wait() == [0, 0]


@pytest.mark.hosts
def test_a_killed_job_leaves_workers_that_join_the_next_try(start, undisturbed):
    job, manager = start(is_held=True)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    second, other = start(name="second")
    other.kill()  # the first manager's processes still wait
    assert_went_on(undisturbed, job, second, survive_seconds=30)
    assert manager.wait() == [0, 0]


@pytest.mark.hosts
def test_a_wrong_tf_config_ends_the_job_and_the_process_with_the_cure(start):
    job, manager = start(("worker", "evaluator"))
    assert manager.processes[1].wait(60) == ExitCode.CONFIG
    assert job.end() == ExitCode.CONFIG
    assert manager.processes[0].wait(60) == ExitCode.CONFIG
    assert "can't join the gang: TF_CONFIG has the role evaluator, and a gang" in job.message()


@pytest.mark.hosts
def test_a_process_that_cannot_join_waits_for_a_train_job_and_tells_it(tmp_path):
    folder = tmp_path / "joining" / "digits"
    manager = Manager(folder, tmp_path, ("worker", "evaluator"))
    hosts = TfConfigHosts(launcher="tf_config", workers=2, network="trusted")
    request = SimpleNamespace(root=str(tmp_path), pipeline="digits")
    job = SimpleNamespace(
        stored_attempt=None,
        request=request,
        attempt=SimpleNamespace(folder=tmp_path / "attempt"),
        progress=SimpleNamespace(report=lambda *_, **__: None),
    )
    try:
        for _retry in range(2):
            wait_until(lambda: (folder / PROBLEM).exists(), lambda: None, 60)
            assert [each.poll() for each in manager.processes] == [None, None]
            with pytest.raises(ConfigError, match="has the role evaluator"):
                TfConfigLauncher(hosts, job).allocate(lambda: None)
            assert [manager.restart(0), manager.restart(1)] == [ExitCode.CONFIG] * 2
    finally:
        manager.kill()


@pytest.mark.hosts
def test_another_number_of_workers_is_named_with_the_hosts_file(start):
    job, _manager = start(lab={"workers": 3}, train__workers=3)
    assert job.end() == ExitCode.CONFIG
    assert re.search(
        r"its TF_CONFIG has 2 workers \(127.0.0.1:\d+, 127.0.0.1:\d+\), and the hosts file has "
        "workers: 3. Make them the same",
        job.message(),
    )


CLUSTER = {"worker": ["a:1", "b:2"]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "is not set"),
        ("{", "is not as TensorFlow documents it (JSONDecodeError"),
        ("[]", "is not as TensorFlow documents it"),
        ({"cluster": CLUSTER}, "is not as TensorFlow documents it (KeyError: 'task')"),
        ({"cluster": {}, "task": {"type": "worker", "index": 0}}, "its cluster has 0 of them"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}, "has 2 of them"),
        ({"cluster": CLUSTER, "task": {"type": "chief", "index": 0}}, "has 0 of them"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": -1}}, "a whole number, got -1"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 0.5}}, "a whole number, got 0.5"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": True}}, "whole number, got True"),
        ("{'cluster': {}}", 'It is JSON, such as {"cluster": {"worker": ["host:port", ...]}'),
        (
            {"cluster": {"worker": ["a:1", "b:0"]}, "task": {"type": "worker", "index": 0}},
            "a different host:port for each worker",
        ),
        (
            {
                "cluster": {**CLUSTER, "chief": ["c:3", "d:4"]},
                "task": {"type": "chief", "index": 0},
            },
            "must have at most one chief",
        ),
        (
            {"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}},
            "a different host:port for each worker",
        ),
        (
            {"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}},
            "a different host:port for each worker",
        ),
        (
            {"cluster": {**CLUSTER, "ps": ["c:3"]}, "task": {"type": "worker", "index": 0}},
            "has the role ps",
        ),
        ({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}, "the role evaluator"),
    ],
)
def test_a_wrong_tf_config_is_named_with_its_value(config, message):
    text = json.dumps(config) if isinstance(config, dict) else config
    with pytest.raises(ConfigError, match=f"^TF_CONFIG .*{re.escape(message)}") as raised:
        read_tf_config(text)
    assert (text or "is not set") in str(raised.value)


def test_a_chief_is_worker_0():
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    for role, index, expected in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
        text = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
        assert read_tf_config(text) == (expected, ["a:1", "b:2", "c:3"])


def test_a_role_without_replicas_is_none():
    text = json.dumps({"cluster": CLUSTER | {"ps": []}, "task": {"type": "worker", "index": 0}})
    assert read_tf_config(text).worker == 0


@pytest.mark.parametrize(
    ("hosts", "overrides", "message"),
    [
        ({"environment": {"A": "b"}}, {}, "must not set environment, which the cluster manager"),
        (
            {},
            {"train.strategy": "parameter_server", "train.parameter_servers": 1},
            "whose workers train together",
        ),
        ({"network": None}, {}, "Write `network: trusted`"),
        ({}, {"train.hosts": None, "train.runs_on": "lab"}, "on which no job can be started"),
    ],
)
def test_what_foreign_workers_cannot_do_is_refused_before_a_run(
    tmp_path, hosts, overrides, message
):
    file = config_with_hosts(tmp_path, HOSTS | hosts)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(file, {"train.hosts": "lab", "train.workers": 2} | overrides)


def test_a_bucket_is_refused():
    job = SimpleNamespace(stored_attempt="s3://a/b", request=SimpleNamespace(root="s3://a"))
    hosts = TfConfigHosts(launcher="tf_config", workers=2)
    with pytest.raises(ConfigError, match="need a storage root that is a folder .* got s3://a"):
        TfConfigLauncher(hosts, job)
