"""A command that holds an embedded Airflow whose programs are a stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from held_airflow import HOLDER
from processes import Stopwatch, wait_until

END_SECONDS = 5.0
"""Measured by a `Stopwatch`."""


class Command:
    """A process that holds the embedded Airflow, as `trainyard run` does."""

    def __init__(self, survivors, home: Path, configs: tuple[str, ...], deeds: str):
        environment = survivors.environment | {
            "PYTHONPATH": f"{Path(__file__).parent / 'stand_in'}:{Path(__file__).parents[2]}",
            "STAND_IN": deeds,
        }
        self.process = subprocess.Popen(
            [sys.executable, HOLDER, str(home), *configs],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def wait_until_up(self) -> Command:
        """Waits for the start. Then `up` is the pid of the command that runs it, and the port."""
        while not (line := self.line()).startswith("up "):
            assert line.startswith(("Using ", "Starting ")), line
        _, pid, port = line.split()
        self.up = int(pid), int(port)
        return self

    def ask(self, word: str) -> str:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.line()

    def end(self) -> int:
        """Ends the command without a signal. Returns the exit status."""
        self.process.communicate(timeout=60)
        return self.process.returncode

    def wait_for_end(self) -> int:
        """Waits for the end. Returns the exit status. Fails if it takes too long."""
        watch = Stopwatch()
        status = self.process.wait(timeout=60)
        assert watch.seconds < END_SECONDS
        return status

    def wait_for_error(self) -> str:
        """The first answer of the command after its Airflow has ended."""
        return wait_until(lambda: self.ask("there?").removeprefix("alive there?"))
