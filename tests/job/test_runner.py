"""The frame of every job: its deadline and its folder."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
from manifests import make_request

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.request import read_status, write_request
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.job.runner import Job
from pipeline_ops.job.workspace import (
    LOCAL_FOLDER_VARIABLE,
    find_local_folder,
    make_local_folder,
)
from pipeline_ops.storage.open_store import open_root


def test_a_job_whose_time_is_up_ends_also_if_it_cannot_write_its_status(tmp_path):
    (tmp_path / "attempt").write_text("a file in the place of the folder")
    program = (
        "import sys, time\n"
        "from pipeline_ops.contract.layout import Attempt\n"
        "from pipeline_ops.job.runner import _deadline\n"
        "from pipeline_ops.storage.open_store import open_root\n"
        "with _deadline(1, Attempt(open_root(sys.argv[1]))):\n"
        "    time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "attempt")]
    process = subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE)
    assert process.wait(timeout=60) == -signal.SIGKILL


def test_a_host_of_a_killed_job_is_also_one_for_a_gang(tmp_path, monkeypatch):
    """An agent refuses a folder that other users can read."""
    monkeypatch.setenv(LOCAL_FOLDER_VARIABLE, str(tmp_path))
    artifact = f"s3://bucket/root/artifacts/digits/train/{'0' * 32}"
    job = Job(SimpleNamespace(artifact=artifact), attempt=None, progress=None, lease=None)
    job.make_work()
    assert stat.S_IMODE(job.work.stat().st_mode) == 0o700
    job.make_work()


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_a_host_whose_disk_was_emptied_under_a_job_stays_one_for_a_gang(
    tmp_path, monkeypatch, mode
):
    """The job makes its folder again for its next line, as open as its umask lets it."""
    monkeypatch.setenv(LOCAL_FOLDER_VARIABLE, str(tmp_path))
    place = open_root("s3://bucket/root/runs/digits/run/train/attempt-00000001")
    folder = find_local_folder(place)
    folder.mkdir(parents=True)
    for each in (folder, folder.parent):
        each.chmod(mode)
    if mode & 0o022:
        with pytest.raises(MachineError, match="Run chmod 700 on it"):
            make_local_folder(place)
        return
    assert make_local_folder(place) == folder
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)}
    assert modes == {0o700}


def test_a_full_disk_of_tensorflow_is_named_with_its_cure(tmp_path):
    """N9."""
    program = (
        "import sys\n"
        "from pipeline_ops.job.runner import run_request\n"
        "def work(job):\n"
        "    raise RuntimeError('/disk/file; No space left on device [Op:WriteFile]')\n"
        "run_request(work, sys.argv[1])\n"
    )
    folder = tmp_path / "root" / "runs" / "digits" / "run" / "train" / "attempt-00000001"
    attempt = Attempt(open_root(folder))
    write_request(attempt, make_request(tmp_path / "root"))
    argv = [sys.executable, "-c", program, str(attempt.request)]
    subprocess.run(argv, stderr=subprocess.PIPE, check=True, start_new_session=True)
    status = read_status(attempt)
    assert status.exit_code is ExitCode.RETRY
    assert status.message.startswith(
        "/disk/file; No space left on device. Free disk space or repair the disk, then retry."
    )
