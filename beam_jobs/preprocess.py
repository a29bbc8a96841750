"""The preprocess job: `python -m beam_jobs.preprocess --request <path>`.

The preprocess operator starts it. The job turns raw files into a data set: the shards of three
splits, a quarantine with every rejected record, an index, statistics, a schema, a page that shows
all of these, and figures. It makes the whole data set or nothing. If the request names a previous
data set, the job takes over the shards of everything that did not change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from beam_jobs.beam_log import quiet_import
from beam_jobs.io.raw import file_of, read_beginning, read_raw
from beam_jobs.output.describe import describe, read_reference
from beam_jobs.output.quarantine import MAX_BYTES, FragmentWriter, check_rejects, write_quarantine
from beam_jobs.output.shard import ShardBuildSpec
from beam_jobs.planning.balance import class_weights
from beam_jobs.planning.delta import Delta, plan_delta
from beam_jobs.planning.duplicates import Decision, decide_collection, is_removed_copy
from beam_jobs.planning.empty_splits import cause_in_shards
from beam_jobs.planning.generations import (
    DataSetBefore,
    entries_of,
    entries_of_kept_out,
    keep_rejected,
    known_pictures,
    link_shards,
    read_base,
    summaries_of_unchanged,
)
from beam_jobs.planning.index import write_index
from beam_jobs.planning.perceptual_hash import PictureOrder, pictures_of, plan_blocks
from beam_jobs.planning.plan import ShardPlan, check_labels, class_names_of, task_of
from beam_jobs.processes import worker_processes
from beam_jobs.sources import read_records, validate_listing
from beam_jobs.sources.collect import Found
from beam_jobs.stages import bind_stages, check_data, check_stages
from beam_jobs.stages.stage import BoundStage, class_names_after
from beam_jobs.statistics.dataset import collect_statistics, find_duplicates
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary, count_labels, figures_of
from beam_jobs.trial import shape_for, validate_plan
from pipeline_ops.artifacts.dataset import CLASS_WEIGHTS, INDEX, DatasetFigures
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.train import Train
from pipeline_ops.errors import DataError, ExitCode, MachineError
from pipeline_ops.jobs.model_check import validate_training
from pipeline_ops.jobs.runner import ArtifactDraft, Job, run_job
from pipeline_ops.raw_data.folder import list_folder, raw_folder
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.storage.atomic import remove_own, write_json

_log = logging.getLogger("beam_jobs.preprocess")


def preprocess(job: Job) -> ExitCode:
    """Makes the data set that the request asks for.

    Raises:
      ConfigError: a stage or one of its parameters is invalid.
      DataError: too many files are unusable, a split is empty, a class has no examples, images have
        different shapes, or the data differ from the champion's data.
      MachineError: a disk or a worker failed, or a raw file changed during the job.
    """
    config = Preprocess.model_validate(job.request.config)
    check_stages(config, Path(job.request.config_file))
    source = _read_source(job, config)
    before, reference = read_base(job.request), read_reference(job.request.inputs)
    pictures = _hash_pictures(job, config, source, known_pictures(before))
    collection = decide_collection(config, source.found.records, pictures)
    validate_plan(
        config,
        source.found.records,
        collection,
        source.stages,
        source.class_names,
        str(source.listing.folder),
        source.task,
    )
    _validate_training(job, config, source)
    delta = _plan(job, config, source, collection, before)
    with job.artifact() as draft, _scratch(job) as scratch:
        unchanged = _take_over(delta, before, draft, scratch)
        order = ShardBuildSpec(
            source.listing.folder, draft.folder, tuple(config.stages), source.class_names
        )
        built = _run_beam(job, config, delta.shards, order, "preprocess", scratch)
        summaries = [*unchanged, *built]
        rejected = _check_outcome(job, config, source, collection, summaries)
        _keep_rejected_by_driver(source, collection, scratch)
        write_quarantine(draft.folder, rejected, scratch)
        draft.num_examples = {summary.name: summary.num_examples for summary in built}
        figures = _complete(
            draft, config, figures_of(summaries, source.class_names, rejected, source.task), delta
        )
        write_index(
            draft.folder / INDEX,
            [
                *delta.unchanged,
                *entries_of(delta.shards, built, pictures),
                *entries_of_kept_out(collection.kept_out, pictures),
            ],
        )
        duplicates = find_duplicates(
            collection.by_split, without=(record.key for record in rejected)
        )
        describe(
            job,
            config,
            draft.folder,
            figures,
            collect_statistics(summaries, figures, duplicates),
            reference,
        )
    return ExitCode.SUCCESS


@dataclasses.dataclass(frozen=True)
class _Source:
    """The source as it was read, and the stages. `class_names` are the classes after the stages."""

    listing: Listing
    found: Found
    task: Task
    stages: Sequence[BoundStage]
    class_names: tuple[str, ...]


def _read_source(job: Job, config: Preprocess) -> _Source:
    listing = _list_raw_files(job, config)
    found = read_records(config.source, listing)
    source_classes = getattr(config.source, "class_names", None) or class_names_of(found.records)
    task = task_of(found.records)
    check_data(config, task, source_classes, Path(job.request.config_file))
    stages = bind_stages(config.stages)
    return _Source(listing, found, task, stages, tuple(class_names_after(stages, source_classes)))


def _validate_training(job: Job, config: Preprocess, source: _Source) -> None:
    """Checks that the requested training can run on these data, before anything is built.

    Raises:
      ConfigError: the training cannot run on these data.
    """
    training = job.request.training
    if training is None:
        return
    train = Train.model_validate(training.train)
    job.progress.report(
        "check", message=f"whether train.model {train.model} can be trained on these data"
    )
    if shape := shape_for(
        train, config, source.found.records, source.stages, source.listing.folder
    ):
        passed = Layout(Path(job.request.root), job.request.pipeline).checked_models
        validate_training(training, source.task, shape, len(source.class_names), passed)


def _plan(
    job: Job,
    config: Preprocess,
    source: _Source,
    collection: Decision,
    before: DataSetBefore | None,
) -> Delta:
    delta = plan_delta(collection.by_split, before and before.base, config, source.class_names)
    job.progress.report("plan", len(delta.shards), len(delta.shards), "shards")
    _log.info(
        "%d files, %d classes, %d shards",
        len(source.listing.files),
        len(source.class_names),
        len(delta.shards),
    )
    if before:
        _log.info("%s", delta.reason)
    return delta


def _check_outcome(
    job: Job,
    config: Preprocess,
    source: _Source,
    collection: Decision,
    summaries: Sequence[ShardSummary],
) -> list[RejectedRecord]:
    """Returns everything that was kept out, in the order of the keys.

    Raises:
      DataError: too much was kept out, a class has no examples, or images have different shapes.
    """
    rejected = _in_order([*source.found.rejected, *collection.rejected], summaries)
    _check_shapes(job, summaries)
    bad = [record for record in rejected if not is_removed_copy(record)]
    labels = itertools.chain(
        ((record.key, record.labels) for record in collection.without_copies),
        source.found.refused_labels.items(),
    )
    check_rejects(
        bad,
        labels,
        source.stages,
        len(source.found.records) + len(source.found.rejected),
        config.rejects,
        job.attempt.folder / "rejected.jsonl",
        job.request.config_file,
    )
    check_labels(
        count_labels(summaries),
        source.class_names,
        str(source.listing.folder),
        source.task,
        cause_in_shards(collection.by_split, rejected, summaries),
    )
    return rejected


def _list_raw_files(job: Job, config: Preprocess) -> Listing:
    """The raw files that the request was made for."""
    job.progress.report("list")
    folder = raw_folder(config.source.folder, Path(job.request.config_file).parent)
    listing = list_folder(folder, Layout(Path(job.request.root), job.request.pipeline).listings)
    job.progress.report("list", len(listing.files), len(listing.files), "files")
    if listing.digest != job.request.fingerprint.inputs["raw files"]:
        raise MachineError(f"{folder}: raw files changed while the run was starting; retry")
    validate_listing(config, listing, job.request.config_file)
    return listing


def _hash_pictures(
    job: Job, config: Preprocess, source: _Source, known: Mapping[str, str]
) -> Mapping[str, str]:
    """The perceptual hashes by content, if near duplicates are to be removed.

    Only files without a known hash are read.
    """
    if config.duplicates != "remove_near":
        return {}
    order = PictureOrder(
        ShardBuildSpec(source.listing.folder, job.attempt.folder, (), ())
    )  # no shard is written
    with _scratch(job) as scratch:
        blocks = _run_beam(
            job, config, plan_blocks(source.found.records, known), order, "compare", scratch
        )
    return {**known, **pictures_of(blocks)}


def _take_over(
    delta: Delta, before: DataSetBefore | None, draft: ArtifactDraft, scratch: Path
) -> list[ShardSummary]:
    if before is None or not delta.linked:
        return []
    link_shards(delta, before, draft)
    unchanged = summaries_of_unchanged(delta, before)
    keep_rejected(before, unchanged, scratch)
    return unchanged


@contextlib.contextmanager
def _scratch(job: Job) -> Iterator[Path]:
    """A folder for the messages of the workers to the driver.

    It is below the storage root, so that workers on other hosts can reach it.
    """
    scratch = job.attempt.scratch
    scratch.mkdir()
    try:
        yield scratch
    finally:
        remove_own(scratch)  # if the job is killed, its operator removes it


def _run_beam(
    job: Job,
    config: Preprocess,
    plans: Sequence[ShardPlan],
    order: ShardBuildSpec | PictureOrder,
    phase: str,
    scratch: Path,
) -> list:
    """The summaries of all plans."""
    if not plans:  # only removals, which need no Beam
        return []
    with worker_processes(config.runner, plans, order, scratch):
        # Importing Beam takes longer than running everything above, which finds most mistakes.
        with quiet_import():
            from beam_jobs.pipeline import build_shards
        return build_shards(
            plans,
            order,
            config.runner,
            scratch,
            _reporter(job, phase, sum(len(plan.records) for plan in plans)),
        )


def _reporter(job: Job, phase: str, total: int) -> Callable[[int, int], None]:
    job.progress.report(phase, 0, total, "images")

    def report(done: int, rejected: int) -> None:
        job.progress.report(phase, done, total, "images", {"rejected": rejected})

    return report


def _in_order(
    unusable: Iterable[RejectedRecord], summaries: Iterable[ShardSummary]
) -> list[RejectedRecord]:
    """Returns everything that was kept out, in the order of the keys."""
    return sorted(
        [*unusable, *(record for summary in summaries for record in summary.rejected)],
        key=lambda record: record.key,
    )


def _check_shapes(job: Job, summaries: Iterable[ShardSummary]) -> None:
    """Raises DataError if two images have different shapes: a batch could not hold both."""
    examples = {shape: key for summary in summaries for shape, key in summary.shapes}
    if len(examples) > 1:
        (one, one_key), (other, other_key), *_ = sorted(examples.items())
        raise DataError(
            "images have different shapes (height, width, channels): "
            f"{one_key} has {one}, {other_key} has {other}; "
            f"add the stage `- resize: {{height: {one[0]}, width: {one[1]}}}` "
            f"to preprocess.stages in {job.request.config_file}"
        )


def _keep_rejected_by_driver(source: _Source, collection: Decision, scratch: Path) -> None:
    """Keeps the bytes of rejected records that no worker has read.

    These are files that the source could not use, and images that contradict one another.
    """
    listing, unusable = source.listing, source.found.rejected
    with FragmentWriter(scratch, "driver") as fragment:
        files = {file.key: file for file in listing.files} if unusable else {}
        for rejected in unusable:
            if file := files.get(rejected.key):  # a box or a missing image has no bytes of its own
                fragment.add(
                    rejected,
                    file.key,
                    read_beginning(file, listing.folder, MAX_BYTES),
                    file.num_bytes,
                )
        for record, rejected in zip(collection.kept_out, collection.rejected, strict=True):
            if not is_removed_copy(rejected):
                fragment.add(
                    rejected, file_of(record.file).key, read_raw(record.file, listing.folder)
                )


def _complete(
    draft: ArtifactDraft, config: Preprocess, figures: DatasetFigures, delta: Delta
) -> DatasetFigures:
    """Adds the figures for the manifest and, if the config asks for them, the class weights."""
    removed = {shard: list(positions) for shard, positions in delta.linked.items() if positions}
    figures = figures.model_copy(update={"generation": delta.generation, "removed": removed})
    draft.figures = figures.model_dump(mode="json")
    draft.seeds = {"split": config.split.seed}
    if config.balance == "by_class":
        write_json(draft.folder / CLASS_WEIGHTS, class_weights(figures.labels["train"]))
    _log.info(
        "%s; %d kept out",
        ", ".join(f"{count} {split}" for split, count in figures.num_examples.items()),
        figures.num_rejected,
    )
    return figures


def main() -> NoReturn:
    """Runs the job and ends the process at once.

    Threads of Beam may outlive a failed run. A Python process that shuts down while a thread is
    inside gRPC or OpenCV aborts. The operator would then get a signal instead of the exit code.
    """
    try:
        run_job(preprocess)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


if __name__ == "__main__":
    main()
