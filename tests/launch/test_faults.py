"""Faults of a train job on one machine change neither weights nor loss, and leave no process.

The faults are killed and hung processes of every role, SIGTERM, a full disk and a corrupt
checkpoint. Each repeats at most one checkpoint interval.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from launch.outcomes import assert_went_on, repeated_steps
from launch.running import STEPS_PER_EPOCH, RunningJob, wait_until

from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.errors import ExitCode

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
SILENT = "on localhost has not been seen running for"

FAULTS = [
    (
        "worker 0",
        KILL,
        "worker 0 on localhost was killed by signal 9 (SIGKILL) at step 22. See ",
    ),
    (
        "worker 1",
        KILL,
        "worker 1 on localhost was killed by signal 9 (SIGKILL) at step 22. See ",
    ),
    ("fork server", KILL, "host localhost: its fork server ended with -9. See "),
    ("agent", KILL, "host localhost: the connection ended"),
    ("worker 0", STOP, f"worker 0 {SILENT}"),
    ("worker 1", STOP, f"worker 1 {SILENT}"),
    ("fork server", STOP, "host localhost: "),
    ("agent", STOP, "host localhost: it has been silent"),
]


@pytest.mark.parametrize(
    ("role", "number", "message"),
    [
        pytest.param(
            *fault,
            id=f"{fault[1].name}-{fault[0]}",
            marks=[pytest.mark.faults] * (fault[:2] != ("worker 0", KILL)),
        )
        for fault in FAULTS
    ],
)
@pytest.mark.faults
def test_a_lost_process_of_any_role_is_named_and_costs_a_restart_and_changes_nothing(
    start, undisturbed, role, number, message
):
    job = start(is_held=True, train__heartbeat_timeout_seconds=15 if number == KILL else 10)
    job.wait_until_held()
    os.kill(find_process(job, role), number)
    assert_went_on(undisturbed, job)
    assert job.steps("restored") == [STEPS_PER_EPOCH]
    figures = job.figures()
    assert figures.restarts == 1
    assert len(set(figures.worker_weights_digests)) == 1
    [reported] = job.messages("restart")
    assert message in reported
    assert "first new step" in job.messages("recovered")[0]


def find_process(job: RunningJob, role: str) -> int:
    return (
        {"agent": job.agents, "fork server": job.fork_servers}[role]()[0]
        if role in ("agent", "fork server")
        else job.worker(role)
    )


def test_what_is_done_again_is_counted():
    """The number is computed from the reports of the chiefs. The tests above depend on it."""
    reported = [
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
    assert repeated_steps(
        [ProgressEvent(time=0.0, phase=phase, done=done) for phase, done in reported]
    ) == [
        7,
        40,
        0,
    ]


@pytest.mark.faults
def test_a_hung_callback_is_noticed_though_the_process_lives_and_is_no_step(start, undisturbed):
    """The peer waits for it in a step, for longer than a step may take, and is not blamed."""
    limits = {"train__step_timeout_seconds": 1, "train__phase_timeout_seconds": 8}
    job = start(is_held=True, **limits, train__steps_per_call=1)
    assert_went_on(undisturbed, job)
    [reported] = job.messages("restart")
    assert "worker 0 on localhost has reported no progress for 8 s" in reported
    assert "in the phase callbacks (train.phase_timeout_seconds is 8)" in reported


@pytest.mark.faults
def test_a_killed_launcher_leaves_nobody_and_the_next_try_goes_on_from_the_checkpoint(
    start, undisturbed
):
    job = start(is_held=True)
    job.wait_until_held()
    job.kill_launcher()
    again = start("second")
    assert_went_on(undisturbed, job, again)
    assert again.steps("restored") == [STEPS_PER_EPOCH]


@pytest.mark.faults
def test_a_launcher_that_was_stopped_for_a_while_goes_on(start, undisturbed):
    job = start(is_held=True, train__heartbeat_timeout_seconds=4)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGSTOP)
    wait_until(lambda: len(job.all()) <= 1, explain=job.all)
    os.kill(job.process.pid, signal.SIGCONT)
    assert_went_on(undisturbed, job)


@pytest.mark.faults
def test_sigterm_to_one_worker_stops_all_at_the_same_step_and_the_next_gang_goes_on_there(
    start, undisturbed
):
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.worker("worker 1"), signal.SIGTERM)
    job.release()
    assert_went_on(undisturbed, job)
    stopped, restored = (
        [job.steps(phase, name) for name in ("worker 0", "worker 1")]
        for phase in ("preempted", "restored")
    )
    assert stopped == restored and len({*map(tuple, stopped)}) == 1, "no step is lost or repeated"


@pytest.mark.faults
def test_sigterm_to_the_job_saves_the_step_and_the_next_try_goes_on_exactly_there(
    start, undisturbed
):
    """The chief is in a callback, which it leaves at once, and its peer waits for it."""
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGTERM)
    job.wait_for(lambda moment: moment.phase == "stopping")
    assert job.end() == ExitCode.RETRY, "SIGTERM to the job is not a failure of the training"
    assert "stopped by SIGTERM" in job.message()
    assert job.survivors() == []
    again = start("second")
    assert_went_on(undisturbed, job, again)
    assert again.steps("restored") == job.steps("preempted") == [STEPS_PER_EPOCH]


@pytest.mark.faults
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
        job.release()
        assert job.end() == ExitCode.RETRY
        assert (
            "cannot write" in job.message()
            and "no space left on device. Free disk space" in job.message()
        )
        assert not list(job.job.work.glob("*.tmp")), "no partial file is left"
        assert job.survivors() == []
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        assert_went_on(undisturbed, job, start("second", train__max_restarts=1))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def used(folder: Path) -> int:
    """Returns the number of used bytes on the disk that is mounted there."""
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


@pytest.mark.faults
def test_a_corrupt_newest_checkpoint_costs_one_interval_and_is_named(start, undisturbed):
    every = {"train__checkpoint_every_steps": STEPS_PER_EPOCH // 2}
    job = start(is_held=True, **every)
    job.wait_until_held()
    job.kill_launcher()
    *_, before, newest = sorted(job.job.work.glob("checkpoint-*.npz"))
    damage(newest)
    again = start("second", **every)
    assert_went_on(undisturbed, job, again)
    assert (
        again.steps("restored") == [int(before.stem.rpartition("-")[2])] == [STEPS_PER_EPOCH // 2]
    )
    reported = (
        again.job.attempt.worker_progress("worker 0").read_text()
        + again.job.attempt.worker_log("worker 0").read_text()
    )
    assert newest.name in reported and "damaged" in reported


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    file.write_bytes(data)


@pytest.mark.faults
def test_a_killed_process_that_writes_the_candidate_is_named_and_the_next_try_trains_nothing_again(
    start, undisturbed
):
    job = start()
    log = job.job.attempt.folder / "candidate.log"
    job.wait_until(lambda: job.forks(log))
    os.kill(job.forks(log)[0], signal.SIGKILL)
    assert job.end() == ExitCode.RETRY
    assert (
        "the process that writes the candidate ended with -9 and left no candidate.status.json. "
        "See "
    ) in job.message()
    assert not job.job.folder.local.exists()
    again = start("second")
    assert_went_on(undisturbed, job, again)


def test_a_worker_that_is_done_does_not_wait_for_peers_that_have_left(undisturbed):
    """A waiting worker would notice their absence ten seconds later and log it."""
    assert "coordination service" not in "".join(
        undisturbed.job.attempt.worker_log(f"worker {worker}").read_text() for worker in range(2)
    )
