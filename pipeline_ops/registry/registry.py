"""The model registry: immutable versions of a model, and aliases, which show their purpose.

    <registry>/<model>/1/                       saved_model.pb, variables/, manifest.json:
                                                the files that TensorFlow Serving loads
    <registry>/<model>/2/
    <registry>/<model>/aliases/00000003.json    the latest move: the version of `champion`,
                                                `previous` or any other alias

A reader sees a version whole or not at all. Aliases move last of all, by one small record.
`versions.py` describes the storage, and `aliases.py` the moves.

The export job publishes, promotes and retires. The command line and a DAG move aliases manually. A
server must follow an alias: the highest number is the newest version, but not always the one in
service. `polled_folder.py` makes a folder for servers that cannot.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from types import EllipsisType

from pipeline_ops.errors import ConfigError, DataError, OutOfDate
from pipeline_ops.registry import aliases
from pipeline_ops.registry.aliases import CHAMPION, PREVIOUS, Aliases, AliasHistory
from pipeline_ops.registry.versions import (
    Version,
    VersionWriter,
    add_version,
    hold_publication,
    list_numbers,
    read_manifests,
)
from pipeline_ops.storage.local_files import warn_unowned_folder
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Registry:
    """The versions of one model. `location` is a local folder, or one in an object store."""

    location: str | Path | StorePath

    @functools.cached_property
    def folder(self) -> StorePath:
        """The location as the root of its store. Raises ConfigError for an unknown kind of URI."""
        options = self.location.options if isinstance(self.location, StorePath) else None
        return open_root(str(self.location).rstrip("/"), options)

    def list_versions(self) -> list[Version]:
        """Lists the versions, oldest first, without unfinished and retired ones."""
        return [self._locate(number) for number in self._list_numbers(self.read_aliases())]

    def get_version(self, number: int, present: Aliases | None = None) -> Version:
        """Returns the version with a number, or raises ConfigError that lists the existing ones.

        The aliases are read unless the caller passes them.
        """
        numbers = self._list_numbers(present or self.read_aliases())
        if number not in numbers:
            raise ConfigError(
                f"{self.location}: there is no version {number}. "
                f"Existing versions: {', '.join(map(str, numbers)) or 'none'}."
            )
        return self._locate(number)

    def read_aliases(self) -> Aliases:
        """Returns the aliases of the latest record that can be read."""
        return aliases.read_latest(self.folder)[2]

    def find_champion(self) -> Version | None:
        """Returns the version in service."""
        return self.find_by_alias(CHAMPION)

    def find_by_alias(self, alias: str) -> Version | None:
        """Returns the version that an alias names, or None."""
        present = self.read_aliases()
        number = present.names.get(alias)
        return None if number is None else self.get_version(number, present)

    def read_history(self, newest: int | None = None) -> AliasHistory:
        """Reads all moves, or those of the newest records. Each costs a request in a bucket."""
        return aliases.read_history(self.folder, newest)

    def find_earlier_services(self, numbers: Collection[int]) -> list[int]:
        """Returns which of the versions came into service, in this order.

        If all of them are newer than every version that was moved, no move is read.
        """
        highest = self.read_aliases().highest
        if highest is not None and highest < min(numbers):
            return []
        return [
            move.version
            for move in self.read_history().moves
            if move.alias == CHAMPION and move.version and move.version in numbers
        ]

    def find_by_training(self, training_digest: str) -> list[Version]:
        """Returns the versions that hold the model of a training's artifact.

        There are several if the model was published in other formats later. A version with an
        unreadable manifest is reported and left out.
        """
        versions, found = self.list_versions(), []
        for version, manifest in zip(versions, read_manifests(versions), strict=True):
            if isinstance(manifest, DataError):
                _log.warning("%s", manifest)
            elif (training := manifest.inputs.get("train")) and training.digest == training_digest:
                found.append(version)
        return found

    def publish(self, training_digest: str, fill: VersionWriter, contents: str = "") -> Version:
        """Adds a version, or returns the existing one of the same training with the same contents.

        `contents` identifies the published formats, and is among the figures of the manifest that
        `fill` writes: other formats of a model are another version. The number is higher than every
        one that was ever moved or retired. No alias moves. One publisher waits for the other.
        Raises MachineError if another publisher does not finish, or has taken over from this one.
        """
        with hold_publication(self.folder) as lease:
            for version in self.find_by_training(training_digest):
                if version.read_manifest().figures.get("contents", "") == contents:
                    return version
            present = self.read_aliases()
            moved = [0, *present.succession, *present.names.values(), *present.retired]
            if present.highest is None:
                moved += [move.version or 0 for move in self.read_history().moves]
            return add_version(self.folder, lease, max(*moved, present.highest or 0) + 1, fill)

    def promote(
        self,
        number: int,
        reason: str,
        expected: int | None | EllipsisType = ...,
        check_replaced: Callable[[Version], None] = lambda version: None,
    ) -> None:
        """Puts a version in service.

        Raises ConfigError if there is no such version, and OutOfDate if the champion is no longer
        the one that the version was chosen over (`expected`; by default any). `check_replaced` may
        raise for the version that goes out of service.
        """

        def decide(present: Aliases) -> Aliases:
            current = present.names.get(CHAMPION)
            self.get_version(number, present)
            if not isinstance(expected, EllipsisType) and current != expected:
                raise OutOfDate(
                    f"{_format_version(current)} is in service now, and version {number} was "
                    f"compared with {_format_version(expected)}. Trigger a new run, which compares "
                    "them"
                )
            if current is not None and current != number:
                check_replaced(self.get_version(current, present))
            return present if current == number else present.with_champion(number, reason)

        aliases.move(self.folder, decide)

    def roll_back(self, reason: str = "") -> Version:
        """Puts the previous champion back in service. Raises ConfigError if there was none.

        A return to an earlier champion undoes the champions after it. Two roll-backs therefore lead
        two champions back.
        """

        def decide(present: Aliases) -> Aliases:
            if PREVIOUS not in present.names:
                raise ConfigError(
                    f"{self.location}: there is no earlier champion to go back to. "
                    "Put another version in service by its number."
                )
            self.get_version(present.names[PREVIOUS], present)
            move_reason = f"rolled back from version {present.names[CHAMPION]}"
            return present.with_champion(
                present.names[PREVIOUS], f"{move_reason}: {reason}" if reason else move_reason
            )

        return self._locate(aliases.move(self.folder, decide).names[CHAMPION])

    def set_alias(
        self,
        alias: str,
        number: int | None,
        reason: str,
        expected: int | None | EllipsisType = ...,
    ) -> None:
        """Makes an alias name a version, or removes it.

        Raises ConfigError if users can't set the name, or there is no such version, and OutOfDate
        if the alias no longer names the version that it was seen to name (`expected`; by default
        any).
        """

        def decide(present: Aliases) -> Aliases:
            if number is not None:
                self.get_version(number, present)
            current = present.names.get(alias)
            if not isinstance(expected, EllipsisType) and current != expected:
                raise OutOfDate(
                    f"the alias {alias} names {_format_version(current)} now, and it named "
                    f"{_format_version(expected)} when this was decided. Look again, then decide"
                )
            changed = present.with_alias(alias, number, reason)
            return present if changed.names == present.names else changed

        aliases.move(self.folder, decide)

    def retire(self, keep: int, reason: str) -> list[int]:
        """Removes all versions except the newest `keep` and those that an alias names.

        A move decides which versions are retired, and they are removed after that. If an alias
        moves to a version at the same time, it comes first and keeps the version, or it comes too
        late and is refused. The next call finishes a removal that was killed. Returns the numbers
        of the removed versions.
        """

        def decide(present: Aliases) -> Aliases:
            numbers = self._list_numbers(present)
            to_retire = [
                number
                for number in numbers[: max(0, len(numbers) - keep)]
                if not present.find_names(number) and self._is_exported(number)
            ]
            return present.with_retired(to_retire, reason) if to_retire else present

        return self._remove_retired(aliases.move(self.folder, decide))

    def retire_version(self, number: int, reason: str) -> None:
        """Removes one version, as `retire` does. Raises as `check_retirable` does."""

        def decide(present: Aliases) -> Aliases:
            self.check_retirable(number, present)
            return present.with_retired([number], reason)

        self._remove_retired(aliases.move(self.folder, decide))

    def check_retirable(self, number: int, present: Aliases) -> None:
        """Raises ConfigError if there is no such version of an export, or an alias names it."""
        self.get_version(number, present)
        if names := present.find_names(number):
            raise ConfigError(
                f"version {number} cannot be retired, because it is {' and '.join(names)}. "
                "Move the alias to another version first."
            )
        if not self._is_exported(number):
            raise ConfigError(
                f"{self.location}/{number} cannot be retired, because no export has published it. "
                "Remove it by hand."
            )

    def _remove_retired(self, present: Aliases) -> list[int]:
        """Removes what is left of all retired versions. Returns their numbers."""
        left = [number for number in list_numbers(self.folder) if number in present.retired]
        removed = [number for number in left if self._is_exported(number)]
        for number in removed:
            self._locate(number).remove()
        return removed

    def _locate(self, number: int) -> Version:
        return Version(self.folder / str(number))

    def _list_numbers(self, present: Aliases) -> list[int]:
        return [number for number in list_numbers(self.folder) if number not in present.retired]

    def _is_exported(self, number: int) -> bool:
        """Returns whether an export has published the version.

        Another folder with a number for a name is reported and never removed.
        """
        version = self._locate(number)
        try:
            if version.read_manifest().job == "export":
                return True
        except DataError as error:
            _log.warning("%s", error)
        warn_unowned_folder(version.folder)
        return False


def check_origin(
    version: Version, pipeline: str, shared_with: Collection[str], name: str = "the champion"
) -> None:
    """Checks that a version is of this pipeline, or of one that shares the model with it.

    `name` is the name of the version in the message. Raises ConfigError for another pipeline's.
    """
    if (origin := version.read_manifest().pipeline) not in (pipeline, *shared_with):
        model = version.path.parent.name
        raise ConfigError(
            f"{name} of {model} (version {version.number}) comes from pipeline {origin}, and this "
            f"is {pipeline}. The two would compare and replace models of different data",
            f"Give {pipeline} another export.model. If {origin} is its earlier name, or both are "
            f"to publish {model}, set export.shared_with: "
            f"[{', '.join(dict.fromkeys((*shared_with, origin)))}].",
        )


def _format_version(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"
