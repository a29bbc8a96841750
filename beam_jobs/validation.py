"""The checks of a pipeline's data and model before any work.

They look at the planned splits, run some images through the stages, and build the model for the
result (`pipeline_ops/jobs/model_check.py`). The preprocess job and `trainyard validate --deep` call
them. They write only the verdict about the model.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.duplicates import CollectionDecision
from beam_jobs.planning.plan import Record, check_labels, count_planned_labels, shuffle
from beam_jobs.planning.splits import explain_from_plan
from beam_jobs.sources import SourceData
from beam_jobs.stages import BoundStage, map_class_names, run_stages
from beam_jobs.stages.stage import Example, Rejected
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.model_data_rules import find_image_size
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.train import Train
from pipeline_ops.jobs.model_check import PlannedTraining, requires_process, validate_training
from pipeline_ops.raw_data.listing import RawFolder

_MAX_TRIED_IMAGES = 50
_MAX_SUFFIXES, _IMAGES_OF_SUFFIX = 4, 2


def validate_plan(config: Preprocess, source: SourceData, decision: CollectionDecision) -> None:
    """Raises DataError if a split or a class has no example left after the stages."""
    counts: dict[str, Counter[str]] = {}
    for split, by_name in count_planned_labels(decision.by_split).items():
        counts[split] = Counter()
        for name, count in by_name.items():
            names = map_class_names(source.stages, [name])
            counts[split].update(dict.fromkeys(names, count))
    check_labels(
        counts,
        source.class_names,
        str(source.folder),
        source.task,
        explain_from_plan(source.found.records, decision.by_split, config.split),
    )


def try_stages(source: SourceData) -> None:
    """Raises ConfigError if a stage changes pixels of a test image, and a published model does not.

    A few images are tried, some of each suffix. The builders of shards look at all.
    """
    if all(stage.unserved_in is None for stage in source.stages[1:]):
        return
    stages = [source.stages[0], *map(_TriedStage.wrap, source.stages[1:])]
    tried: Counter[str] = Counter()
    for record in shuffle(source.found.records, b"trial", 0)[:_MAX_TRIED_IMAGES]:
        suffix = PurePosixPath(record.key).suffix.lower()
        is_new = suffix not in tried and len(tried) < _MAX_SUFFIXES
        if is_new or 0 < tried[suffix] < _IMAGES_OF_SUFFIX:
            example = record.to_example(read_raw(record.file, source.folder), "test")
            with contextlib.suppress(Rejected):
                tried[suffix] += bool(run_stages(stages, example, Counter()))


class _TriedStage(BoundStage):
    """A stage that works on a copy of the pixels, so that what it writes into them is a change."""

    @classmethod
    def wrap(cls, stage: BoundStage) -> BoundStage:
        return cls(**vars(stage)) if stage.unserved_in else stage

    def __call__(self, example: Example) -> list[Example]:
        results = super().__call__(example.replace(pixels=example.image.copy()))
        self.check_pixels(example, results)
        return results


def validate_model(
    training: PlannedTraining, config: Preprocess, source: SourceData, layout: Layout
) -> None:
    """Checks that a training can run on the data. No image is read if the config gives the size."""
    size = find_image_size(config.stages)
    shape: tuple[int, int, int] | None
    if size and not requires_process(Train.model_validate(training.train)):
        shape = (*size[:2], 1)  # only height and width count
    else:
        shape = sample_image_shape(source.found.records, source.stages, source.folder)
    if shape:
        num_classes = len(source.class_names)
        validate_training(training, source.task, shape, num_classes, layout.checked_models)


def sample_image_shape(
    records: Iterable[Record], stages: Sequence[BoundStage], folder: RawFolder
) -> tuple[int, int, int] | None:
    """Height, width and channels of the first image that the stages keep, if one of 50 is kept."""
    for record in shuffle(records, b"trial", 0)[:_MAX_TRIED_IMAGES]:
        example = record.to_example(read_raw(record.file, folder))
        try:
            finished = run_stages(stages, example, Counter())
        except Rejected:
            continue
        if finished:
            return finished[0].shape
    return None
