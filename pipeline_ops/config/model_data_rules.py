"""Checks of the model against the source and the stages, without reading any data."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_ops.config.model_catalogue import CATALOGUE, Task, is_own, task_of
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.config.yaml_source import ConfigText, Location
from pipeline_ops.errors import ConfigError

_TASKS: dict[str, Task] = {
    "image_folder": "classification",
    "voc": "detection",
    "coco": "detection",
}
_KEEP_SIZE = ("filter", "map_classes", "clip_boxes", "augment", "equalize", "encode")
"""Stages that keep the size of an image. `augment` may exchange height and width."""


def validate_model_for_data(config: PipelineConfig) -> None:
    """Checks the task and the image sizes of the model.

    Raises:
      ConfigError: the model is for another task than the source, or for other sizes than the stages
        make.
    """
    _validate_task(config)
    _validate_size(config)


def task_of_source(config: PipelineConfig) -> Task | None:
    """The task that a source has examples for. None if only its files say so."""
    source = config.preprocess.source
    return getattr(source, "task", None) or _TASKS.get(source.type)


def validate_task(task: Task, model: str, found: str) -> None:
    """Raises ConfigError if a model is for another task.

    `found` is the origin of the task, for the message.
    """
    if task == task_of(model):
        return
    others = [name for name, entry in CATALOGUE.items() if entry.task == task]
    cure = (
        f"set train.model to {', '.join(others)}"
        if task == "detection"
        else "set train.model to a classifier, such as digits_cnn or resnet50"
    )
    raise ConfigError(
        f"{found} is for {task}, and train.model {model} is for {task_of(model)}; {cure}, or "
        "choose another source"
    )


def image_size(stages: Sequence[StageConfig]) -> tuple[int, int, int] | None:
    """Height and width of all images, and the index of the stage that makes them so.

    None if the size depends on the images.
    """
    for index, stage in reversed(list(enumerate(stages))):
        if stage.name == "resize":
            height, width = stage.parameters.get("height"), stage.parameters.get("width")
            return (
                (height, width, index)
                if isinstance(height, int) and isinstance(width, int)
                else None
            )
        if stage.name not in _KEEP_SIZE:
            return None
    return None


def fault_of_size(model: str, height: int, width: int) -> str | None:
    """The reason why a model of the catalogue cannot take images of this size, or None."""
    entry = None if is_own(model) else CATALOGUE[model]
    if entry and min(height, width) < entry.min_size:
        return f"takes images of at least {entry.min_size}x{entry.min_size} pixels"
    if entry and (height % entry.size_multiple or width % entry.size_multiple):
        return f"takes images whose height and width are multiples of {entry.size_multiple}"
    return None


def _validate_task(config: PipelineConfig) -> None:
    task = task_of_source(config)
    if task is not None:
        key = "type" if config.preprocess.source.type in _TASKS else "task"
        location = ("preprocess", "source", key)
        validate_task(
            task,
            config.train.model,
            f"{_place(config, location)} {getattr(config.preprocess.source, key)}",
        )


def _validate_size(config: PipelineConfig) -> None:
    size = image_size(config.preprocess.stages)
    if size and (fault := fault_of_size(config.train.model, size[0], size[1])):
        location = ("preprocess", "stages", size[2], "resize")
        raise ConfigError(
            f"{_place(config, location)} makes images of {size[0]}x{size[1]}, and train.model "
            f"{config.train.model} {fault}; enlarge them there, or choose another model"
        )


def _place(config: PipelineConfig, location: Location) -> str:
    """File, line and key of a location, for a message."""
    return f"{ConfigText.read(config.file).place(location)}: {'.'.join(map(str, location))}"
