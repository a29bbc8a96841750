"""`preprocess` of a pipeline config: raw data to sharded TFRecords."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, model_validator

from pipeline_ops.config.fields import (
    FilePattern,
    JsonSchema,
    Section,
    TaskSection,
    advanced_field,
    operational_field,
    per_run_field,
)
from pipeline_ops.config.sources import (
    CatalogueOrUserSource,
    SplitName,
    extend_source_schema,
    select_source_tag,
)


class StageConfig(Section):
    """One preprocessing step: its name in the catalogue and its parameters.

    The stage itself checks the parameters. `served: by_client` leaves the stage, and so all of the
    preprocessing, to the clients of the published model.
    """

    name: str
    parameters: dict[str, Any] = {}
    served: Literal["by_client"] | None = None
    """`by_client` says that clients of the published model apply the stage, and all others, to a
    raw image before they send it. Write it beside the name of a stage that changes pixels and has
    no `serve`. Null is for all other stages."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        """Reads the short forms of YAML: `- decode`, `- resize: {height: 28, width: 28}`, and with
        `served: by_client` as a second key beside the name.
        """
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "name" not in value:
            rest = {key: value[key] for key in value if key != "served"}
            if len(rest) == 1:
                [(name, parameters)] = rest.items()
                served = {"served": value["served"]} if "served" in value else {}
                return {"name": name, "parameters": parameters or {}, **served}
            first, *beside = rest
            if rest[first] is None:  # `- resize:` with its parameters no deeper than its name
                raise ValueError(
                    f"{', '.join(map(str, beside))} must be indented further than {first}, or "
                    f"write `- {first}: {{{beside[0]}: ...}}`"
                )
        return value


def make_stage_schema(
    long_form: JsonSchema, stages: Mapping[str, JsonSchema], alone: Sequence[str]
) -> JsonSchema:
    """Returns the JSON schema of a stage with all of its forms.

    Args:
      long_form: that of `StageConfig`.
      stages: those of the parameters, by stage.
      alone: the stages that have no required parameter.
    """
    names = {"enum": [*long_form["properties"]]}
    hidden = {key: each | {"doNotSuggest": True} for key, each in long_form["properties"].items()}
    mapping = {
        "type": "object",
        "properties": {**hidden, "served": long_form["properties"]["served"], **stages},
        "patternProperties": {":": {"type": ["object", "null"]}},
        "additionalProperties": False,
        "if": {"required": ["name"]},
        "then": {"propertyNames": names},
        "else": {
            "if": {"required": ["served"]},
            "then": {"minProperties": 2, "maxProperties": 2},
            "else": {"minProperties": 1, "maxProperties": 1},
        },
    }
    text = {"type": "string", "anyOf": [{"enum": [*alone]}, {"pattern": ":"}]}
    return {"description": long_form["description"], "anyOf": [mapping, text]}


class Split(Section):
    """Shares of the three splits.

    An example's split follows from a hash of its key, so it never moves. A split
    that the source gives to a record takes precedence over all of this.
    """

    train: float = Field(gt=0, le=1)
    validation: float = Field(ge=0, lt=1)
    """Share of the validation split. 0 if nothing uses its figures, as with
    `train.best_checkpoint: null`."""
    test: float = Field(ge=0, lt=1)
    """Share of the test split. 0 if the source itself says which examples are for the test."""
    seed: int = 0
    group_by: Literal["parent_folder", "regex"] | None = advanced_field(None)
    """The examples that stay together: the images of one folder, or those in whose keys
    `group_regex` finds the same text."""
    group_regex: str | None = advanced_field(None)
    """The pattern for `group_by: regex`, searched for in the path below the source's folder. Its
    one pair of brackets is the group."""
    stratify: bool = advanced_field(False)
    """Makes the shares hold for the data set, and for each class to about one image or group. The
    first image of each class is in train."""

    @model_validator(mode="after")
    def _validate_groups(self) -> Split:
        if (self.group_by == "regex") != (self.group_regex is not None):
            raise ValueError(
                "group_by: regex and group_regex need each other, got only one of them"
            )
        if self.group_regex is None:
            return self
        try:
            num_groups = re.compile(self.group_regex).groups
            problem = "" if num_groups == 1 else f" with {num_groups}"
        except re.error as error:
            problem = f": {error}"
        if problem:
            raise ValueError(
                "group_regex must be a regular expression with one pair of brackets, "
                f"such as '^(patient[0-9]+)_', got {self.group_regex!r}{problem}"
            )
        return self

    @property
    def required(self) -> list[SplitName]:
        """The splits that must have examples."""
        return ["train", "validation", "test"] if self.validation else ["train", "test"]

    @model_validator(mode="after")
    def _validate_sum(self) -> Split:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"train + validation + test must be 1, got {total:g}")
        return self


class Rejects(Section):
    """The number of raw records that may be unusable before the task fails.

    Rejected records are always kept and counted.
    """

    max_count: int = Field(0, ge=0)
    max_fraction: float = advanced_field(0.001, ge=0, le=1)
    """The larger of the two budgets counts. A class of which every record is unusable fails the
    task in any case."""

    def compute_budget(self, num_records: int) -> int:
        return max(self.max_count, int(self.max_fraction * num_records))


class Incremental(Section):
    """When to rebuild the whole data set instead of adding a generation."""

    max_fraction: float = Field(0.3, ge=0, le=1)
    """The largest share of examples that were removed or came after the first generation. With 0,
    every change makes the whole data set again."""


SchemaChange = Literal["new_classes", "missing_classes", "task", "channels"]


class Drift(Section):
    """Limits of the distance of the training data to the champion's, feature by feature.

    The distances lie between 0 (the same) and 1.
    """

    max_js_distance: float = Field(0.1, ge=0, le=1)
    """The limit of the Jensen-Shannon distance, base 2."""
    max_linf_distance: float = Field(0.1, ge=0, le=1)
    """The limit of the largest change of the share of one bin of a histogram."""
    action: Literal["report", "fail"] = "report"
    """The reaction to a feature above one of the two limits."""


_Address = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+:[0-9]{1,5}$")]
"""`host:port`."""


class BeamRunner(Section):
    """The engine of the Beam job. It has no influence on a single byte of the shards."""

    name: Literal["embedded", "flink", "spark", "portable", "dataflow"] = "embedded"
    """`embedded` is this host. `flink`, `spark` and `portable` are behind a job server of Beam.
    `docs/flink-and-spark.md` describes the set-up."""
    endpoint: _Address | None = None
    """The address of Beam's job server, as in `jobs.example.org:8099`."""
    rest_address: Annotated[str, StringConstraints(pattern=r"^https?://[^/@\s]+$")] | None = None
    """The address of Flink's REST API, through which its jobs are found and cancelled, or the page
    of Spark's master, which is only shown."""
    worker_pool: _Address = "localhost:50000"
    """The address of the pool of Beam workers, as each TaskManager or Spark worker sees it. Each of
    them has a pool of its own."""
    shared_disk: bool = False
    """Says that all workers of an engine mount the raw data, and the storage root, at the same
    paths as this host. Without it, both have to be in a bucket."""
    options: dict[str, Any] = {}
    """More of Beam's pipeline options for an engine, without dashes. `{parallelism: 4}` is the
    number of slots of Flink that the job uses."""
    workers: int = Field(0, ge=0, le=256)
    """Number of worker processes of `embedded`. 0 is one for each core, or fewer if there is little
    to do. A single worker is the process of the job itself."""

    @property
    def has_job_server(self) -> bool:
        return self.name in ("flink", "spark", "portable")

    @model_validator(mode="after")
    def _validate_combination(self) -> BeamRunner:
        if self.name == "embedded":
            fields = type(self).model_fields.items()
            foreign = [name for name, field in fields if getattr(self, name) != field.default]
            if wrong := set(foreign) - {"workers"}:
                raise ValueError(
                    f"{', '.join(sorted(wrong))}: for the other runners. embedded has workers."
                )
            return self
        if self.workers:
            raise ValueError(f"workers is for the runner embedded, and {self.name} has options")
        if self.has_job_server and not self.endpoint:
            raise ValueError(
                f"{self.name} needs endpoint, the address of Beam's job server as host:port"
            )
        if self.name == "flink" and not self.rest_address:
            raise ValueError(
                "flink needs rest_address, as in http://jobmanager:8081: Beam's own way to cancel "
                "a job leaves it running on Flink"
            )
        if own := self.options.keys() & _OWN_OPTIONS.keys():
            keys = ", ".join(f"{name} (use {_OWN_OPTIONS[name]})" for name in sorted(own))
            raise ValueError(f"options that have a key of their own: {keys}")
        return self


_OWN_OPTIONS = {
    "runner": "name",
    "job_endpoint": "endpoint",
    "job_name": "no option: the job finds its engine's job by this name",
}
"""Beam's options that must not be among `options`, with the key to use."""


class Preprocess(TaskSection):
    """Raw data to sharded TFRecords."""

    source: CatalogueOrUserSource = Field(discriminator=Discriminator(select_source_tag))
    files: list[FilePattern] = operational_field([], is_advanced=True)
    """Files that a source or a transform of your own opens, besides the raw data, like
    `train.files`."""
    stages: list[StageConfig] = Field(min_length=1)
    split: Split
    shards: int = Field(8, ge=1, le=10_000)
    """Number of shards of each split, or the minimum with `shard_megabytes`. The train split must
    have as many records. Another split with fewer has one shard for each record."""
    shard_megabytes: float | None = advanced_field(None, gt=0, le=100_000)
    """The largest size of a shard in raw bytes, in units of 10**6. With null, the number is
    `shards`."""
    duplicates: Literal["keep", "remove_exact", "remove_near"] = advanced_field("remove_exact")
    """The treatment of equal or nearly equal images. One of each kind stays, an image in test
    before one in train. With `keep` all stay, and evaluation refuses a model that has seen more of
    the test split than `evaluate.allowed_leaks`."""
    balance: Literal["none", "by_class"] = advanced_field("none")
    """`by_class` stores a weight for each class next to the shards, by which every class counts
    alike. For a detector it is computed from the numbers of boxes. No example is doubled."""
    incremental: Incremental = advanced_field(Incremental())
    rejects: Rejects = Rejects()
    allowed_changes: list[SchemaChange] = advanced_field([])
    """Differences from the champion's data that are only reported: `new_classes`,
    `missing_classes`, `task` (detection where it was classification, or the other way round) and
    `channels`. Any other of them fails the task."""
    drift: Drift = advanced_field(Drift())
    raw_test_files: int = advanced_field(500, ge=0)
    """Number of test records whose raw files are kept with the data set, so that evaluation and
    export can send them to the model as clients do. 0 keeps all."""
    dataset: str | None = per_run_field(
        None, rank=4, is_operational=True, pattern="^[0-9a-f]{6,32}$"
    )
    """The version of an existing data set, or its beginning. The tab Data lists versions. The run
    uses that data set and preprocesses no data. Null uses the present raw files. If there is no
    such data set, the first task fails and lists the existing ones."""
    runner: BeamRunner = operational_field(BeamRunner(), is_advanced=True)

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        extend_source_schema(schema["properties"]["source"])
