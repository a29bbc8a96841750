"""The preprocess job.

The operator starts it by `beam_jobs/__main__.py`. It turns raw files into a data set: the shards of
three splits, a quarantine with every rejected record, an index, statistics, a schema, a page that
shows all of these, and figures. It makes the whole data set or nothing. If the request names a
previous data set, the job takes over the shards of everything that did not change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from beam_jobs.checks import check_model, check_plan, try_stages
from beam_jobs.exchange import Exchange
from beam_jobs.output import describe, quarantine
from beam_jobs.output.raw_test import RawTestQuota
from beam_jobs.output.shard import ShardBuildSpec
from beam_jobs.planning import duplicates, generations
from beam_jobs.planning.plan import ShardPlan, check_labels
from beam_jobs.planning.splits import explain_from_shards
from beam_jobs.sources import SourceData, read_source_data
from beam_jobs.sources.source import SourceRecords
from beam_jobs.stages import check_stages, describe_stages
from beam_jobs.statistics import summary
from beam_jobs.statistics.dataset import add_remarks, collect_statistics, find_duplicates
from beam_jobs.statistics.pictures import ShardReader, draw_examples
from beam_jobs.statistics.summary import ShardSummary, Summary
from beam_jobs.worker import BuildSpec, compute_num_processes, open_pool
from pipeline_ops.card.collection import collect_card
from pipeline_ops.card.page import write_card_page
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.sources import BeamSource
from pipeline_ops.contract import dataset
from pipeline_ops.contract.layout import Layout, work_folder
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.job.runner import Job
from pipeline_ops.job.workspace import ArtifactDraft
from pipeline_ops.raw_data.folder import list_folder, resolve_raw_folder
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.storage.local_files import write_atomically, write_json
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.user_code.modules import hide_modules

_UNUSED_MODULES = (
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.azure.blobstoragefilesystem",
    "apache_beam.io.gcp.bigquery",
    "apache_beam.io.gcp.gcsfilesystem",
    "bson",
)
"""Beam's own clients of buckets and databases, which account for half of its import time."""
_log = logging.getLogger("beam_jobs.preprocess")


def preprocess(job: Job) -> ExitCode:
    """Makes the data set that the request asks for, or continues an earlier try."""
    with job.artifact(is_kept=True) as draft:
        _make_dataset(job, draft)
    return ExitCode.SUCCESS


class _DatasetPlan(NamedTuple):
    """The decisions before the first shard is built."""

    decision: duplicates.CollectionDecision
    delta: generations.Delta
    previous: generations.PreviousDataset | None
    hashes: Mapping[int, str]
    reference: describe.Reference | None


def _make_dataset(job: Job, draft: ArtifactDraft) -> None:
    config = Preprocess.model_validate(job.request.config)
    with collect_card() as card:
        source = _read_source(job, config)
    plan = _plan_dataset(job, config, source)
    unchanged = generations.take_over(plan.delta, plan.previous, draft)
    built = _build_shards(job, config, source, plan.delta.shards, draft)
    summary.check_shapes([*unchanged, *built], job.request.config_file)
    records = _write_index(job, draft, plan, built)
    figures = _describe_dataset(job, config, source, plan, [*unchanged, *built], records, draft)
    write_card_page(draft.folder, job.request.job, card.content)
    _write_figures(draft, config, figures)


def _read_source(job: Job, config: Preprocess) -> SourceData:
    config_file = Path(job.request.config_file)
    check_stages(config, config_file)
    listing = _list_raw_files(job, config)
    return read_source_data(config, listing, config_file, partial(_read_transformed, job, config))


def _plan_dataset(job: Job, config: Preprocess, source: SourceData) -> _DatasetPlan:
    """Decides which records belong to which split, and which shards have to be built."""
    previous = generations.read_previous_dataset(job.request)
    reference = describe.read_reference(job.request.inputs)
    known_hashes = generations.collect_known_hashes(previous)
    hashes = _hash_images(job, config, source, known_hashes)
    decision = duplicates.decide_collection(config, source.found.records, hashes)
    _check_before_work(job, config, source, decision)
    delta = generations.plan_delta(decision.by_split, previous, config, source.class_names)
    if previous:
        _log.info("%s", delta.reason)
    return _DatasetPlan(decision, delta, previous, hashes, reference)


def _describe_dataset(
    job: Job,
    config: Preprocess,
    source: SourceData,
    plan: _DatasetPlan,
    summaries: Sequence[ShardSummary],
    records: _Records,
    draft: ArtifactDraft,
) -> dataset.DatasetFigures:
    """Writes quarantine, statistics and page. Raises DataError for a data set to be refused."""
    by_split, previous = plan.decision.by_split, plan.previous
    rejected = quarantine.collect_rejected(source, plan.decision, summaries, draft)
    served = {"stages": describe_stages(config), "class_numbers": list(source.class_numbers)}
    counted = summary.compute_figures(summaries, source.class_names, rejected, source.task)
    changes = generations.count_changes(records.entries, previous)
    counted = counted.model_copy(update=plan.delta.figures | served | changes)
    copies = find_duplicates(by_split, {record.key for record in rejected})
    statistics = collect_statistics(summaries, counted, copies)
    labels_before = previous.labels if previous else None
    figures = add_remarks(counted, statistics, by_split, labels_before)
    for warning in figures.warnings:
        _log.warning("%s", warning)
    shown = quarantine.choose_shown(rejected)
    bad = filter(None, quarantine.read_bad_records(shown, source))
    page = describe.write_description(
        job,
        config,
        draft,
        figures,
        statistics,
        bad,
        plan.reference,
        labels_before=labels_before,
        pictures=draw_examples(records.entries, records.reader, figures.class_names),
    )
    with describe.keep_page_of_refused_data(job, page):
        quarantine.check_rejects(rejected, source, plan.decision, config.rejects, job)
        explain_empty = partial(explain_from_shards, by_split, rejected, summaries)
        labels, names = summary.count_labels(summaries), source.class_names
        place, splits = str(source.folder), config.split.required
        check_labels(labels, names, place, source.task, explain_empty, splits=splits)
        describe.check_comparison(page.statistics.comparison, config, job.request.config_file)
    return page.figures


class _Records(NamedTuple):
    """All records of the data set, and access to their examples."""

    entries: list[dataset.IndexEntry]
    reader: ShardReader


def _write_index(
    job: Job, draft: ArtifactDraft, plan: _DatasetPlan, built: Sequence[ShardSummary]
) -> _Records:
    """Writes the index and the lengths of the examples."""
    delta, quarantined = plan.delta, plan.decision.quarantined
    entries = list(generations.build_index_entries(delta, built, quarantined, plan.hashes))
    dataset.write_index(draft.folder / dataset.INDEX, entries)
    lengths = generations.collect_record_lengths(built, delta.kept, plan.previous)
    content = dataset.format_record_lengths(lengths)
    write_atomically(draft.folder / dataset.RECORD_LENGTHS, content)
    artifacts = Layout(open_root(job.request.root), job.request.pipeline).artifacts("preprocess")
    files = [file for file in (shard.file for shard in built) if file] + draft.references
    places = {
        file.path: artifacts / file.stored_at if file.stored_at else draft.target / file.path
        for file in files
    }
    return _Records(entries, ShardReader(places, lengths))


def _check_before_work(
    job: Job, config: Preprocess, source: SourceData, decision: duplicates.CollectionDecision
) -> None:
    """Checks what needs no shard: classes without examples, unserved stages, the model."""
    check_plan(config, source, decision)
    try_stages(source, config, Path(job.request.config_file), job.request.training)
    if training := job.request.training:
        model = f"train.model {training.train['model']}"
        job.progress.report("check", message=f"whether {model} can be trained on these data")
        check_model(training, config, source)


def _build_shards(
    job: Job,
    config: Preprocess,
    source: SourceData,
    plans: Sequence[ShardPlan],
    draft: ArtifactDraft,
) -> list[ShardSummary]:
    job.progress.report("plan", len(plans), len(plans), "shards")
    num_files, num_classes = len(source.listing.files), len(source.class_names)
    _log.info("%d files, %d classes, %d shards", num_files, num_classes, len(plans))
    spec = ShardBuildSpec(
        source.folder,
        draft.target,
        tuple(config.stages),
        source.class_names,
        RawTestQuota.divide(config.raw_test_files, plans),
        Path(job.request.config_file),
    )
    built = _run_beam(job, config, plans, spec, "preprocess")
    draft.stored = [file for shard in built for file in shard.files]
    draft.remove_others()
    return built


def _list_raw_files(job: Job, config: Preprocess) -> Listing:
    job.progress.report("list")
    folder = resolve_raw_folder(config.source.folder, Path(job.request.config_file).parent)
    listings = Layout(open_root(job.request.root), job.request.pipeline).listings
    listing = list_folder(folder, listings, config.source.file_patterns)
    job.progress.report("list", len(listing.files), len(listing.files), "files")
    if listing.digest != job.request.fingerprint.inputs["raw files"]:
        raise MachineError(f"{folder}: raw files changed while the run was starting. Retry.")
    return listing


def _read_transformed(
    job: Job, config: Preprocess, source: BeamSource, listing: Listing, config_file: Path
) -> tuple[Listing, SourceRecords]:
    exchange = Exchange(work_folder(job.folder) / "transform")

    def report(number: int) -> None:
        job.progress.report("transform", number, None, "entries")

    with hide_modules(()):  # the transform may need any of them
        from beam_jobs import transform
    if config.runner.name == "embedded":
        run = transform.make_run_here(exchange, report)
        return transform.read_transformed(source, listing, config_file, exchange, run)
    from beam_jobs.engine import make_run_on_engine

    on_engine = make_run_on_engine(job, config.runner, exchange, report)
    return transform.read_transformed(source, listing, config_file, exchange, *on_engine)


def _hash_images(
    job: Job, config: Preprocess, source: SourceData, known: Mapping[int, str]
) -> Mapping[int, str]:
    """The perceptual hashes by content, if near duplicates are to be removed."""
    if config.duplicates != "remove_near":
        return {}
    plans = duplicates.plan_blocks(source.found.records, known)
    blocks = _run_beam(job, config, plans, duplicates.ImageHashSpec(source.folder), "compare")
    return dict(known) | {
        content: found for block in blocks for content, found in block.perceptual_hashes.items()
    }


def _run_beam(
    job: Job, config: Preprocess, plans: Sequence[ShardPlan], spec: BuildSpec[Summary], phase: str
) -> list[Summary]:
    if not plans:  # only removals, which need no Beam
        return []
    exchange = Exchange(work_folder(job.folder) / phase)
    total = sum(len(plan.records) for plan in plans)

    def report(done: int, rejected: int) -> None:
        job.progress.report(phase, done, total, "images", {"rejected": rejected})

    num_processes = compute_num_processes(config.runner, plans)
    with open_pool(spec, exchange, num_processes):
        # Importing Beam takes longer than everything above, which finds most mistakes.
        if config.runner.name == "embedded":
            with hide_modules(_UNUSED_MODULES):
                from beam_jobs.graph import build_shards
            return build_shards(plans, spec, exchange, num_processes, report)
        with hide_modules(()):  # Dataflow uses them, and an option of others may
            from beam_jobs.engine import build_shards_on_engine
        return build_shards_on_engine(job, plans, spec, config.runner, exchange, report)


def _write_figures(
    draft: ArtifactDraft, config: Preprocess, figures: dataset.DatasetFigures
) -> None:
    draft.figures = figures.model_dump(mode="json")
    write_json(draft.folder / dataset.STAGES, draft.figures["stages"])
    if figures.class_numbers:
        write_json(draft.folder / dataset.CLASS_NUMBERS, figures.class_numbers)
    draft.seeds = {"split": config.split.seed}
    if config.balance == "by_class":
        weights = summary.compute_class_weights(figures.labels["train"])
        write_json(draft.folder / dataset.CLASS_WEIGHTS, weights)
    counts = ", ".join(f"{count} {split}" for split, count in figures.num_examples.items())
    _log.info("%s; %d rejected", counts, figures.num_rejected)
