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
from pathlib import Path

from pipeline_ops.artifacts.manifest import (
    NAME,
    SIGNATURE,
    Input,
    Manifest,
    open_listed,
    parse_manifest,
    refuse_damage,
)
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry import aliases
from pipeline_ops.registry.aliases import CHAMPION, PREVIOUS, Aliases, AliasHistory, Move
from pipeline_ops.registry.local_model_store import LocalModelStore
from pipeline_ops.registry.minisign import PublicKey
from pipeline_ops.registry.model_store import Fill, ModelStore
from pipeline_ops.storage.atomic import write_blocks, write_whole
from pipeline_ops.storage.checksums import Summing, blocks_of
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.storage.object_store import is_remote
from pipeline_ops.storage.own_folders import report_foreign

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Version:
    """One published model."""

    number: int
    store: ModelStore

    @property
    def folder(self) -> str:
        """The version's path or URI."""
        return self.store.uri(self.number)

    @property
    def uri(self) -> str:
        """The manifest's URI."""
        return f"{self.folder}/{NAME}"

    def manifest(self) -> Manifest:
        """The manifest. Raises DataError if it is gone or invalid."""
        return parse_manifest(self._manifest_bytes(), self.uri)

    def fetch(self, cache: Path) -> Path:
        """Returns a local folder that holds the version.

        If the version is not local, it is a copy below `cache`. Raises DataError if a file does not
        match the manifest.
        """
        folder, manifest = self.store.fetch(self.number, cache), self.manifest()
        refuse_damage(folder / NAME, manifest, manifest.files)
        return folder

    def copy(self, target: Path, cache: Path, key: PublicKey | None = None) -> None:
        """Copies the version into an empty local folder.

        Each file is checked during the copy, so that no file can change after its check.

        Args:
          target: the folder.
          cache: for a version that is not local.
          key: verifies the signature, which covers the manifest, and so all files.

        Raises:
          DataError: a file does not match the manifest, or the version is not signed by the key.
          MachineError: the disk failed.
        """
        content, signature = self._manifest_bytes(), self.store.signature(self.number)
        if key:
            key.verify(content, signature, self.uri)
        source = self.store.fetch(self.number, cache)
        for file in parse_manifest(content, self.uri).files:
            with open_listed(source, file) as opened:
                write_blocks((summing := Summing()).through(blocks_of(opened)), target / file.path)
            if not file.has_content(summing.result):
                raise DataError(
                    f"{self.folder}/{file.path} has another checksum than the manifest says; "
                    "publish the model again"
                )
        write_whole(target / NAME, content)
        if signature is not None:
            write_whole(target / SIGNATURE, signature)

    def _manifest_bytes(self) -> bytes:
        content = self.store.manifest(self.number)
        if content is None:
            raise DataError(
                f"{self.uri}: there is no such manifest; "
                "remove the version, and run the task that makes it again"
            )
        return content


def open_model_store(place: str) -> ModelStore:
    """The versions of a model in a local folder, or at a URI of one of the `STORES`."""
    if not is_remote(place):
        return LocalModelStore(Path(place))
    from pipeline_ops.registry.object_model_store import (
        ObjectModelStore,  # it needs fsspec, which few models do
    )

    return ObjectModelStore(place)


@dataclasses.dataclass(frozen=True)
class Registry:
    """The versions of one model. `place` is a local folder, or a URI in an object store."""

    place: str | Path

    @functools.cached_property
    def store(self) -> ModelStore:
        return open_model_store(str(self.place).rstrip("/"))

    def versions(self) -> list[Version]:
        """The versions, oldest first, without unfinished and retired ones."""
        retired = self.aliases().retired
        return [
            Version(number, self.store) for number in self.store.numbers() if number not in retired
        ]

    def version(self, number: int) -> Version:
        """The version with a number. Raises ConfigError that lists the existing versions."""
        return self._existing(number, self.aliases())

    def aliases(self) -> Aliases:
        return aliases.read_aliases(self.store)

    def champion(self) -> Version | None:
        """The version in service."""
        return self.aliased(CHAMPION)

    def previous(self) -> Version | None:
        """The champion that `roll_back` would put in service."""
        return self.aliased(PREVIOUS)

    def aliased(self, alias: str) -> Version | None:
        """The version that an alias names. None if it names none."""
        number = self.aliases().names.get(alias)
        return None if number is None else self.version(number)

    def history(self) -> list[Move]:
        """Every move, oldest first."""
        return self.records().moves

    def records(self) -> AliasHistory:
        """Every move, and the problems of unreadable records."""
        return aliases.read_records(self.store)

    def made_from(self, training_digest: str) -> list[Version]:
        """The versions that hold the model of a training's artifact.

        There are several if the model was published in other formats later. A version with an
        unreadable manifest is reported and left out.
        """
        found = [(version, _readable(version)) for version in self.versions()]
        return [
            version
            for version, manifest in found
            if manifest
            and "train" in manifest.inputs
            and manifest.inputs["train"].digest == training_digest
        ]

    def publish(self, training_digest: str, fill: Fill, contents: str = "") -> Version:
        """Adds a version, or returns the existing one of the same training with the same contents.

        It moves no alias. Two publishers at the same time get two numbers. Readers never see a part
        of a version.

        Args:
          training_digest: the digest of the training's artifact.
          fill: writes the version. Its manifest has `contents` among its figures.
          contents: identifies the published formats. Other formats of a model are another version.

        Raises:
          MachineError: another publisher does not finish, or publishes the same training right now.
        """
        with self.store.publishing():
            same = [
                version
                for version in self.made_from(training_digest)
                if version.manifest().figures.get("contents", "") == contents
            ]
            return (
                same[0]
                if same
                else Version(
                    self.store.add(self._next_number(), f"{training_digest} {contents}", fill),
                    self.store,
                )
            )

    def promote(self, number: int, reason: str, expected: int | None | type(...) = ...) -> None:
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
            self._existing(number, present)
            if expected is not ... and current != expected:
                raise DataError(
                    f"{self.place}: version {number} was chosen over {_named(expected)}, but in "
                    f"service is {_named(current)} by now; start a new run, which evaluates again"
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
                    f"{self.place}: there is no earlier champion to go back to; "
                    "put another version in service by its number"
                )
            self._existing(present.names[PREVIOUS], present)
            because = f"rolled back from version {present.names[CHAMPION]}" + (
                f": {reason}" if reason else ""
            )
            return present.with_champion(present.names[PREVIOUS], because)

        return Version(aliases.move(self.store, decide).names[CHAMPION], self.store)

    def set_alias(self, alias: str, number: int | None, reason: str) -> None:
        """Makes an alias name a version, or none.

        Raises:
          ConfigError: users can't set the name, or there is no such version.
        """

        def decide(present: Aliases) -> Aliases:
            if number is not None:
                self._existing(number, present)
            wanted = present.with_alias(alias, number, reason)
            return present if wanted.names == present.names else wanted

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
            there = [number for number in self.store.numbers() if number not in present.retired]
            goes = [
                number
                for number in there[: max(0, len(there) - keep)]
                if not present.named(number) and self._is_ours(number)
            ]
            return present.without(goes, reason) if goes else present

        retired = aliases.move(self.store, decide).retired
        removed = [
            number for number in self.store.numbers() if number in retired and self._is_ours(number)
        ]
        for number in removed:
            self.store.remove(number)
        return removed

    def _existing(self, number: int, present: Aliases) -> Version:
        there = [other for other in self.store.numbers() if other not in present.retired]
        if number not in there:
            raise ConfigError(
                f"{self.place}: there is no version {number}; "
                f"there are {', '.join(map(str, there)) or 'none'}"
            )
        return Version(number, self.store)

    def _is_ours(self, number: int) -> bool:
        """Returns whether an export has published the version.

        Another folder with a number for a name is reported and never removed.
        """
        if (manifest := _readable(Version(number, self.store))) and manifest.job == "export":
            return True
        report_foreign(self.store.uri(number))
        return False

    def _next_number(self) -> int:
        """A number that was never in service or retired, even if that folder has been removed."""
        present = self.aliases()
        return 1 + max(
            [
                *self.store.numbers(),
                *present.succession,
                *present.names.values(),
                *present.retired,
                *(move.version or 0 for move in self.history()),
            ],
            default=0,
        )


def fetched(entry: Input, root: Path) -> Input:
    """A version among a job's inputs, with the URI of its local copy.

    The copy is made below the storage root if the version is not local.

    Raises:
      DataError: the version is gone or damaged.
    """
    if not is_remote(entry.uri):
        return entry
    place, number, _ = entry.uri.rsplit("/", 2)
    folder = open_model_store(place).fetch(int(number), root / "fetched" / digest_of(place)[:8])
    return entry.model_copy(update={"uri": str(folder / NAME)})


def _readable(version: Version) -> Manifest | None:
    """The version's manifest. None if it is unreadable. The log then shows the reason."""
    try:
        return version.manifest()
    except DataError as error:
        _log.warning("%s", error)
        return None


def _named(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"
