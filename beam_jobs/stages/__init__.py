"""The catalogue of stages. A stage is a file in this folder and a line here.

`../README.md` shows how to add one. This module imports neither Beam nor numpy nor OpenCV, because
the DAG file uses it to check the stages of every config.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from beam_jobs.stages import (
    augment,
    checks,
    clip_boxes,
    decode,
    encode,
    equalize,
    filter,
    map_classes,
    resize,
    tile,
)
from beam_jobs.stages.foreign import load_stage
from beam_jobs.stages.stage import BoundStage, Stage, class_names_after
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.preprocess import StageConfig as StageConfig
from pipeline_ops.config.yaml_source import nearest
from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.stages import published_names

CATALOGUE: dict[str, Stage] = {
    # The key is the name in the YAML and of the file. The value holds parameters and function.
    "decode": Stage(decode.Decode, decode.decode),
    "filter": Stage(
        filter.Filter, filter.filter, class_after=filter.class_after, check=filter.check
    ),
    "map_classes": Stage(
        map_classes.MapClasses,
        map_classes.map_classes,
        class_after=map_classes.class_after,
        check=map_classes.check,
    ),
    "clip_boxes": Stage(clip_boxes.ClipBoxes, clip_boxes.clip_boxes, check=clip_boxes.check),
    "tile": Stage(tile.Tile, tile.tile),
    "resize": Stage(resize.Resize, resize.resize),
    "augment": Stage(augment.Augment, augment.augment),
    "equalize": Stage(equalize.Equalize, equalize.equalize),
    "encode": Stage(encode.Encode, encode.encode),
}


def find_stage(name: str) -> Stage:
    """Returns the stage with this name: from the catalogue, an installed package or a module path.

    Raises:
      ConfigError: there is none, or it can't be loaded.
    """
    stage = CATALOGUE.get(name) or load_stage(name)
    if stage is None:
        raise ConfigError(f"unknown stage; {nearest(name, [*CATALOGUE, *published_names()])}")
    return stage


def check_stages(config: Preprocess, config_file: Path) -> None:
    """Checks names, parameters and order of the stages of a config.

    Raises:
      ConfigError: has a line for each problem: place, key, rule, and the nearest valid name.
    """
    checks.check_stages(find_stage, config.stages, config_file)


def check_data(
    config: Preprocess, task: str, class_names: Sequence[str], config_file: Path
) -> None:
    """Checks that the stages can work on the data of the source.

    Args:
      config: a config whose stages have been checked.
      task: "classification" or "detection".
      class_names: the classes of the source.
      config_file: the file that the messages name.

    Raises:
      ConfigError: has a line for each stage that can't.
    """
    stages, problems = bind_stages(config.stages), []
    for index, stage in enumerate(stages):
        if stage.check and (
            problem := stage.check(
                stage.parameters, task, class_names_after(stages[:index], class_names)
            )
        ):
            problems.append((("preprocess", "stages", index, stage.name), problem))
    checks.raise_problems(problems, config_file)


def bind_stages(stages: Iterable[StageConfig]) -> list[BoundStage]:
    """The stages of a checked config, ready to run."""
    return [_bind(stage, find_stage(stage.name)) for stage in stages]


def _bind(config: StageConfig, stage: Stage) -> BoundStage:
    return BoundStage(
        config.name,
        stage.function,
        stage.parameters(**config.parameters),
        stage.class_after,
        stage.check,
    )
