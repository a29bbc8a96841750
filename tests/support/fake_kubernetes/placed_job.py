"""A job of `place_job.py` in the fake cluster, and the hosts file with which it runs there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from manifests import EMPTY_FINGERPRINT

from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.config.hosts import KubernetesHosts
from pipeline_ops.jobs.job_handle import JobHandle
from pipeline_ops.jobs.places.kubernetes import KubernetesPlace
from pipeline_ops.jobs.places.place import JobLaunch, JobState, name_job
from pipeline_ops.jobs.progress import ProgressReader
from pipeline_ops.jobs.request import Request, Status, write_request
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

SUPPORT = Path(__file__).resolve().parents[1]
IMAGE = f"registry.example/trainyard-jobs@sha256:{'0' * 64}"


def make_hosts(**values: object) -> KubernetesHosts:
    """The hosts file of a pod that runs the interpreter and the code of the tests."""
    return KubernetesHosts.model_validate(
        {
            "launcher": "kubernetes",
            "image": IMAGE,
            "namespace": "training",
            "python": sys.executable,
            "code": os.pathsep.join([str(CODE_ROOT), str(SUPPORT)]),
        }
        | values
    )


class PlacedJob:
    """A job whose request is in the store.

    Args:
      root: of the store.
      number: of the attempt.
      hosts: the hosts file.
      do: what the job does, see `place_job.py`.
      environment: the secret variables of the job.
    """

    def __init__(
        self,
        root: str,
        number: int,
        hosts: KubernetesHosts,
        do: str = "wait",
        environment: dict[str, str] | None = None,
    ):
        self.place = KubernetesPlace(hosts)
        attempts = Layout(open_root(root), "digits")
        self.attempt: Attempt[StorePath] = attempts.attempt("run", "train", f"attempt-{number:08x}")
        self._environment = environment or {}
        request = Request(
            job="evaluate",
            pipeline="digits",
            run_id="run",
            config_file="digits.yaml",
            config={"do": do},
            root=root,
            artifact=f"{root}/artifacts/digits/train/{number:032x}",
            fingerprint=EMPTY_FINGERPRINT,
            deadline_seconds=300,
        )
        write_request(self.attempt, request)
        self.name = name_job(self.attempt)

    def start(self) -> PlacedJob:
        launch = JobLaunch(self.attempt, "place_job", self._environment, 300, "digits", "train")
        self.place.start(launch)
        return self

    def find(self) -> JobState:
        return self.place.find(self.attempt)

    def wait_until_ready(self) -> PlacedJob:
        """Waits until the job has its child and its grandchild."""
        reader = ProgressReader(self.attempt.progress)
        self.wait_until(lambda: any(event.phase == "waits" for event in reader.read_new()))
        return self

    def wait_until(self, is_so: Callable[[], object], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            explanation = f"{self.find()}\n{self.place.read_output(self.attempt)}"
            assert time.monotonic() < deadline, explanation
            time.sleep(0.1)

    def wait_for_phase(self, phase: str) -> JobState:
        self.wait_until(lambda: self.find().phase == phase)
        return self.find()

    def wait_for_outcome(self) -> Status:
        """The outcome that a task sees."""
        place = KubernetesPlace(self.place._hosts)
        place.check_seconds = 0.0
        handle = JobHandle(self.attempt, place)
        found: list[Status] = []

        def has_ended() -> bool:
            outcome = handle.read_outcome()
            found.extend([outcome] if outcome else [])
            return bool(found)

        self.wait_until(has_ended)
        return found[0]
