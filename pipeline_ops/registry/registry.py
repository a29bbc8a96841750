"""The model registry: immutable versions of a model, and aliases, which show their purpose.

    <registry>/<model>/1/                       saved_model.pb, variables/, manifest.json:
                                                the files that TensorFlow Serving loads
    <registry>/<model>/2/
    <registry>/<model>/aliases/00000003.json    the latest move: the version of `champion`,
                                                `previous` or any other alias

A reader that polls sees a version whole or not at all. Aliases move last of all, by one small
record. `model_store.py` describes the storage, and `aliases.py` the moves.

The export job publishes, promotes and retires. The command line and a DAG move aliases manually. A
server must follow an alias: the highest number is the newest version, but not always the one in
service.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Collection
from pathlib import Path
from types import EllipsisType

from pipeline_ops.artifacts.manifest import NAME, Input, Manifest
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry import aliases
from pipeline_ops.registry.aliases import CHAMPION, PREVIOUS, Aliases, AliasHistory
from pipeline_ops.registry.local_model_store import LocalModelStore
from pipeline_ops.registry.model_store import ModelStore, VersionWriter
from pipeline_ops.registry.object_model_store import ObjectModelStore
from pipeline_ops.registry.version import Version, read_manifests
from pipeline_ops.storage.local_files import warn_unowned_folder
from pipeline_ops.storage.open_store import is_remote, open_root
from pipeline_ops.storage.store_path import StorePath

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Registry:
    """The versions of one model. `location` is a local folder, or one in an object store."""

    location: str | Path | StorePath

    @functools.cached_property
    def store(self) -> ModelStore:
        """The versions in a folder or in a bucket. Raises ConfigError for another URI."""
        location = str(self.location).rstrip("/")
        if not is_remote(location):
            return LocalModelStore(Path(location))
        options = self.location.options if isinstance(self.location, StorePath) else None
        return ObjectModelStore(open_root(location, options))

    def list_versions(self) -> list[Version]:
        """The versions, oldest first, without unfinished and retired ones."""
        return [Version(number, self.store) for number in self._list_numbers(self.read_aliases())]

    def _list_numbers(self, present: Aliases) -> list[int]:
        return [number for number in self.store.list_numbers() if number not in present.retired]

    def get_version(self, number: int, present: Aliases | None = None) -> Version:
        """The version with a number.

        Args:
          number: the number.
          present: the aliases now, if the caller has read them.

        Raises:
          ConfigError: there is no such version. The message lists the existing versions.
        """
        numbers = self._list_numbers(present or self.read_aliases())
        if number not in numbers:
            raise ConfigError(
                f"{self.location}: there is no version {number}. "
                f"Existing versions: {', '.join(map(str, numbers)) or 'none'}."
            )
        return Version(number, self.store)

    def read_aliases(self) -> Aliases:
        return aliases.read_aliases(self.store)

    def find_champion(self) -> Version | None:
        """The version in service."""
        return self.find_by_alias(CHAMPION)

    def find_by_alias(self, alias: str) -> Version | None:
        """The version that an alias names. None if it names none."""
        number = self.read_aliases().names.get(alias)
        return None if number is None else self.get_version(number)

    def read_history(self, newest: int | None = None) -> AliasHistory:
        """Every move, or those of the newest records, and the problems of unreadable records.

        In a bucket, each record costs a request.
        """
        return aliases.read_records(self.store, newest)

    def find_earlier_services(self, numbers: Collection[int]) -> list[int]:
        """Those of some versions that came into service, in this order.

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
        """The versions that hold the model of a training's artifact.

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

        It moves no alias. One publisher waits for the other. Readers never see a part of a version.

        Args:
          training_digest: the digest of the training's artifact.
          fill: writes the version. Its manifest has `contents` among its figures.
          contents: identifies the published formats. Other formats of a model are another version.

        Raises:
          MachineError: another publisher does not finish, or has taken over from this one.
        """
        with self.store.publishing() as add:
            same = [
                version
                for version in self.find_by_training(training_digest)
                if version.read_manifest().figures.get("contents", "") == contents
            ]
            if same:
                return same[0]
            return Version(add(self._find_next_number(), fill), self.store)

    def promote(self, number: int, reason: str, expected: int | None | EllipsisType = ...) -> None:
        """Puts a version in service.

        Args:
          number: the version.
          reason: the reason, kept in the history.
          expected: the champion that the decision was made against. If omitted, any.

        Raises:
          ConfigError: there is no such version.
          DataError: the champion is no longer the expected one, so the decision is out of date.
        """

        def decide(present: Aliases) -> Aliases:
            current = present.names.get(CHAMPION)
            self.get_version(number, present)
            if not isinstance(expected, EllipsisType) and current != expected:
                raise DataError(
                    f"{self.location}: version {number} was chosen over "
                    f"{_format_version(expected)}, but now {_format_version(current)} is in "
                    "service. Start a new run, which evaluates again."
                )
            return present if current == number else present.with_champion(number, reason)

        aliases.move(self.store, decide)

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

        return Version(aliases.move(self.store, decide).names[CHAMPION], self.store)

    def set_alias(self, alias: str, number: int | None, reason: str) -> None:
        """Makes an alias name a version, or none.

        Raises:
          ConfigError: users can't set the name, or there is no such version.
        """

        def decide(present: Aliases) -> Aliases:
            if number is not None:
                self.get_version(number, present)
            changed = present.with_alias(alias, number, reason)
            return present if changed.names == present.names else changed

        aliases.move(self.store, decide)

    def retire(self, keep: int, reason: str) -> list[int]:
        """Removes all versions except the newest `keep` and those that an alias names.

        A move decides which versions are retired, and they are removed after that. If an alias
        moves to a version at the same time, it comes first and keeps the version, or it comes too
        late and is refused. The next call finishes a removal that was killed.

        Returns:
          The numbers of the removed versions.
        """

        def decide(present: Aliases) -> Aliases:
            numbers = self._list_numbers(present)
            to_retire = [
                number
                for number in numbers[: max(0, len(numbers) - keep)]
                if not present.find_names(number) and self._is_exported(number)
            ]
            return present.with_retired(to_retire, reason) if to_retire else present

        retired = aliases.move(self.store, decide).retired
        removed = [
            number
            for number in self.store.list_numbers()
            if number in retired and self._is_exported(number)
        ]
        for number in removed:
            self.store.remove(number)
        return removed

    def _is_exported(self, number: int) -> bool:
        """Returns whether an export has published the version.

        Another folder with a number for a name is reported and never removed.
        """
        manifest = _try_read_manifest(Version(number, self.store))
        if manifest and manifest.job == "export":
            return True
        warn_unowned_folder(self.store.get_uri(number))
        return False

    def _find_next_number(self) -> int:
        """A number that was never in service or retired, even if that folder has been removed."""
        present = self.read_aliases()
        known = [*present.succession, *present.names.values(), *present.retired]
        if present.highest is None:
            known += [move.version or 0 for move in self.read_history().moves]
        else:
            known.append(present.highest)
        return 1 + max([*self.store.list_numbers(), *known], default=0)


def fetch_version(entry: Input) -> Input:
    """A version among a job's inputs, with the URI of a local copy if it is in a bucket.

    Raises:
      DataError: the version is gone or damaged.
    """
    if not is_remote(entry.uri):
        return entry
    location, number, _ = entry.uri.rsplit("/", 2)
    folder = Registry(location).store.fetch(int(number))
    return entry.model_copy(update={"uri": str(folder / NAME)})


def _try_read_manifest(version: Version) -> Manifest | None:
    """The version's manifest. None if it is unreadable. The log then shows the reason."""
    try:
        return version.read_manifest()
    except DataError as error:
        _log.warning("%s", error)
        return None


def _format_version(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"
