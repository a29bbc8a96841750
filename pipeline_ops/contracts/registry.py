"""The model registry: immutable versions of a model, and aliases, which say what each of them is for.

    <registry>/<model>/1/                       saved_model.pb, variables/, manifest.json: what TensorFlow Serving loads
    <registry>/<model>/2/
    <registry>/<model>/aliases/00000003.json    the latest move: which version is `champion`, `previous`, or anything else

A version appears whole. Aliases move by one small record, last of all. A reader that polls sees a version whole or not at all.
Where and how that is kept is in `shelf.py`, what a move does in `aliases.py`.

The export job publishes, promotes and retires; the command line and a DAG move aliases by hand. A server must follow an alias:
the highest number is the newest version, and not always the one in service.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from pipeline_ops.contracts import aliases
from pipeline_ops.contracts.aliases import CHAMPION, PREVIOUS, Aliases, Move
from pipeline_ops.contracts.errors import ConfigError, DataError
from pipeline_ops.contracts.fingerprint import digest_of
from pipeline_ops.contracts.manifest import NAME, Input, Manifest, parse_manifest
from pipeline_ops.contracts.shelf import Fill, Shelf, is_remote, open_shelf


@dataclasses.dataclass(frozen=True)
class Version:
    """One published model."""

    number: int
    shelf: Shelf

    @property
    def folder(self) -> str:
        """Its path, or its URI."""
        return self.shelf.uri(self.number)

    @property
    def uri(self) -> str:
        """Of its manifest."""
        return f"{self.folder}/{NAME}"

    def manifest(self) -> Manifest:
        """Raises DataError if it is gone, or is no manifest."""
        content = self.shelf.manifest(self.number)
        if content is None:
            raise DataError(f"{self.uri}: there is no such manifest; remove the version, and run the task that makes it again")
        return parse_manifest(content, self.uri)

    def fetch(self, cache: Path) -> Path:
        """A local folder that holds it; a copy below `cache`, if it is not local."""
        return self.shelf.fetch(self.number, cache)


@dataclasses.dataclass(frozen=True)
class Registry:
    """The versions of one model; `place` is a local folder, or the URI of a place in an object store."""

    place: str | Path

    @functools.cached_property
    def shelf(self) -> Shelf:
        return open_shelf(str(self.place).rstrip("/"))

    def versions(self) -> list[Version]:
        """Oldest first. What is half written is not seen, and what is retired no more."""
        retired = self.aliases().retired
        return [Version(number, self.shelf) for number in self.shelf.numbers() if number not in retired]

    def version(self, number: int) -> Version:
        """Raises ConfigError with the versions that there are."""
        return self._existing(number, self.aliases())

    def aliases(self) -> Aliases:
        return aliases.read_aliases(self.shelf)

    def champion(self) -> Version | None:
        """The version in service."""
        return self.aliased(CHAMPION)

    def previous(self) -> Version | None:
        """The champion that `roll_back` would put in service."""
        return self.aliased(PREVIOUS)

    def aliased(self, alias: str) -> Version | None:
        """The version that an alias names; None where it names none."""
        number = self.aliases().names.get(alias)
        return None if number is None else self.version(number)

    def history(self) -> list[Move]:
        """Every move, oldest first."""
        return aliases.read_moves(self.shelf)

    def made_from(self, training_digest: str) -> list[Version]:
        """The versions that hold the model of a training's artifact: several, if it was published in other formats later."""
        return [version for version in self.versions() if version.manifest().inputs["train"].digest == training_digest]

    def publish(self, training_digest: str, fill: Fill, contents: str = "") -> Version:
        """Adds a version, or returns the one that was made from the same training with the same contents. Moves no alias.

        Two publishers at once get two numbers; nobody ever sees a part of a version.

        Args:
          fill: writes the version; its manifest has `contents` among its figures.
          contents: says in what form the model is published: other formats of it are another version.

        Raises:
          MachineError: somebody else publishes, and does not come to an end; or publishes the same training right now.
        """
        with self.shelf.publishing():
            same = [version for version in self.made_from(training_digest) if version.manifest().figures.get("contents", "") == contents]
            return same[0] if same else Version(self.shelf.add(self._next_number(), f"{training_digest} {contents}", fill), self.shelf)

    def promote(self, number: int, reason: str, expected: int | None | type(...) = ...) -> None:
        """Puts a version in service.

        Args:
          expected: the champion that the decision was made against; left out, any.

        Raises:
          ConfigError: there is no such version.
          DataError: the champion is not the expected one any more, so the decision is out of date.
        """

        def decide(present: Aliases) -> Aliases:
            current = present.names.get(CHAMPION)
            self._existing(number, present)
            if expected is not ... and current != expected:
                raise DataError(f"{self.place}: version {number} was chosen over {_named(expected)}, but in service is {_named(current)} by now; "
                                "start a new run, which evaluates again")
            return present if current == number else present.with_champion(number, reason)

        aliases.move(self.shelf, decide)

    def roll_back(self, reason: str = "") -> Version:
        """Puts the champion before the present one back in service. Raises ConfigError where there was none.

        Going back to an earlier champion undoes what came after it, so two roll-backs lead two champions back.
        """

        def decide(present: Aliases) -> Aliases:
            if PREVIOUS not in present.names:
                raise ConfigError(f"{self.place}: there is no earlier champion to go back to; put another version in service by its number")
            self._existing(present.names[PREVIOUS], present)
            because = f"rolled back from version {present.names[CHAMPION]}" + (f": {reason}" if reason else "")
            return present.with_champion(present.names[PREVIOUS], because)

        return Version(aliases.move(self.shelf, decide).names[CHAMPION], self.shelf)

    def set_alias(self, alias: str, number: int | None, reason: str) -> None:
        """Lets an alias name a version, or none. Raises ConfigError for a name that can't be given, or no such version."""

        def decide(present: Aliases) -> Aliases:
            if number is not None:
                self._existing(number, present)
            wanted = present.with_alias(alias, number, reason)
            return present if wanted.names == present.names else wanted

        aliases.move(self.shelf, decide)

    def retire(self, keep: int, reason: str) -> list[int]:
        """Removes all but the newest `keep` versions and those that an alias names. Returns the numbers that were removed.

        What goes is decided by a move, and removed after that: an alias that comes to a version at the same time comes
        first, and keeps it, or too late, and is refused. A removal that was killed is finished by the next one.
        """

        def decide(present: Aliases) -> Aliases:
            there = [number for number in self.shelf.numbers() if number not in present.retired]
            goes = [number for number in there[: max(0, len(there) - keep)] if not present.named(number)]
            return present.without(goes, reason) if goes else present

        retired = aliases.move(self.shelf, decide).retired
        removed = [number for number in self.shelf.numbers() if number in retired]
        for number in removed:
            self.shelf.remove(number)
        return removed

    def _existing(self, number: int, present: Aliases) -> Version:
        there = [other for other in self.shelf.numbers() if other not in present.retired]
        if number not in there:
            raise ConfigError(f"{self.place}: there is no version {number}; there are {', '.join(map(str, there)) or 'none'}")
        return Version(number, self.shelf)

    def _next_number(self) -> int:
        """Never that of a version that was in service once or was retired, even if its folder has been removed."""
        present = self.aliases()
        return 1 + max([*self.shelf.numbers(), *present.succession, *present.names.values(), *present.retired,
                        *(move.version or 0 for move in self.history())], default=0)


def fetched(entry: Input, root: Path) -> Input:
    """A version among a job's inputs, with the URI of its local copy, which is made below the storage root where it has to be.

    Raises:
      DataError: it is gone, or damaged.
    """
    if not is_remote(entry.uri):
        return entry
    place, number, _ = entry.uri.rsplit("/", 2)
    folder = open_shelf(place).fetch(int(number), root / "fetched" / digest_of(place)[:8])
    return entry.model_copy(update={"uri": str(folder / NAME)})


def _named(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"
