"""A job for tests of places. Its request says what it does; it needs only the core of Trainyard.

It runs inside a container, so it imports nothing of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline_ops.errors import ExitCode
from pipeline_ops.job.runner import Job, run_job

_FOREVER = [sys.executable, "-c", "import time; time.sleep(600)"]
_DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        time.sleep(600)\n"
    "    os._exit(0)\n"
)


def work(job: Job) -> ExitCode:
    print(f"the job does: {job.request.config['do']}", flush=True)
    return globals()[f"do_{job.request.config['do']}"](job)


def do_nothing(job: Job) -> ExitCode:
    """Leaves an artifact with what the job sees around it."""
    job.progress.report("work", done=0, total=1, unit="pieces")
    with job.artifact() as draft:
        (draft.folder / "seen.json").write_text(json.dumps(look_around()))
    return ExitCode.SUCCESS


def do_wait(job: Job) -> ExitCode:
    """Waits with a child, and with a grandchild in a session of its own."""
    subprocess.Popen(_FOREVER)
    subprocess.run([sys.executable, "-c", _DAEMON], check=True)
    job.progress.report("waits", message="ready")
    time.sleep(600)
    return ExitCode.BUG


def do_eat(job: Job) -> ExitCode:
    """Takes memory until there is no more."""
    eaten = []
    while True:
        eaten.append(os.urandom(1 << 20) * 8)


def do_fill_disk(job: Job) -> ExitCode:
    """Writes 2 GiB into a folder whose disk is smaller."""
    with open(Path(os.environ["SMALL_DISK"], "large"), "wb") as file:
        for _ in range(2 << 10):
            file.write(bytes(1 << 20))
    return ExitCode.BUG


def do_fail(job: Job) -> ExitCode:
    raise RuntimeError("planned failure")


def look_around() -> dict[str, object]:
    """The rights of this process, and the file systems that it can write to."""
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {
        "uid": os.getuid(),
        "capabilities": status["CapEff"].strip(),
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "writable": sorted(target for _, target, _, options, *_ in mounts if can_write(target)),
        "mounts": {target: kind for _, target, kind, *_ in mounts},
        "variables": sorted(os.environ),
    }


def can_write(folder: str) -> bool:
    try:
        with open(f"{folder}/probe", "w"):
            os.unlink(f"{folder}/probe")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    run_job(work)
