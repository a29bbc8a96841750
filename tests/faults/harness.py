"""Carries out one job with one file operation of it failed, and then the next try,
as an operator would.

`Page` is the memory that the shim shares with the test (see `shim.c`), `Forker` starts jobs in
forks of a process that has imported them, and `Scene` is a storage root that is put back before
each case.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline_ops.contract.cancellation import GRACE_SECONDS
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.request import Status
from pipeline_ops.errors import ExitCode
from pipeline_ops.orchestration.job_start import prepare_job
from pipeline_ops.places.local import read_identity
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import ProcessIdentity, kill_group

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
KILL = -1
ACTIONS: Mapping[str, int] = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EPERM": errno.EPERM,
    "ENOSYS": errno.ENOSYS,
    "kill": KILL,
}
_NUMBERS = struct.Struct("5q")
_TEXT_BYTES = 1024
_PAGE_BYTES = _NUMBERS.size + 3 * _TEXT_BYTES
_JOB_SECONDS = 120
_GOOD = (ExitCode.SUCCESS, ExitCode.GATE_NOT_PASSED)


def compile_shim(folder: Path) -> Path:
    shim = folder / "shim.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(HERE / "shim.c"), "-ldl"]
    subprocess.run(command, check=True)
    return shim


class Page:
    """The memory that the shim reads: what to watch, what to fail, and what came of it."""

    def __init__(self, path: Path):
        self.path = path
        path.write_bytes(bytes(_PAGE_BYTES))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _PAGE_BYTES)

    def arm(self, folder: Path, target: int = 0, action: int = 0, log: Path | None = None) -> None:
        """Counts operations below a folder. The one with the number `target` fails."""
        texts = [str(folder), str(log or ""), ""]
        encoded = b"".join(text.encode().ljust(_TEXT_BYTES, b"\0") for text in texts)
        self._memory[:] = _NUMBERS.pack(1, 0, target, action, 0) + encoded

    def disarm(self) -> tuple[int, str | None]:
        """Stops counting. Returns the number of operations, and the one that failed."""
        _, count, _, _, fired = _NUMBERS.unpack(self._memory[: _NUMBERS.size])
        operation = self._memory[_PAGE_BYTES - _TEXT_BYTES :].rstrip(b"\0").decode()
        self._memory[:8] = bytes(8)
        return count, operation if fired else None


class Forker:
    """A process that has imported a job and runs it in forks."""

    def __init__(self, job: str, shim: Path, page: Page, temporary: Path, log: Path):
        environment = os.environ | {
            "LD_PRELOAD": str(shim),
            "FAULTS_PAGE": str(page.path),
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(REPOSITORY),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        temporary.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "forker.py"), job],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=REPOSITORY,
                start_new_session=True,
            )
        assert self._answer()["ready"]

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the forker ended with {self._process.wait()}")
        return json.loads(line)

    @contextlib.contextmanager
    def job(self, request: Path, log: Path) -> Iterator[int]:
        """Runs a job during the block, and waits for its end. Kills a job that hangs, and fails."""
        self._process.stdin.write(json.dumps({"request": str(request), "log": str(log)}) + "\n")
        self._process.stdin.flush()
        pid = self._answer()["pid"]
        hung = threading.Timer(_JOB_SECONDS, lambda: os.killpg(pid, signal.SIGKILL))
        hung.start()
        try:
            yield pid
        finally:
            self._answer()
            is_hung = not hung.is_alive()
            hung.cancel()
        assert not is_hung, f"the job did not end within {_JOB_SECONDS} s; its log is {log}"

    def close(self) -> None:
        self._process.kill()  # it has nothing to finish, and TensorFlow takes seconds to end
        self._process.communicate()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of one try, from the view of its operator."""

    status: Status
    num_operations: int
    operation: str | None
    was_killed: bool
    log: str


@dataclasses.dataclass(frozen=True)
class Scene:
    """A storage root that can be put back, and the plan of one job in it.

    Args:
      folder: holds `root`, which jobs see, and the copy that it is put back from.
      plan: plans the job; called before each try.
      digest: of what the job leaves.
    """

    folder: Path
    page: Page
    forker: Forker
    plan: Callable[[], JobPlan]
    digest: Callable[[StorePath], str]

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def keep(self) -> None:
        """Remembers the root as it is now."""
        shutil.rmtree(self.folder / "kept", ignore_errors=True)
        shutil.copytree(self.root, self.folder / "kept", symlinks=True)

    def put_back(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.folder / "kept", self.root, symlinks=True)

    def attempt(self, target: int = 0, action: int = 0, log: Path | None = None) -> Outcome | None:
        """Runs the job once. Returns None if it is cached."""
        plan = self.plan()
        if plan.is_cached:
            return None
        layout = Layout(open_root(self.root), plan.request.pipeline)
        handle = prepare_job(plan, layout, plan.request.job)
        log_file = handle.attempt.log.local
        self.page.arm(self.root, target, action, log)
        with (
            self.forker.job(handle.attempt.request.local, log_file) as pid,
            contextlib.suppress(ProcessLookupError),
        ):
            write_json(handle.attempt.process.local, ProcessIdentity.from_pid(pid).to_json())
        count, operation = self.page.disarm()
        status = handle.read_outcome()
        if read_identity(handle.attempt.process):
            kill_group(
                read_identity(handle.attempt.process), GRACE_SECONDS
            )  # a fork of the fork server does not have the id of the attempt
        handle.clean_up()
        text = log_file.read_text(errors="replace") if log_file.exists() else ""
        return Outcome(status, count, operation, action == KILL, text)

    def enumerate(self) -> list[str]:
        """The operations of an undisturbed try, "name path" each."""
        log = self.folder / "operations"
        log.unlink(missing_ok=True)
        self.put_back()
        outcome = self.attempt(log=log)
        assert outcome.status.exit_code in (ExitCode.SUCCESS, ExitCode.GATE_NOT_PASSED), outcome
        return [line.split(" ", 1)[1] for line in log.read_text().splitlines()]

    def reference(self) -> str:
        """The digest of the artifact of an undisturbed try. `enumerate` must run before."""
        return self.digest(self.plan().manifest)

    def fail(self, target: int, action: int, reference: str) -> tuple[str | None, list[str]]:
        """One case: the operation that was hit, and what is wrong with what came of it."""
        self.put_back()
        first = self.attempt(target, action)
        wrong = self._wrong_with(first)
        second = self.attempt()
        if second and second.status.exit_code not in _GOOD:
            wrong.append(
                f"the next try ended with {second.status.exit_code.name}: {second.status.message}"
            )
        plan = self.plan()
        if not plan.is_cached:
            wrong.append(f"nothing whole is there after the next try: {plan.reason}")
        elif self.digest(plan.manifest) != reference:
            wrong.append("the next try left something else than an undisturbed one")
        if wrong:
            wrong.append(f"the log of the failed try ends with:\n{first.log[-3000:]}")
        return first.operation, wrong

    def _wrong_with(self, outcome: Outcome) -> list[str]:
        status = outcome.status
        if status.exit_code in _GOOD:
            return []
        if status.exit_code is not ExitCode.RETRY:
            return [f"ended with {status.exit_code.name}: {status.message}"]
        name = _plain_name(outcome.operation)
        if name not in status.message and not outcome.was_killed:
            return [f"RETRY that does not name {name}: {status.message}"]
        return []


def _plain_name(operation: str) -> str:
    """The name that a file or folder will have in the end:
    `a.json` of `write /x/.a.json.71.72.tmp`.

    Of a temporary file that never has a name (the kernel calls it "#1234 (deleted)"),
    that of its folder.
    """
    folder, name = os.path.split(operation.partition(" ")[2])
    if re.fullmatch(r"#\d+ \(deleted\)", name):
        return os.path.basename(folder)
    temporary = re.fullmatch(r"\.(.+?)(\.\d+)*(\.[0-9a-f]{8})?\.(tmp|staging)", name)
    return temporary[1] if temporary else name
