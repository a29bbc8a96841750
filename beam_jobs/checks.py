"""The checks of a pipeline's data and model before any work.

They look at the planned splits, run some images through the stages, and build the model for the
result (`pipeline_ops/job/model_check.py`). The preprocess job and `trainyard validate --deep` call
them. They write nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from beam_jobs.io.raw import read_raw
from beam_jobs.planning import plan
from beam_jobs.planning.duplicates import CollectionDecision
from beam_jobs.planning.splits import explain_from_plan
from beam_jobs.sources import SourceData
from beam_jobs.stages import BUILT_IN, BoundStage, map_class_names, raise_problems, run_stages
from beam_jobs.stages.stage import Box, Example, Rejected
from pipeline_ops.config.model_data_rules import check_shards, check_train_split, find_image_size
from pipeline_ops.config.preprocess import Preprocess, StageConfig
from pipeline_ops.config.train import Train
from pipeline_ops.contract.planned_training import PlannedTraining
from pipeline_ops.contract.remarks import describe_unlearned
from pipeline_ops.job import model_check
from pipeline_ops.raw_data.listing import RawFolder

_MAX_TRIED_IMAGES = 50
_MAX_SUFFIXES, _IMAGES_OF_SUFFIX = 4, 2
_KEEP_BOXES = ("decode", "resize", "equalize", "encode")
"""Stages that keep all boxes of an image."""


def check_plan(config: Preprocess, source: SourceData, decision: CollectionDecision) -> list[str]:
    """Raises DataError if a split has no example left after the stages, or too few classes have.

    Returns remarks on classes without examples.
    """
    labels, crowds = (
        {split: _map_counts(source, each) for split, each in count(decision.by_split).items()}
        for count in (plan.count_planned_labels, plan.count_planned_crowds)
    )
    explain = partial(explain_from_plan, source.found.records, decision.by_split, config.split)
    names, place = source.class_names, str(source.folder)
    splits = config.split.required
    plan.check_labels(labels, names, place, source.task, explain, crowds=crowds, splits=splits)
    return describe_unlearned(labels, names)


def check_enough_images(
    train: Train, config: Preprocess, source: SourceData, decision: CollectionDecision
) -> None:
    """Raises DataError if the training split is too small for its shards or for one step.

    A user's stage, or one that splits images, may make more examples than there are images. Then
    only the training knows.
    """
    num_images = len(decision.by_split["train"])
    check_shards(num_images, config.shards)
    if all(each.name in BUILT_IN and not each.stage.splits for each in source.stages):
        check_train_split(train, num_images, str(source.folder))


def _map_counts(source: SourceData, counts: Mapping[str, int]) -> Counter[str]:
    """Returns counts by the classes after the stages."""
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found.update(dict.fromkeys(map_class_names(source.stages, [name]), count))
    return found


def try_stages(
    source: SourceData, config: Preprocess, config_file: Path, training: PlannedTraining | None
) -> None:
    """Raises ConfigError if a published model would not do to a raw image what the stages do.

    That is a stage that changes pixels of a test image and is not served, or a user's stage whose
    `serve` does something else. A few images are tried, some of each suffix. The builders of shards
    look at all, and the export at raw files that preprocessing keeps.
    """
    own = [each for each in source.stages if each.stage.serve and each.name not in BUILT_IN]
    if not training or any(stage.served for stage in config.stages):
        own = []
    wrapped = [*own, *(each for each in source.stages if each.unserved_in)]
    if not wrapped:
        return
    with tempfile.TemporaryDirectory(prefix="stage-trial-") as folder:
        trials = _Trials(config.stages, Path(folder))
        stages = [
            _TriedStage(**vars(each), trials=trials) if each in wrapped else each
            for each in source.stages
        ]
        tried: Counter[str] = Counter()
        for record in plan.shuffle(source.found.records, b"trial", 0)[:_MAX_TRIED_IMAGES]:
            suffix = PurePosixPath(record.key).suffix.lower()
            is_new = suffix not in tried and len(tried) < _MAX_SUFFIXES
            if is_new or 0 < tried[suffix] < _IMAGES_OF_SUFFIX:
                example = record.to_example(read_raw(record.file, source.folder), "test")
                with contextlib.suppress(Rejected):
                    tried[suffix] += bool(run_stages(stages, example, Counter()))
        if training and trials.kept:
            trials.check(training, config_file)


@dataclasses.dataclass
class _Trials:
    """Keeps what stages made of images, for the process that tries their `serve`."""

    configs: Sequence[StageConfig]
    folder: Path
    kept: list[model_check.StageTrial] = dataclasses.field(default_factory=list)

    def keep(self, stage: BoundStage, before: Example, after: Sequence[Example]) -> None:
        import numpy as np

        file = self.folder / f"{len(self.kept)}.npz"
        arrays: dict[str, Any] = {f"after_{index}": each.image for index, each in enumerate(after)}
        boxes = _list_kept_boxes(before, after[0])
        arrays["before"] = before.image
        arrays["boxes_before"] = [_scale(one, before.shape) for one, _ in boxes]
        arrays["boxes_after"] = [_scale(other, after[0].shape) for _, other in boxes]
        np.savez(file, **arrays)
        parameters = self.configs[stage.position].model_dump(mode="json")["parameters"]
        self.kept.append(
            model_check.StageTrial(
                name=stage.name,
                parameters=parameters,
                position=stage.position,
                key=before.key,
                arrays=str(file),
            )
        )

    def check(self, training: PlannedTraining, config_file: Path) -> None:
        trials = model_check.StageTrials(trials=self.kept)
        if found := model_check.try_served_stages(training, trials):
            position, fault = found
            place = ("preprocess", "stages", position, self.configs[position].name)
            cure = "Correct it, or write `served: by_client` beside the name of the stage"
            raise_problems([(place, f"{fault}. {cure}.")], config_file)


def _list_kept_boxes(before: Example, after: Example) -> list[tuple[Box, Box]]:
    """Pairs of boxes that a stage has neither dropped nor cut at an edge."""
    if not before.boxes or not after.boxes or len(before.boxes) != len(after.boxes):
        return []
    height, width = after.shape[:2]
    return [
        (one, other)
        for one, other in zip(before.boxes, after.boxes, strict=True)
        if min(other.ymin, other.xmin) > 0 and other.ymax < height and other.xmax < width
    ]


def _scale(box: Box, shape: Sequence[int]) -> list[float]:
    height, width = shape[:2]
    return [box.ymin / height, box.xmin / width, box.ymax / height, box.xmax / width]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TriedStage(BoundStage):
    """A stage that works on a copy of the pixels, so that what it writes into them is a change."""

    trials: _Trials

    def __call__(self, example: Example) -> list[Example]:
        results = super().__call__(example.replace(pixels=example.image.copy()))
        self.check_pixels(example, results)
        if self.unserved_in is None and results:
            self.trials.keep(self, example, results)
        return results


def check_model(training: PlannedTraining, config: Preprocess, source: SourceData) -> None:
    """Checks that a training can run on the data. No image is read if the config gives the size."""
    if all(stage.name in _KEEP_BOXES for stage in config.stages):
        fullest = max(source.found.records, key=lambda each: len(each.boxes or ()))
        training.check_max_boxes(fullest.key, len(fullest.boxes or ()))
    shape = find_image_size(config.stages)
    if shape and not model_check.requires_process(Train.model_validate(training.train)):
        shape = (*shape[:2], 1)  # only height and width count
    else:
        shape = sample_image_shape(source.found.records, source.stages, source.folder)
    if shape:
        model_check.check_training(training, source.task, shape, len(source.class_names))


def sample_image_shape(
    records: Iterable[plan.Record], stages: Sequence[BoundStage], folder: RawFolder
) -> tuple[int, int, int] | None:
    """Height, width and channels of the first image that the stages keep, if one of 50 is kept."""
    for record in plan.shuffle(records, b"trial", 0)[:_MAX_TRIED_IMAGES]:
        example = record.to_example(read_raw(record.file, folder))
        with contextlib.suppress(Rejected):
            if finished := run_stages(stages, example, Counter()):
                return finished[0].shape
    return None
