"""The pipeline config: one YAML file, complete, checked where it is born.

`load_config` is the only way in: for the DAG factory, the operators, the command line and the tests. An unknown key, a
wrong type or a combination that can't work is a ConfigError that names file, line, key, rule and the nearest valid
name. What is marked `operational` says where or how patiently something runs, not what comes out: it is left out of
fingerprints. The sections of the four tasks are in `config_preprocess.py`, `config_train.py`, `config_evaluate.py` and
`config_export.py`.

Relative paths in a config are relative to the folder of the config file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, field_validator, model_validator

from pipeline_ops.contracts.checking import checked
from pipeline_ops.contracts.config_evaluate import DetectionMetric, Evaluate, Measure
from pipeline_ops.contracts.config_export import Export
from pipeline_ops.contracts.config_notify import Notify
from pipeline_ops.contracts.config_preprocess import Preprocess
from pipeline_ops.contracts.config_schedule import Schedule
from pipeline_ops.contracts.config_search import Search
from pipeline_ops.contracts.config_text import ConfigText
from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.hosts import Hosts, load_hosts
from pipeline_ops.contracts.model_catalogue import task_of
from pipeline_ops.contracts.raw_folder import RawFolder, raw_folder
from pipeline_ops.contracts.section import Section
from pipeline_ops.contracts.shelf import is_remote


class Storage(Section):
    """Where artifacts, runs and models are kept."""

    root: str = "../.trainyard"

    @field_validator("root")
    @classmethod
    def _local(cls, value: str) -> str:
        if "://" in value:
            raise ValueError(f"storage.root must be a local folder, got {value}; object stores are not supported yet")
        return value


class PipelineConfig(Section):
    """Everything that a pipeline is."""

    pipeline: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """The DAG's name."""
    description: str = ""
    owner: str = "trainyard"
    tags: list[str] = []
    schedule: Schedule = Schedule()
    """A cron expression in UTC, assets of Airflow, or both; null for runs by hand only."""
    storage: Storage = Storage()
    preprocess: Preprocess
    train: Train
    search: Search | None = None
    """Several trainings with different parameters, of which the best goes on. Null: one training."""
    evaluate: Evaluate
    export: Export
    notify: list[Notify] = []
    """Who is told of a run that failed, was not published, drifted or is late."""
    deadline_seconds: int | None = Field(None, ge=1)
    """How long after it was queued a run should have ended; if it has not, those in `notify` with the event `late` are told, and it goes on."""

    _file: Path = Path()

    @model_validator(mode="after")
    def _fits(self) -> PipelineConfig:
        if self.preprocess.shards < self.train.workers:
            raise ValueError(
                f"preprocess.shards must be at least the number of training workers ({self.train.workers}), got {self.preprocess.shards}"
            )
        if self.train.class_weights and self.preprocess.balance == "none":
            raise ValueError("train.class_weights needs a data set that has them; set preprocess.balance: by_class")
        self._refuse_for_detection()
        self._refuse_intervals_without_clock()
        is_told = any("late" in notify.events for notify in self.notify)
        if is_told != (self.deadline_seconds is not None):
            raise ValueError("deadline_seconds and an entry of notify with the event late belong together, got one without the other")
        return self

    def _refuse_intervals_without_clock(self) -> None:
        schedule = self.schedule
        if self.preprocess.source.has_interval and (schedule.cron is None or schedule.assets or schedule.watch_seconds):
            raise ValueError(f"preprocess.source.path is {self.preprocess.source.path}, and only runs that the clock starts have a data interval: "
                             "give schedule a cron expression, and nothing else")

    def _refuse_for_detection(self) -> None:
        """Metrics and formats of the other task."""
        is_detector = task_of(self.train.model) == "detection"
        for rule in self.evaluate.gate:
            if rule.metric not in get_args(Measure) and (rule.metric in get_args(DetectionMetric)) != is_detector:
                raise ValueError(f"evaluate.gate: {rule.metric} is not for {task_of(self.train.model)}, which the model {self.train.model} is for")
            if is_detector and rule.confidence is not None:
                raise ValueError(f"evaluate.gate: {rule.metric}: a confidence is for classifiers, whose examples can be drawn again")
        if is_detector and self.evaluate.slices:
            raise ValueError(f"evaluate.slices are for classifiers, got them with the detector {self.train.model}")
        if is_detector and "tflite_int8" in self.export.formats:
            raise ValueError("export.formats: tflite_int8 is for classifiers: in eight bits, the edges of a box have no place to be exact; got it "
                             f"with the detector {self.train.model}, which can be tflite")

    @property
    def file(self) -> Path:
        """The YAML that it was read from."""
        return self._file

    @property
    def root(self) -> Path:
        """The storage root, absolute."""
        return self.path(self.storage.root)

    @functools.cached_property
    def hosts(self) -> Hosts | None:
        """The hosts to train on; None for this machine. Raises ConfigError."""
        return load_hosts(self._file.parent / "hosts", self.train.hosts) if self.train.hosts else None

    @property
    def registry(self) -> str:
        """The place of the model's versions: an absolute path, or a URI."""
        place = self.export.registry
        if place is not None and is_remote(place):
            return f"{place.rstrip('/')}/{self.export.model}"
        return str((self.path(place) if place else self.root / "models") / self.export.model)

    @property
    def raw_folder(self) -> RawFolder:
        """Where the raw files lie."""
        return raw_folder(self.preprocess.source.folder, self._file.parent)

    def interpreter(self, job: str) -> Path | None:
        """The Python of a task's job, absolute; None for the one that asks. A link is not followed, because it is what makes an environment."""
        python = getattr(self, job).python
        return None if python is None else Path(os.path.abspath(self._file.parent / Path(python).expanduser()))

    def path(self, relative: str) -> Path:
        """A path of the config, taken from the folder that the config file is in."""
        return (self._file.parent / Path(relative).expanduser()).resolve()


def load_config(file: Path | str, overrides: Mapping[str, Any] | None = None) -> PipelineConfig:
    """Reads and checks a pipeline's YAML.

    Args:
      file: the YAML file.
      overrides: values by dotted key, `{"train.optimizer.learning_rate": 0.01}`; list items by index.

    Raises:
      ConfigError: with a line for each thing that is wrong.
    """
    text = ConfigText.read(Path(file))
    for key, value in (overrides or {}).items():
        text.override(key, value)
    config = checked(PipelineConfig, text)
    config._file = text.file.resolve()
    if config.hosts:  # wrong ones are to be told now, and not by a job
        config.hosts.refuse_misfit(config.train, text.place(("train", "hosts")))
    return config
