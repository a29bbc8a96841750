"""The aliases of a model's versions, and every move of an alias.

A move is one small record, `aliases/<move>.json`, written once and never changed. The highest one
is valid. A move is therefore one atomic operation on any store. If two people or jobs move at the
same time, the later one is refused and decides again on the new state.

`champion` is the version in service and `previous` the one that a roll-back would restore. Both
follow from the succession: the champions, each once, in the order in which they came into service,
without those that were rolled back.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.registry.versions import list_names
from pipeline_ops.storage.local_files import describe_os_error
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath

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
        """Returns the aliases of a version."""
        return sorted(alias for alias, number in self.names.items() if number == version)

    def with_champion(self, version: int, reason: str) -> Aliases:
        """Puts a version in service. An earlier champion undoes the champions after it."""
        earlier = list(itertools.takewhile(lambda number: number != version, self.succession))
        names = {**self.names, CHAMPION: version}
        names.pop(PREVIOUS, None)
        if earlier:
            names[PREVIOUS] = earlier[-1]
        return self._move(reason, CHAMPION, version, names=names, succession=[*earlier, version])

    def with_alias(self, alias: str, version: int | None, reason: str) -> Aliases:
        """Sets or removes an alias. Raises ConfigError for a name that users can't set."""
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
        return self._move(reason, alias, version, names=names)

    def with_retired(self, versions: list[int], reason: str) -> Aliases:
        """Retires versions that no alias names."""
        retired = sorted({*self.retired, *versions})
        succession = [number for number in self.succession if number not in versions]
        return self._move(reason, None, None, versions, retired=retired, succession=succession)

    def _move(
        self,
        reason: str,
        alias: str | None,
        version: int | None,
        retired_now: Sequence[int] = (),
        **changes: object,
    ) -> Aliases:
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


class AliasHistory(NamedTuple):
    """Moves, oldest first, and the problems of invalid records."""

    moves: list[AliasMove]
    problems: list[str]


class _EmptyRecord(DataError):
    """A record that another process may be about to fill."""


def parse_record(content: bytes, source: str) -> Aliases:
    """Parses a record. Raises DataError with the source if it is invalid."""
    try:
        return parse_json_as(Aliases, content, source)
    except DataError as error:
        kind = DataError if content else _EmptyRecord
        raise kind(f"{error}. This record of aliases is ignored. Remove it.") from None


def read_history(model: StorePath, newest: int | None = None) -> AliasHistory:
    """Reads all records, or the newest ones. An unreadable record is one problem."""
    names, history = _list_records(model / _FOLDER), AliasHistory([], [])
    names = names[-newest:] if newest else names
    for found in map_requests(_read_record, [model / _FOLDER / name for name in names]):
        if isinstance(found, DataError):
            history.problems.append(str(found))
        elif found.last:
            history.moves.append(found.last)
    return history


def move(model: StorePath, decide: Callable[[Aliases], Aliases]) -> Aliases:
    """Makes one move, or none if `decide` returns its argument.

    `decide` maps the present state to the new one, and may raise. It is called again if another
    process has moved in the meantime. Raises MachineError if that goes on, and DataError if a
    record has the highest possible number.
    """
    folder = model / _FOLDER
    for attempt in range(2 * _TRIES):
        number, is_pending, present = read_latest(model)
        if is_pending and attempt < _TRIES:  # later, its writer counts as killed
            time.sleep(_PENDING_SECONDS)
            continue
        decided = decide(present)
        if decided is present:
            return decided
        if number == _MAX_NUMBER:
            raise DataError(
                f"{folder}/{_MAX_NUMBER}.json has the highest number, so the "
                "aliases cannot be moved. Remove the file, or give it the number after the last "
                "other one."
            )
        content = f"{decided.model_dump_json(indent=2)}\n".encode()
        with contextlib.suppress(FileExistsError):
            (folder / f"{number + 1:08d}.json").create(content)
            return decided
    raise MachineError(f"{model}: other processes keep moving its aliases. Retry later.")


def read_latest(model: StorePath) -> tuple[int, bool, Aliases]:
    """Returns the highest number, whether that record is still empty, and the present state.

    The number is 0 before the first record. The state is in the latest readable one.
    """
    folder = model / _FOLDER
    names = [name for name in _list_records(folder) if _RECORD.fullmatch(name)]
    number, is_pending = (int(names[-1][:8]) if names else 0), False
    for name in reversed(names):
        found = _read_record(folder / name)
        if isinstance(found, Aliases):
            return number, is_pending, found
        is_pending |= isinstance(found, _EmptyRecord) and name == names[-1]
        _warn_once(str(found))
    return number, is_pending, Aliases()


def _list_records(folder: StorePath) -> list[str]:
    """Lists the names of records, and of foreign files but not of temporary ones."""
    return [name for name in list_names(folder) if not name.startswith(".")]


def _read_record(record: StorePath) -> Aliases | DataError:
    if not _RECORD.fullmatch(record.name):
        return DataError(
            f"{record}: not a record of aliases, because its name is not eight digits and .json. "
            "It is ignored. Remove it."
        )
    try:
        return parse_record(record.read(), str(record))
    except DataError as error:
        return error
    except (FileNotFoundError, PermissionError) as error:
        return DataError(f"cannot read {record}: {describe_os_error(error)}")


@functools.cache  # once for each message
def _warn_once(problem: str) -> None:
    _log.warning("%s", problem)
