"""The pipeline config: one complete YAML file, checked when it is read.

`load_config` reads the author's config. The config of a run comes from `run_config.py`. An unknown
key, a wrong type or an impossible combination is a ConfigError that names file, line, key, rule and
the nearest valid name. Fields that are marked `operational` change where or how patiently a task
runs, and not its result, so fingerprints leave them out. The sections of the four tasks are in
`preprocess.py`, `train.py`, `evaluate.py` and `export.py`.

Relative paths in a config are relative to the folder of the config file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, field_validator, model_validator

from pipeline_ops.config.base import (
    READ_WITH_THE_DAG,
    SAME_FOR_ALL_RUNS,
    FieldError,
    Section,
    fixed,
)
from pipeline_ops.config.evaluate import DetectionMetric, Evaluate, Measure
from pipeline_ops.config.export import Export
from pipeline_ops.config.fields import leaves_of
from pipeline_ops.config.hosts import Hosts, load_hosts
from pipeline_ops.config.model_catalogue import task_of
from pipeline_ops.config.notify import Notify
from pipeline_ops.config.per_run import Scalar, check_opened
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.schedule import Schedule
from pipeline_ops.config.search import Search
from pipeline_ops.config.train import Train
from pipeline_ops.config.validation import checked
from pipeline_ops.config.yaml_source import ConfigText
from pipeline_ops.storage.object_store import is_remote, refuse_credentials


class Storage(Section):
    """The place of artifacts, runs and models."""

    root: str = fixed("../.trainyard", SAME_FOR_ALL_RUNS)

    @field_validator("root")
    @classmethod
    def _local(cls, value: str) -> str:
        if "://" in refuse_credentials(value):
            raise ValueError(
                f"storage.root must be a local folder, got {value}; "
                "object stores are not supported yet"
            )
        return value


class PipelineConfig(Section):
    """The whole config of a pipeline."""

    pipeline: str = fixed(..., SAME_FOR_ALL_RUNS, pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """The DAG's name."""
    description: str = fixed("", READ_WITH_THE_DAG)
    owner: str = fixed("trainyard", READ_WITH_THE_DAG, max_length=250)
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = fixed([], READ_WITH_THE_DAG)
    schedule: Schedule = fixed(Schedule(), READ_WITH_THE_DAG)
    """A cron expression in UTC, assets of Airflow, or both. Null is for runs by hand only."""
    storage: Storage = Storage()
    preprocess: Preprocess
    train: Train
    search: Search | None = fixed(None, READ_WITH_THE_DAG)
    """Several trainings with different parameters, of which the best goes on. Null is one
    training."""
    evaluate: Evaluate
    export: Export
    notify: list[Notify] = fixed([], READ_WITH_THE_DAG)
    """Recipients of a message when a run has failed, was not published, drifted or is late."""
    deadline_seconds: int | None = fixed(None, READ_WITH_THE_DAG, ge=1)
    """Seconds after it was queued by which a run should have ended. If it has not, the entries of
    `notify` with the event `late` get a message, and the run goes on."""

    per_run: dict[str, list[Scalar]] = fixed({}, "it says itself what runs may set")
    """Further fields that a single run may set, by dotted key, with the values that they may have:
    `train.hosts: [lab, cloud]`. For paths, globs: `preprocess.source.path: [/data/daily/**]`. An
    empty list closes a key that is open otherwise."""

    _file: Path = Path()
    _overrides: dict[str, Any] = {}

    @field_validator("per_run")
    @classmethod
    def _can_be_opened(cls, value: dict[str, list[Scalar]]) -> dict[str, list[Scalar]]:
        check_opened(leaves_of(cls), value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> PipelineConfig:
        if self.preprocess.shards < self.train.workers:
            raise FieldError(
                "preprocess.shards",
                f"must be at least the number of training workers ({self.train.workers}), "
                f"got {self.preprocess.shards}",
            )
        if self.train.class_weights and self.preprocess.balance == "none":
            raise FieldError(
                "train.class_weights",
                "needs a data set that has them; set preprocess.balance: by_class",
            )
        self._refuse_for_detection()
        self._refuse_intervals_without_clock()
        is_told = any("late" in notify.events for notify in self.notify)
        if is_told != (self.deadline_seconds is not None):
            raise FieldError(
                "notify" if is_told else "deadline_seconds",
                "deadline_seconds and an entry of notify with the event late belong together, "
                "got one without the other",
            )
        return self

    def _refuse_intervals_without_clock(self) -> None:
        schedule = self.schedule
        if self.preprocess.source.has_interval and (
            schedule.cron is None or schedule.assets or schedule.watch_seconds
        ):
            raise FieldError(
                "preprocess.source.path",
                f"is {self.preprocess.source.path}, and only runs that the clock starts have a "
                "data interval: give schedule a cron expression, and nothing else",
            )
        if self.preprocess.source.has_interval and schedule.timezone != "UTC":
            raise FieldError(
                "schedule.timezone",
                "must be UTC for the data intervals of preprocess.source.path, "
                f"got {schedule.timezone}",
            )

    def _refuse_for_detection(self) -> None:
        """Refuses metrics and formats of the other task."""
        is_detector = task_of(self.train.model) == "detection"
        for number, rule in enumerate(self.evaluate.gate):
            key = f"evaluate.gate.{number}"
            if (
                rule.metric not in get_args(Measure)
                and (rule.metric in get_args(DetectionMetric)) != is_detector
            ):
                raise FieldError(
                    key,
                    f"{rule.metric} is not for {task_of(self.train.model)}, "
                    f"which the model {self.train.model} is for",
                )
            if is_detector and rule.confidence is not None:
                raise FieldError(
                    key,
                    f"{rule.metric}: a confidence is for classifiers, "
                    "whose examples can be drawn again",
                )
        if is_detector and self.evaluate.slices:
            raise FieldError(
                "evaluate.slices",
                f"are for classifiers, got them with the detector {self.train.model}",
            )
        if is_detector and "tflite_int8" in self.export.formats:
            raise FieldError(
                "export.formats",
                "tflite_int8 is for classifiers: in eight bits, the edges of a box have no place "
                f"to be exact; got it with the detector {self.train.model}, which can be tflite",
            )

    @property
    def file(self) -> Path:
        """The YAML file that the config was read from."""
        return self._file

    @property
    def root(self) -> Path:
        """The storage root, absolute."""
        return self.path(self.storage.root)

    @functools.cached_property
    def hosts(self) -> Hosts | None:
        """The hosts to train on, or None for this machine. Raises ConfigError for a wrong file."""
        return (
            load_hosts(self._file.parent / "hosts", self.train.hosts) if self.train.hosts else None
        )

    @property
    def registry(self) -> str:
        """The place of the model's versions: an absolute path, or a URI."""
        place = self.export.registry
        if place is not None and is_remote(place):
            return f"{place.rstrip('/')}/{self.export.model}"
        return str((self.path(place) if place else self.root / "models") / self.export.model)

    def interpreter(self, job: str) -> Path | None:
        """The Python of a task's job, absolute, or None for the interpreter of the caller.

        A link is not followed, because it is what makes an environment.
        """
        python = getattr(self, job).python
        return (
            None
            if python is None
            else Path(os.path.abspath(self._file.parent / Path(python).expanduser()))
        )

    def changed(self, overrides: Mapping[str, Any]) -> PipelineConfig:
        """Returns this config with other values by dotted key. Raises ConfigError."""
        return load_config(self._file, self._overrides | dict(overrides))

    def path(self, relative: str) -> Path:
        """A path of the config, taken from the folder that the config file is in."""
        return (self._file.parent / Path(relative).expanduser()).resolve()


def load_config(file: Path | str, overrides: Mapping[str, Any] | None = None) -> PipelineConfig:
    """Reads and checks a pipeline's YAML.

    Args:
      file: the YAML file.
      overrides: the author's own, from a command line, as values by dotted key:
        `{"train.optimizer.learning_rate": 0.01}`. List items go by index. The conf of a run goes
        through `run_config` instead.

    Raises:
      ConfigError: with a line for each problem.
    """
    text = ConfigText.read(Path(file))
    for key, value in (overrides or {}).items():
        text.override(key, value)
    config = checked(PipelineConfig, text)
    config._file, config._overrides = text.file.resolve(), dict(overrides or {})
    if config.hosts:  # wrong hosts are reported now, before any job starts
        config.hosts.refuse_misfit(config.train, text.place(("train", "hosts")))
    for name in filter(None, config.per_run.get("train.hosts", [])):
        load_hosts(config.file.parent / "hosts", name)
    return config
