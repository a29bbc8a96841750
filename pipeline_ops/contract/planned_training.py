"""The training that a data set is made for, with the author's code, as a request has them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_files import EncodedBytes, RelativePath


class UserCode(BaseModel, frozen=True):
    """Files of an author, each read once.

    Attributes:
      digests: those of all files, by path below the folder in which Python finds the module, or
        below that of the config.
      files: the content of the files that lie below the folder of the config. They travel.
    """

    digests: dict[RelativePath, str] = {}
    files: dict[RelativePath, EncodedBytes] = {}

    def __or__(self, other: UserCode) -> UserCode:
        return UserCode(digests=self.digests | other.digests, files=self.files | other.files)


class PlannedTraining(BaseModel):
    """The training that a data set is made for."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    config_file: str
    train: dict[str, Any]
    """The section of the config, as JSON."""
    python: str
    """The interpreter of the train task. "" is the interpreter of the checking process."""
    has_hosts: bool = False
    """True if it trains on other hosts, so that TensorFlow may be missing here."""
    weights: str = ""
    """The file or the folder of weights that it begins with, if this host has it."""
    gate_metrics: list[str] = []
    """The functions of `evaluate.gate`, which are checked like those of `train.metrics`."""
    code: UserCode | None = None
    """The author's code, as it was when the run was planned. Null is the code on this host."""

    def check_max_boxes(self, image: str, num_boxes: int) -> None:
        """Raises ConfigError for an image with more boxes than the training takes."""
        max_boxes = self.train.get("model_parameters", {}).get("max_boxes")
        if max_boxes is not None and num_boxes > max_boxes:
            raise ConfigError(
                f"train.model_parameters.max_boxes is {max_boxes}, and {image} has {num_boxes} "
                f"boxes. Set it to {num_boxes} or more, or to null."
            )
