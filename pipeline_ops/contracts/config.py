"""The pipeline config: one YAML file, complete, checked where it is born.

`load_config` is the only way in: for the DAG factory, the operators, the command line and the tests. An unknown key, a
wrong type or a combination that can't work is a ConfigError that names file, line, key, rule and the nearest valid
name. What is marked `operational` says where or how patiently something runs, not what comes out: it is left out of
fingerprints.

Relative paths in a config are relative to the folder of the config file.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from pipeline_ops.contracts.config_text import ConfigText, nearest
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.section import Section, operational
from pipeline_ops.contracts.sources import AnySource


class TaskSection(Section):
    """What every task's section has."""

    timeout_seconds: int = operational(24 * 3600, ge=1)
    """The job ends itself after this long, whatever happens to Airflow."""

    retries: int = operational(2, ge=0, le=20)
    """How often Airflow tries again after a machine failure. Errors in the config or the data are never retried."""


# Preprocess ---------------------------------------------------------------------------------------------------------


class Stage(Section):
    """One preprocessing step: its name in the catalogue and its parameters, which the stage itself checks."""

    name: str
    parameters: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """`- decode` and `- resize: {height: 28, width: 28}` are how a stage is written in YAML."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and len(value) == 1 and "name" not in value:
            [(name, parameters)] = value.items()
            return {"name": name, "parameters": parameters or {}}
        return value


class Split(Section):
    """Shares of the three splits. An example's split follows from a hash of its key, so it never moves.

    A split that the source gives to a record comes before all of this.
    """

    train: float = Field(gt=0, lt=1)
    validation: float = Field(gt=0, lt=1)
    test: float = Field(gt=0, lt=1)
    seed: int = 0
    group_by: Literal["parent_folder", "regex"] | None = None
    """What is never torn apart: the images of one folder, or those in whose keys `group_regex` finds the same text."""
    group_regex: str | None = None
    """For group_by: regex. Searched for in the path below the source's folder; its one pair of brackets is the group."""
    stratify: bool = False
    """Whether the shares hold for each class, to within one image or group, and not only about."""

    @model_validator(mode="after")
    def _groups(self) -> Split:
        if (self.group_by == "regex") != (self.group_regex is not None):
            raise ValueError("group_by: regex and group_regex belong together, got one without the other")
        if self.group_regex is not None and (fault := _fault_of_regex(self.group_regex)):
            raise ValueError(f"group_regex must be a regular expression with one pair of brackets, such as '^(patient[0-9]+)_', {fault}")
        return self

    @model_validator(mode="after")
    def _sum(self) -> Split:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"train + validation + test must be 1, got {total:g}")
        return self


def _fault_of_regex(pattern: str) -> str | None:
    try:
        num_groups = re.compile(pattern).groups
    except re.error as error:
        return f"got {pattern!r}: {error}"
    return None if num_groups == 1 else f"got {pattern!r} with {num_groups}"


class Rejects(Section):
    """How many raw records may be unusable before the task fails. What is rejected is always kept and counted."""

    max_count: int = Field(0, ge=0)
    max_fraction: float = Field(0.001, ge=0, le=1)
    """The larger of the two budgets counts. A class of which every record is unusable fails the task in any case."""

    def budget(self, num_records: int) -> int:
        return max(self.max_count, int(self.max_fraction * num_records))


class Deltas(Section):
    """When a data set is made anew as a whole, and not only what changed in it. Everything anew is what a first run makes."""

    max_fraction: float = Field(0.3, ge=0, le=1)
    """The largest share of examples that were removed or came after the first generation. 0: every change makes everything anew."""
    max_generations: int = Field(8, ge=1, le=1000)


class SchemaRules(Section):
    """What happens where the data is not what the champion's data was: fail the task, or allow it and say so in the report."""

    new_classes: Literal["fail", "allow"] = "fail"
    missing_classes: Literal["fail", "allow"] = "fail"
    task: Literal["fail", "allow"] = "fail"
    """Detection where it was classification, or the other way round."""
    channels: Literal["fail", "allow"] = "fail"

    @property
    def can_fail(self) -> bool:
        return "fail" in (self.new_classes, self.missing_classes, self.task, self.channels)


class Drift(Section):
    """How far the training data may be from the champion's: distances between 0 (the same) and 1, feature by feature."""

    js_above: float = Field(0.1, ge=0, le=1)
    """Jensen-Shannon distance, base 2."""
    linf_above: float = Field(0.1, ge=0, le=1)
    """The largest change of the share of one bin of a histogram."""
    action: Literal["report", "fail"] = "report"
    """What a feature above one of the two does."""


class BeamRunner(Section):
    """Where and how the Beam job runs. It has no influence on a single byte of the shards."""

    name: Literal["embedded", "portable", "flink", "spark", "dataflow"] = "embedded"
    """`embedded` is this host. The others are Beam's runners of that name, which read and write the same paths as this host."""
    options: dict[str, Any] = {}
    """For the other runners: Beam's own pipeline options, without dashes, as in `{job_endpoint: "localhost:8099"}`."""
    mode: Literal["in_memory", "multi_threading", "multi_processing"] = "multi_threading"
    """Of embedded."""
    workers: int = Field(0, ge=0, le=256)
    """Of embedded; 0: one for each core."""

    @model_validator(mode="after")
    def _fits(self) -> BeamRunner:
        if self.mode == "in_memory" and self.workers > 1:
            raise ValueError(f"mode in_memory has exactly 1 worker, got workers: {self.workers}; use multi_threading or multi_processing")
        if self.name == "embedded" and self.options:
            raise ValueError(f"options ({', '.join(self.options)}) are for the other runners; embedded has mode and workers")
        if self.name != "embedded" and (self.mode, self.workers) != ("multi_threading", 0):
            raise ValueError(f"mode and workers are for the runner embedded; {self.name} has options")
        if "runner" in self.options:
            raise ValueError("the option runner is what name is for")
        return self


# Pydantic warns of a field that has the name of a method of its version 1, which nobody here calls.
warnings.filterwarnings("ignore", message='Field name "schema" in "Preprocess" shadows', category=UserWarning)


class Preprocess(TaskSection):
    """Raw data to sharded TFRecords."""

    source: AnySource = Field(discriminator="type")
    stages: list[Stage] = Field(min_length=1)
    split: Split
    shards: int = Field(8, ge=1, le=10_000)
    """Shards of each split; with `shard_megabytes` at least so many. A split with fewer records has one for each."""
    shard_megabytes: float | None = Field(None, gt=0, le=100_000)
    """How large a shard may become: of raw bytes, in units of 10**6; null for as many as `shards` says."""
    duplicates: Literal["keep", "remove_exact", "remove_near"] = "keep"
    """What becomes of equal or nearly equal images: of each kind one stays, the one in test before that in train."""
    near_bits: int = Field(4, ge=0, le=8)
    """For duplicates: remove_near. In how many of 64 bits the perceptual hashes of near images differ at most."""
    balance: Literal["none", "by_class"] = "none"
    """by_class: a weight for each class lies beside the shards, by which every class counts alike. No example is doubled."""
    deltas: Deltas = Deltas()
    rejects: Rejects = Rejects()
    schema: SchemaRules = SchemaRules()
    drift: Drift = Drift()
    runner: BeamRunner = operational(BeamRunner())


# Train --------------------------------------------------------------------------------------------------------------


class Optimizer(Section):
    """A Keras optimizer; the clipping is done by us, on the gradient of the global batch."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(1e-3, gt=0, le=10)
    momentum: float = Field(0.0, ge=0, lt=1)
    """For sgd."""
    weight_decay: float = Field(0.0, ge=0, lt=1)
    """For adamw."""

    @model_validator(mode="after")
    def _fits(self) -> Optimizer:
        if self.momentum and self.name != "sgd":
            raise ValueError(f"momentum is for the optimizer sgd, got it with {self.name}")
        if self.weight_decay and self.name != "adamw":
            raise ValueError(f"weight_decay is for the optimizer adamw, got it with {self.name}")
        return self


Monitor = Literal["validation_loss", "validation_accuracy"]


class EarlyStopping(Section):
    """Stops when the monitored figure has not improved for so many epochs."""

    monitor: Monitor = "validation_loss"
    patience_epochs: int = Field(5, ge=1)
    min_delta: float = Field(0.0, ge=0)


class ReduceLearningRate(Section):
    """Multiplies the learning rate by `factor` when the monitored figure has not improved for so many epochs."""

    monitor: Monitor = "validation_loss"
    factor: float = Field(0.5, gt=0, lt=1)
    patience_epochs: int = Field(2, ge=1)
    min_learning_rate: float = Field(1e-6, ge=0)


class BestCheckpoint(Section):
    """The weights of the epoch with the best figure become the challenger, not those of the last epoch."""

    monitor: Monitor = "validation_accuracy"


class Train(TaskSection):
    """Shards to trained weights and a candidate SavedModel."""

    model: str
    """A name from the model catalogue (`pipeline_ops/models/`)."""
    strategy: Literal["one_device", "multi_worker_mirrored"] = "multi_worker_mirrored"
    workers: int = Field(1, ge=1, le=1024)
    global_batch: int = Field(64, ge=1, le=1_000_000)
    """Examples per optimizer step over all workers. It never follows the number of workers."""
    epochs: int = Field(10, ge=1, le=100_000)
    seed: int = Field(1, ge=0)
    optimizer: Optimizer = Optimizer()
    early_stopping: EarlyStopping | None = None
    reduce_learning_rate: ReduceLearningRate | None = None
    best_checkpoint: BestCheckpoint | None = BestCheckpoint()
    steps_per_call: int = operational(10, ge=1, le=10_000)
    """Optimizer steps in one call of the compiled function."""
    checkpoint_every_steps: int = operational(200, ge=1)
    max_restarts: int = operational(3, ge=0, le=1000)
    """How often the whole gang is restarted from its last checkpoint before the task fails."""
    start_timeout_seconds: int = operational(300, ge=1)
    """A gang of which not every worker has made its first step by then is restarted."""
    step_timeout_seconds: int = operational(120, ge=1)
    """A worker that reports nothing for so long is taken for hung, and the gang is restarted."""

    @model_validator(mode="after")
    def _fits(self) -> Train:
        if self.strategy == "one_device" and self.workers != 1:
            raise ValueError(f"strategy one_device has exactly 1 worker, got workers: {self.workers}; use multi_worker_mirrored")
        if self.global_batch % self.workers:
            raise ValueError(f"global_batch must be a multiple of workers ({self.workers}), got {self.global_batch}")
        return self


# Evaluate -----------------------------------------------------------------------------------------------------------


class Rule(Section):
    """One rule of the gate, on a metric of the test split. At least one bound."""

    metric: Literal["accuracy", "macro_precision", "macro_recall", "worst_class_recall"]
    at_least: float | None = Field(None, ge=0, le=1)
    not_worse_than_champion_by_more_than: float | None = Field(None, ge=0, le=1)
    """Holds without comparison while there is no champion."""

    @model_validator(mode="after")
    def _bounded(self) -> Rule:
        if self.at_least is None and self.not_worse_than_champion_by_more_than is None:
            raise ValueError("a rule needs at_least, not_worse_than_champion_by_more_than, or both")
        return self


class Evaluate(TaskSection):
    """The challenger against the champion, on the same test examples."""

    gate: list[Rule] = Field(min_length=1)
    batch: int = Field(256, ge=1)
    worst_mistakes: int = Field(24, ge=0, le=500)
    """How many mistakes the report shows as pictures."""


# Export -------------------------------------------------------------------------------------------------------------


class Export(TaskSection):
    """The checked SavedModel, published as a new version."""

    model: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """The model's name in the registry."""
    tolerance: float = Field(1e-4, gt=0, le=1)
    """The largest difference of a probability that is still the same model."""


# The whole ----------------------------------------------------------------------------------------------------------


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
    schedule: str | None = None
    """A cron expression in UTC, or null for runs by hand only."""
    storage: Storage = Storage()
    preprocess: Preprocess
    train: Train
    evaluate: Evaluate
    export: Export

    _file: Path = Path()

    @field_validator("schedule")
    @classmethod
    def _cron(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("@") and len(value.split()) != 5:
            raise ValueError(f"schedule must be a cron expression of five fields, an @preset or null, got {value!r}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> PipelineConfig:
        if self.preprocess.shards < self.train.workers:
            raise ValueError(
                f"preprocess.shards must be at least the number of training workers ({self.train.workers}), got {self.preprocess.shards}"
            )
        return self

    @property
    def file(self) -> Path:
        """The YAML that it was read from."""
        return self._file

    @property
    def root(self) -> Path:
        """The storage root, absolute."""
        return self.path(self.storage.root)

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
    try:
        config = PipelineConfig.model_validate(text.values)
    except ValidationError as error:
        raise ConfigError("\n".join(_describe(text, problem) for problem in error.errors(include_url=False))) from None
    config._file = text.file.resolve()
    return config


def _describe(text: ConfigText, problem: Mapping[str, Any]) -> str:
    location, section = _without_tags(problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            rule = f"unknown key; {nearest(str(location[-1]), section.model_fields)}"
        case "union_tag_invalid":
            location, known = [*location, "type"], [tag.strip(" '") for tag in problem["ctx"]["expected_tags"].split(",")]
            rule = f"unknown type {problem['ctx']['tag']!r}; {nearest(problem['ctx']['tag'], known)}"
        case "union_tag_not_found":
            location, rule = [*location, "type"], "required, but not given"
        case "missing":
            rule = "required, but not given"
        case "value_error":
            rule = str(problem["ctx"]["error"])
        case _:
            rule = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {problem['input']!r}"
    key = ".".join(map(str, location))
    return f"{text.place(location)}: {key + ': ' if key else ''}{rule}"


def _without_tags(location: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """A place as the YAML has it, and the class of the innermost section on the way there.

    Where several sections are possible, pydantic puts the value of their `type` into the place.
    """
    section: Any = PipelineConfig
    plain, parts = [], list(location)
    while parts:
        part = parts.pop(0)
        plain.append(part)
        field = None if isinstance(part, int) else section.model_fields.get(part)
        if field is not None and field.discriminator and parts:
            section = _member(field, parts.pop(0))
        elif field is not None:
            section = _section_of(field.annotation) or section
    return plain, section


def _member(field: FieldInfo, tag: str) -> type[Section]:
    """The section among several that a tag stands for."""
    return next(member for member in get_args(field.annotation) if tag in get_args(member.model_fields[field.discriminator].annotation))


def _section_of(annotation: Any) -> type[Section] | None:
    """The Section class inside `X`, `X | None`, `list[X]` or `Annotated[X, ...]`; None for anything else."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _section_of(argument))), None)
