"""The agent and the pipe to it, with an agent that is killed, stopped or silent.

The commands that carry the pipe are tested here, too.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.running import Agent, command, environment, make_agent_spec, pids, wait_until

from pipeline_ops.contract.gang_protocol import (
    AGENT_MODULE,
    FORK_SERVER,
    Event,
    HostReport,
)
from pipeline_ops.errors import ExitCode
from pipeline_ops.launch.agent import explain_kill, reserve_ports
from pipeline_ops.launch.host_pool import describe_incompatibility
from pipeline_ops.launch.train import build_lock_name
from pipeline_ops.places.allocation_holder import hold_allocation
from pipeline_ops.places.launcher import Host
from pipeline_ops.places.ssh import SshHosts, SshLauncher

REPORT = HostReport(
    python="3.11.2", versions={"keras": "3.15.1", "numpy": "2.1"}, code="abc", token="t", cores=2
)


@pytest.fixture
def agent(tmp_path):
    """Starts agents on this machine, and ends them."""
    started = []

    def start(run: str = "run", silence_timeout_seconds: float = 60.0) -> Agent:
        (tmp_path / "token").write_text("secret")
        spec = make_agent_spec(
            tmp_path, run=str(tmp_path / run), silence_timeout_seconds=silence_timeout_seconds
        )
        started.append(Agent(spec))
        return started[-1]

    yield start
    for one in started:
        one.__exit__(None, None, None)


def test_an_agent_tells_what_its_host_is_like_and_finds_ports(agent):
    one = agent()
    report = one.hears("hello").host
    assert report.token == "secret" and report.cores >= 1 and report.versions["keras"]
    one.order(action="ports", count=3)
    assert len(set(one.hears("ports").ports)) == 3


@pytest.mark.parametrize("how", ["its input closes", "it is killed", "it hears nothing"])
def test_nothing_outlives_an_agent(agent, how):
    one = agent(silence_timeout_seconds=5.0 if how == "it hears nothing" else 60.0)
    one.hears("hello")
    wait_until(lambda: one.order(action="ping") or len(one.below()) == 1)
    if how == "its input closes":
        one.process.stdin.close()
    elif how == "it is killed":
        one.process.kill()
    wait_until(lambda: not one.below())


def test_a_heartbeat_names_the_processes_that_are_not_stopped(agent):
    one = agent()
    one.hears("ready")
    assert one.hears("alive").names == [FORK_SERVER]
    [process] = one.below()
    for number, names in ((signal.SIGSTOP, []), (signal.SIGCONT, [FORK_SERVER])):
        os.kill(process, number)
        wait_until(lambda wanted=names: one.hears("alive").names == wanted)


def test_an_agent_that_is_asked_to_end_says_so_and_ends(agent):
    one = agent()
    one.hears("ready")
    one.process.terminate()
    one.hears("leaving")
    assert one.process.wait(60) == 0
    wait_until(lambda: not one.below())


def test_a_host_has_one_gang_for_an_artifact_and_a_predecessor_that_hangs_gives_way(agent):
    first = agent()
    first.hears("hello")
    other_agent = agent(run="another launcher")
    assert (
        f"started by {first.spec.run} with the agent {first.process.pid}"
        in other_agent.hears("refused").message
    )
    os.kill(first.process.pid, signal.SIGSTOP)
    successor = agent()
    successor.hears("hello")
    assert first.process.wait(60) == -signal.SIGKILL


def test_the_same_training_below_another_storage_root_is_another_one(
    make_job_in, dataset, tmp_path
):
    """Two roots on one machine, and two tests, do not wait for each other."""
    one, other = (make_job_in(tmp_path / root, dataset)() for root in ("one", "other"))
    assert one.folder.name == other.folder.name and build_lock_name(one) != build_lock_name(other)


def test_ports_that_are_taken_are_left_out():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        held = reserve_ports(2, (port, port + 40))
        assert len(held) == 2 and port not in [one.getsockname()[1] for one in held]
        for one in held:
            one.close()


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({}, ""),
        ({"cores": 64}, ""),
        ({"token": None}, "it does not see the storage root"),
        ({"time": 3600.0}, "its clock differs from this host's by 3"),
        ({"problems": ["disk: full. Free space"]}, "disk: full. Free space"),
        ({"code": "abd"}, "its copy of this project (digest abd) differs from this host's (abc)"),
        (
            {"python": "3.12.1"},
            "it has Python 3.12.1 and not 3.11.2. Install the same requirements there",
        ),
        (
            {"versions": {"keras": "3.15.0"}},
            "it has keras 3.15.0 and not 3.15.1, numpy missing and not 2.1",
        ),
    ],
)
def test_a_host_that_differs_is_told_what_differs_and_what_mends_it(other, problem):
    now = {"time": time.time()}
    if "time" in other:
        now["time"] += other["time"]
    message = describe_incompatibility(REPORT, REPORT.model_copy(update=other | now))
    assert message.startswith(problem) and bool(message) == bool(problem)


def test_ssh_never_asks(tmp_path):
    hosts = SshHosts.model_validate(
        {
            "launcher": "ssh",
            "hosts": [{"name": "far"}],
            "config_file": "/ssh_config",
        }
    )
    spec = make_agent_spec(tmp_path)
    argv = SshLauncher(hosts).build_command(Host(name="far", address="far", workers=1), spec)
    options = dict(
        word.split("=", 1) for word in argv if "=" in word and argv[argv.index(word) - 1] == "-o"
    )
    assert (options["BatchMode"], options["StrictHostKeyChecking"]) == ("yes", "yes")
    assert argv[:4] == ["ssh", "-T", "-F", "/ssh_config"]
    assert argv[-3:-1] == ["--", "far"]
    hosts = hosts.model_copy(update={"config_file": None})
    argv = SshLauncher(hosts).build_command(Host(name="far", address="far", workers=1), spec)
    assert "ConnectTimeout=5" in argv


def test_a_destination_that_looks_like_an_option_is_a_name(tmp_path):
    """F17: ssh itself must reject the name and execute nothing."""
    hosts = SshHosts.model_validate(
        {
            "launcher": "ssh",
            "hosts": [{"name": "far"}],
        }
    )
    spec = make_agent_spec(tmp_path)
    host = Host(name=f"-oProxyCommand=touch {tmp_path}/executed", address="far", workers=1)
    done = subprocess.run(
        SshLauncher(hosts).build_command(host, spec),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 255
    assert list(tmp_path.iterdir()) == []


@pytest.mark.hosts
def test_the_environment_of_the_hosts_is_on_no_command_line_and_in_no_file(start):
    """F17, N4: it may hold secrets, and all users of a host see command lines."""
    job = start(lab={"environment": {"ACME_TOKEN": "s3cret-value"}}, is_held=True)
    job.wait_until_held()
    assert len(job.all()) >= 4, "launcher, agent, fork server and two workers"
    assert any(environment(pid).get("ACME_TOKEN") == "s3cret-value" for pid in job.all()), (
        "the gang has it"
    )
    assert [command(pid) for pid in pids() if "s3cret" in command(pid)] == []
    files = [path for path in job.job.attempt.folder.rglob("*") if path.is_file()]
    assert files and [path for path in files if b"s3cret" in path.read_bytes()] == []
    job.release()
    assert job.end() == ExitCode.SUCCESS, job.message()


def test_an_allocation_without_agents_lets_go_of_itself(tmp_path):
    begin = time.monotonic()
    assert hold_allocation(str(tmp_path), 1.0) == 0
    assert 1.0 <= time.monotonic() - begin < 60


def test_an_allocation_that_is_asked_to_end_has_failed(tmp_path):
    """Slurm and Kubernetes tell it from one that has no more use."""
    command = [sys.executable, "-m", "pipeline_ops.places.allocation_holder", str(tmp_path), "60"]
    saving = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); time.sleep(3)"
    agent = [sys.executable, "-c", saving, AGENT_MODULE, str(tmp_path)]
    with subprocess.Popen(command) as holder, subprocess.Popen(agent) as saver:
        for process in (holder, saver):
            wait_until(lambda pid=process.pid: is_signal_caught(pid, signal.SIGTERM), 60)
        holder.terminate()
        assert holder.wait(30) == 128 + signal.SIGTERM
        assert saver.poll() == 0, "the workers of an agent have had time to save their state"


def is_signal_caught(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s+([0-9a-f]+)$", status, re.MULTILINE)[1], 16)
    return bool(caught >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("code", "kills", "is_named"), [(-9, 3, True), (-9, 2, False), (1, 3, False)]
)
def test_a_process_that_the_kernel_has_killed_for_memory_says_so(
    monkeypatch, code, kills, is_named
):
    monkeypatch.setattr("pipeline_ops.launch.agent.count_memory_kills", lambda: kills)
    end = explain_kill(Event(event="ended", name="worker 0", code=code), kills_before=2)
    assert ("out of memory" in end.message) is is_named
