"""`search` of a pipeline config: trainings with different parameters, of which the best goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from pipeline_ops.config.fields import JsonSchema, Section, collect_fields, operational_field
from pipeline_ops.config.train import Monitor, Train

MAX_TRIALS = 256


class Range(Section):
    """Any value between two bounds. Values are whole numbers if both bounds are."""

    low: int | float
    high: int | float
    scale: Literal["linear", "log"] = "linear"
    """`log`: a value is as likely between 0.001 and 0.01 as between 0.01 and 0.1."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low must be less than high, got {self.low} and {self.high}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"scale log is for values above 0, got low: {self.low}")
        return self

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def includes(self, value: Any) -> bool:
        """Returns whether a search may draw this value."""
        return type(value) is (int if self.is_integer else float) and self.low <= value <= self.high


def _tag_values(value: Any) -> str:
    return "[range]" if isinstance(value, (dict, Range)) else "[list]"


_Values = Annotated[
    Annotated[list[Any], Tag("[list]")] | Annotated[Range, Tag("[range]")],
    Discriminator(_tag_values),
]


class Search(Section):
    """The trials of a search, one for each combination of parameters.

    A trial is a training with its own artifact, and is cached like any other.
    """

    method: Literal["grid", "random"] = "grid"
    """The sampler of Optuna. `grid`: every combination of the values. `random`: a number of
    combinations."""
    parameters: dict[str, _Values] = Field(min_length=1)
    """The values by dotted key of `train`: a list, or for `random` also `{low, high, scale}`."""
    trials: int | None = Field(None, ge=1, le=MAX_TRIALS)
    """Number of combinations. Only for `random`."""
    pruner: Literal["none", "asha"] = "none"
    """`asha`: a trial is stopped early if its monitored figure is not among the best quarter of
    those that have trained for as long (Optuna's `SuccessiveHalvingPruner`)."""
    min_epochs: int = Field(1, ge=1)
    """Number of epochs after which trials are compared for the first time. Only for `asha`."""
    max_parallel: int = operational_field(1, ge=1, le=MAX_TRIALS)
    """Number of trials that train at the same time."""
    monitor: Monitor | None = None
    """The figure by which trials are compared. Null is that of `train.best_checkpoint`, or else
    validation_loss."""

    @field_validator("parameters")
    @classmethod
    def _validate_keys(cls, value: dict[str, list[Any] | Range]) -> dict[str, list[Any] | Range]:
        for key, values in value.items():
            if not key.startswith("train."):
                raise ValueError(
                    f"{key} is not a key of train. Give dotted keys, such as "
                    "train.optimizer.learning_rate."
                )
            if isinstance(values, list) and not values:
                raise ValueError(f"parameters.{key} has no values")
        return value

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        keys = [f"train.{key}" for key in collect_fields(Train)]
        names = {"anyOf": [{"enum": keys}, {"pattern": r"^train\."}]}
        schema["properties"]["parameters"]["propertyNames"] = names

    @model_validator(mode="after")
    def _validate_combination(self) -> Search:
        if (self.method == "random") != (self.trials is not None):
            raise ValueError(
                f"got trials: {self.trials} with method: {self.method}. The method random needs a "
                "number of trials, and grid has none."
            )
        ranges = [key for key, values in self.parameters.items() if isinstance(values, Range)]
        if self.method == "grid" and ranges:
            raise ValueError(
                f"a grid has lists of values, got a range for {', '.join(ranges)}. "
                "List the values, or use method: random."
            )
        if self.method == "grid" and self.max_trials > MAX_TRIALS:
            raise ValueError(
                f"the grid has {self.max_trials} combinations, more than {MAX_TRIALS}. "
                "Take fewer values, or method: random."
            )
        return self

    @property
    def max_trials(self) -> int:
        """The number of trials. A random search has fewer if it draws a combination twice."""
        lists = (values for values in self.parameters.values() if isinstance(values, list))
        return self.trials or math.prod(len({*map(to_choice, values)}) for values in lists)

    def includes(self, parameters: Mapping[str, Any]) -> bool:
        """Returns whether a trial of this search may have these parameters."""
        return parameters.keys() == self.parameters.keys() and all(
            values.includes(parameters[key])
            if isinstance(values, Range)
            else to_choice(parameters[key]) in map(to_choice, values)
            for key, values in self.parameters.items()
        )


def to_choice(value: Any) -> str:
    """Returns a value of a list as JSON. Lists and mappings cannot be compared in other ways."""
    return json.dumps(value, default=str)
