"""A raw image folder, a pipeline config, and the real job run on them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import yaml

from beam_jobs.io.example import parse
from beam_jobs.io.tfrecord_files import scan_records
from beam_jobs.preprocess import preprocess
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.dataset import (
    QUARANTINE_CONTENT,
    QUARANTINE_KEY,
    QUARANTINE_PREFIX,
    RAW_TEST_PREFIX,
)
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.request import Status, read_status, write_request
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.runner import run_request
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import ATTEMPT_VARIABLE

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = {
    "pipeline": "tiny",
    "preprocess": {
        "source": {"type": "image_folder", "path": "../raw"},
        "stages": [{"decode": {"channels": 1}}, {"resize": {"height": 8, "width": 8}}],
        "split": {"train": 0.6, "validation": 0.2, "test": 0.2, "seed": 3},
        "shards": 3,
        "duplicates": "keep",
        "runner": {"workers": 1},
    },
    "train": {"model": "digits_cnn"},
    "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.5}]},
    "export": {"model": "tiny"},
}


def _read_quarantine(file: Path) -> list[dict]:
    with open(file, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        return [
            {name: value for name, [value] in parse(record).items()}
            for _, record in scan_records(opened, size)
        ]


@pytest.fixture
def read_quarantine() -> Callable[[Path], list[dict]]:
    """Reads the features of each record of a quarantine file."""
    return _read_quarantine


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """An image file of random but repeatable content:
    `encode(height=8, width=8, channels=1, seed=0, kind=".png")`."""

    def encode(
        height: int = 8, width: int = 8, channels: int = 1, seed: int = 0, kind: str = ".png"
    ) -> bytes:
        import cv2

        image = np.random.default_rng(seed).integers(
            0, 256, (height, width, channels), dtype=np.uint8
        )
        return cv2.imencode(kind, cv2.blur(image, (3, 3)))[1].tobytes()

    return encode


@dataclasses.dataclass
class Outcome:
    """How a job has ended, and what it has left."""

    exit_code: ExitCode
    message: str
    attempt: Attempt[StorePath]
    artifact: Path
    status: Status

    @property
    def manifest(self):
        return read_manifest(self.artifact / "manifest.json")

    @property
    def shards(self) -> dict[str, str]:
        """Digests by name, without their companions, wherever the shards lie."""
        return {
            file.path: hashlib.blake2b(file.locate(self.artifact).read_bytes()).hexdigest()
            for file in self.manifest.files
            if file.path.endswith(".tfrecord")
            and not file.path.startswith((QUARANTINE_PREFIX, RAW_TEST_PREFIX))
        }

    @property
    def contents(self) -> dict[str, bytes]:
        """Of every file but the manifest, which tells how long the stages took."""
        return {
            file.name: file.read_bytes()
            for file in sorted(self.artifact.iterdir())
            if file.name != "manifest.json"
        }

    @property
    def quarantine(self) -> list[dict]:
        return [
            json.loads(line)
            for line in (self.artifact / "quarantine.jsonl").read_text().splitlines()
        ]

    @property
    def bad_bytes(self) -> dict[str, bytes]:
        """The bytes of each rejected record, from the file that its line names."""
        places = {file.path: file.locate(self.artifact) for file in self.manifest.files}
        return {
            line["key"]: next(
                features[QUARANTINE_CONTENT]
                for features in _read_quarantine(places[line["file"]])
                if features[QUARANTINE_KEY].decode() == line["key"]
            )
            for line in self.quarantine
            if line["file"]
        }

    @property
    def progress(self) -> list:
        return ProgressReader(self.attempt.progress).read_new()


class Pipeline:
    """A pipeline in a folder of its own: raw files, config, storage root."""

    def __init__(self, folder: Path):
        self.folder, self.raw = folder, folder / "raw"
        self.config_file = folder / "configs" / "tiny.yaml"
        self.config_file.parent.mkdir()
        self.raw.mkdir()
        self.config_file.write_text(
            yaml.safe_dump(CONFIG | {"storage": {"root": "../root"}}, sort_keys=False)
        )

    def add(self, name: str | bytes, content: bytes) -> None:
        path = os.path.join(os.fsencode(self.raw), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    def plan(self, **overrides: Any) -> JobPlan:
        """`shards=4` or `runner__workers=1` override keys of the preprocess section."""
        keys = {f"preprocess.{name.replace('__', '.')}": value for name, value in overrides.items()}
        return plan_job("preprocess", load_config(self.config_file, keys), "run", {})

    def request(self, plan: JobPlan) -> Attempt[StorePath]:
        attempt = Attempt(open_root(self.folder) / "attempts" / f"{time.monotonic_ns()}")
        write_request(attempt, plan.request)
        return attempt

    def run(self, plan: JobPlan | None = None, **overrides: Any) -> Outcome:
        """In this process."""
        plan = plan or self.plan(**overrides)
        attempt = self.request(plan)
        run_request(preprocess, str(attempt.request))
        return self.outcome(plan, attempt)

    def make(self, **overrides: Any) -> Outcome:
        """Makes a new data set, which succeeds."""
        plan = self.plan(**overrides)
        assert not plan.is_cached
        outcome = self.run(plan)
        assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
        return outcome

    def start(self, plan: JobPlan) -> tuple[subprocess.Popen, Attempt[StorePath]]:
        """In a process group of its own, as an operator does."""
        attempt = self.request(plan)
        with open(attempt.log.local, "wb") as log:
            argv = [sys.executable, "-m", "beam_jobs.__main__", "--request", str(attempt.request)]
            environment = os.environ | {ATTEMPT_VARIABLE: str(attempt.folder)}
            return subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env=environment,
                start_new_session=True,
            ), attempt

    def check_that_a_second_run_waits(self, plan: JobPlan, process: subprocess.Popen) -> None:
        """The process does the work for the plan. It is stopped, so that it is not done before the
        second run begins."""
        os.killpg(process.pid, signal.SIGSTOP)
        threading.Timer(2.0, os.killpg, (process.pid, signal.SIGCONT)).start()
        second = self.run(plan)
        assert second.exit_code is ExitCode.SUCCESS, second.message
        assert second.message == "made by another run in the meantime"
        [waited] = [event for event in second.progress if event.phase == "wait"]
        assert f"is held by process {process.pid}" in waited.message

    def outcome(self, plan: JobPlan, attempt: Attempt[StorePath]) -> Outcome:
        status = read_status(attempt)
        return Outcome(
            status.exit_code, status.message, attempt, Path(plan.request.artifact), status
        )


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Without raw files yet."""
    handler = signal.getsignal(signal.SIGTERM)
    yield Pipeline(tmp_path)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def animals(pipeline: Pipeline, encode) -> Pipeline:
    """60 grey 8x8 PNG files of two classes."""
    for index in range(60):
        pipeline.add(f"{'cat' if index % 2 else 'dog'}/{index:03d}.png", encode(seed=index))
    return pipeline


@pytest.fixture
def large_animals(pipeline: Pipeline) -> Pipeline:
    """200 files that take some seconds to decode."""
    import cv2

    for label in ("cat", "dog"):
        image = cv2.resize(
            np.random.default_rng(len(label)).integers(0, 256, (8, 8), dtype=np.uint8), (3000, 3000)
        )
        pipeline.add(f"{label}/0.jpg", cv2.imencode(".jpg", image)[1].tobytes())
        for index in range(1, 100):
            os.link(pipeline.raw / label / "0.jpg", pipeline.raw / label / f"{index}.jpg")
    return pipeline


@pytest.fixture
def read_records() -> Callable[[Path], list[bytes]]:
    """Reads a TFRecord file and checks both checksums of every record."""

    def masked(data: bytes) -> int:
        crc = google_crc32c.value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    def read(path: Path) -> list[bytes]:
        data, records = path.read_bytes(), []
        while data:
            length, crc = struct.unpack("<QI", data[:12])
            assert crc == masked(data[:8])
            assert struct.unpack("<I", data[12 + length : 16 + length]) == (
                masked(data[12 : 12 + length]),
            )
            records.append(data[12 : 12 + length])
            data = data[16 + length :]
        return records

    return read


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Waits until something holds, and fails the test if it does not within some seconds."""

    def wait(condition: Callable[[], Any], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not true after {seconds} s"
            time.sleep(0.02)

    return wait
