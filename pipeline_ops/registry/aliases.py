"""The aliases of a model's versions, and every move of an alias.

A move is one small record, `aliases/<move>.json`, written once and never changed. The highest one
is valid. A move is therefore one atomic operation on any store. If two people or jobs move at the
same time, the later one is refused and decides again on the new state.

`champion` is the version in service and `previous` the one that a roll-back would restore. Both
follow from the succession: the champions, each once, in the order in which they came into service,
without those that were rolled back.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import time
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.registry.model_store import MAX_RECORD_BYTES, ModelStore

CHAMPION, PREVIOUS = "champion", "previous"
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_FOLDER = "aliases"
_RECORD = re.compile(r"[0-9]{8}\.json")
_TRIES = 20
_PENDING_SECONDS = 0.1
"""The wait for an empty record, which another process is about to fill."""
_MAX_REASON = 1000
_log = logging.getLogger(__name__)

Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN.pattern}$")]
Number = Annotated[int, Field(ge=1, lt=1 << 31)]
Numbers = Annotated[list[Number], Field(max_length=100_000)]


class Move(BaseModel):
    """One change: an alias that names another version or none, or versions that were retired."""

    model_config = ConfigDict(frozen=True)

    alias: Name | None
    version: Number | None
    time: float = Field(ge=0, lt=1e11, allow_inf_nan=False)
    reason: str = Field(max_length=10_000)
    retired: Numbers = []


class Aliases(BaseModel):
    """The state after a number of moves. `last` is the latest of them."""

    model_config = ConfigDict(frozen=True)

    names: dict[Name, Number] = Field(default={}, max_length=10_000)
    succession: Numbers = []
    retired: Numbers = []
    last: Move | None = None

    def named(self, version: int) -> list[str]:
        """The aliases of a version."""
        return sorted(alias for alias, number in self.names.items() if number == version)

    def with_champion(self, version: int, reason: str) -> Aliases:
        """Puts a version in service. An earlier champion undoes the champions after it."""
        kept = (
            self.succession[: self.succession.index(version)]
            if version in self.succession
            else self.succession
        )
        succession = [*kept, version]
        names = {alias: number for alias, number in self.names.items() if alias != PREVIOUS} | {
            CHAMPION: version
        }
        if len(succession) > 1:
            names[PREVIOUS] = succession[-2]
        return self._after(
            Move(alias=CHAMPION, version=version, time=time.time(), reason=reason[:_MAX_REASON]),
            names=names,
            succession=succession,
        )

    def with_alias(self, alias: str, version: int | None, reason: str) -> Aliases:
        """Sets or removes an alias.

        Raises:
          ConfigError: the name is invalid, or users can't set it.
        """
        if not NAME_PATTERN.fullmatch(alias):
            raise ConfigError(
                "an alias must begin with a letter, and hold small letters, digits, "
                f"- and _ only, got {alias!r}"
            )
        if alias in (CHAMPION, PREVIOUS):
            raise ConfigError(
                f"the alias {alias} follows from what is in service; "
                "promote a version, or roll back"
            )
        names = {name: number for name, number in self.names.items() if name != alias} | (
            {alias: version} if version else {}
        )
        return self._after(
            Move(alias=alias, version=version, time=time.time(), reason=reason[:_MAX_REASON]),
            names=names,
        )

    def without(self, versions: list[int], reason: str) -> Aliases:
        """Retires versions that no alias names."""
        return self._after(
            Move(
                alias=None,
                version=None,
                time=time.time(),
                reason=reason[:_MAX_REASON],
                retired=versions,
            ),
            retired=sorted({*self.retired, *versions}),
            succession=[number for number in self.succession if number not in versions],
        )

    def _after(self, move: Move, **changes) -> Aliases:
        return self.model_copy(update={**changes, "last": move})


@dataclasses.dataclass(frozen=True)
class AliasHistory:
    """Every move, oldest first, and the problems of invalid records."""

    moves: list[Move]
    problems: list[str]


def parse_record(content: bytes, place: str) -> Aliases:
    """Parses a record. Raises DataError with the record's place if it is invalid."""
    rule = f"{place}: not a record of aliases, so it is passed over"
    if len(content) > MAX_RECORD_BYTES:
        raise DataError(f"{rule}: it has more than {MAX_RECORD_BYTES} bytes")
    try:
        return Aliases.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise DataError(
            f"{rule}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}; remove it"
        ) from None


def read_aliases(store: ModelStore) -> Aliases:
    """Returns the aliases of the newest record that can be read."""
    return _newest(store).aliases


def read_records(store: ModelStore) -> AliasHistory:
    """Reads all records. An unreadable record is one problem."""
    names, records = store.records(_FOLDER), AliasHistory([], [])
    for name, content in zip(names, store.read(_FOLDER, names), strict=True):
        parsed = _parse(store, name, content)
        if isinstance(parsed, DataError):
            records.problems.append(str(parsed))
        elif parsed.last:
            records.moves.append(parsed.last)
    return records


def move(store: ModelStore, decide: Callable[[Aliases], Aliases]) -> Aliases:
    """Makes one move, or none if `decide` returns its argument.

    Args:
      store: the store of the model.
      decide: maps the present state to the new one. It is called again if another process has moved
        in the meantime, and may raise.

    Raises:
      MachineError: other processes move all the time.
    """
    for attempt in range(2 * _TRIES):
        newest = _newest(store)
        if newest.is_pending and attempt < _TRIES:  # later, its writer counts as killed
            time.sleep(_PENDING_SECONDS)
            continue
        wanted = decide(newest.aliases)
        if wanted is newest.aliases:
            return wanted
        try:
            store.create(
                _FOLDER,
                f"{newest.number + 1:08d}.json",
                (wanted.model_dump_json(indent=2) + "\n").encode(),
            )
        except FileExistsError:
            continue
        return wanted
    raise MachineError(f"{store}: others move its aliases all the time; try again later")


@dataclasses.dataclass(frozen=True)
class _Newest:
    """The latest record.

    `number` is 0 before the first record, `is_pending` says whether the record is still empty, and
    `aliases` is the present state.
    """

    number: int
    is_pending: bool
    aliases: Aliases


def _newest(store: ModelStore) -> _Newest:
    names = [name for name in store.records(_FOLDER) if _RECORD.fullmatch(name)]
    number, is_pending = (int(names[-1][:8]) if names else 0), False
    for name in reversed(names):
        [content] = store.read(_FOLDER, [name])
        is_pending |= content == b"" and name == names[-1]
        parsed = _parse(store, name, content)
        if isinstance(parsed, Aliases):
            return _Newest(number, is_pending, parsed)
        _report(str(parsed))
    return _Newest(number, is_pending, Aliases())


def _parse(store: ModelStore, name: str, content: bytes | DataError) -> Aliases | DataError:
    place = f"{store.place}/{_FOLDER}/{name}"
    if isinstance(content, DataError):
        return content
    if not _RECORD.fullmatch(name):
        return DataError(
            f"{place}: not a record of aliases, so it is passed over: "
            "it is not named by eight digits; remove it"
        )
    try:
        return parse_record(content, place)
    except DataError as error:
        return error


@functools.cache  # once for each message
def _report(problem: str) -> None:
    _log.warning("%s", problem)
