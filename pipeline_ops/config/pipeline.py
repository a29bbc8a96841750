"""The pipeline config: one complete YAML file, checked when it is read.

`load_config` reads the author's config. The config of a run comes from `run_conf.py`. An unknown
key, a wrong type or an impossible combination is a ConfigError that names file, line, key, rule and
the nearest valid name. An `operational_field` sets the resources or timeouts of a task and cannot
change its result, so fingerprints leave it out. The sections of the four tasks are in
`preprocess.py`, `train.py`, `evaluate.py` and `export.py`.

Relative paths in a config are relative to the folder of the config file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, field_validator, model_validator

from pipeline_ops.config.evaluate import DetectionMetric, Evaluate, Measure
from pipeline_ops.config.export import Export
from pipeline_ops.config.fields import (
    READ_WITH_THE_DAG,
    SAME_FOR_ALL_RUNS,
    FieldError,
    JsonSchema,
    Scalar,
    Section,
    TaskSection,
    collect_fields,
    fixed_field,
    get_value,
    validate_per_run,
)
from pipeline_ops.config.hosts import Hosts, load_hosts
from pipeline_ops.config.notify import NotifierConfig
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.reading import ConfigText
from pipeline_ops.config.schedule import Schedule
from pipeline_ops.config.search import Search
from pipeline_ops.config.storage import Storage
from pipeline_ops.config.train import InitialWeights, Train
from pipeline_ops.config.validation import validate_section
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.open_store import is_remote, open_near, open_root
from pipeline_ops.storage.store_options import StoreOptions
from pipeline_ops.storage.store_path import StorePath

TASKS = ("preprocess", "train", "evaluate", "export")


PIPELINE_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"


class PipelineConfig(Section):
    """The whole config of a pipeline."""

    pipeline: str = fixed_field(..., SAME_FOR_ALL_RUNS, pattern=PIPELINE_PATTERN)
    """The DAG's name."""
    description: str = fixed_field("", READ_WITH_THE_DAG)
    owner: str = fixed_field("trainyard", READ_WITH_THE_DAG, max_length=250, is_advanced=True)
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = fixed_field(
        [], READ_WITH_THE_DAG
    )
    schedule: Schedule = fixed_field(Schedule(), READ_WITH_THE_DAG)
    """A cron expression in UTC, assets of Airflow, or both. Null is for runs by hand only."""
    storage: Storage = Storage()
    preprocess: Preprocess
    train: Train
    search: Search | None = fixed_field(None, READ_WITH_THE_DAG, is_advanced=True)
    """Several trainings with different parameters, of which the best goes on. Null is one
    training."""
    evaluate: Evaluate
    export: Export
    notify: list[NotifierConfig] = fixed_field([], READ_WITH_THE_DAG, is_advanced=True)
    """Recipients of a message when a run has failed, was not published, or drifted."""

    per_run: dict[str, list[Scalar]] = fixed_field({}, "it decides what runs may set")
    """Further fields that a single run may set, by dotted key, with the values that they may have:
    `train.hosts: [lab, cloud]`. For paths, folders: `preprocess.source.path: [/data/daily/]`. An
    empty list closes a key that is open otherwise."""

    _text: ConfigText = ConfigText(Path(), {}, {})

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        keys = [key for key, field in collect_fields(cls).items() if field.can_be_opened]
        schema["properties"]["per_run"]["propertyNames"] = {"enum": keys}

    @field_validator("per_run")
    @classmethod
    def _validate_per_run(cls, value: dict[str, list[Scalar]]) -> dict[str, list[Scalar]]:
        validate_per_run(collect_fields(cls), value)
        return value

    @model_validator(mode="after")
    def _validate_combination(self) -> PipelineConfig:
        if self.preprocess.shards < self.train.workers:
            raise FieldError(
                "preprocess.shards",
                f"must be at least the number of training workers ({self.train.workers}), "
                f"got {self.preprocess.shards}",
            )
        if self.train.class_weights and self.preprocess.balance == "none":
            raise FieldError(
                "train.class_weights",
                "needs a data set that has them. Set preprocess.balance: by_class.",
            )
        self._validate_use_of_validation()
        names = ["loss", *self.train.step_metric_names]
        if doubles := [name for name in names if names.count(name) > 1]:
            raise FieldError(
                "train.metrics",
                f"two figures would have the name {doubles[0]}. Give the function another name.",
            )
        for number, rule in enumerate(self.evaluate.gate):
            is_for_detector = rule.metric in get_args(DetectionMetric)
            is_for_both = rule.metric in get_args(Measure)
            if not is_for_both and is_for_detector != (self.train.task == "detection"):
                raise FieldError(
                    f"evaluate.gate.{number}",
                    f"{rule.metric} is not for {self.train.task}, "
                    f"which the model {self.train.model} is for",
                )
            own = self.train.own_metrics.get(rule.own_metric)
            if rule.mode and own and rule.mode != own:
                raise FieldError(
                    f"evaluate.gate.{number}.mode",
                    f"is {rule.mode}, and train.metrics says {own} of {rule.metric}. "
                    "Remove one of the two.",
                )
        if self.search is not None and self.search.monitor is not None:
            known = [f"validation_{name}" for name in ("loss", *self.train.metric_names)]
            if self.search.monitor not in known:
                raise FieldError(
                    "search.monitor",
                    f"must be one of {', '.join(known)}, got {self.search.monitor}. "
                    "train.best_checkpoint.monitor may also be a metric of the gate, and decides "
                    "if this is null.",
                )
            if self.train.find_mode(self.search.monitor) is None:
                raise FieldError(
                    "search.monitor",
                    f"is {self.search.monitor}. {self.train.explain_mode(self.search.monitor)}.",
                )
        if self.train.task == "detection":
            self._validate_for_detector()
        self._validate_engine()
        self._validate_intervals()
        return self

    def _validate_use_of_validation(self) -> None:
        sections = ("early_stopping", "reduce_learning_rate", "best_checkpoint")
        used = [f"train.{name}" for name in sections if getattr(self.train, name)]
        used += ["search"] if self.search else []
        if used and not self.preprocess.split.validation:
            raise FieldError(
                "preprocess.split.validation",
                f"is 0, and {used[0]} needs the validation split. Raise it, or set {used[0]}: null",
            )

    def _validate_engine(self) -> None:
        """Rejects places that the workers of an engine cannot reach."""
        runner = self.preprocess.runner
        if runner.name == "embedded" or runner.shared_disk:
            return
        folder, root = self.preprocess.source.folder, self.storage.root
        for key, place in (("preprocess.source.path", folder), ("storage.root", root)):
            if not is_remote(place):
                raise FieldError(
                    key,
                    f"is {place}, a folder of this host, which the workers of {runner.name} do not "
                    "see. Use a bucket, or mount the folder on all of them at the same path and "
                    "set preprocess.runner.shared_disk: true.",
                )

    def _validate_intervals(self) -> None:
        schedule = self.schedule
        source = self.preprocess.source
        if not source.has_interval:
            return
        if schedule.cron is None or schedule.assets or schedule.watch_seconds:
            raise FieldError(
                f"preprocess.source.{source.interval_key}",
                f"is {getattr(source, source.interval_key)}, and only runs that the clock starts "
                "have a data interval. Give schedule a cron expression, and nothing else.",
            )
        if schedule.timezone != "UTC":
            raise FieldError(
                "schedule.timezone",
                f"must be UTC for the data intervals of preprocess.source.{source.interval_key}, "
                f"got {schedule.timezone}",
            )

    def _validate_for_detector(self) -> None:
        """Rejects formats of a classifier."""
        if "tflite_int8" in self.export.formats:
            raise FieldError(
                "export.formats",
                "tflite_int8 is for classifiers, because eight bits are too coarse for a box's "
                f"edges, got it with the detector {self.train.model}. Use tflite.",
            )

    @functools.cached_property
    def file(self) -> Path:
        """The YAML file that the config was read from."""
        return self._text.file.resolve()

    @property
    def root_uri(self) -> str:
        """The folder or the URI of the storage root, without opening it."""
        root = self.storage.root
        return root.rstrip("/") if is_remote(root) else str(self.resolve_path(root))

    @functools.cached_property
    def root(self) -> StorePath:
        """The storage root."""
        return open_root(self.root_uri, self.store_options if is_remote(self.root_uri) else None)

    @property
    def store_options(self) -> StoreOptions:
        """The options of the storage root, if it is a bucket."""
        storage = self.storage
        ca_file = self.resolve_path(storage.ca_file) if storage.ca_file else None
        return StoreOptions(
            endpoint=storage.endpoint,
            ca_file=ca_file and str(ca_file),
            connection=storage.connection,
        )

    @functools.cached_property
    def hosts(self) -> Hosts | None:
        """The hosts to train on, or None for this machine. Raises ConfigError for a wrong file."""
        return self._load_hosts("train", "hosts", self.train.hosts)

    @functools.cached_property
    def _job_hosts(self) -> dict[str, Hosts | None]:
        return {
            task: self._load_hosts(task, "runs_on", getattr(self, task).runs_on) for task in TASKS
        }

    def find_job_hosts(self, job: str) -> Hosts | None:
        """The hosts that the job of a task runs on, or None for the host of the Airflow worker.

        Raises ConfigError for a wrong or missing hosts file.
        """
        return self._job_hosts[_find_task(job)]

    def get_task_section(self, job: str) -> TaskSection:
        """Returns the section with the place and the time limit of a job."""
        section: TaskSection = getattr(self, _find_task(job))
        return section

    def _load_hosts(self, section: str, key: str, name: str | None) -> Hosts | None:
        """The hosts file of that name. Raises ConfigError with file and line of the key."""
        where = f"{self.locate((section, key))}: {section}.{key}"
        return load_hosts(self.file.parent / "hosts", name, where) if name else None

    @property
    def registry_uri(self) -> str:
        """The folder or the URI of the model's versions, without opening it."""
        location = self.export.registry or f"{self.root_uri}/models"
        if not is_remote(location):
            location = str(self.resolve_path(location))
        return f"{location.rstrip('/')}/{self.export.model}"

    @property
    def registry(self) -> StorePath:
        """The location of the model's versions. In another bucket, it has no options."""
        return open_near(self.root, self.registry_uri)

    def resolve_interpreter(self, job: str) -> Path | None:
        """The Python of a task's job on this host, or None for the interpreter of the caller."""
        hosts = self.find_job_hosts(job)
        return Path(hosts.python) if hosts and hosts.is_this_host and hosts.python else None

    def with_overrides(self, overrides: Mapping[str, Any]) -> PipelineConfig:
        """Returns this config with other values by dotted key. Raises ConfigError.

        The file is not read again.
        """
        return _validate(self._text.with_overrides(overrides))

    def locate(self, location: Sequence[str | int]) -> str:
        """Returns file and line of a key, for a message, or the override that set it."""
        return self._text.locate(location)

    def resolve_path(self, relative: str) -> Path:
        """A path of the config, taken from the folder that the config file is in."""
        return (self.file.parent / Path(relative).expanduser()).resolve()

    @property
    def initial_weights(self) -> InitialWeights | None:
        """Those of `train`, with an absolute path or a URI."""
        weights = self.train.initial_weights
        if weights is None or is_remote(weights.path):
            return weights
        return weights.model_copy(update={"path": str(self.resolve_path(weights.path))})


def load_config(file: Path | str, overrides: Mapping[str, Any] | None = None) -> PipelineConfig:
    """Reads and checks a pipeline's YAML.

    Args:
      file: the YAML file.
      overrides: the author's own, from a command line, as values by dotted key:
        `{"train.optimizer.learning_rate": 0.01}`. List items go by index. The conf of a run goes
        through `apply_conf` instead.

    Raises:
      ConfigError: with a line for each problem.
    """
    text = ConfigText.read(Path(file))
    return _validate(text.with_overrides(overrides) if overrides else text)


def _find_task(job: str) -> str:
    """The trials of a search are drawn where `train` runs, because Optuna is installed there."""
    return "train" if job == "search" else job


def _validate(text: ConfigText) -> PipelineConfig:
    config = validate_section(PipelineConfig, text)
    if config.pipeline != text.file.stem:
        raise ConfigError(
            f"{text.locate(('pipeline',))}: pipeline: must be the name of the file, "
            f"{text.file.stem}, got {config.pipeline}. Rename one of the two."
        )
    config._text = text
    if config.hosts:  # wrong hosts are reported now, before any job starts
        config.hosts.validate_gang(config.train, config.locate(("train", "hosts")))
    problems = [
        f"{config.locate((section, key))}: {section}.{key}: {problem}"
        for section, key, problem in _find_place_problems(config)
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    for name in filter(None, config.per_run.get("train.hosts", [])):
        where = f"{config.locate(('per_run', 'train.hosts'))}: per_run: train.hosts"
        load_hosts(config.file.parent / "hosts", str(name), where)
    return config


def _find_place_problems(config: PipelineConfig) -> Iterator[tuple[str, str, str]]:
    """Compares the hosts files with the needs of the jobs. Yields section, key and problem."""
    for task in TASKS:
        if hosts := config.find_job_hosts(task):
            keys = ("storage.root", *_PATHS[task], "storage.ca_file")
            for problem in _find_job_problems(config, task, hosts):
                yield task, "runs_on", problem
            for problem in _find_folder_problems(config, keys, hosts):
                yield task, "runs_on", problem
    if config.hosts:
        for problem in _find_folder_problems(config, ("storage.root",), config.hosts):
            yield "train", "hosts", problem


def _find_job_problems(config: PipelineConfig, task: str, hosts: Hosts) -> Iterator[str]:
    file = f"hosts/{getattr(config, task).runs_on}.yaml"
    yield from hosts.find_job_problems(task, file, config.hosts)
    if task != "train":
        return
    train, gang = config.train, config.hosts
    is_gang_here = gang is None or gang.is_this_host
    num_needed = train.effective_max_workers * train.devices_per_worker
    if is_gang_here and train.strategy != "tpu" and 0 < hosts.num_gpus < num_needed:
        yield (
            f"the gang runs in the job, which has {hosts.num_gpus} GPUs, and train.workers "
            f"({train.effective_max_workers}) x train.devices_per_worker "
            f"({train.devices_per_worker}) is {num_needed}. Ask for {num_needed} GPUs in "
            f"{file}, or lower one of the two."
        )


_PATHS: Mapping[str, Sequence[str]] = {
    "preprocess": ["preprocess.source.path"],
    "train": [],
    "evaluate": [],
    "export": ["export.registry"],
}
"""The keys of paths that a job reads besides the storage."""


def _find_folder_problems(
    config: PipelineConfig, keys: Iterable[str], hosts: Hosts
) -> Iterator[str]:
    """Finds the paths of Airflow's host that a job there can't see."""
    for key in keys:
        path = get_value(config, key)
        if path and not is_remote(path):
            folder = config.resolve_path(path)
            if problem := hosts.find_folder_problem(folder):
                yield f"{key} is {folder} on this host, {problem}."


def find_config_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The YAML files among and directly inside the given folders, sorted within a folder.

    Hidden files are left out, because editors keep their locks and copies in them.
    """
    for path in map(Path, paths):
        if path.is_dir():
            files = [*path.glob("*.yaml"), *path.glob("*.yml")]
            yield from sorted(file for file in files if not file.name.startswith("."))
        else:
            yield path
