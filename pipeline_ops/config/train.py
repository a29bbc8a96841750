"""`train` of a pipeline config: shards to trained weights and a candidate SavedModel."""

from __future__ import annotations

from pydantic import model_validator

from pipeline_ops.config.train_options import TrainOptions
from pipeline_ops.config.train_rules import refuse_impossible


class Train(TrainOptions):
    """Shards to trained weights and a candidate SavedModel."""

    @model_validator(mode="after")
    def _fits(self) -> Train:
        refuse_impossible(self)
        return self
