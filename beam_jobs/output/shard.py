"""Builds one shard: reads its files, runs the stages, writes the examples.

A Beam step or a worker process calls it. It does not depend on Beam.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from beam_jobs.exchange import Exchange, ProgressReporter
from beam_jobs.io.example import serialise
from beam_jobs.io.raw import RawReader, find_raw_file
from beam_jobs.io.tfrecord_files import TFRecordWriter, write_tfrecord
from beam_jobs.output.quarantine import QuarantineWriter
from beam_jobs.output.raw_test import RawTestQuota, RawTestWriter
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.stages import bind_stages, run_stages
from beam_jobs.stages.stage import Example, Rejected
from beam_jobs.statistics import summary
from beam_jobs.statistics.summary import BadRecord, Outcome, ShardSummary
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.contract.dataset import RejectedRecord
from pipeline_ops.contract.manifest import ManifestFile
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.listing import RawFolder
from pipeline_ops.storage.store_path import StorePath


@dataclasses.dataclass(frozen=True)
class ShardBuildSpec:
    """The common properties of all shards of a data set."""

    raw_folder: RawFolder
    target: StorePath
    """The folder of the shards, in the store."""
    stages: tuple[StageConfig, ...]
    class_names: tuple[str, ...]
    raw_test: RawTestQuota
    config_file: Path
    summary: ClassVar[type[ShardSummary]] = ShardSummary
    """The type of summary that a builder returns for each shard."""

    def create_builder(self, exchange: Exchange) -> Callable[[ShardPlan], ShardSummary]:
        return ShardBuilder(self, exchange).build

    def is_stored(self, file: ManifestFile) -> bool:
        folder = self.target.parent.parent if file.stored_at else self.target
        entry = (folder / (file.stored_at or file.path)).stat()
        return entry is not None and entry.num_bytes == file.num_bytes


class ShardBuilder:
    """Builds one shard after another. It reports its progress to the exchange."""

    def __init__(self, spec: ShardBuildSpec, exchange: Exchange):
        self._spec, self._exchange = spec, exchange
        self._stages = bind_stages(spec.stages, spec.config_file)
        self._labels = {name: index for index, name in enumerate(spec.class_names)}

    def build(self, plan: ShardPlan) -> ShardSummary:
        """Writes the whole shard or none. It ends at a second image shape: only one may be."""
        counts, reporter = _Counts(), ProgressReporter(self._exchange, plan.name)
        reader = RawReader((record.file for record in plan.records), self._spec.raw_folder)
        with (
            QuarantineWriter(self._spec.target, plan.name) as quarantine,
            RawTestWriter(self._spec.target, plan, self._spec.raw_test) as raw_test,
            write_tfrecord(self._spec.target / plan.name) as writer,
        ):
            for position, record in enumerate(plan.records):
                try:
                    start = time.perf_counter_ns()
                    raw = record.to_example(reader.read(record.file), plan.split)
                    counts.nanoseconds["read"] += time.perf_counter_ns() - start
                    rejected = self._add(position, raw, writer, raw_test, counts)
                except MemoryError as error:
                    cure = "Add memory to the host, or lower preprocess.runner.workers."
                    raise MachineError(f"out of memory at {record.key}: {error}", cure) from error
                if rejected:
                    source, content = find_raw_file(record.file).key, raw.encoded
                    bad = BadRecord(rejected, source, content, len(content))
                    counts.rejected.append(quarantine.add(bad))
                reporter.add(is_rejected=rejected is not None)
                if len(counts.shapes) > 1:
                    break
        num_examples = len(writer.lengths)
        return ShardSummary.count(
            counts.outcomes,
            split=plan.split,
            name=plan.name,
            file=writer.file.model_copy(update={"num_examples": num_examples}),
            quarantine=quarantine.file,
            raw_test=raw_test.file,
            shapes=list(counts.shapes.items()),
            rejected=counts.rejected,
            passed={**counts.passed, "write": num_examples},
            nanoseconds=counts.nanoseconds,
            outcomes=counts.outcomes,
            lengths=writer.lengths,
        )

    def _add(
        self,
        position: int,
        raw: Example,
        writer: TFRecordWriter,
        raw_test: RawTestWriter,
        counts: _Counts,
    ) -> RejectedRecord | None:
        """Adds one record to the shard. Returns it if a stage rejects it."""
        spent, skipped, rejected = counts.nanoseconds, Counter[str](), None
        try:
            # The first stage, `decode`, runs separately: its result is measured as the raw image.
            [decoded] = run_stages(self._stages[:1], raw, spent, skipped, counts.passed)
            if dropped := len(raw.boxes or ()) - len(decoded.boxes or ()):
                skipped["decode: box_outside"] += dropped  # as `preprocess.source.boxes` says
            examples = run_stages(self._stages[1:], decoded, spent, skipped, counts.passed)
            start = time.perf_counter_ns()
            source = decoded.shape, len(raw.encoded)
            measured = [summary.measure_example(*source, example) for example in examples]
            encoded = summary.encode_measurements(measured)
            measured_at = time.perf_counter_ns()
            records = [serialise(example, self._labels) for example in examples]
            for record in records:
                writer.write(*record)
            if examples:
                images = [image for _, image, _ in records]
                raw_test.add(position, raw, decoded.shape, examples, images)
            spent["measure"] += measured_at - start
            spent["write"] += time.perf_counter_ns() - measured_at
        except Rejected as reject:
            examples, encoded = [], ""
            rejected = RejectedRecord(key=raw.key, **vars(reject))
        if not examples:
            raw_test.pass_over(position)
        for example in examples:
            counts.shapes.setdefault(example.shape, example.key)
        labels = Counter(label for example in examples for label in example.labels)
        counts.outcomes.append(Outcome(len(examples), dict(labels), dict(skipped), encoded))
        return rejected


@dataclasses.dataclass
class _Counts:
    shapes: dict[tuple[int, int, int], str] = dataclasses.field(default_factory=dict)
    rejected: list[RejectedRecord] = dataclasses.field(default_factory=list)
    passed: Counter[str] = dataclasses.field(default_factory=Counter)
    nanoseconds: Counter[str] = dataclasses.field(default_factory=Counter)
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
