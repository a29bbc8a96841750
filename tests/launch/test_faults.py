"""What can go wrong on one machine beside a killed process: hung ones, disks, ports, SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from launch.running import QUICK, RunningJob, assert_same, config_with_hosts

from pipeline_ops.contracts.errors import ExitCode
from pipeline_ops.contracts.layout import work_folder


@pytest.fixture
def start(dataset, make_job_in, tmp_path):
    """Starts jobs on this machine; `lab` is the content of a hosts file."""
    started = []

    def start_job(name: str = "attempt", lab: dict | None = None, **overrides) -> RunningJob:
        make = make_job_in(tmp_path, dataset, config_with_hosts(tmp_path, {"launcher": "local"} | (lab or {})))
        started.append(RunningJob(make(name, **(QUICK | {"train__hosts": "lab"} | overrides))))
        return started[-1]

    yield start_job
    for job in started:
        job.put_an_end_to_it()


@pytest.fixture(scope="module")
def undisturbed(dataset, make_job_in, tmp_path_factory):
    job = RunningJob(make_job_in(tmp_path_factory.mktemp("undisturbed"), dataset)("attempt", **QUICK))
    assert job.end() == ExitCode.SUCCESS, job.job.attempt.log.read_text()
    return job


def test_sigterm_to_the_job_saves_the_step_and_the_next_try_goes_on_exactly_there(start, undisturbed):
    job = start()
    job.wait_for_step(20)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end() == ExitCode.RETRY, "whoever took the machine away has not failed the training"
    assert "stopped by SIGTERM" in job.message()
    assert job.survivors() == []
    again = start("second")
    assert again.end() == ExitCode.SUCCESS, again.message()
    assert again.steps("restored") == job.steps("preempted") == job.steps("preempted", "worker 1"), "no step is lost, and none is done twice"
    assert_same(again, undisturbed)


@pytest.mark.parametrize("name", ["worker 1", pytest.param("worker 0", marks=pytest.mark.slow)])
def test_a_stopped_worker_is_named_and_costs_a_restart(start, undisturbed, name):
    job = start(train__heartbeat_timeout_seconds=5)
    job.wait_for_step(20)
    os.kill(job.worker(name), signal.SIGSTOP)
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert f"{name} on localhost has given no sign of life for" in job.messages("restart")[0]
    assert_same(job, undisturbed)
    assert job.survivors() == []


@pytest.mark.slow
def test_a_stopped_preloaded_process_is_replaced(start, undisturbed):
    job = start(train__heartbeat_timeout_seconds=5)
    job.wait_for_step(20)
    os.kill(job.preloaded()[0], signal.SIGSTOP)
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert_same(job, undisturbed)
    assert job.survivors() == []


@pytest.mark.slow
def test_a_launcher_that_was_stopped_for_a_while_goes_on(start, undisturbed):
    job = start(train__heartbeat_timeout_seconds=4)
    job.wait_for_step(20)
    os.kill(job.process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while len(job.all()) > 1:
        assert time.monotonic() < deadline, "nobody speaks to the workers, and they live on"
        time.sleep(0.1)
    os.kill(job.process.pid, signal.SIGCONT)
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert_same(job, undisturbed)


def test_a_worker_that_never_joins_is_named_within_the_deadline(start):
    job = start(train__heartbeat_timeout_seconds=4, train__max_restarts=0)
    deadline = time.monotonic() + 60
    while not (workers := [pid for pid in job.all() if fork_of(job, pid, "worker 1")]):
        assert time.monotonic() < deadline and job.process.poll() is None
        time.sleep(0.002)
    os.kill(workers[0], signal.SIGSTOP)
    begin = time.monotonic()
    assert job.end() == ExitCode.RETRY
    assert "worker 1 on localhost has given no sign of life for" in job.message()
    assert time.monotonic() - begin < 45, "and not the minutes of a start timeout"
    assert job.survivors() == []


def fork_of(job: RunningJob, pid: int, name: str) -> bool:
    return os.path.realpath(f"/proc/{pid}/fd/1") == os.path.realpath(job.job.attempt.worker_log(name))


def test_no_free_port_is_told_with_the_range_to_widen(start):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = start(lab={"first_port": port, "last_port": port}, train__max_restarts=0)
        assert job.end() == ExitCode.RETRY
    assert "host localhost has 0 free ports where 2 are needed; widen first_port and last_port" in job.message()
    assert job.survivors() == []


@pytest.mark.slow
def test_a_port_that_is_taken_in_the_last_moment_costs_a_restart(start, undisturbed):
    base = free_range(4)
    job = start(lab={"first_port": base, "last_port": base + 3})
    spec = job.job.attempt.of_worker("worker 1", "spec.json")
    deadline = time.monotonic() + 60
    with socket.socket() as thief:
        while True:
            assert time.monotonic() < deadline
            try:
                if spec.exists():
                    thief.bind(("", base + 1))
                    break
            except OSError:  # the agent holds it until it forks
                pass
            time.sleep(0.001)
        thief.listen()
        assert "Could not start gRPC server" in job.wait_for(lambda moment: moment.phase == "restart").message
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert_same(job, undisturbed)


def free_range(count: int) -> int:
    """The first of some ports in a row that are free now."""
    for base in range(21000, 32000, count):
        held = [socket.socket() for _ in range(count)]
        try:
            for offset, one in enumerate(held):
                one.bind(("", base + offset))
            return base
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise AssertionError("no free ports")


def test_a_full_disk_is_told_and_nothing_is_lost_once_there_is_room(start, undisturbed, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    disk = tmp_path / "root" / "artifacts"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(disk)], check=True)
    try:
        job = start(train__max_restarts=1)
        assert job.end() == ExitCode.RETRY
        assert "could not write" in job.message() and "No space left on device; make room" in job.message()
        assert not list(work_folder(job.job.folder).glob("*.tmp")), "what could not be written is not left half written"
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        again = start("second", train__max_restarts=1)
        assert again.end() == ExitCode.SUCCESS, again.message()
        assert_same(again, undisturbed)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_corrupt_newest_checkpoint_costs_one_interval_and_is_named(start, undisturbed):
    job = start()
    job.wait_for_step(30)
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.survivors() == []
    *_, before, newest = sorted(work_folder(job.job.folder).glob("checkpoint-*.npz"))
    damage(newest)
    again = start("second")
    assert again.end() == ExitCode.SUCCESS, again.message()
    assert again.steps("restored")[0] == int(before.stem.rpartition("-")[2])
    said = again.job.attempt.worker_progress("worker 0").read_text() + again.job.attempt.worker_log("worker 0").read_text()
    assert newest.name in said and "damaged" in said
    assert_same(again, undisturbed)


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle:middle + 64] = bytes(byte ^ 0xFF for byte in data[middle:middle + 64])
    file.write_bytes(data)
