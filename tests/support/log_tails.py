"""Shows, with a test that fails, how the logs end that were written to meanwhile below its folders:
of jobs, workers, hosts, Airflow's programs.

A machine that runs the tests for us is gone when somebody reads what it said. How busy it was is
said, too.
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
def _folder_of_all_tests(request, tmp_path_factory) -> None:
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
            (f"end of {file.relative_to(folder)}", tail(file))
            for file in written_since(call.start, folder)
        ]
    return report


def written_since(moment: float, folder: Path) -> list[Path]:
    """The logs that were written to since then, the last one last; not too many of them."""
    found = []
    for file in folder.rglob("*.log"):
        try:
            found.append((file.stat().st_mtime, file))
        except OSError:  # a running test of the same folder has removed it
            continue
    return [file for written, file in sorted(found) if written >= moment][-_MAX_FILES:]


def tail(file: Path) -> str:
    try:
        return "\n".join(
            file.read_bytes()[-_MAX_BYTES:].decode(errors="replace").splitlines()[-_MAX_LINES:]
        )
    except OSError as error:
        return str(error)
