"""A trial of a pipeline's data and model before any work.

The trial lists and reads the source, plans the splits, runs one image through the stages, and
builds the model for the result (`pipeline_ops/jobs/model_check.py`). The preprocess job and
`trainyard validate --deep` call it. It writes only the indexes of listings and the verdict.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.duplicates import Decision, decide_collection
from beam_jobs.planning.empty_splits import cause_in_plan
from beam_jobs.planning.plan import Record, check_labels, class_names_of, planned_labels, task_of
from beam_jobs.sources import read_records, validate_listing
from beam_jobs.stages import bind_stages, check_data
from beam_jobs.stages.stage import BoundStage, Example, Rejected, class_names_after, run_stages
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.model_data_rules import image_size
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.train import Train
from pipeline_ops.jobs.model_check import needs_a_process, validate_training
from pipeline_ops.jobs.planned_training import PlannedTraining
from pipeline_ops.raw_data.folder import find_raw_folder, list_folder, refuse_interval
from pipeline_ops.raw_data.listing import RawFolder

_MOST_TRIED = 50


def validate_deeply(config: PipelineConfig, python: str) -> dict[str, int]:
    """Checks data and model of a pipeline. `python` is the interpreter if the config names none.

    Returns:
      The number of images in each split.

    Raises:
      ConfigError, DataError: the errors that the preprocess job would raise before its work.
      MachineError: a file or the process that builds the model has failed.
    """
    refuse_interval(config)
    preprocess, layout = config.preprocess, Layout(config.root, config.pipeline)
    listing = list_folder(find_raw_folder(config), layout.listings)
    validate_listing(preprocess, listing, config.file)
    records = read_records(preprocess.source, listing).records
    task = task_of(records)
    source_classes = getattr(preprocess.source, "class_names", None) or class_names_of(records)
    check_data(preprocess, task, source_classes, config.file)
    stages = bind_stages(preprocess.stages)
    class_names = class_names_after(stages, source_classes)
    decision = decide_collection(preprocess, records, {})
    validate_plan(preprocess, records, decision, stages, class_names, str(listing.folder), task)
    if shape := shape_for(config.train, preprocess, records, stages, listing.folder):
        training = PlannedTraining.of(config, python)
        validate_training(training, task, shape, len(class_names), layout.checked_models)
    return {name: len(members) for name, members in decision.by_split.items()}


def validate_plan(
    config: Preprocess,
    records: Sequence[Record],
    decision: Decision,
    stages: Sequence[BoundStage],
    class_names: Sequence[str],
    folder: str,
    task: Task,
) -> None:
    """Raises DataError if a split or a class has no example left after the stages."""
    counts: dict[str, Counter[str]] = {}
    for split, by_name in planned_labels(decision.by_split).items():
        counts[split] = Counter()
        for name, count in by_name.items():
            counts[split].update(dict.fromkeys(class_names_after(stages, [name]), count))
    cause = cause_in_plan(records, decision.by_split, config.split)
    check_labels(counts, class_names, folder, task, cause)


def shape_for(
    train: Train,
    config: Preprocess,
    records: Iterable[Record],
    stages: Sequence[BoundStage],
    folder: RawFolder,
) -> tuple[int, int, int] | None:
    """The shape of the images that a model is checked for, or None if it is unknown.

    No image is read if only height and width count and the config gives them.
    """
    size = image_size(config.stages)
    if size and not needs_a_process(train):
        return (*size[:2], 1)
    return sample_shape(records, stages, folder)


def sample_shape(
    records: Iterable[Record], stages: Sequence[BoundStage], folder: RawFolder
) -> tuple[int, int, int] | None:
    """The height, width and channels of the first image that the stages keep.

    None if the stages keep none of the first 50 images.
    """
    ordered = sorted(records, key=_hash)[:_MOST_TRIED]
    for record in ordered:
        content = read_raw(record.file, folder)
        example = Example(record.key, record.label, content, boxes=record.boxes, frame=record.frame)
        try:
            finished = run_stages(stages, example, Counter())
        except Rejected:
            continue
        if finished:
            return tuple(finished[0].shape)
    return None


def _hash(record: Record) -> bytes:
    return hashlib.blake2b(record.key.encode(), person=b"trial").digest()
