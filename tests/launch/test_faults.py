"""Whatever happens to a train job on one machine costs seconds, and never the run: it ends with the
same weights and the same loss.

Killed and hung processes of every role, SIGTERM, a port that is taken, a full disk, a corrupt
checkpoint. At most one checkpoint interval is done again, and nothing is left running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launch.running import INTERVAL, STEPS_OF_EPOCH, RunningJob, assert_went_on, repeated_steps

from pipeline_ops.artifacts.layout import work_folder
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.progress import Progress

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
SILENT = "on localhost has given no sign of life for"

FAULTS = [
    (
        "worker 0",
        KILL,
        "worker 0 on localhost was killed by signal 9 (SIGKILL) at step 22; its log is",
    ),
    (
        "worker 1",
        KILL,
        "worker 1 on localhost was killed by signal 9 (SIGKILL) at step 22; its log is",
    ),
    ("preloaded", KILL, "host localhost: its preloaded process ended with -9; its log is"),
    ("agent", KILL, "host localhost: the connection ended"),
    ("worker 0", STOP, f"worker 0 {SILENT}"),
    ("worker 1", STOP, f"worker 1 {SILENT}"),
    ("preloaded", STOP, "host localhost: "),
    ("agent", STOP, "host localhost: nothing was heard of it"),
]
QUICK_ONES = [("worker 0", KILL), ("worker 1", STOP)]


@pytest.mark.parametrize(
    ("role", "number", "message"),
    [
        pytest.param(
            *fault,
            id=f"{fault[1].name}-{fault[0]}",
            marks=() if fault[:2] in QUICK_ONES else pytest.mark.slow,
        )
        for fault in FAULTS
    ],
)
def test_a_lost_process_of_any_role_is_named_and_costs_a_restart_and_changes_nothing(
    start, undisturbed, role, number, message
):
    job = start(is_held=True, train__heartbeat_timeout_seconds=15 if number == KILL else 10)
    job.wait_until_held()
    os.kill(process_of(job, role), number)
    assert_went_on(undisturbed, job)
    assert job.steps("restored") == [INTERVAL]
    figures = job.figures()
    assert figures.restarts == 1
    assert len(set(figures.worker_weights_digests)) == 1
    [said] = job.messages("restart")
    assert message in said
    assert "first new step" in job.messages("recovered")[0]


def process_of(job: RunningJob, role: str) -> int:
    return (
        {"agent": job.agents, "preloaded": job.preloaded}[role]()[0]
        if role in ("agent", "preloaded")
        else job.worker(role)
    )


def test_what_is_done_again_is_counted():
    """From what the chiefs say; the tests above would not notice much without it."""
    said = [
        ("building", None),
        ("train", 9),
        ("train", 22),
        ("building", None),
        ("restored", 15),
        ("train", 40),
        ("building", None),
        ("train", 1),
        ("preempted", 3),
        ("building", None),
        ("restored", 3),
    ]
    assert repeated_steps([Progress(time=0.0, phase=phase, done=done) for phase, done in said]) == [
        7,
        40,
        0,
    ]


@pytest.mark.slow
def test_a_hung_step_is_noticed_though_the_process_lives(start, undisturbed):
    """By the supervisor, or by a peer that waits: whoever is first."""
    job = start(is_held=True, train__step_timeout_seconds=5)
    assert_went_on(undisturbed, job)
    [said] = job.messages("restart")
    assert "worker 0" in said and "for 5 s (train.step_timeout_seconds" in said


def test_a_killed_launcher_leaves_nobody_and_the_next_try_goes_on_from_the_checkpoint(
    start, undisturbed
):
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    assert job.survivors() == []
    again = start("second")
    assert_went_on(undisturbed, job, again)
    assert again.steps("restored") == [INTERVAL]


@pytest.mark.slow
def test_a_launcher_that_was_stopped_for_a_while_goes_on(start, undisturbed):
    job = start(is_held=True, train__heartbeat_timeout_seconds=4)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while len(job.all()) > 1:
        assert time.monotonic() < deadline, "nobody speaks to the workers, and they live on"
        time.sleep(0.1)
    os.kill(job.process.pid, signal.SIGCONT)
    assert_went_on(undisturbed, job)


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_all_at_the_same_step_and_the_next_gang_goes_on_there(
    start, undisturbed
):
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.worker("worker 1"), signal.SIGTERM)
    job.let_go()
    assert_went_on(undisturbed, job)
    stopped, restored = (
        [job.steps(phase, name) for name in ("worker 0", "worker 1")]
        for phase in ("preempted", "restored")
    )
    assert stopped == restored and len({*map(tuple, stopped)}) == 1, (
        "no step is lost, and none is done twice"
    )


def test_sigterm_to_the_job_saves_the_step_and_the_next_try_goes_on_exactly_there(
    start, undisturbed
):
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGTERM)
    job.wait_for(lambda moment: moment.phase == "stopping")
    job.let_go()
    assert job.end() == ExitCode.RETRY, "whoever took the machine away has not failed the training"
    assert "stopped by SIGTERM" in job.message()
    assert job.survivors() == []
    again = start("second")
    assert_went_on(undisturbed, job, again)
    assert (
        again.steps("restored") == job.steps("preempted") == job.steps("preempted", "worker 1")
    ), "no step is lost, and none is done twice"


@pytest.mark.slow
def test_a_full_disk_is_told_and_nothing_is_lost_once_there_is_room(start, undisturbed, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    disk = tmp_path / "root" / "artifacts"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "none", str(disk)], check=True)
    try:
        job = start(is_held=True, train__max_restarts=1)
        job.wait_until_held()
        subprocess.run(
            ["mount", "-o", f"remount,size={used(disk) + (100 << 10)}", str(disk)], check=True
        )
        job.let_go()
        assert job.end() == ExitCode.RETRY
        assert (
            "could not write" in job.message()
            and "No space left on device; make room" in job.message()
        )
        assert not list(work_folder(job.job.folder).glob("*.tmp")), (
            "what could not be written is not left half written"
        )
        assert job.survivors() == []
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        assert_went_on(undisturbed, job, start("second", train__max_restarts=1))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def used(folder: Path) -> int:
    """Bytes on the disk that is mounted there."""
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def test_a_corrupt_newest_checkpoint_costs_one_interval_and_is_named(start, undisturbed):
    every = {"train__checkpoint_every_steps": STEPS_OF_EPOCH // 2}
    job = start(is_held=True, **every)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.survivors() == []
    *_, before, newest = sorted(work_folder(job.job.folder).glob("checkpoint-*.npz"))
    damage(newest)
    again = start("second", **every)
    assert_went_on(undisturbed, job, again)
    assert again.steps("restored") == [int(before.stem.rpartition("-")[2])] == [STEPS_OF_EPOCH // 2]
    said = (
        again.job.attempt.worker_progress("worker 0").read_text()
        + again.job.attempt.worker_log("worker 0").read_text()
    )
    assert newest.name in said and "damaged" in said


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    file.write_bytes(data)


@pytest.mark.slow
def test_a_killed_process_that_writes_the_candidate_is_named_and_the_next_try_trains_nothing_again(
    start, undisturbed
):
    job = start()
    log = str(job.job.attempt.folder / "candidate.log")
    deadline = time.monotonic() + 120
    while not (
        writers := [
            pid
            for pid in job.all()
            if os.path.realpath(f"/proc/{pid}/fd/1") == os.path.realpath(log)
        ]
    ):
        assert time.monotonic() < deadline and job.process.poll() is None, (
            job.job.attempt.log.read_text()
        )
        time.sleep(0.005)
    os.kill(writers[0], signal.SIGKILL)
    assert job.end() == ExitCode.RETRY
    assert (
        "the process that writes the candidate ended with -9 and left no candidate.status.json; "
        "its log is"
    ) in job.message()
    assert not job.job.folder.exists()
    again = start("second")
    assert_went_on(undisturbed, job, again)


def test_a_worker_that_is_done_does_not_wait_for_peers_that_have_left(undisturbed):
    """It would notice ten seconds later that they are gone, and say so in its log."""
    assert "coordination service" not in "".join(
        undisturbed.job.attempt.worker_log(f"worker {worker}").read_text() for worker in range(2)
    )
