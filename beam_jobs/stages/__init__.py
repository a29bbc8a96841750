"""The catalogue of stages. A stage is a file in this folder and a line here.

`docs/add-a-stage.md` shows how to add one. This module imports neither Beam nor numpy nor OpenCV,
because the DAG file uses it to check the stages of every config.
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
from beam_jobs.stages.execution import BoundStage, map_class_names
from beam_jobs.stages.stage import Stage
from beam_jobs.stages.user_stage import load_stage
from pipeline_ops.config.preprocess import Preprocess, StageConfig
from pipeline_ops.config.yaml_source import suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.stages import list_published_names

CATALOGUE: dict[str, Stage] = {
    # The key is the name in the YAML and of the file. The value holds parameters and function.
    "decode": Stage(decode.Decode, decode.decode),
    "filter": Stage(filter.Filter, filter.filter, map_class=filter.map_class, check=filter.check),
    "map_classes": Stage(
        map_classes.MapClasses,
        map_classes.map_classes,
        map_class=map_classes.map_class,
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
      ConfigError: there is none, or it cannot be loaded.
    """
    if stage := CATALOGUE.get(name) or load_stage(name):
        return stage
    raise ConfigError(f"unknown stage; {suggest_name(name, [*CATALOGUE, *list_published_names()])}")


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
      ConfigError: has a line for each stage that cannot.
    """
    stages, problems = bind_stages(config.stages), []
    for index, stage in enumerate(stages):
        names = map_class_names(stages[:index], class_names)
        if (check := stage.stage.check) and (problem := check(stage.parameters, task, names)):
            problems.append((("preprocess", "stages", index, stage.name), problem))
    checks.raise_problems(problems, config_file)


def bind_stages(stages: Iterable[StageConfig]) -> list[BoundStage]:
    """The stages of a checked config, ready to run."""
    return [
        BoundStage(config.name, stage, stage.parameters(**config.parameters))
        for config, stage in ((config, find_stage(config.name)) for config in stages)
    ]
