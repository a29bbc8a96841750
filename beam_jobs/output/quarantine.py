"""The quarantine of bad records: each is kept with its bytes, named, counted, and held to a budget.

A worker writes a bad record into a fragment next to its shard's summary, so the bytes go no further
than that. The driver combines all fragments into one shard, in the order of the keys. It streams
them, because the quarantine may be larger than memory.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from beam_jobs.io.example import pack, unpack
from beam_jobs.io.tfrecord_reader import Damaged, scan_records
from beam_jobs.io.tfrecord_writer import TFRecordWriter
from beam_jobs.stages.stage import BoundStage, class_names_after
from beam_jobs.statistics.summary import RejectedRecord
from pipeline_ops.artifacts.dataset import (
    QUARANTINE,
    QUARANTINE_CONTENT,
    QUARANTINE_DETAIL,
    QUARANTINE_KEY,
    QUARANTINE_NUM_BYTES,
    QUARANTINE_REASON,
    QUARANTINE_SHARD,
    QUARANTINE_SOURCE,
    QUARANTINE_STAGE,
)
from pipeline_ops.config.preprocess import Rejects
from pipeline_ops.errors import DataError
from pipeline_ops.storage.atomic import write_whole
from pipeline_ops.storage.read_errors import unreadable

MAX_BYTES = 1 << 20
"""The maximum number of bytes of a record's content. A longer content is cut off there."""
_NAMED = 10
_FRAGMENT = ".quarantine"
_HEADER = struct.Struct("<QI")  # of a TFRecord: length, checksum of the length
_FOOTER_BYTES = 4


class FragmentWriter:
    """Writes the bad records of one shard. It makes a file only if there is a bad record.

    Args:
      folder: the folder of the fragment.
      name: the name of the shard.
    """

    def __init__(self, folder: Path, name: str):
        self._path, self._open = folder / f"{name}{_FRAGMENT}", contextlib.ExitStack()
        self._writer: TFRecordWriter | None = None

    def __enter__(self) -> FragmentWriter:
        return self

    def add(
        self, rejected: RejectedRecord, source: str, content: bytes, num_bytes: int | None = None
    ) -> None:
        """Adds a bad record. `num_bytes` is given if `content` is only its beginning."""
        self.add_packed(
            pack(
                {
                    QUARANTINE_KEY: rejected.key.encode(),
                    QUARANTINE_STAGE: rejected.stage.encode(),
                    QUARANTINE_REASON: rejected.reason.encode(),
                    QUARANTINE_DETAIL: rejected.detail.encode(),
                    QUARANTINE_SOURCE: source.encode(),
                    QUARANTINE_NUM_BYTES: len(content) if num_bytes is None else num_bytes,
                    QUARANTINE_CONTENT: content[:MAX_BYTES],
                }
            )
        )

    def add_packed(self, record: bytes) -> None:
        """Adds a bad record in the format of a quarantine shard."""
        if self._writer is None:
            self._writer = self._open.enter_context(TFRecordWriter(self._path))
        self._writer.write(record)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, value, traceback)


def write_quarantine(folder: Path, rejected: Sequence[RejectedRecord], fragments: Path) -> None:
    """Writes the list of bad records, and the shard with their bytes, into a data set's folder.

    The shard holds only the records that have bytes.

    Args:
      rejected: the bad records in the order of their keys.
      fragments: the folder that holds the fragments of all shards.
    """
    write_list(folder / QUARANTINE, rejected)
    places = sorted(
        place for file in sorted(fragments.glob(f"*{_FRAGMENT}")) for place in _places(file)
    )
    with TFRecordWriter(folder / QUARANTINE_SHARD) as writer:
        for (
            _,
            file,
            offset,
            length,
        ) in places:  # opened one by one: there may be more fragments than a process may open
            with open(file, "rb") as fragment:
                fragment.seek(offset)
                writer.write(fragment.read(length))


def carry_over(shard: Path, keys: Collection[str], fragments: Path) -> None:
    """Copies some records of another data set's quarantine shard, given by key, to the fragments.

    Raises:
      DataError: the shard can't be read.
    """
    if not keys:
        return
    try:
        with FragmentWriter(fragments, "as-before") as fragment:
            for _, record in scan_records(os.fsencode(shard)):
                if isinstance(record, Damaged):
                    raise record
                if unpack(record)[QUARANTINE_KEY].decode() in keys:
                    fragment.add_packed(record)
    except (Damaged, OSError) as error:
        raise unreadable(
            f"{shard}: can't be read",
            error,
            "; remove the data set that it is in, and start a new run",
        ) from error


def read_quarantine(shard: Path) -> Iterator[dict[str, bytes | int]]:
    """Yields the features of each bad record."""
    with open(shard, "rb") as file:
        for _, length in _frames(file):
            yield unpack(file.read(length))


def write_list(file: Path, rejected: Iterable[RejectedRecord]) -> None:
    write_whole(file, "".join(record.model_dump_json() + "\n" for record in rejected).encode())


def _places(file: Path) -> Iterator[tuple[str, Path, int, int]]:
    """Yields key, file, offset and length of every record of a fragment."""
    with open(file, "rb") as opened:
        for offset, length in _frames(opened):
            yield unpack(opened.read(length))[QUARANTINE_KEY].decode(), file, offset, length


def _frames(file) -> Iterator[tuple[int, int]]:
    """Yields offset and length of the content of every record.

    At each yield, the file is positioned at that offset.
    """
    offset = 0
    while header := file.read(_HEADER.size):
        length, _ = _HEADER.unpack(header)
        offset += _HEADER.size
        yield offset, length
        offset += length + _FOOTER_BYTES
        file.seek(offset)


def check_rejects(
    rejected: Sequence[RejectedRecord],
    labels: Iterable[tuple[str, Iterable[str]]],
    stages: Sequence[BoundStage],
    num_records: int,
    rejects: Rejects,
    full_list: Path,
    config_file: str,
) -> None:
    """Checks the bad records against the budget, and that no class is lost.

    Args:
      rejected: the bad records in the order of their keys, without removed copies, which are not
        bad.
      labels: key and labels of all records with known labels, good and bad, also without removed
        copies.
      stages: the stages of the config. They may rename classes.
      num_records: the number of all records, including those that the source could not use.
      rejects: the budget.
      full_list: the file that gets the list of all bad records if the check fails.
      config_file: the config file, for messages.

    Raises:
      DataError: the budget is exceeded or a class is lost. The message has the lost classes, the
        first of the bad records, and the path of the full list.
    """
    budget, lost = rejects.budget(num_records), lost_classes(labels, rejected, stages)
    if len(rejected) <= budget and not lost:
        return
    write_list(full_list, rejected)
    named = "\n".join(
        f"  {record.key}: {record.reason} ({record.stage}: {record.detail})"
        for record in rejected[:_NAMED]
    )
    more = f"\n  and {len(rejected) - _NAMED} more" if len(rejected) > _NAMED else ""
    mend = f"All of them are in {full_list}. Mend or remove them"
    if lost:
        raise DataError(
            f"every record of {', '.join(lost)} is unusable; "
            f"no budget allows for the loss of a class:\n{named}{more}\n"
            f"{mend}, or correct preprocess.stages in {config_file}"
        )
    raise DataError(
        f"{len(rejected)} of {num_records} raw files are unusable, "
        f"and the budget is {budget}:\n{named}{more}\n"
        f"{mend}, or raise preprocess.rejects in {config_file}"
    )


def lost_classes(
    labels: Iterable[tuple[str, Iterable[str]]],
    rejected: Iterable[RejectedRecord],
    stages: Sequence[BoundStage] = (),
) -> list[str]:
    """The classes that had records, all of which were rejected.

    The names are those after the stages.
    """
    bad, planned, lost = {record.key for record in rejected}, Counter(), Counter()
    if not bad:
        return []
    for key, names_before in labels:
        names = class_names_after(stages, dict.fromkeys(names_before))
        planned.update(names)
        if key in bad:
            lost.update(names)
    return sorted(name for name, count in lost.items() if count == planned[name])
