"""Builds one shard: reads its files, runs the stages, writes the examples. Called by the Beam step; knows nothing of Beam."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from beam_jobs.io.example import serialise
from beam_jobs.io.tfrecord import TFRecordWriter
from beam_jobs.plan import Record, ShardPlan
from beam_jobs.quarantine import FragmentWriter
from beam_jobs.stages import bind_stages
from beam_jobs.stages.stage import Example, Rejected, run_stages
from beam_jobs.statistics.measure import Ruler
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary
from beam_jobs.tally import Notes
from pipeline_ops.contracts.config import Stage
from pipeline_ops.contracts.errors import MachineError

Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Order:
    """What is the same for all shards of a data set. It travels to the workers by pickle."""

    raw_folder: Path
    target: Path
    """The folder that gets the shards."""
    stages: tuple[Stage, ...]
    class_names: tuple[str, ...]


class ShardBuilder:
    """Builds one shard after another, notes in the file `tally` how far it is, and leaves bad records in `fragments`."""

    def __init__(self, order: Order, tally: Path, fragments: Path):
        self._order, self._tally, self._fragments = order, tally, fragments
        self._stages = bind_stages(order.stages)
        self._labels = {name: index for index, name in enumerate(order.class_names)}

    def build(self, plan: ShardPlan) -> ShardSummary:
        """Writes the shard, whole or not at all.

        It stops early at a second image shape, because no data set can be made then.

        Raises:
          MachineError: the disk failed, memory ran out, or a raw file has changed since it was listed.
          StageFailed: a stage has a bug.
          Stopped: the driver has given up.
        """
        counts, notes = _Counts(), Notes(self._tally)
        with FragmentWriter(self._fragments, plan.name) as quarantine, TFRecordWriter(self._order.target / plan.name) as writer:
            for record in plan.records:
                is_kept = self._add(record, writer, quarantine, counts)
                notes.add(is_rejected=not is_kept)
                if len(counts.shapes) > 1:
                    break
        notes.flush()
        return ShardSummary(split=plan.split, name=plan.name, num_examples=counts.num_examples, labels=counts.labels,
                            shapes=list(counts.shapes.items()), rejected=counts.rejected, nanoseconds=counts.nanoseconds,
                            measured=counts.ruler.measured())

    def _add(self, record: Record, writer: TFRecordWriter, quarantine: FragmentWriter, counts: _Counts) -> bool:
        """Takes one record from its file to the shard; False if a stage has kept it out."""
        try:
            with _timed(counts.nanoseconds, "read"):
                raw = self._read(record)
            decoded = run_stages(self._stages[:1], raw, counts.nanoseconds)
            example = run_stages(self._stages[1:], decoded, counts.nanoseconds)
            with _timed(counts.nanoseconds, "measure"):
                counts.ruler.add(decoded.image.shape, len(raw.encoded), example)
            with _timed(counts.nanoseconds, "write"):
                writer.write(serialise(example, self._labels))
        except Rejected as reject:
            rejected = RejectedRecord(key=record.key, stage=reject.stage, reason=reject.reason, detail=reject.detail)
            counts.rejected.append(rejected)
            quarantine.add(rejected, record.file.key, raw.encoded)
            return False
        except MemoryError as error:
            raise MachineError(f"out of memory at {record.key}: {error}; give the host more, or lower preprocess.runner.workers") from error
        counts.labels.update([example.label] if example.boxes is None else [box.label for box in example.boxes])
        counts.num_examples += 1
        counts.shapes.setdefault(example.image.shape, record.key)
        return True

    def _read(self, record: Record) -> Example:
        try:
            with open(record.file.path(self._order.raw_folder), "rb", buffering=0) as file:
                data = file.read()
        except OSError as error:
            raise MachineError(f"{record.key} could not be read: {error.strerror}; it was there when the run started, so retry") from error
        if not record.file.holds(data):
            raise MachineError(f"{record.key} has changed since the run started; retry")
        return Example(record.key, record.label, data, boxes=record.boxes)


@dataclasses.dataclass
class _Counts:
    """What a summary is made of, while its shard is being built."""

    num_examples: int = 0
    labels: Counter[str] = dataclasses.field(default_factory=Counter)
    shapes: dict[Shape, str] = dataclasses.field(default_factory=dict)
    rejected: list[RejectedRecord] = dataclasses.field(default_factory=list)
    nanoseconds: Counter[str] = dataclasses.field(default_factory=Counter)
    ruler: Ruler = dataclasses.field(default_factory=Ruler)


@contextlib.contextmanager
def _timed(nanoseconds: Counter[str], name: str) -> Iterator[None]:
    start = time.perf_counter_ns()
    try:
        yield
    finally:
        nanoseconds[name] += time.perf_counter_ns() - start
