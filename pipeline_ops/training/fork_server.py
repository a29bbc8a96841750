"""The fork server: one process per host that has imported TensorFlow and forks the workers.

It has executed no operation, and made no request to a bucket, because a client does not survive a
fork. A worker takes its first step about one second after the fork instead
of twelve, which makes a restart cheap. The host's agent starts it with `python -m
pipeline_ops.training.fork_server` and holds its standard input. When that closes, because the agent
ended or was killed, every fork is killed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pipeline_ops.contract.gang_protocol import (
    CandidateSpec,
    Event,
    Fork,
    WorkerSpec,
)
from pipeline_ops.contract.request import Status
from pipeline_ops.errors import ExitCode, TrainyardError
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.read_errors import summarize_error, to_exit_code
from pipeline_ops.system.host import die_with_parent
from pipeline_ops.user_code.code_location import get_location

_log = logging.getLogger(__name__)
_NO_MEMORY = re.compile(r"OOM when|out of memory|failed to allocate", re.IGNORECASE)
_OF_GRAPH = "Graph execution error:"
"""The first line of a message that goes on with the stack of an operation."""
_TEMPORARY_VARIABLES = re.compile(r"([^/\s]+)_temp/part-\d+-of-\d+([\w.-]*)")


def main() -> None:
    """Serves until standard input closes."""
    events = os.dup(1)
    os.dup2(2, 1)  # a stray print must not look like an event
    os.set_inheritable(events, False)
    # Before TensorFlow, which otherwise gives its logger a handler of its own.
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    import pipeline_ops.input.keras_start  # noqa: F401  (before other imports of Keras)
    from pipeline_ops.training import saved_model_export, worker  # noqa: F401  (once for all forks)

    # Keeps the collector from touching, and so copying, the memory that the forks share.
    gc.freeze()
    ForkServer(events).serve()


class ForkServer:
    """Forks on request and reports how the forks end."""

    def __init__(self, events: int):
        self._events, self._unread = events, b""
        self._names: dict[int, str] = {}

    def serve(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A signal to the whole group is meant for the forks.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_write)
        self._send_event(Event(event="ready", pid=os.getpid()))
        while True:
            readable, _, _ = select.select([0, wake_read], [], [])
            if wake_read in readable:
                os.read(wake_read, 4096)
                self._report_exits()
            if 0 in readable and not self._handle_requests():
                for pid in self._names:
                    os.kill(pid, signal.SIGKILL)
                return

    def _handle_requests(self) -> bool:
        """Executes the requests that have come in. Returns False at the end of the input."""
        data = os.read(0, 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            fork = Fork.model_validate_json(line)
            pid = os.fork()
            if pid == 0:
                _run_child(fork)
            self._names[pid] = fork.name
            self._send_event(Event(event="started", name=fork.name, pid=pid))
        return bool(data)

    def _report_exits(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, name = ended[0], self._names.pop(ended[0])
                code = os.waitstatus_to_exitcode(ended[1])
                self._send_event(Event(event="ended", name=name, pid=pid, code=code))

    def _send_event(self, event: Event) -> None:
        # The launcher may have ended. The end of the input follows.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._events, event.model_dump_json().encode() + b"\n")


def _run_child(fork: Fork) -> NoReturn:
    """Runs a fork's work and ends with `os._exit`, without the interpreter's shutdown.

    After a failed collective, TensorFlow's threads may hang or crash during that shutdown.
    """
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(fork.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    # A killed process leaves what it has printed, in any locale.
    sys.stdout = os.fdopen(1, "w", 1, "utf-8", "backslashreplace", closefd=False)
    os.environ.update(fork.env)
    status, _result = run_entry(lambda: _run(fork), Path(fork.status))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status.exit_code)


def _run(fork: Fork) -> object:
    from pipeline_ops.training import saved_model_export, worker

    if fork.entry == "worker":
        return worker.run_worker(WorkerSpec.model_validate_json(fork.argument))
    saved_model_export.export_saved_model(CandidateSpec.model_validate_json(fork.argument))
    return None


def run_entry(entry: Callable[[], object], status_file: Path) -> tuple[Status, object]:
    """Runs a fork's work and writes its status file. The caller keeps the result alive."""
    from tensorflow import errors

    from pipeline_ops.models.user_errors import RETRIED

    result = None
    try:
        result = entry()
        status = Status(exit_code=ExitCode.SUCCESS)
    except TrainyardError as error:
        status = Status.of_error(error)
    except Exception as error:
        _log.exception("the process has failed")  # a full disk may refuse the log
        # The first lines. TensorFlow's messages can fill pages, and the log has them.
        lines = [line.strip() for line in str(error).strip().splitlines()]
        # A full disk, and a message that is too large, are the same error of TensorFlow.
        is_exhausted = isinstance(error, errors.ResourceExhaustedError)
        no_memory = [line for line in lines if is_exhausted and _NO_MEMORY.search(line)]
        of_graph = [summarize_error(error)] if lines[:1] == [_OF_GRAPH] else []
        lines = no_memory[:1] or of_graph or lines[:4]
        # Adds the final name of a temporary checkpoint file.
        text = _TEMPORARY_VARIABLES.sub(r"\g<0> (to become \1\2)", " ".join(lines))
        status = Status(
            exit_code=ExitCode.RETRY if isinstance(error, RETRIED) else to_exit_code(error),
            message=f"{type(error).__name__}: {text[:500]}",
            is_out_of_memory=bool(no_memory),
            location=get_location(error),
        )
    write_json(status_file, status.model_dump(mode="json"))
    return status, result


if __name__ == "__main__":
    main()
