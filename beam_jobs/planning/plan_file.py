"""The plan of a shard as a JSON file of lists, because there may be millions of records.

A driver writes the plans for its workers, which may run on other hosts. Unlike a pickle, such a
file cannot run code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from beam_jobs.io.raw import PackedImage, Raw
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.stages.stage import Box
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.raw_file import RawFile
from pipeline_ops.storage.atomic import names_file

_SIZE_OF_FILE = 4
"""The number of values of a RawFile. A PackedImage has more."""


def write_plan(path: Path, plan: ShardPlan) -> None:
    records = [_record_to_json(record) for record in plan.records]
    value = [plan.split, plan.name, records]
    with names_file(path):
        path.write_text(
            json.dumps(value, separators=(",", ":"), default=_to_python), encoding="ascii"
        )


def read_plan(path: Path) -> ShardPlan:
    """Reads a plan. Raises MachineError if the file is missing or damaged."""
    try:
        split, name, records = json.loads(path.read_bytes())
        return ShardPlan(split, name, tuple(map(_record_from_json, records)))
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}; retry") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise MachineError(f"{path} is not a plan: {error}; retry") from None


def _record_to_json(record: Record) -> list[Any]:
    boxes = record.boxes if record.boxes is None else [_box_to_json(box) for box in record.boxes]
    return [
        _raw_to_json(record.file),
        record.label,
        boxes,
        record.split,
        record.group,
        record.frame,
    ]


def _record_from_json(value: list[Any]) -> Record:
    raw, label, boxes, split, group, frame = value
    return Record(
        _raw_from_json(raw),
        label,
        None if boxes is None else tuple(Box(*box) for box in boxes),
        split,
        group,
        None if frame is None else tuple(frame),
    )


def _raw_to_json(raw: Raw) -> list[Any]:
    if isinstance(raw, PackedImage):
        return [
            raw.key,
            raw.num_bytes,
            raw.digest,
            _raw_to_json(raw.container),
            raw.offset,
            raw.feature,
        ]
    return [raw.key, raw.num_bytes, raw.digest, raw.version]


def _raw_from_json(value: list[Any]) -> Raw:
    if len(value) == _SIZE_OF_FILE:
        return RawFile(*value)
    key, num_bytes, digest, container, offset, feature = value
    return PackedImage(key, num_bytes, digest, RawFile(*container), offset, feature)


def _box_to_json(box: Box) -> list[Any]:
    return [box.ymin, box.xmin, box.ymax, box.xmax, box.label, box.is_difficult, box.is_crowd]


def _to_python(value: Any) -> Any:
    """Converts a NumPy number. Raises AttributeError for any other value."""
    return value.item()
