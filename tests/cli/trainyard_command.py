"""The command `trainyard` with a home, a config and raw data of its own, and what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from config_files import write_config, write_digits
from listeners import find_listening_processes
from processes import find_child_processes

from pipeline_ops.system.processes import find_descendants


class Login(NamedTuple):
    """What an `AirflowApi` takes."""

    url: str
    user: str
    password: str


_LOGIN = re.compile(r"Airflow +(\S+) +user (\S+) +password in (\S+)")
"""The first line of `trainyard ui`. It prints the password at a terminal only."""


class Trainyard:
    """The command, with a home, a config and raw data of its own.

    `more_changes` are values of the config by dotted key.
    """

    def __init__(self, folder: Path, **more_changes: Any):
        self.folder, self.temporary = folder, folder / "temporary"
        self.process: subprocess.Popen | None = None
        self.temporary.mkdir()
        changes = {
            "storage.root": "storage",
            "preprocess.source.path": "raw",
            "train.epochs": 3,
            "train.global_batch_size": 64,
            "train.workers": 2,
            "evaluate.gate": [{"metric": "accuracy", "at_least": 0.5}],
        }
        more = {key.replace("__", "."): value for key, value in more_changes.items()}
        self.config = write_config(folder, changes | more)
        write_digits(folder / "raw")

    def start(self, *words: str, environment=os.environ, **streams) -> subprocess.Popen:
        argv = [sys.executable, "-m", "pipeline_ops.cli.main", *words]
        own = {"TRAINYARD_HOME": str(self.folder), "TMPDIR": str(self.temporary)}
        self.process = subprocess.Popen(argv, text=True, env={**environment, **own}, **streams)
        return self.process

    def listening(self) -> set[int]:
        """Finds Airflow's processes below the newest command, and the jobs by their environment.

        Airflow's processes overwrite their environment.
        """
        return find_listening_processes(f"TRAINYARD_HOME={self.folder}").union(
            find_descendants(self.process.pid) if self.process else ()
        )

    def run(
        self, *more: str, environment=os.environ, config: Path | None = None
    ) -> subprocess.CompletedProcess:
        return self.call("run", "--json", *more, environment=environment, config=config)

    def call(
        self, command: str, *more: str, environment=os.environ, config: Path | None = None
    ) -> subprocess.CompletedProcess:
        """Runs a command on a config, the first one unless another is given, to its end."""
        words, pipe = (command, str(config or self.config), *more), subprocess.PIPE
        process = self.start(*words, environment=environment, stdout=pipe, stderr=pipe)
        output, errors = process.communicate(timeout=400)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    @contextlib.contextmanager
    def ui(self, *more: Path, environment=os.environ) -> Iterator[Login]:
        """Keeps `trainyard ui` running with the config and more, and ends it with Ctrl-C."""
        words = ["ui", str(self.config), *map(str, more)]
        process = self.start(*words, environment=environment, stdout=subprocess.PIPE)
        try:
            found = next(filter(None, map(_LOGIN.match, process.stdout)), None)
            assert found, f"trainyard ui has ended with {process.wait()}"
            url, user, passwords = found.groups()
            yield Login(url, user, json.loads(Path(passwords).read_text())[user])
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.returncode == 130


def parse_summary(process: subprocess.CompletedProcess) -> dict:
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def cached_tasks(summary: dict) -> set[str]:
    return {name for name, task in summary["tasks"].items() if task["cached"]}


def find_job_processes(run: Path) -> list[psutil.Process]:
    """The job of a run's training and its descendants. Empty if there is none yet."""
    for process in psutil.process_iter(["cmdline"]):
        if "--request" in (words := process.info["cmdline"] or []) and f"{run}/train/" in words[-1]:
            return [process, *find_child_processes(process)]
    return []
