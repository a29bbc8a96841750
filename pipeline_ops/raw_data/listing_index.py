"""The index of a listing: the known facts about each raw file, one line of text per file.

    "<key as JSON>"\\t<size> <mtime in ns> <ctime in ns> <digest>

An index only saves time. A damaged one is reported and ignored, and all files are read again.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import IO

from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.storage.local_files import describe_os_error
from pipeline_ops.storage.store_path import StorePath

MAX_BYTES = 4 << 30
MAX_LINES = 20_000_000
_MAX_LINE_BYTES = 64 << 10
_ENTRY = re.compile(r"[0-9]{1,20} -?[0-9]{1,20} -?[0-9]{1,20} [0-9a-f]{32}")
_log = logging.getLogger(__name__)


def read_index(file: StorePath) -> dict[str, str]:
    """Returns size, mtime and ctime in nanoseconds, and digest, by key.

    The result is empty if there is no index.

    Raises:
      MachineError: the index can't be read.
    """
    try:
        with file.open(MAX_BYTES) as lines:
            return parse_index(lines, str(file))
    except FileNotFoundError:
        return {}
    except DataError as error:
        _log.warning("%s. All raw files are read again.", error)
        return {}
    except OSError as error:
        raise MachineError(
            f"cannot read {file}: {describe_os_error(error)}. Repair the disk, then retry."
        ) from error


def parse_index(lines: IO[bytes], source: str) -> dict[str, str]:
    """Parses an index. Raises DataError that names the first invalid line."""
    found: dict[str, str] = {}
    read = iter(lambda: lines.readline(_MAX_LINE_BYTES), b"")
    for number, line in enumerate(islice(read, MAX_LINES + 1), start=1):
        try:
            key, _, entry = line.decode().removesuffix("\n").rpartition("\t")
            if number > MAX_LINES or not _ENTRY.fullmatch(entry):
                raise ValueError
            key = json.loads(key)
            if not isinstance(key, str):
                raise ValueError
        except (ValueError, RecursionError):
            raise DataError(f"{source}, line {number}: not an index of raw files") from None
        found[key] = entry
    return found


def write_index(
    file: StorePath, entries: Mapping[str, str], files: Iterable[tuple[str, str]]
) -> None:
    """Writes the entries that match one of the files, given as key and present digest."""
    lines = (
        f"{json.dumps(key)}\t{entries[key]}\n"
        for key, digest in files
        if entries.get(key, "").endswith(digest)
    )
    file.write("".join(lines).encode())
