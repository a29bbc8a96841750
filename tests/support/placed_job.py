"""A job of `place_job.py` in any place, as a task sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Attempt, Layout
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.request import Request, Status, write_request
from pipeline_ops.job.job_code import digest_code
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.places.place import JobLaunch, JobState, Place, name_job
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath


class PlacedJob:
    """A job whose request is in the store.

    Args:
      root: of the store.
      number: of the attempt.
      place: where it runs.
      do: what the job does, see `place_job.py`.
      environment: the secret variables of the job.
      planned: the image of the fingerprint.
      artifact: the number of its artifact, if it is not that of the attempt.
    """

    def __init__(
        self,
        root: str,
        number: int,
        place: Place,
        do: str = "wait",
        environment: Mapping[str, str] | None = None,
        planned: str = "",
        artifact: int | None = None,
    ):
        self.place = place
        self.place.check_seconds = 0.0
        layout = Layout(open_root(root), "digits")
        self.attempt: Attempt[StorePath] = layout.attempt("run", "train", f"attempt-{number:08x}")
        folder = layout.artifact("train", f"{number if artifact is None else artifact:032x}")
        self.manifest = folder / "manifest.json"
        versions = {"image": planned} if planned else {}
        self.request = Request(
            job="export",
            pipeline="digits",
            run_id="run",
            config_file="digits.yaml",
            config={"do": do},
            root=root,
            artifact=str(folder),
            fingerprint=Fingerprint(config={}, inputs={}, code={}, versions=versions),
            code_digest=digest_code(),
            deadline_seconds=300,
        )
        write_request(self.attempt, self.request)
        self.name = name_job(self.attempt)
        self.launch = JobLaunch(
            self.attempt, "place_job", environment or {}, 300, "digits", "train", versions
        )

    def start(self) -> PlacedJob:
        self.place.start(self.launch)
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
        handle = JobHandle(self.attempt, self.place)
        found: list[Status] = []

        def has_ended() -> bool:
            outcome = handle.read_outcome()
            found.extend([outcome] if outcome else [])
            return bool(found)

        self.wait_until(has_ended)
        return found[0]
