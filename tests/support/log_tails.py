"""Shows the ends of the logs that were written below its folders, with each test that fails.

These are logs of jobs, workers, hosts and Airflow's programs. The machine that runs the tests is
gone when its logs are read. Its load is reported, too.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

_FOLDER = pytest.StashKey[Path]()
_MAX_FILES = 12
_MAX_LINES = 30
_MAX_BYTES = 6000


@pytest.fixture(scope="session", autouse=True)
def _stash_base_folder(request, tmp_path_factory) -> None:
    request.config.stash[_FOLDER] = tmp_path_factory.getbasetemp()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (folder := item.config.stash.get(_FOLDER, None)):
        report.sections.append(
            (
                "load of the machine",
                f"{' '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores",
            )
        )
        report.sections += [
            (f"end of {file.relative_to(folder)}", read_tail(file))
            for file in find_logs_written_since(call.start, folder)
        ]
    return report


def find_logs_written_since(since: float, folder: Path) -> list[Path]:
    """The last logs that were written since then, the newest last."""
    found = []
    for parent, _, names in os.walk(folder):  # unlike rglob it accepts that a folder vanishes
        for file in (Path(parent, name) for name in names if name.endswith(".log")):
            try:
                found.append((file.stat().st_mtime, file))
            except OSError:  # a process that still runs has removed it
                continue
    return [file for written, file in sorted(found) if written >= since][-_MAX_FILES:]


def read_tail(file: Path) -> str:
    try:
        return "\n".join(
            file.read_bytes()[-_MAX_BYTES:].decode(errors="replace").splitlines()[-_MAX_LINES:]
        )
    except OSError as error:
        return str(error)
