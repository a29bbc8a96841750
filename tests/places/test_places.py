"""The promises of all kinds of places, kept by real ones."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest
from places.kinds import Kind, KindJob, open_kind
from processes import Stopwatch, wait_until
from small_disks import mount_small_disk

from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.job.workspace import REQUEST_VARIABLE
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.places.local import LocalPlace
from pipeline_ops.storage.local_store import LocalPath

KINDS = (
    "local",
    pytest.param("ssh", marks=pytest.mark.hosts),
    pytest.param("slurm", marks=pytest.mark.hosts),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
)


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    with open_kind(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture
def make(kind: Kind, tmp_path, request):
    """Makes jobs with a storage root of their own. They are killed afterwards."""
    kind.root = f"{kind.root.rpartition('/root')[0]}/root-{request.node.name[:60]}"
    made: list[KindJob] = []

    def make_job(do: str = "nothing", number: int = 1) -> KindJob:
        made.append(KindJob(kind, do, number))
        return made[-1]

    yield make_job
    kind.restore_host()
    for job in made:
        job.find_again().end("the test is over")
        job.kill_all()


def test_a_job_whose_process_cannot_be_recorded_does_not_run(tmp_path, monkeypatch):
    """N9: nobody would find it."""
    with open_kind("local", tmp_path) as kind:
        job = KindJob(kind, "wait")

        def refuse(self: LocalPath, data: bytes) -> None:
            if self.name == job.attempt.process.name:
                raise MachineError(f"{self}: no space left")
            write(self, data)

        write = LocalPath.write
        with monkeypatch.context() as patch, pytest.raises(MachineError, match="no space left"):
            patch.setattr(LocalPath, "write", refuse)
            job.start()
        wait_until(lambda: job.list_processes() == [], 10)


@pytest.mark.parametrize(
    "limits", [*(f"size={pages * 4}k" for pages in range(3, 9)), "nr_inodes=9"]
)
def test_a_full_disk_is_named_whatever_file_it_refuses(tmp_path, limits):
    """N9: five sizes of a disk were reported as a job that was killed, or whose host went down."""
    full = r"cannot write .*: no space left on device.* Free .*, then retry"
    with mount_small_disk(tmp_path / "root", limits), open_kind("local", tmp_path) as kind:
        job = KindJob(kind)
        try:
            job.start()
        except MachineError as error:  # nothing runs
            assert re.match(full, str(error))
        else:
            status = wait_for_outcome(job)
            assert status.exit_code == ExitCode.RETRY and re.match(full, status.message)
            assert str(tmp_path / "root") in status.message
            assert not job.attempt.reserve.exists()
        finally:
            job.kill_all()
            wait_until(lambda: job.list_processes() == [], 10)


def test_a_temporary_folder_that_cannot_be_made_is_named(tmp_path):
    """N9."""
    with open_kind("local", tmp_path) as kind, mount_small_disk(tmp_path / "t", "nr_inodes=2"):
        kind.environment |= {"TMPDIR": str(tmp_path / "t")}
        job = KindJob(kind).start()
        status = wait_for_outcome(job)
    assert status.exit_code == ExitCode.RETRY
    assert re.match(rf"cannot write {tmp_path}/t/.*: no space left on device", status.message)


def wait_for_outcome(job: KindJob, seconds: float = 60, lost_seconds: float = 300.0):
    handle = job.find_again(lost_seconds)
    return wait_until(handle.read_outcome, seconds)


class TestPlace:
    """One promise each, for all kinds."""

    def test_a_job_runs_to_its_end_and_reports_in_the_store(self, make):
        job = make().start()
        status = wait_for_outcome(job)
        assert status.exit_code == ExitCode.SUCCESS, status.message
        assert job.manifest.exists()
        phases = {event.phase for event in ProgressReader(job.attempt.progress).read_new()}
        assert "work" in phases
        assert b"the job does: nothing" in job.attempt.log.read_log(0, 1 << 20)
        wait_until(lambda: not job.place.find(job.attempt).may_run)
        wait_until(job.find_again().clean_up)
        wait_until(lambda: job.list_processes() == [])

    def test_a_job_that_is_started_twice_runs_once(self, make):
        job = make("wait")
        job.start()
        job.start()
        job.kind.open().start(job.launch)
        job.wait_until_ready()
        time.sleep(1)
        assert len(job.list_main_processes()) == 1

    def test_it_outlives_its_starter_and_is_found_by_the_next_try(self, make):
        job = make("wait")
        job.start_and_kill_starter()
        job.wait_until_ready()
        assert job.find_again().is_alive()
        assert job.find_again().read_outcome() is None

    def test_a_cancelled_job_is_gone_with_all_its_processes_within_five_seconds(self, make):
        job = make("wait").start().wait_until_ready()
        watch = Stopwatch()
        job.find_again().end("no longer needed")
        assert job.list_processes() == []
        assert watch.seconds < 5
        assert job.find_again().read_outcome().exit_code != ExitCode.SUCCESS

    def test_a_killed_job_says_so_and_is_tried_again(self, make):
        job = make("wait").start().wait_until_ready()
        [main] = job.list_main_processes()
        main.kill()
        status = wait_for_outcome(job)
        assert status.exit_code == ExitCode.RETRY
        assert "killed" in status.message or "signal 9" in status.message
        wait_until(job.find_again().clean_up)
        wait_until(lambda: job.list_processes() == [])

    def test_a_lost_host_costs_the_try_and_not_the_result(self, make, kind):
        job = make("wait").start().wait_until_ready()
        kind.lose_host(job)
        status = wait_for_outcome(job, 120, lost_seconds=3.0)
        assert status.exit_code == ExitCode.RETRY, status.message
        kind.restore_host()
        status = wait_for_outcome(make(number=2).start(), 90)
        assert status.exit_code == ExitCode.SUCCESS, status.message

    def test_a_request_that_others_have_changed_is_refused(self, make):
        job = make()
        job.launch = dataclasses.replace(
            job.launch, environment={**job.launch.environment, REQUEST_VARIABLE: "0" * 32}
        )
        job.start()
        status = wait_for_outcome(job)
        assert status.exit_code == ExitCode.DATA
        assert "is not the request that Airflow has written" in status.message

    def test_an_error_of_the_job_is_its_outcome(self, make):
        job = make("fail").start()
        status = wait_for_outcome(job)
        assert status.exit_code == ExitCode.BUG
        assert "planned failure" in status.message

    def test_a_full_disk_is_named_and_tried_again(self, make, kind, monkeypatch):
        disk = {"SMALL_DISK": kind.small_disk}
        if kind.hosts:  # its environment replaces that of the launch
            monkeypatch.setattr(kind, "hosts", {**kind.hosts, "environment": disk})
            disk = {"SMALL_DISK": "/missing"}
        monkeypatch.setattr(kind, "environment", {**kind.environment, **disk})
        job = make("fill_disk").start()
        status = wait_for_outcome(job)
        assert status.exit_code == ExitCode.RETRY
        assert "No space left" in status.message or "full" in status.message

    def test_a_place_knows_no_job_that_was_not_started(self, make):
        job = make()
        assert job.place.find(job.attempt).phase == "absent"
        assert job.find_again().read_outcome().exit_code == ExitCode.RETRY
        job.place.cancel(job.attempt)
        assert job.place.clean(job.attempt)

    def test_the_fingerprint_has_its_packages(self, kind):
        versions = kind.open().find_versions(["numpy", "no-such-package"])
        assert versions
        assert "no-such-package" not in versions


class Unreachable(LocalPlace):
    """A place that does not answer."""

    def find(self, attempt):
        raise MachineError("no answer")


def test_a_lost_job_stays_lost_for_the_next_process_and_is_tried_again(tmp_path):
    """The triggerer says so, and the task looks again in a process of its own."""
    with open_kind("local", tmp_path / "local") as kind:
        job = KindJob(kind, "wait").start().wait_until_ready()
        triggerer = JobHandle(job.attempt, Unreachable(), lost_seconds=0.5)
        wait_until(triggerer.read_outcome)
        task = JobHandle(job.attempt, Unreachable(), lost_seconds=300.0)
        assert task.read_outcome().exit_code == ExitCode.RETRY
        wait_until(lambda: job.find_again().has_ended())
        status = job.find_again().read_outcome()
        assert status.exit_code == ExitCode.RETRY, "it was asked to end, and is tried again"
        job.kill_all()
