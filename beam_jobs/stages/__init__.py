"""The catalogue of stages: a stage is a file in this folder, and a line here. `../README.md` shows how to add one.

Importing this imports neither Beam nor numpy nor OpenCV: the DAG file checks the stages of every config with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from beam_jobs.stages import checks, decode, resize
from beam_jobs.stages.stage import BoundStage, Stage
from pipeline_ops.contracts.config import Preprocess
from pipeline_ops.contracts.config import Stage as StageConfig

CATALOGUE: dict[str, Stage] = {
    # the name in the YAML, which is the name of the file; then its parameters and its function
    "decode": Stage(decode.Decode, decode.decode),
    "resize": Stage(resize.Resize, resize.resize),
}


def check_stages(config: Preprocess, config_file: Path) -> None:
    """Checks names, parameters and order of the stages of a config.

    Raises:
      ConfigError: with a line for each thing that is wrong: place, key, rule, and the nearest valid name.
    """
    checks.check_stages(CATALOGUE, config.stages, config_file)


def bind_stages(stages: Iterable[StageConfig]) -> list[BoundStage]:
    """The stages of a checked config, ready to run."""
    return [BoundStage(stage.name, CATALOGUE[stage.name].function, CATALOGUE[stage.name].parameters(**stage.parameters)) for stage in stages]
