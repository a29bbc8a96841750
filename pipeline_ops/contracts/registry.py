"""The model registry: a folder of immutable versions, and one small file that says which of them is in service.

    <root>/models/<model>/1/            saved_model.pb, variables/, manifest.json: what TensorFlow Serving loads
    <root>/models/<model>/2/
    <root>/models/<model>/champion.json

A version appears whole, by rename. The champion moves by the replacement of one file, last of all. A reader that polls
the folder sees a version whole or not at all.

The export job publishes and promotes; the command line promotes and rolls back. A server must follow `champion.json`:
the highest number is the newest version, and not always the one in service.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline_ops.contracts.errors import ConfigError, DataError
from pipeline_ops.contracts.files import exclusive_lock, read_json, staging_folder, write_json
from pipeline_ops.contracts.manifest import NAME, Manifest, read_manifest

_POINTER = "champion.json"
_POINTER_LOCK, _POINTER_SECONDS = ".lock", 30.0
_PUBLISH_LOCK, _PUBLISH_SECONDS = ".publish.lock", 600.0
"""Two locks, because publishing takes as long as the copy of a model, and nobody who rolls back should wait for that."""
_VERSION_NAME = re.compile("[1-9][0-9]*")


@dataclasses.dataclass(frozen=True)
class Version:
    """One published model."""

    number: int
    folder: Path

    @property
    def uri(self) -> str:
        """Of its manifest."""
        return str(self.folder / NAME)

    def manifest(self) -> Manifest:
        return read_manifest(self.uri)


@dataclasses.dataclass(frozen=True)
class Registry:
    """The versions of one model."""

    folder: Path

    def versions(self) -> list[Version]:
        """Oldest first. What is half written has no number for a name and is not seen."""
        if not self.folder.is_dir():
            return []
        found = [Version(int(entry.name), entry) for entry in self.folder.iterdir() if _VERSION_NAME.fullmatch(entry.name) and entry.is_dir()]
        return sorted(found, key=lambda version: version.number)

    def version(self, number: int) -> Version:
        """Raises ConfigError with the versions that there are."""
        versions = {version.number: version for version in self.versions()}
        if number not in versions:
            raise ConfigError(f"{self.folder}: there is no version {number}; there are {', '.join(map(str, versions)) or 'none'}")
        return versions[number]

    def champion(self) -> Version | None:
        """The version in service."""
        pointer = read_json(self.folder / _POINTER)
        return self.version(pointer["version"]) if pointer else None

    def history(self) -> list[dict[str, Any]]:
        """Every move of the champion, oldest first: {"version", "time", "reason"}."""
        pointer = read_json(self.folder / _POINTER)
        return pointer["history"] if pointer else []

    def made_from(self, training_digest: str) -> Version | None:
        """The version that holds the model of a training's artifact."""
        return next((v for v in self.versions() if v.manifest().inputs["train"].digest == training_digest), None)

    def publish(self, training_digest: str, fill: Callable[[Path, int], None]) -> Version:
        """Adds a version, or returns the one that was made from the same training. Does not move the champion.

        Two publishers at once get two numbers, one after the other; nobody ever sees a part of a version.

        Args:
          fill: writes the version's files, its manifest among them, into an empty folder; it is told folder and number.

        Raises:
          MachineError: somebody else publishes, and does not come to an end.
        """
        with exclusive_lock(self.folder / _PUBLISH_LOCK, f"the right to publish in {self.folder}", wait_seconds=_PUBLISH_SECONDS):
            if version := self.made_from(training_digest):
                return version
            number = self._next_number()
            version = Version(number, self.folder / str(number))
            with staging_folder(version.folder) as staging:
                fill(staging, number)
            return version

    def promote(self, number: int, reason: str, expected: int | None | type(...) = ...) -> None:
        """Puts a version in service.

        Args:
          expected: the champion that the decision was made against; left out, any.

        Raises:
          ConfigError: there is no such version.
          DataError: the champion is not the expected one any more, so the decision is out of date.
          MachineError: somebody else is promoting right now.
        """
        self.version(number)
        with exclusive_lock(self.folder / _POINTER_LOCK, f"the registry of {self.folder.name}", wait_seconds=_POINTER_SECONDS):
            champion = self.champion()
            current = champion.number if champion else None
            if expected is not ... and current != expected:
                raise DataError(f"{self.folder}: version {number} was chosen over {_named(expected)}, but in service is {_named(current)} by now; "
                                   "start a new run, which evaluates again")
            if current != number:
                history = [*self.history(), {"version": number, "time": time.time(), "reason": reason}]
                write_json(self.folder / _POINTER, {"version": number, "history": history})

    def previous(self) -> Version | None:
        """The champion that `roll_back` would put in service.

        Going back to an earlier champion undoes what came after it, so two roll-backs lead two champions back.
        """
        succession: list[int] = []
        for move in self.history():
            number = move["version"]
            succession = [*succession[: succession.index(number)], number] if number in succession else [*succession, number]
        return self.version(succession[-2]) if len(succession) > 1 else None

    def roll_back(self) -> Version:
        """Puts the champion before the present one back in service. Raises ConfigError where there was none."""
        champion, previous = self.champion(), self.previous()
        if champion is None or previous is None:
            raise ConfigError(f"{self.folder}: there is no earlier champion to go back to; put another version in service by its number")
        self.promote(previous.number, reason=f"rolled back from version {champion.number}", expected=champion.number)
        return previous

    def _next_number(self) -> int:
        """Never that of a version that was in service once, even if its folder has been removed."""
        return 1 + max([version.number for version in self.versions()] + [move["version"] for move in self.history()], default=0)


def _named(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"
