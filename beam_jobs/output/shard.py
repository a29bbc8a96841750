"""Builds one shard: reads its files, runs the stages, writes the examples.

A Beam step or a worker process calls it. It does not depend on Beam.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from beam_jobs.io.example import serialise
from beam_jobs.io.raw import RawReader, file_of
from beam_jobs.io.tfrecord_writer import TFRecordWriter
from beam_jobs.output.quarantine import FragmentWriter
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.progress_counter import Notes
from beam_jobs.stages import bind_stages
from beam_jobs.stages.stage import Example, Rejected, run_stages
from beam_jobs.statistics.measure import Numbers, Ruler, numbers_as_text, numbers_of
from beam_jobs.statistics.summary import Outcome, RejectedRecord, ShardSummary
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.listing import RawFolder

Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class ShardBuildSpec:
    """The common properties of all shards of a data set. It is pickled for the workers."""

    raw_folder: RawFolder
    target: Path
    """The folder of the shards."""
    stages: tuple[StageConfig, ...]
    class_names: tuple[str, ...]
    summary: ClassVar[type[ShardSummary]] = ShardSummary
    """The type of summary that a builder returns for each shard."""

    def builder(self, tally: Path, fragments: Path) -> ShardBuilder:
        return ShardBuilder(self, tally, fragments)


class ShardBuilder:
    """Builds one shard after another.

    It records its progress in the file `tally`, and leaves bad records in `fragments`.
    """

    def __init__(self, order: ShardBuildSpec, tally: Path, fragments: Path):
        self._order, self._tally, self._fragments = order, tally, fragments
        self._stages = bind_stages(order.stages)
        self._labels = {name: index for index, name in enumerate(order.class_names)}

    def build(self, plan: ShardPlan) -> ShardSummary:
        """Writes the whole shard, or none of it.

        It stops early at a second image shape, because a data set needs a single one.

        Raises:
          MachineError: the disk failed, memory ran out, or a raw file has changed since it was
            listed.
          StageFailed: a stage has a bug.
          Stopped: the driver has given up.
        """
        counts, notes, reader = _Counts(), Notes(self._tally), self.reader(plan)
        with (
            FragmentWriter(self._fragments, plan.name) as quarantine,
            TFRecordWriter(self._order.target / plan.name) as writer,
        ):
            for record in plan.records:
                num_rejected = len(counts.rejected)
                counts.outcomes.append(
                    self._add(record, plan.split, reader, writer, quarantine, counts)
                )
                notes.add(is_rejected=len(counts.rejected) > num_rejected)
                if len(counts.shapes) > 1:
                    break
        notes.flush()
        return ShardSummary(
            split=plan.split,
            name=plan.name,
            num_examples=counts.num_examples,
            labels=counts.labels,
            shapes=list(counts.shapes.items()),
            rejected=counts.rejected,
            skipped=counts.skipped,
            nanoseconds=counts.nanoseconds,
            outcomes=counts.outcomes,
            measured=counts.ruler.measured(),
        )

    def _add(
        self,
        record: Record,
        split: str,
        reader: RawReader,
        writer: TFRecordWriter,
        quarantine: FragmentWriter,
        counts: _Counts,
    ) -> Outcome:
        """Adds one record to the shard, or to the quarantine if a stage rejects it."""
        nanoseconds, skipped = counts.nanoseconds, Counter()
        try:
            start = time.perf_counter_ns()
            raw = Example(
                record.key,
                record.label,
                reader.read(record.file),
                boxes=record.boxes,
                frame=record.frame,
                split=split,
            )
            nanoseconds["read"] += time.perf_counter_ns() - start
            # The first stage, `decode`, runs separately: its result is measured as the raw image.
            decoded = run_stages(self._stages[:1], raw, nanoseconds, skipped)
            examples = [
                (one.shape, example)
                for one in decoded
                for example in run_stages(self._stages[1:], one, nanoseconds, skipped)
            ]
            start = time.perf_counter_ns()
            numbers = [
                numbers_of(raw_shape, len(raw.encoded), example) for raw_shape, example in examples
            ]
            measured = time.perf_counter_ns()
            for _, example in examples:
                writer.write(*serialise(example, self._labels))
            nanoseconds["measure"] += measured - start
            nanoseconds["write"] += time.perf_counter_ns() - measured
        except Rejected as reject:
            rejected = RejectedRecord(
                key=record.key, stage=reject.stage, reason=reject.reason, detail=reject.detail
            )
            counts.rejected.append(rejected)
            quarantine.add(rejected, file_of(record.file).key, raw.encoded)
            return counts.add([], [], skipped)
        except MemoryError as error:
            raise MachineError(
                f"out of memory at {record.key}: {error}; "
                "give the host more, or lower preprocess.runner.workers"
            ) from error
        return counts.add([example for _, example in examples], numbers, skipped)

    def reader(self, plan: ShardPlan) -> RawReader:
        """The reader of the records of a plan."""
        return RawReader((record.file for record in plan.records), self._order.raw_folder)


@dataclasses.dataclass
class _Counts:
    """The counts for the summary of a shard that is being built."""

    num_examples: int = 0
    labels: Counter[str] = dataclasses.field(default_factory=Counter)
    shapes: dict[Shape, str] = dataclasses.field(default_factory=dict)
    rejected: list[RejectedRecord] = dataclasses.field(default_factory=list)
    skipped: Counter[str] = dataclasses.field(default_factory=Counter)
    nanoseconds: Counter[str] = dataclasses.field(default_factory=Counter)
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    ruler: Ruler = dataclasses.field(default_factory=Ruler)

    def add(
        self, examples: Sequence[Example], numbers: Sequence[Numbers], skipped: Mapping[str, int]
    ) -> Outcome:
        """Counts the outcome of one record, and returns it for the index."""
        labels: dict[str, int] = {}
        for example, measured in zip(examples, numbers, strict=True):
            for label in (
                (example.label,) if example.boxes is None else [box.label for box in example.boxes]
            ):
                labels[label] = labels.get(label, 0) + 1
            self.shapes.setdefault(example.shape, example.key)
            self.ruler.add_numbers(measured)
        self.num_examples += len(examples)
        for label, count in labels.items():
            self.labels[label] += count
        self.skipped.update(skipped)
        return Outcome(len(examples), labels, dict(skipped), numbers_as_text(numbers))
