"""The fork server: one process per host that has imported TensorFlow and forks the workers.

It has executed no operation. A worker takes its first step about one second after the fork instead
of twelve, which makes a restart cheap. The host's agent starts it with `python -m
pipeline_ops.training.fork_server` and holds its standard input. When that closes, because the agent
ended or was killed, every fork is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pipeline_ops.errors import ExitCode, TrainyardError
from pipeline_ops.jobs.gang_protocol import (
    BEAT_SECONDS,
    BEATS_VARIABLE,
    PRELOADED,
    CandidateSpec,
    Event,
    Fork,
    WorkerSpec,
)
from pipeline_ops.jobs.request import Status
from pipeline_ops.storage.atomic import write_json
from pipeline_ops.storage.read_errors import exit_code_of

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def main() -> None:
    """Serves until standard input closes."""
    events = os.dup(1)
    os.dup2(2, 1)  # a stray print must not look like an event
    os.set_inheritable(events, False)
    from pipeline_ops.input.tensorflow_start import import_tensorflow

    import_tensorflow()
    from pipeline_ops.training import saved_model_export, worker  # noqa: F401  (once for all forks)

    # Keeps the collector from touching, and so copying, the memory that the forks share.
    gc.freeze()
    ForkServer(events).serve()


class ForkServer:
    """Forks on request and reports how the forks end.

    Args:
      events: The file descriptor for the events.
    """

    def __init__(self, events: int):
        self._events = events
        self._names: dict[int, str] = {}
        self._unread = b""

    def serve(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # a signal to the whole group is meant for the forks
        signal.set_wakeup_fd(wake_write)
        self._say(Event(event="ready", pid=os.getpid()))
        while True:
            beat(PRELOADED)
            readable, _, _ = select.select([0, wake_read], [], [], BEAT_SECONDS)
            if wake_read in readable:
                os.read(wake_read, 4096)
                self._report_ended()
            if 0 in readable and not self._obey():
                self._kill_all()
                return

    def _obey(self) -> bool:
        """Executes the requests that have come in. Returns False at the end of the input."""
        data = os.read(0, 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._fork(Fork.model_validate_json(line))
        return bool(data)

    def _fork(self, fork: Fork) -> None:
        pid = os.fork()
        if pid == 0:
            _be_child(fork)
        self._names[pid] = fork.name
        self._say(Event(event="started", name=fork.name, pid=pid))

    def _report_ended(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._say(
                    Event(
                        event="ended",
                        name=self._names.pop(pid),
                        pid=pid,
                        code=os.waitstatus_to_exitcode(status),
                    )
                )

    def _kill_all(self) -> None:
        for pid in self._names:
            os.kill(pid, signal.SIGKILL)

    def _say(self, event: Event) -> None:
        with contextlib.suppress(
            BrokenPipeError
        ):  # the launcher is gone; the end of the input comes next
            os.write(self._events, event.model_dump_json().encode() + b"\n")


def beat(name: str) -> None:
    """Writes a heartbeat to the agent's pipe, short enough for an atomic write."""
    with contextlib.suppress(
        BrokenPipeError
    ):  # the agent is gone, and this process will be in a moment
        os.write(int(os.environ[BEATS_VARIABLE]), name.encode() + b"\n")


def _beat_for_ever(name: str) -> NoReturn:
    """Sends heartbeats from a thread of each fork.

    They go on through a long step, and stop when the process is stopped or its machine hangs.
    """
    while True:
        beat(name)
        time.sleep(BEAT_SECONDS)


def _be_child(fork: Fork) -> NoReturn:
    """Runs a fork's work and ends with `os._exit`, without the interpreter's shutdown.

    After a failed collective, TensorFlow's threads may hang or crash during that shutdown.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(fork.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(fork.env)
    threading.Thread(target=_beat_for_ever, args=(fork.name,), daemon=True).start()
    status, _held = run_entry(_entry(fork), Path(fork.status))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status.exit_code)


def _entry(fork: Fork) -> Callable[[], object]:
    from pipeline_ops.training import saved_model_export, worker

    argument = Path(fork.argument).read_bytes()
    if fork.entry == "worker":
        return lambda: worker.run_worker(
            WorkerSpec.model_validate_json(argument), bytes.fromhex(fork.token)
        )
    return lambda: saved_model_export.write_candidate(CandidateSpec.model_validate_json(argument))


def run_entry(entry: Callable[[], object], status_file: Path) -> tuple[Status, object]:
    """Runs a fork's work and writes a status file that says how it ended.

    Returns the work's result, too, which keeps it alive.
    """
    from tensorflow import errors

    result = None
    try:
        result = entry()
        status = Status(exit_code=ExitCode.SUCCESS)
    except TrainyardError as error:
        status = Status(exit_code=error.exit_code, message=str(error))
    except (
        errors.UnavailableError,
        errors.DeadlineExceededError,
        errors.AbortedError,
        errors.CancelledError,
        errors.InternalError,
        errors.UnknownError,
        errors.ResourceExhaustedError,
        errors.FailedPreconditionError,
    ) as error:
        traceback.print_exc()
        status = Status(
            exit_code=ExitCode.RETRY, message=f"{type(error).__name__}: {_in_short(error)}"
        )
    except Exception as error:
        traceback.print_exc()
        status = Status(
            exit_code=exit_code_of(error), message=f"{type(error).__name__}: {_in_short(error)}"
        )
    write_json(status_file, status.model_dump(mode="json"))
    return status, result


def _in_short(error: BaseException) -> str:
    """The first lines. TensorFlow's messages go on for pages, and the log has them."""
    return " ".join(line.strip() for line in str(error).strip().splitlines()[:4])[:500]


if __name__ == "__main__":
    main()
