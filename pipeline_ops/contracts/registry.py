"""The model registry: a folder of immutable versions, and one small file that says which of them is in service.

    <root>/models/<model>/1/            saved_model.pb, variables/, manifest.json: what TensorFlow Serving loads
    <root>/models/<model>/2/
    <root>/models/<model>/champion.json

A version appears whole, by rename. The champion moves by the replacement of one file, last of all. A reader that polls
the folder sees a version whole or not at all.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline_ops.contracts.errors import ConfigError, MachineError
from pipeline_ops.contracts.files import exclusive_lock, read_json, staging_folder, write_json
from pipeline_ops.contracts.manifest import NAME, Manifest, read_manifest

_POINTER, _LOCK = "champion.json", ".lock"
_LOCK_SECONDS = 30.0


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
        return [Version(int(entry.name), entry) for entry in sorted(self.folder.iterdir(), key=_number) if _number(entry)]

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

    def find(self, fingerprint_digest: str) -> Version | None:
        """The version that was published for an export's fingerprint."""
        return next((v for v in self.versions() if v.manifest().fingerprint_digest == fingerprint_digest), None)

    def publish(self, fill: Callable[[Path], None]) -> Version:
        """Adds a version: `fill` writes its files, the manifest among them, into an empty folder. Does not move the champion.

        Two publishers at once get two numbers; nobody ever sees a part of a version.
        """
        number = max((version.number for version in self.versions()), default=0) + 1
        while True:
            try:
                with staging_folder(self.folder / str(number)) as staging:
                    fill(staging)
                return Version(number, self.folder / str(number))
            except FileExistsError:
                number += 1

    def promote(self, number: int, reason: str, expected: int | None | type(...) = ...) -> None:
        """Puts a version in service.

        Args:
          expected: the champion that the decision was made against; left out, any.

        Raises:
          ConfigError: there is no such version.
          MachineError: the champion is not the expected one any more, or somebody else is promoting right now.
        """
        self.version(number)
        with exclusive_lock(self.folder / _LOCK, f"the registry of {self.folder.name}", wait_seconds=_LOCK_SECONDS):
            champion = self.champion()
            current = champion.number if champion else None
            if expected is not ... and current != expected:
                raise MachineError(f"{self.folder}: the champion was version {expected} when version {number} was evaluated, and is {current} now; "
                                   "evaluate again")
            if current != number:
                history = [*self.history(), {"version": number, "time": time.time(), "reason": reason}]
                write_json(self.folder / _POINTER, {"version": number, "history": history})

    def roll_back(self) -> Version:
        """Puts the champion before the present one back in service. Raises ConfigError where there was none."""
        champion = self.champion()
        earlier = [move["version"] for move in self.history() if champion and move["version"] != champion.number]
        if not earlier:
            raise ConfigError(f"{self.folder}: there is no earlier champion to go back to")
        self.promote(earlier[-1], reason=f"rolled back from version {champion.number}", expected=champion.number)
        return self.version(earlier[-1])


def copy_into(source: Path, target: Path) -> None:
    """Copies the content of a folder into another one that exists."""
    shutil.copytree(source, target, dirs_exist_ok=True)


def _number(entry: Path) -> int:
    return int(entry.name) if entry.name.isdigit() and entry.is_dir() else 0
