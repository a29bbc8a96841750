"""A job for tests of places. `do` in its config says what it does.

It needs no package but the project's own, so it runs in a small image.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.runner import Job, run_job

_SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def work(job: Job) -> ExitCode:
    job.progress.report("work", done=0, total=1, unit="pieces")
    print("the tiny job works", flush=True)
    _ACTIONS[job.request.config["do"]]()
    job.progress.report("work", done=1, total=1, unit="pieces")
    with job.artifact() as draft:
        (draft.folder / "result.txt").write_text("done")
    return ExitCode.SUCCESS


def sleep() -> None:
    """Waits with children in its own and in another session, and with an orphan."""
    subprocess.Popen(_SLEEP)
    subprocess.Popen(_SLEEP, start_new_session=True)
    subprocess.run(["/bin/sh", "-c", f"{sys.executable} -c 'import time; time.sleep(600)' &"])
    Path(os.environ["TMPDIR"], "ready").touch()
    time.sleep(600)


def take_memory() -> None:
    blocks = [os.urandom(1 << 20) * 16 for _ in range(64)]
    raise AssertionError(f"there was enough memory for {len(blocks)} blocks")


def fill_disk() -> None:
    with open(Path(os.environ["TINY_DISK"], "large"), "wb") as file:
        for _ in range(2 << 10):
            file.write(bytes(1 << 20))
    raise AssertionError("the disk is larger than 2 GiB")


def fail() -> None:
    raise RuntimeError("planned failure")


_ACTIONS = {
    "succeed": lambda: None,
    "sleep": sleep,
    "take memory": take_memory,
    "fill disk": fill_disk,
    "fail": fail,
}

if __name__ == "__main__":
    run_job(work)
