"""What the tests of the command line share: finished runs made by hand, and a look for processes that survived."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from processes import Stopwatch, ask, below, kill, lives

from pipeline_ops.contracts.config import load_config
from pipeline_ops.contracts.figures import REPORT
from pipeline_ops.contracts.manifest import Manifest, list_files, write_manifest
from pipeline_ops.contracts.plan import JobPlan, plan_job
from pipeline_ops.contracts.registry import Registry
from pipeline_ops.contracts.shards import shard_name

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
_TAG = "TRAINYARD_TEST_TAG"

_METRICS = {"accuracy": 0.98, "macro_precision": 0.97, "macro_recall": 0.96, "worst_class_recall": 0.9}
_MODEL_EVALUATION = {"metrics": _METRICS, "classes": [], "confusion": []}
FIGURES = {
    "preprocess": {"class_names": ["0", "1"], "image_shape": [28, 28, 1], "num_examples": {"train": 8, "validation": 1, "test": 2},
                   "labels": {}, "num_rejected": 0, "rejected_by_reason": {}},
    "train": {"strategy": "multi_worker_mirrored", "workers": 2, "steps": 30, "restarts": 1, "weights_digest": "abc",
              "worker_weights_digests": ["abc", "abc"], "num_parameters": 10, "best_epoch": 1, "stopped_early": False, "history": [], "seconds": 1.0,
              "class_names": ["0", "1"], "image_shape": [28, 28, 1]},
    "evaluate": {"num_examples": 2, "challenger": _MODEL_EVALUATION, "champion": None, "champion_version": None, "gate_passed": True,
                 "rules": [{"metric": "accuracy", "passed": True, "text": "accuracy 0.9800 is at least 0.9750"}]},
    "export": {"name": "digits", "version": 3, "compared_with": None, "metrics": _METRICS, "num_checked": 2, "max_difference": 0.0,
               "top1_agreement": 1.0, "class_names": ["0", "1"]},
}


@pytest.fixture
def config_file(tmp_path) -> Path:
    """A copy of configs/digits.yaml in a folder of its own, with two raw files and a storage root beside it."""
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
    """Makes what a job would leave, under the fingerprint that the plan asks for; returns the URI of the manifest."""

    def make(job: str, manifests: dict[str, str], **figures) -> str:
        plan = plan_job(job, load_config(config_file), "run", manifests)
        folder = plan.manifest.parent
        folder.mkdir(parents=True)
        for name in [shard_name(split, 0, 1) for split in ("train", "validation", "test")] if job == "preprocess" else [REPORT]:
            (folder / name).write_bytes(b"bytes")
        write_manifest(folder, _manifest(plan, FIGURES[job] | figures))
        return str(plan.manifest)

    def _manifest(plan: JobPlan, figures: dict) -> Manifest:
        return Manifest(job=plan.request.job, pipeline="digits", fingerprint=plan.request.fingerprint,
                        fingerprint_digest=plan.request.fingerprint.digest, inputs=plan.request.inputs, files=list_files(plan.manifest.parent),
                        figures=figures)

    return make


@pytest.fixture
def publish(config_file) -> Callable[[int], None]:
    """Makes a published version by hand, and puts it in service."""

    def make(number: int) -> None:
        models = config_file.parent / "root" / "models" / "digits"
        (models / str(number)).mkdir(parents=True)
        fingerprint = {"config": {}, "inputs": {}, "code": {}, "versions": {}}
        manifest = Manifest.model_validate({"job": "export", "pipeline": "digits", "fingerprint": fingerprint, "fingerprint_digest": str(number),
                                            "files": [], "figures": FIGURES["export"] | {"version": number}})
        write_manifest(models / str(number), manifest)
        Registry(models).promote(number, "passed the gate")

    return make


class Survivors:
    """Knows every process that was started with its environment, or below a process that was."""

    def __init__(self):
        self._tag, self._seen = uuid.uuid4().hex, {}

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {_TAG: self._tag}

    def look(self) -> list[psutil.Process]:
        """Those that live now; also those found by an earlier look, whatever they call themselves since."""
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
