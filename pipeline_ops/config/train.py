"""`train` of a pipeline config: shards to trained weights and a candidate SavedModel."""

from __future__ import annotations

from pydantic import model_validator

from pipeline_ops.config.train_options import TrainOptions
from pipeline_ops.config.train_rules import validate_options


class Train(TrainOptions):
    """Shards to trained weights and a candidate SavedModel."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Train:
        validate_options(self)
        return self
