"""A server in a process of its own, which ends with the one that started it."""

from __future__ import annotations

import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_ADDRESS = re.compile(r"http://[\d.]+:\d+")


class ServerProcess:
    """A context manager that starts a server and ends it.

    The server prints its addresses in one line once it accepts connections, and ends when its
    standard input is closed. So it does not outlive this process, even if that is killed.

    Args:
      command: the program and its arguments.
      names: the attributes that get the addresses, in the order in which they are printed.
    """

    address: str

    def __init__(self, command: Sequence[str | Path], names: Sequence[str] = ("address",)):
        self._command = [str(part) for part in command]
        self._names = names

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for line in self._process.stdout:
            if found := _ADDRESS.findall(line):
                vars(self).update(zip(self._names, found, strict=True))
                return self
        raise RuntimeError(f"{self._command} has ended with {self._process.wait()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def pause(self, seconds: float) -> None:
        """Lets the server answer nothing for some time."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)


def send(
    url: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> int:
    """Sends one request and returns the status of its answer."""
    request = urllib.request.Request(url, body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
