"""Checks of the model and its training against the source, the stages and the size of the data.

No data are read here.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_ops.config.model_catalogue import CATALOGUE, Task, find_model
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.config.reading import Location
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError, DataError

_TASKS: dict[str, Task] = {
    "image_folder": "classification",
    "voc": "detection",
    "coco": "detection",
    "yolo": "detection",
    "labelme": "detection",
    "via": "detection",
}
_KEEP_SIZE = ("filter", "map_classes", "clip_boxes", "equalize", "encode")
"""Stages that keep the size of an image."""


def check_model_for_data(config: PipelineConfig) -> None:
    """Checks the task and the image sizes of the model.

    Raises ConfigError for a model for another task than the source, or for other sizes than the
    stages make.
    """
    source, model = config.preprocess.source, config.train.model
    task, size = find_source_task(config), find_image_size(config.preprocess.stages)
    if task is not None:
        key = "type" if source.type in _TASKS else "task"
        where = _describe_location(config, ("preprocess", "source", key))
        check_task(task, model, f"{where} {getattr(source, key)}")
    if size and (problem := find_size_problem(model, size[0], size[1])):
        where = _describe_location(config, ("preprocess", "stages", size[2], "resize"))
        raise ConfigError(
            f"{where} makes images of {size[0]}x{size[1]}, and train.model {model} {problem}. "
            "Enlarge them there, or choose another model."
        )


def check_train_split(train: Train, num_examples: int, place: str) -> None:
    """Raises DataError if a training split has fewer examples than one step needs.

    `place` is the data set or the raw data that the split is of. Only the training knows the size
    of `train.dataset`.
    """
    if num_examples < train.batch_size and not train.dataset:
        raise DataError(
            f"the train split of {place} has {num_examples} examples, fewer than one global batch "
            f"({train.batch_size}). Lower train.{train.batch_key} or add data."
        )


def find_source_task(config: PipelineConfig) -> Task | None:
    """The task that a source has examples for. None if only its files say so."""
    source = config.preprocess.source
    return getattr(source, "task", None) or _TASKS.get(source.type)


def check_task(task: Task, model: str, origin: str) -> None:
    """Raises ConfigError if a model is for another task. `origin` says where the task is set."""
    if task == find_model(model).task:
        return
    candidates = [name for name, entry in CATALOGUE.items() if entry.task == task]
    advice = (
        f"Set train.model to {', '.join(candidates)}"
        if task == "detection"
        else "Set train.model to a classifier, such as digits_cnn or resnet50"
    )
    raise ConfigError(
        f"{origin} is for {task}, and train.model {model} is for {find_model(model).task}. "
        f"{advice}, or choose another source."
    )


def find_image_size(stages: Sequence[StageConfig]) -> tuple[int, int, int] | None:
    """Height and width of all images, and the index of the stage that makes them so.

    None if the size depends on the images.
    """
    for index, stage in reversed(list(enumerate(stages))):
        if stage.name == "resize":
            height, width = stage.parameters.get("height"), stage.parameters.get("width")
            if isinstance(height, int) and isinstance(width, int):
                return height, width, index
            return None
        if stage.name not in _KEEP_SIZE:
            return None
    return None


def find_size_problem(model: str, height: int, width: int) -> str | None:
    """The reason why a model of the catalogue cannot take images of this size, or None."""
    entry = find_model(model)
    if min(height, width) < entry.min_size:
        return f"takes images of at least {entry.min_size}x{entry.min_size} pixels"
    if height % entry.size_multiple or width % entry.size_multiple:
        return f"takes images whose height and width are multiples of {entry.size_multiple}"
    return None


def _describe_location(config: PipelineConfig, location: Location) -> str:
    """File, line and key of a location, for a message."""
    return f"{config.locate(location)}: {'.'.join(map(str, location))}"


def check_shards(num_records: int, num_shards: int) -> None:
    """Raises DataError if the training split cannot fill its shards.

    Each worker needs a shard to read. An empty split has its own message.
    """
    if 0 < num_records < num_shards:
        cure = "Add images, or lower preprocess.shards (and train.workers with it)."
        raise DataError(
            f"the train split has {num_records} records, too few for {num_shards} shards", cure
        )
