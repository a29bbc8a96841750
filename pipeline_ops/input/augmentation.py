"""Which random changes the examples of a data set get."""

from __future__ import annotations

from pipeline_ops.config.input import Augment
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.input.augment import Changes, ImageChanges
from pipeline_ops.input.augment_scenes import SceneChanges


def make_changes(config: Augment, task: Task, num_examples: int, max_boxes: int | None = None) -> Changes:
    """`num_examples` are those of the split that is trained on; `max_boxes` is the detector's, if it has one."""
    return SceneChanges(config, num_examples, max_boxes) if task == "detection" else ImageChanges(config)
