"""The preprocess job: `python -m beam_jobs.preprocess --request <path>`. Started by the preprocess operator.

Raw files in; out comes a data set: the shards of three splits, a quarantine that keeps every record that was kept out,
statistics, a schema, a page that shows all that, and figures. It makes all of it or nothing: one changed file means all shards anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from beam_jobs.beam_log import quiet_import
from beam_jobs.describe import describe, read_reference
from beam_jobs.plan import ShardPlan, check_labels, class_names_of, plan_shards, planned_labels
from beam_jobs.quarantine import MAX_BYTES, FragmentWriter, check_rejects, write_quarantine
from beam_jobs.shard import Order
from beam_jobs.sources.image_folder import label_records
from beam_jobs.stages import check_stages
from beam_jobs.statistics.dataset import collect_statistics, find_duplicates
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary, count_labels, figures_of
from pipeline_ops.contracts.config import Preprocess
from pipeline_ops.contracts.errors import DataError, ExitCode, MachineError
from pipeline_ops.contracts.job import ArtifactDraft, Job, run_job
from pipeline_ops.contracts.layout import Layout
from pipeline_ops.contracts.listing import Listing, list_raw_files
from pipeline_ops.contracts.shards import DatasetFigures

_log = logging.getLogger("beam_jobs.preprocess")


def preprocess(job: Job) -> ExitCode:
    """Makes the data set that the request asks for.

    Raises:
      ConfigError: a stage, or one of its parameters, is not what it has to be.
      DataError: too many unusable files, an empty split, a class without examples, images of different shapes, or data that
        is not what the champion's data was.
      MachineError: a disk or a worker failed, or a raw file changed meanwhile.
    """
    config = Preprocess.model_validate(job.request.config)
    check_stages(config, Path(job.request.config_file))
    listing = _list_raw_files(job, config)
    records, unlabelled = label_records(listing)
    class_names = class_names_of(records)
    plans = plan_shards(records, config.split, config.shards)
    job.progress.report("plan", len(plans), len(plans), "shards")
    _log.info("%d files, %d classes, %d shards", len(listing.files), len(class_names), len(plans))
    check_labels(planned_labels(plans), class_names, str(listing.folder))
    reference = read_reference(job.request.inputs)
    with job.artifact() as draft, _scratch(job) as scratch:
        order = Order(listing.folder, draft.folder, tuple(config.stages), tuple(class_names))
        summaries = _build_shards(job, config, plans, order, scratch)
        rejected = _in_order(unlabelled, summaries)
        _check_shapes(job, summaries)
        check_rejects(rejected, plans, len(listing.files), config.rejects, job.attempt.folder / "rejected.jsonl", job.request.config_file)
        check_labels(count_labels(summaries), class_names, str(listing.folder))
        _keep_unlabelled(unlabelled, listing, scratch)
        write_quarantine(draft.folder, rejected, scratch)
        figures = _complete(draft, config, class_names, summaries, rejected)
        duplicates = find_duplicates(plans, without=(record.key for record in rejected))
        describe(job, config, draft.folder, figures, collect_statistics(summaries, figures, duplicates), reference)
    return ExitCode.SUCCESS


def _list_raw_files(job: Job, config: Preprocess) -> Listing:
    """The raw files that the request was made for."""
    job.progress.report("list")
    folder = (Path(job.request.config_file).parent / Path(config.source.path).expanduser()).resolve()
    listing = list_raw_files(folder, Layout(Path(job.request.root), job.request.pipeline).listings)
    job.progress.report("list", len(listing.files), len(listing.files), "files")
    if listing.digest != job.request.fingerprint.inputs["raw files"]:
        raise MachineError(f"{folder}: raw files changed while the run was starting; retry")
    if not listing.files:
        raise DataError(f"{folder}: there are no files; put the images of each class into a folder of its own there, "
                        f"or correct preprocess.source.path in {job.request.config_file}")
    return listing


@contextlib.contextmanager
def _scratch(job: Job) -> Iterator[Path]:
    """A folder for what workers tell the driver. Below the storage root, which workers on other hosts see, too."""
    with tempfile.TemporaryDirectory(prefix="shards-", dir=job.attempt.folder, ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def _build_shards(job: Job, config: Preprocess, plans: Sequence[ShardPlan], order: Order, scratch: Path) -> list[ShardSummary]:
    # Beam takes longer to import than all of the above to run, and most mistakes have shown themselves by now.
    with quiet_import():
        from beam_jobs.pipeline import build_shards
    return build_shards(plans, order, config.runner, scratch, _reporter(job, sum(len(plan.records) for plan in plans)))


def _reporter(job: Job, total: int) -> Callable[[int, int], None]:
    job.progress.report("preprocess", 0, total, "images")

    def report(done: int, rejected: int) -> None:
        job.progress.report("preprocess", done, total, "images", {"rejected": rejected})

    return report


def _in_order(unlabelled: Iterable[RejectedRecord], summaries: Iterable[ShardSummary]) -> list[RejectedRecord]:
    """Everything that was kept out, by key."""
    return sorted([*unlabelled, *(record for summary in summaries for record in summary.rejected)], key=lambda record: record.key)


def _check_shapes(job: Job, summaries: Iterable[ShardSummary]) -> None:
    """Raises DataError where two images have different shapes: a batch could not hold both."""
    examples = {shape: key for summary in summaries for shape, key in summary.shapes}
    if len(examples) > 1:
        (one, one_key), (other, other_key), *_ = sorted(examples.items())
        raise DataError(f"images have different shapes (height, width, channels): {one_key} has {one}, {other_key} has {other}; "
                        f"add the stage `- resize: {{height: {one[0]}, width: {one[1]}}}` to preprocess.stages in {job.request.config_file}")


def _keep_unlabelled(unlabelled: Sequence[RejectedRecord], listing: Listing, scratch: Path) -> None:
    """The source has refused them before any worker saw them."""
    files = {file.key: file for file in listing.files} if unlabelled else {}
    with FragmentWriter(scratch, "source") as fragment:
        for record in unlabelled:
            with open(files[record.key].path(listing.folder), "rb") as file:
                fragment.add(record, record.key, file.read(MAX_BYTES), files[record.key].num_bytes)


def _complete(draft: ArtifactDraft, config: Preprocess, class_names: Sequence[str], summaries: Sequence[ShardSummary],
              rejected: Sequence[RejectedRecord]) -> DatasetFigures:
    """Adds to the shards what the manifest says of them."""
    figures = figures_of(summaries, class_names, rejected)
    draft.figures = figures.model_dump(mode="json")
    draft.num_examples = {summary.name: summary.num_examples for summary in summaries}
    draft.seeds = {"split": config.split.seed}
    _log.info("%s; %d kept out", ", ".join(f"{count} {split}" for split, count in figures.num_examples.items()), len(rejected))
    return figures


def main() -> NoReturn:
    """Runs the job and ends the process at once.

    Threads of Beam may outlive a run that failed, and a Python that shuts down around a thread that is inside gRPC or
    OpenCV aborts: the operator would get the signal in place of our exit code.
    """
    try:
        run_job(preprocess)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


if __name__ == "__main__":
    main()
