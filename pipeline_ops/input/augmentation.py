"""The random changes for the examples of a data set."""

from __future__ import annotations

from pipeline_ops.config.input import AugmentOptions
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.input.augment import Augmentation, ImageAugmentation
from pipeline_ops.input.augment_scenes import SceneAugmentation


def build_augmentation(
    config: AugmentOptions, task: Task, num_examples: int, max_boxes: int | None = None
) -> Augmentation:
    """Returns the changes for a task.

    Args:
      config: the changes to make.
      task: the task of the model.
      num_examples: the number of examples in the training split.
      max_boxes: the detector's `max_boxes`, if it has one.
    """
    return (
        SceneAugmentation(config, num_examples, max_boxes)
        if task == "detection"
        else ImageAugmentation(config)
    )
