"""Finds the line of the author's code behind an error, for the page of a failed run.

Only files of the author count: those beside the config, and those of packages whose digests are in
the fingerprint. Code of installed packages and of this project is never shown.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import FrameSummary

from pipeline_ops.contract.explanation import MAX_LINE_CHARS, MAX_SOURCE_LINES
from pipeline_ops.contract.source_code import PACKAGES
from pipeline_ops.errors import CodeLocation

FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
"""File, line and function of a frame in a text."""
LOCATION = "location"
"""The attribute of an error with its location, also of errors that are not ours."""
_NOT_OF_AUTHOR = {"site-packages", "dist-packages"}
_MAX_ERRORS = 50
_AROUND = MAX_SOURCE_LINES // 2


def list_frames(error: BaseException) -> list[FrameSummary]:
    """Returns the frames of an error, the innermost one last.

    An operation of a graph was made by the frames in the text of its error. An error of syntax is
    in the file that it names.
    """
    found = [*traceback.extract_tb(error.__traceback__)]
    found += (FrameSummary(each[0], int(each[1]), each[2]) for each in FRAME.findall(str(error)))
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        found.append(FrameSummary(error.filename, error.lineno, ""))
    return found


def get_location(error: BaseException) -> CodeLocation | None:
    """Returns the location that an error has. Errors of others may have something else there."""
    found = getattr(error, LOCATION, None)
    return found if isinstance(found, CodeLocation) else None


def find_location(
    error: BaseException, copies: Path, original: Path, digests: Iterable[str]
) -> CodeLocation | None:
    """Returns the innermost line of the author's code behind an error and its causes, or None.

    Args:
      error: usually one of ours, whose cause is that of the author's code.
      copies: the folder of the modules that travelled, which were in `original`.
      original: the folder of the config.
      digests: the paths of all modules of the author, relative to where they are imported from.
    """
    for each in reversed([*_list_causes(error)]):
        if known := get_location(each):  # of another process
            return known
        for frame in reversed(list_frames(each)):
            if found := _name_file(frame.filename, copies, original, digests):
                return _make_location(frame, *found)
    return None


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what it was raised from. Such a chain may be a ring."""
    for _ in range(_MAX_ERRORS):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _name_file(
    filename: str, copies: Path, original: Path, digests: Iterable[str]
) -> tuple[str, str] | None:
    """Returns a file of the author as its path and the folder of that, or None for others."""
    file = Path(filename)
    if not file.is_absolute() or not _NOT_OF_AUTHOR.isdisjoint(file.parts):
        return None
    for folder in (copies, original):
        if file.is_relative_to(folder):
            path = file.relative_to(folder)
            return None if path.parts[0] in PACKAGES else (str(path), str(original))
    for each in digests:
        if each.partition("/")[0] not in PACKAGES and filename.endswith(f"{os.sep}{each}"):
            return each, filename.removesuffix(f"{os.sep}{each}")
    return None


def _make_location(frame: FrameSummary, file: str, folder: str) -> CodeLocation:
    number = frame.lineno or 1
    lines = linecache.getlines(frame.filename)
    first = max(1, number - _AROUND)
    return CodeLocation(
        file=file,
        line=number,
        function="" if frame.name == "<module>" else frame.name,
        folder=folder,
        source=tuple(_clean(line) for line in lines[first - 1 : number + _AROUND]),
        first_line=first,
    )


def _clean(line: str) -> str:
    """Returns a line that JSON can hold and a page can show."""
    return line.rstrip().expandtabs(4)[:MAX_LINE_CHARS].encode(errors="replace").decode()
