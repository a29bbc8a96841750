"""The result of a look at a folder: a source that fits, or that nearly fits."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any

from beam_jobs.sources.parsing import SPLITS


class Certainty(enum.IntEnum):
    """The degree to which a source fits."""

    UNUSABLE = 0
    """The files are of this kind, but the source cannot read them as they are."""
    LIKELY = 1
    """Names alone say so, or other files are in the way."""
    CERTAIN = 2
    """Annotations of this kind were found, with their images, or there is nothing else."""


@dataclasses.dataclass(frozen=True)
class SourceMatch:
    """A source that a recogniser proposes.

    `reason` says in plain words what was seen, for UNUSABLE with the cure. `keys` are the keys of
    the source besides `type` and `path`. `below` is the folder of the source below the folder that
    was looked at, "" for that folder itself.
    """

    type: str
    certainty: Certainty
    reason: str
    keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    below: str = ""


def find_split(path: str) -> str | None:
    """The split that the words of a path name, as in `instances_val2017.json`.

    None if they name none, or more than one.
    """
    words = re.findall(r"[a-z]+", path.lower())
    found = {SPLITS[word] for word in words if word in SPLITS}
    return found.pop() if len(found) == 1 else None


def count(number: int, noun: str) -> str:
    """A number and a noun: `1 image`, `1,203 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_names(names: list[str], limit: int = 5) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
