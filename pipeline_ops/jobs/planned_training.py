"""The training that a data set is made for, as described to the preprocess job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pipeline_ops.config.pipeline import PipelineConfig


class PlannedTraining(BaseModel):
    """The training that a data set is made for."""

    model_config = ConfigDict(frozen=True)

    config_file: str
    train: dict[str, Any]
    """The section of the config, as JSON."""
    python: str
    """The interpreter of the train task. Empty for that of the process that checks the training."""
    has_hosts: bool = False
    """True if it trains on other hosts, so that TensorFlow may be missing here."""
    weights: str = ""
    """The file or the folder of weights that it begins with, if this host has it."""

    @classmethod
    def from_config(cls, config: PipelineConfig, python: str) -> PlannedTraining:
        """The training of a config. `python` is the interpreter if the config names none."""
        is_elsewhere = bool(config.train.runs_on or config.preprocess.runs_on)
        return cls(
            config_file=str(config.file),
            train=config.train.model_dump(mode="json"),
            python="" if is_elsewhere else str(config.resolve_interpreter("train") or python),
            has_hosts=is_elsewhere or config.hosts is not None,
            weights="" if is_elsewhere else str(config.weights_path or ""),
        )
