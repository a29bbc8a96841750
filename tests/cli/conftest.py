"""What the tests of the command line share: finished runs made by hand,
and a look for processes that survived."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from cli import by_hand
from processes import Stopwatch, ask, below, kill, lives

from pipeline_ops.config.pipeline import load_config

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
_TAG = "TRAINYARD_TEST_TAG"


@pytest.fixture
def config_file(tmp_path) -> Path:
    """A copy of configs/digits.yaml in a folder of its own,
    with two raw files and a storage root beside it."""
    values = yaml.safe_load(DIGITS.read_text())
    values["storage"]["root"], values["preprocess"]["source"]["path"] = "root", "raw"
    values["train"] |= {"epochs": 15, "global_batch": 64, "workers": 2}
    for label in "01":
        (tmp_path / "raw" / label).mkdir(parents=True)
        (tmp_path / "raw" / label / "a.png").write_bytes(label.encode())
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


@pytest.fixture
def make_artifact(config_file) -> Callable[..., str]:
    """Makes what a job would leave, under the fingerprint that the plan asks for;
    returns the URI of the manifest."""
    return lambda job, manifests, **figures: by_hand.make_artifact(
        load_config(config_file), job, manifests, **figures
    )


@pytest.fixture
def publish(config_file) -> Callable[[int], None]:
    """Makes a published version by hand, and puts it in service."""
    return lambda number: by_hand.publish(load_config(config_file), number)


class Survivors:
    """Knows every process that was started with its environment, or below a process that was."""

    def __init__(self):
        self._tag, self._seen = uuid.uuid4().hex, {}

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {_TAG: self._tag}

    def look(self) -> list[psutil.Process]:
        """Those that live now; also those found by an earlier look,
        whatever they call themselves since."""
        for process in psutil.process_iter():
            if self._is_ours(process):
                self._seen[process.pid] = process
                self._seen |= {child.pid: child for child in below(process)}
        return [process for process in self._seen.values() if lives(process)]

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Fails, and names those that there are, if they are not so many before the time is up."""
        deadline = time.monotonic() + seconds
        while len(found := self.look()) != count:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def wait_for_none(self, seconds: float) -> None:
        """Fails, and names them, if any is left when the time is up."""
        watch = Stopwatch()
        while (left := self.look()) and watch.seconds < seconds:
            time.sleep(0.1)
        assert not left, left

    def _is_ours(self, process: psutil.Process) -> bool:
        return ask(process.environ, gone={}).get(_TAG) == self._tag


@pytest.fixture
def survivors() -> Iterator[Survivors]:
    """For a test that starts processes; whatever it forgets is ended after it."""
    yield from _ending_them(Survivors())


@pytest.fixture(scope="module")
def whole_module_survivors() -> Iterator[Survivors]:
    """As `survivors`, for the fixtures of a module."""
    yield from _ending_them(Survivors())


def _ending_them(found: Survivors) -> Iterator[Survivors]:
    yield found
    for process in found.look():
        kill(process)
