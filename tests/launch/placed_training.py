"""A training of two workers whose supervisor and hosts are containers or pods.

They share nothing but a bucket.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from launch.on_bucket import upload_dataset
from launch.running import INTERVAL, config_with_hosts

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout, work_folder
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.request import Status
from pipeline_ops.contract.results import TrainingFigures
from pipeline_ops.errors import ExitCode
from pipeline_ops.orchestration.job_start import prepare_job, start_job
from pipeline_ops.places.open_place import open_place
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.open_store import open_path


class PlacedTraining:
    """A train job that is started as an operator starts it.

    Args:
      folder: of the config.
      root: the URI of the storage root.
      dataset: the manifest of the data set, on this machine.
      hosts: the hosts file of the gang. None is for a gang inside the job.
      supervisor: the hosts file of the job.
      overrides: of the config.
    """

    def __init__(
        self,
        folder: Path,
        root: str,
        dataset: str,
        hosts: dict[str, Any] | None,
        supervisor: dict[str, Any],
        **overrides: object,
    ):
        file = config_with_hosts(folder, hosts or {"launcher": "local"})
        (folder / "hosts" / "supervisor.yaml").write_text(yaml.safe_dump(supervisor))
        values = {
            "storage.root": root,
            "train.hosts": "lab" if hosts else None,
            "train.runs_on": "supervisor",
            "train.workers": 2,
            "train.epochs": 12,
            "train.steps_per_call": 5,
            "train.early_stopping": None,
            "train.checkpoint_every_steps": INTERVAL,
            "train.start_timeout_seconds": 600,
            "train.heartbeat_timeout_seconds": 60,
        }
        values |= {f"train.{name}": value for name, value in overrides.items()}
        config = load_config(file, values)
        plan = plan_job("train", config, "run", {"preprocess": upload_dataset(dataset, root)})
        self._place = open_place(config, "train")
        self._artifact = plan.request.artifact
        layout = Layout(config.root, config.pipeline)
        self.handle = prepare_job(plan, layout, "train", self._place)
        start_job(plan, self.handle)

    def wait_until(self, is_so: Callable[[], object], seconds: float = 900) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            outcome = self.handle.read_outcome()
            assert outcome is None, f"{outcome}\n{self.read_log()}"
            assert time.monotonic() < deadline, self.read_log()
            time.sleep(0.5)

    def end(self, seconds: float = 1800) -> TrainingFigures:
        """Waits for the success of the training."""
        outcomes: list[Status | None] = []
        deadline = time.monotonic() + seconds
        while not outcomes or outcomes[-1] is None:
            assert time.monotonic() < deadline, self.read_log()
            outcomes.append(self.handle.read_outcome())
            time.sleep(0.5)
        assert outcomes[-1].exit_code is ExitCode.SUCCESS, f"{outcomes[-1]}\n{self.read_log()}"
        return TrainingFigures.model_validate(read_manifest(outcomes[-1].manifest).figures)

    def remove(self) -> None:
        self._place.cancel(self.handle.attempt)
        self._place.clean(self.handle.attempt)

    def read_log(self) -> str:
        return self.handle.attempt.log.read_log_end(5000)[1].decode(errors="replace")

    def has_checkpoint(self, step: int = INTERVAL) -> bool:
        """Returns whether a checkpoint of that step or a later one is whole in the bucket."""
        names = [entry.name for entry in work_folder(open_path(self._artifact)).list_folder()]
        found = [re.search(r"(\d{9})\.json$", name) for name in names]
        return any(int(match[1]) >= step for match in found if match)

    def read_messages(self, phase: str) -> list[str]:
        events = ProgressReader(self.handle.attempt.progress).read_new()
        return [event.message for event in events if event.phase == phase]

    def read_steps(self, phase: str) -> list[int]:
        """The steps that the chief has reported in a phase."""
        return [event.done or 0 for event in self.read_events() if event.phase == phase]

    def read_events(self) -> list[ProgressEvent]:
        """The reports of the chief."""
        return ProgressReader(self.handle.attempt.worker_progress("worker 0")).read_new()
