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
import itertools
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.registry.model_store import ModelStore
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.store_path import MAX_RECORD_BYTES

CHAMPION, PREVIOUS = "champion", "previous"
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_FOLDER = "aliases"
_MAX_NUMBER = 99_999_999
"""A number has eight digits, so that names sort as numbers do."""
_RECORD = re.compile(r"[0-9]{8}\.json")
_TRIES = 20
_PENDING_SECONDS = 0.1
"""The wait for an empty record, which another process is about to fill."""
_MAX_REASON = 1000
_log = logging.getLogger(__name__)

AliasName = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN.pattern}$")]
VersionNumber = Annotated[int, Field(ge=1, lt=1 << 31)]
VersionNumbers = Annotated[list[VersionNumber], Field(max_length=100_000)]


class AliasMove(BaseModel):
    """One change: an alias that names another version or none, or versions that were retired."""

    model_config = ConfigDict(frozen=True)

    alias: AliasName | None
    version: VersionNumber | None
    time: float = Field(ge=0, lt=1e11, allow_inf_nan=False)
    reason: str = Field(max_length=10_000)
    retired: VersionNumbers = []


class Aliases(BaseModel):
    """The state after a number of moves. `last` is the latest of them."""

    model_config = ConfigDict(frozen=True)

    names: dict[AliasName, VersionNumber] = Field(default={}, max_length=10_000)
    succession: VersionNumbers = []
    retired: VersionNumbers = []
    highest: int | None = Field(None, ge=0, lt=1 << 31)
    """The highest version that any move has named. None in records of earlier releases."""
    last: AliasMove | None = None

    def find_names(self, version: int) -> list[str]:
        """The aliases of a version."""
        return sorted(alias for alias, number in self.names.items() if number == version)

    def with_champion(self, version: int, reason: str) -> Aliases:
        """Puts a version in service. An earlier champion undoes the champions after it."""
        earlier = list(itertools.takewhile(lambda number: number != version, self.succession))
        names = {**self.names, CHAMPION: version}
        names.pop(PREVIOUS, None)
        if earlier:
            names[PREVIOUS] = earlier[-1]
        return self._apply(CHAMPION, version, reason, names=names, succession=[*earlier, version])

    def with_alias(self, alias: str, version: int | None, reason: str) -> Aliases:
        """Sets or removes an alias.

        Raises:
          ConfigError: the name is invalid, or users can't set it.
        """
        if not NAME_PATTERN.fullmatch(alias):
            raise ConfigError(
                "an alias must begin with a lower-case letter and hold only lower-case letters, "
                f"digits, - and _, got {alias!r}"
            )
        if alias in (CHAMPION, PREVIOUS):
            raise ConfigError(
                f"the alias {alias} cannot be set, because it follows from what is in service. "
                "Promote a version, or roll back."
            )
        names = {name: number for name, number in self.names.items() if name != alias}
        if version:
            names[alias] = version
        return self._apply(alias, version, reason, names=names)

    def with_retired(self, versions: list[int], reason: str) -> Aliases:
        """Retires versions that no alias names."""
        return self._apply(
            None,
            None,
            reason,
            versions,
            retired=sorted({*self.retired, *versions}),
            succession=[number for number in self.succession if number not in versions],
        )

    def _apply(
        self,
        alias: str | None,
        version: int | None,
        reason: str,
        retired_now: Sequence[int] = (),
        **changes: object,
    ) -> Aliases:
        """The state after a move that changes these fields."""
        last = AliasMove(
            alias=alias,
            version=version,
            time=time.time(),
            reason=reason[:_MAX_REASON],
            retired=[*retired_now],
        )
        highest = self.highest
        if highest is not None or self.last is None:
            highest = max(highest or 0, version or 0, *retired_now)
        return self.model_copy(update={**changes, "highest": highest, "last": last})


@dataclasses.dataclass(frozen=True)
class AliasHistory:
    """Moves, oldest first, and the problems of invalid records."""

    moves: list[AliasMove]
    problems: list[str]


def parse_record(content: bytes, source: str) -> Aliases:
    """Parses a record. Raises DataError with the source if it is invalid."""
    if len(content) > MAX_RECORD_BYTES:
        raise DataError(f"{source}: ignored, because it has more than {MAX_RECORD_BYTES} bytes")
    try:
        return parse_json_as(Aliases, content, source)
    except DataError as error:
        raise DataError(f"{error}. This record of aliases is ignored. Remove it.") from None


def read_aliases(store: ModelStore) -> Aliases:
    """Returns the aliases of the latest record that can be read."""
    return _read_latest(store).aliases


def read_records(store: ModelStore, newest: int | None = None) -> AliasHistory:
    """Reads all records, or the newest ones. An unreadable record is one problem."""
    names, records = store.list_records(_FOLDER), AliasHistory([], [])
    names = names[-newest:] if newest else names
    for name, content in zip(names, store.read_records(_FOLDER, names), strict=True):
        parsed = _parse_record_or_error(store, name, content)
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
      DataError: there is a record with the highest number, which none of ours has.
    """
    for attempt in range(2 * _TRIES):
        latest = _read_latest(store)
        if latest.is_pending and attempt < _TRIES:  # later, its writer counts as killed
            time.sleep(_PENDING_SECONDS)
            continue
        decided = decide(latest.aliases)
        if decided is latest.aliases:
            return decided
        if latest.number == _MAX_NUMBER:
            raise DataError(
                f"{store.location}/{_FOLDER}/{_MAX_NUMBER}.json has the highest number, so the "
                "aliases cannot be moved. Remove the file, or give it the number after the last "
                "other one."
            )
        try:
            content = f"{decided.model_dump_json(indent=2)}\n".encode()
            store.create_record(_FOLDER, f"{latest.number + 1:08d}.json", content)
        except FileExistsError:
            continue
        return decided
    raise MachineError(f"{store.location}: other processes keep moving its aliases. Retry later.")


@dataclasses.dataclass(frozen=True)
class _LatestRecord:
    """The latest record.

    `number` is 0 before the first record, `is_pending` shows whether the record is still empty, and
    `aliases` is the present state.
    """

    number: int
    is_pending: bool
    aliases: Aliases


def _read_latest(store: ModelStore) -> _LatestRecord:
    names = [name for name in store.list_records(_FOLDER) if _RECORD.fullmatch(name)]
    number, is_pending = (int(names[-1][:8]) if names else 0), False
    for name in reversed(names):
        [content] = store.read_records(_FOLDER, [name])
        is_pending |= content == b"" and name == names[-1]
        parsed = _parse_record_or_error(store, name, content)
        if isinstance(parsed, Aliases):
            return _LatestRecord(number, is_pending, parsed)
        _warn_once(str(parsed))
    return _LatestRecord(number, is_pending, Aliases())


def _parse_record_or_error(
    store: ModelStore, name: str, content: bytes | DataError
) -> Aliases | DataError:
    source = f"{store.location}/{_FOLDER}/{name}"
    if isinstance(content, DataError):
        return content
    if not _RECORD.fullmatch(name):
        return DataError(
            f"{source}: not a record of aliases, because its name is not eight digits and .json. "
            "It is ignored. Remove it."
        )
    try:
        return parse_record(content, source)
    except DataError as error:
        return error


@functools.cache  # once for each message
def _warn_once(problem: str) -> None:
    _log.warning("%s", problem)
