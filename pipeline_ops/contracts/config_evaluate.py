"""`evaluate` of a pipeline config: the challenger against the champion, and the gate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline_ops.contracts.section import Section, TaskSection


class Rule(Section):
    """One rule of the gate, on a metric of the test split. At least one bound."""

    metric: Literal["accuracy", "macro_precision", "macro_recall", "worst_class_recall", "map", "map_50"]
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
