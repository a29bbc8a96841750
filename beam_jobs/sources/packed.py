"""Images inside other files: the shared part of `tfrecord`, `tfds`, `webdataset` and `parquet`.

The driver reads each file once, from beginning to end. It keeps the place, the size and the digest
of every image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from beam_jobs.io.example import parse
from beam_jobs.io.raw import PackedImage, digest_image, translate_read_errors
from beam_jobs.io.tfrecord_reader import CorruptRecord, scan_records
from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector
from beam_jobs.sources.parsing import make_box
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.packed_sources import PackedSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile
from pipeline_ops.raw_data.remote import RemoteFolder

Features = Mapping[str, list[Any]]


def find_local_folder(listing: Listing) -> Path:
    """The folder of the listing. The config allows only local folders for these files."""
    if isinstance(listing.folder, RemoteFolder):
        raise TypeError(f"{listing.folder}: files of many images are read from local folders only")
    return listing.folder


def find_containers(source: PackedSource, listing: Listing) -> list[tuple[RawFile, str | None]]:
    """Each file of the parts once, with its split. Raises DataError: a pattern is wrong."""
    found: dict[str, tuple[RawFile, str | None]] = {}
    for index, part in enumerate(source.parts):
        files = [file for file in listing.files if fnmatchcase(file.key, part.files)]
        if not files:
            raise DataError(
                f"{listing.folder}: no file matches {part.files}. "
                f"Correct preprocess.source.parts.{index}.files."
            )
        if twice := [file.key for file in files if file.key in found]:
            raise DataError(
                f"{listing.folder}: {twice[0]} belongs to two parts. "
                f"Correct preprocess.source.parts.{index}.files, now {part.files}."
            )
        found |= {file.key: (file, part.split) for file in files}
    return [found[key] for key in sorted(found)]


def add_containers(
    containers: Iterable[RawFile],
    folder: Path,
    collector: Collector,
    make_record: Callable[[RawFile, int, str, Features], Record],
) -> None:
    """Adds every record of some TFRecord files. A damaged one is rejected as `<file>#<index>`.

    Args:
      containers: the files.
      folder: the folder of the listing.
      collector: receives the records.
      make_record: takes a file, an offset, a key `<file>#<index>` and the features there. It
        returns a record, or raises Reject.

    Raises:
      MachineError: a file cannot be read.
    """
    for container in containers:
        with translate_read_errors(container.key):
            for index, (offset, content) in enumerate(scan_records(container.to_path(folder))):
                key = f"{container.key}#{index:06d}"
                with collector.catch_reject(key):
                    record = make_record(container, offset, key, _parse(content))
                    collector.add(record, key, scope=container.key)


def _parse(content: bytes | CorruptRecord) -> Features:
    if isinstance(content, CorruptRecord):
        raise Reject(content.reason, content.detail)
    try:
        return parse(content)
    except ValueError as error:
        raise Reject("malformed", str(error)) from None


def make_packed_image(
    container: RawFile, offset: int, key: str, feature: str, features: Features
) -> PackedImage:
    """Raises Reject: no_image."""
    values = features.get(feature, [])
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise Reject(
            "no_image", f"the feature {feature} must hold one image, got {len(values)} values"
        )
    return PackedImage(key, len(values[0]), digest_image(values[0]), container, offset, feature)


def read_boxes(
    features: Features,
    corners: Iterable[Iterable[float]],
    labels: Sequence[str],
    difficult: str,
    crowd: str,
) -> tuple[Box, ...]:
    """The boxes of a record.

    Args:
      features: the features of the record.
      corners: ymin, xmin, ymax, xmax of each box.
      labels: the class of each box.
      difficult, crowd: the names of the features with flags, which may be missing.

    Raises:
      Reject: malformed.
    """
    flags = (
        read_integers(features, name, len(labels)) if features.get(name) else [0] * len(labels)
        for name in (difficult, crowd)
    )
    return tuple(make_box(*box) for box in zip(corners, labels, *flags, strict=True))


def read_floats(features: Features, name: str, count: int) -> list[float]:
    """Raises Reject: malformed, unless the feature has `count` values."""
    return _read_values(features, name, count, (float, int))


def read_integers(features: Features, name: str, count: int) -> list[int]:
    """Raises Reject: malformed, unless the feature has `count` values."""
    return _read_values(features, name, count, (int,))


def _read_values(features: Features, name: str, count: int, kinds: tuple[type, ...]) -> list[Any]:
    values = features.get(name, [])
    if len(values) != count or not all(isinstance(value, kinds) for value in values):
        raise Reject(
            "malformed",
            f"the feature {name} must hold {count} numbers, got {len(values)} values",
        )
    return values
