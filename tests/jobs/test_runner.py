"""The frame of every job: its deadline."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_a_job_whose_time_is_up_ends_also_if_it_cannot_write_its_status(tmp_path):
    (tmp_path / "attempt").write_text("a file in the place of the folder")
    program = (
        "import sys, time\n"
        "from pipeline_ops.artifacts.layout import Attempt\n"
        "from pipeline_ops.jobs.runner import _deadline\n"
        "from pipeline_ops.storage.open_store import open_root\n"
        "with _deadline(1, Attempt(open_root(sys.argv[1]))):\n"
        "    time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "attempt")]
    process = subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE)
    assert process.wait(timeout=60) == -signal.SIGKILL
