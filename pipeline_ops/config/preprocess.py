"""`preprocess` of a pipeline config: raw data to sharded TFRecords."""

from __future__ import annotations

import re
import warnings
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, TaskSection, operational, per_run
from pipeline_ops.config.sources import AnySource


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
    test: float = Field(ge=0, lt=1)
    """0 where the source itself says what is for the test."""
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
    mode: Literal["in_memory", "multi_threading", "multi_processing"] = "multi_processing"
    """Of embedded: who builds the shards. multi_processing: processes of their own, or threads where there is little to do."""
    workers: int = Field(0, ge=0, le=256)
    """Of embedded; 0: one for each core."""

    @model_validator(mode="after")
    def _fits(self) -> BeamRunner:
        if self.mode == "in_memory" and self.workers > 1:
            raise ValueError(f"mode in_memory has exactly 1 worker, got workers: {self.workers}; use multi_threading or multi_processing")
        if self.name == "embedded" and self.options:
            raise ValueError(f"options ({', '.join(self.options)}) are for the other runners; embedded has mode and workers")
        if self.name != "embedded" and (self.mode, self.workers) != ("multi_processing", 0):
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
    duplicates: Literal["keep", "remove_exact", "remove_near"] = "remove_exact"
    """What becomes of equal or nearly equal images: of each kind one stays, the one in test before that in train. With `keep` all stay, and
    evaluation refuses a model that has seen more of the test split than `evaluate.allowed_leaks`."""
    near_bits: int = Field(4, ge=0, le=8)
    """For duplicates: remove_near. In how many of 64 bits the perceptual hashes of near images differ at most."""
    balance: Literal["none", "by_class"] = "none"
    """by_class: a weight for each class lies beside the shards, by which every class counts alike. No example is doubled."""
    deltas: Deltas = Deltas()
    rejects: Rejects = Rejects()
    schema: SchemaRules = SchemaRules()
    drift: Drift = Drift()
    dataset: str | None = per_run(None, rank=4, is_operational=True, pattern="^[0-9a-f]{6,32}$")
    """A data set that was made before, by the beginning of its version, as events of the asset have it: it is taken as it is, and nothing is
    preprocessed. Null: what the raw files are now. One that is not there fails the first task, which says what there is."""
    runner: BeamRunner = operational(BeamRunner())
