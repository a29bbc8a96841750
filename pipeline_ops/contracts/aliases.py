"""What each name for a version stands for, and every move that led there.

A move is one small record, `aliases/<move>.json`, written once and never changed; the highest one holds what counts. So
a move is one atomic operation on any shelf, and of two people or jobs that move at the same time one comes too late and
decides again, on what the other has done.

`champion` is the version in service and `previous` the one that a roll-back would put there. Both follow from the
succession: the champions, each once, in the order in which they came into service, without those that were rolled back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contracts.errors import ConfigError, MachineError
from pipeline_ops.contracts.shelf import Shelf

CHAMPION, PREVIOUS = "champion", "previous"
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_FOLDER = "aliases"
_TRIES = 20


class Move(BaseModel):
    """One change: an alias that names another version, or none any more; or versions that were retired."""

    model_config = ConfigDict(frozen=True)

    alias: str | None
    version: int | None
    time: float
    reason: str
    retired: list[int] = []


class Aliases(BaseModel):
    """What counts after a number of moves; `last` is the latest of them."""

    model_config = ConfigDict(frozen=True)

    names: dict[str, int] = {}
    succession: list[int] = []
    retired: list[int] = []
    last: Move | None = None

    def named(self, version: int) -> list[str]:
        """The aliases of a version."""
        return sorted(alias for alias, number in self.names.items() if number == version)

    def with_champion(self, version: int, reason: str) -> Aliases:
        """A version comes into service. One that was there before undoes what came after it."""
        kept = self.succession[: self.succession.index(version)] if version in self.succession else self.succession
        succession = [*kept, version]
        names = {alias: number for alias, number in self.names.items() if alias != PREVIOUS} | {CHAMPION: version}
        if len(succession) > 1:
            names[PREVIOUS] = succession[-2]
        return self._after(Move(alias=CHAMPION, version=version, time=time.time(), reason=reason), names=names, succession=succession)

    def with_alias(self, alias: str, version: int | None, reason: str) -> Aliases:
        """Raises ConfigError for a name that is none, or that a person can't give."""
        if not NAME_PATTERN.fullmatch(alias):
            raise ConfigError(f"an alias must begin with a letter, and hold small letters, digits, - and _ only, got {alias!r}")
        if alias in (CHAMPION, PREVIOUS):
            raise ConfigError(f"the alias {alias} follows from what is in service; promote a version, or roll back")
        names = {name: number for name, number in self.names.items() if name != alias} | ({alias: version} if version else {})
        return self._after(Move(alias=alias, version=version, time=time.time(), reason=reason), names=names)

    def without(self, versions: list[int], reason: str) -> Aliases:
        """Versions that no alias names are retired."""
        return self._after(Move(alias=None, version=None, time=time.time(), reason=reason, retired=versions),
                           retired=sorted({*self.retired, *versions}), succession=[number for number in self.succession if number not in versions])

    def _after(self, move: Move, **changes) -> Aliases:
        return self.model_copy(update={**changes, "last": move})


def read_aliases(shelf: Shelf) -> Aliases:
    return _newest(shelf)[1]


def read_moves(shelf: Shelf) -> list[Move]:
    """Every move, oldest first."""
    return [move for content in shelf.read(_FOLDER, shelf.records(_FOLDER)) if (move := Aliases.model_validate_json(content).last)]


def move(shelf: Shelf, decide: Callable[[Aliases], Aliases]) -> Aliases:
    """Makes one move, or none if `decide` returns what it was given.

    Args:
      decide: from what counts to what shall count. It is asked again if somebody else has moved meanwhile, and may raise.

    Raises:
      MachineError: others move all the time.
    """
    for _ in range(_TRIES):
        number, present = _newest(shelf)
        wanted = decide(present)
        if wanted is present:
            return present
        try:
            shelf.create(_FOLDER, f"{number + 1:08d}.json", (wanted.model_dump_json(indent=2) + "\n").encode())
        except FileExistsError:
            continue
        return wanted
    raise MachineError(f"{shelf}: others move its aliases all the time; try again later")


def _newest(shelf: Shelf) -> tuple[int, Aliases]:
    """The number of the latest move, 0 before the first, and what counts since."""
    names = shelf.records(_FOLDER)
    if not names:
        return 0, Aliases()
    [content] = shelf.read(_FOLDER, names[-1:])
    return int(Path(names[-1]).stem), Aliases.model_validate_json(content)
