"""Images inside TFRecord files: the shared part of the sources `tfrecord` and `tfds`.

The driver reads each file once, from beginning to end. It keeps the place, the size and the digest
of every image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from beam_jobs.io.example import parse
from beam_jobs.io.raw import PackedImage, digest_image
from beam_jobs.io.tfrecord_reader import Damaged, scan_records
from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector
from beam_jobs.stages.stage import Reject
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.raw_file import RawFile

Features = Mapping[str, list[Any]]


def add_containers(
    containers: Iterable[RawFile],
    folder: Path,
    collector: Collector,
    make: Callable[[RawFile, int, str, Features], Record],
) -> None:
    """Adds every record of some TFRecord files. A damaged one is rejected as `<file>#<index>`.

    Args:
      containers: the files.
      folder: the folder of the listing.
      collector: receives the records.
      make: takes a file, an offset, a key `<file>#<index>` and the features there. It returns a
        record, or raises Reject.

    Raises:
      MachineError: a file can't be read.
    """
    for container in containers:
        try:
            for index, (offset, content) in enumerate(scan_records(container.path(folder))):
                key = f"{container.key}#{index:06d}"
                with collector.rejects(key):
                    collector.add(make(container, offset, key, _parsed(content)), key)
        except OSError as error:
            raise MachineError(
                f"{container.key} could not be read: {error.strerror}; "
                "it was there when the run started, so retry"
            ) from error


def _parsed(content: bytes | Damaged) -> Features:
    if isinstance(content, Damaged):
        raise Reject(content.reason, content.detail)
    try:
        return parse(content)
    except ValueError as error:
        raise Reject("malformed", str(error)) from None


def packed_image(
    container: RawFile, offset: int, key: str, feature: str, features: Features
) -> PackedImage:
    """Raises Reject: no_image."""
    values = features.get(feature, [])
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise Reject(
            "no_image", f"the feature {feature} must hold one image, and holds {len(values)} values"
        )
    return PackedImage(key, len(values[0]), digest_image(values[0]), container, offset, feature)


def floats(features: Features, name: str, count: int) -> list[float]:
    """Raises Reject: malformed, unless the feature has `count` values."""
    return _values(features, name, count, (float, int))


def integers(features: Features, name: str, count: int) -> list[int]:
    """Raises Reject: malformed, unless the feature has `count` values."""
    return _values(features, name, count, (int,))


def flags(features: Features, name: str, count: int) -> list[int]:
    """The flags of a feature, all 0 if the feature is missing.

    Raises Reject: malformed, if the number of values is not `count`.
    """
    return integers(features, name, count) if features.get(name) else [0] * count


def _values(features: Features, name: str, count: int, kinds: tuple[type, ...]) -> list[Any]:
    values = features.get(name, [])
    if len(values) != count or not all(isinstance(value, kinds) for value in values):
        raise Reject(
            "malformed",
            f"the feature {name} must hold {count} numbers, and holds {len(values)} values",
        )
    return values
