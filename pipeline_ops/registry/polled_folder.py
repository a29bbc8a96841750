"""A folder of copies that a model server polls, as TensorFlow Serving does.

    <folder>/3/                     a whole copy of version 3
    <folder>/withdrawn-5-0c1f22ab/  5/, which was there when an alias moved back to version 3
    <folder>/.fetch.lock            held while the folder changes

By default, such a server loads the entry with the highest number, so `follow` leaves the version of
the alias as the highest one. At any moment, a server finds the highest number from before, or this
version, and a whole folder behind it: the version is made first, and the higher numbers lose their
names after that, from the lowest to the highest. Copies of versions that are no longer wanted are
removed under their new name. Anything else stays under it, and is named.

A killed fetch leaves names that no server reads. The next one goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from pipeline_ops.contract.manifest import NAME, find_damage, read_manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import Version
from pipeline_ops.storage.local_files import (
    exchange_names,
    is_own_folder,
    make_write_error,
    open_folder,
    remove_by_rename,
    remove_staging_folders,
    staging_folder,
)
from pipeline_ops.system.locks import exclusive_lock

_WAIT_SECONDS = 60.0
_WITHDRAWN = re.compile(r"withdrawn-([0-9]+)-[0-9a-f]{8}")
_POLLED = re.compile(r"\s*\+?([0-9]+)\s*", re.ASCII)
"""What TensorFlow reads as a number (`safe_strto64`): also `007`."""


@dataclasses.dataclass(frozen=True)
class PolledFolder:
    """The copies of a model's versions in a local folder."""

    folder: Path
    registry: Registry

    @property
    def _model(self) -> str:
        return self.registry.folder.name

    def follow(self, alias: str) -> list[str]:
        """Copies the version of an alias, and leaves it as the highest number of the folder.

        Returns lines for people: the path of the copy, and then a sentence for each entry that was
        replaced, removed or left under another name. Copies of versions that the registry no longer
        has are removed, too. Raises ConfigError if there is no such alias, or if the folder belongs
        to a registry. Raises MachineError if the disk refused a copy or a new name, or if another
        process works on the folder for more than a minute.
        """
        with self._hold() as parent:
            version = self._find(alias)
            lines = self._copy(version, parent)
            present = {each.number for each in self.registry.list_versions()}
            for number, name in self._list_numbers():
                if number >= version.number and name != version.path.name:
                    self._rename(name, _make_name(number), parent)
                elif number not in present and self._is_copy(name, parent):
                    remove_by_rename(name, parent)
                    lines.append(f"version {number} is no longer in the registry: removed its copy")
            os.fsync(parent)
            lines += self._sweep(parent)
            if len(lines) > 1:
                served = f"version {version.number} (@{alias})"
                lines.append(f"a server that polls {self.folder} serves {served}")
            return lines

    def add(self, number: int) -> list[str]:
        """Copies one version, and changes nothing else, unless its copy is damaged.

        Returns the path of the copy, and a sentence if the folder has a higher number. Raises as
        `follow` does.
        """
        with self._hold() as parent:
            lines = self._copy(self.registry.get_version(number), parent)
            highest = max(each for each, _ in self._list_numbers())
            if highest > number:
                lines.append(
                    f"{self.folder} also has {highest}, which a server that polls it serves. "
                    "Fetch an alias to serve the version of the alias"
                )
            return [*lines, *self._sweep(parent)]

    @contextlib.contextmanager
    def _hold(self) -> Iterator[int]:
        """Holds the folder, without the remains of killed fetches. Yields its descriptor."""
        if any((self.folder / name).exists() for name in ("aliases", ".publish.lock")):
            raise ConfigError(
                f"{self.folder} is the folder of a model in a registry. Servers poll copies: give "
                "fetch another folder, which may be empty or missing."
            )
        lock, resource = self.folder / ".fetch.lock", f"copies into {self.folder}"
        with exclusive_lock(lock, resource, _WAIT_SECONDS), open_folder(self.folder) as parent:
            remove_staging_folders(self.folder)
            yield parent

    def _find(self, alias: str) -> Version:
        """Returns the version of an alias. The folder is held, so no earlier answer comes later."""
        if version := self.registry.find_by_alias(alias):
            return version
        raise ConfigError(
            f"{self.registry.location}: no version has the alias {alias}. "
            f"Existing aliases: {', '.join(self.registry.read_aliases().names) or 'none'}."
        )

    def _copy(self, version: Version, parent: int) -> list[str]:
        """Makes a whole copy, unless there is one. Returns its path, and the damage of the last."""
        name = version.path.name
        target = self.folder / name
        if not os.path.lexists(target):
            with staging_folder(target) as staging:
                version.copy_to(staging)
            return [str(target)]
        if not (problem := self._find_problem(target, version)):
            return [str(target)]
        aside = _make_name(version.number)
        with staging_folder(self.folder / aside) as staging:
            version.copy_to(staging)
        if not exchange_names(aside, name, parent):
            self._rename(name, _make_name(version.number), parent)
            self._rename(aside, name, parent)
        return [
            str(target),
            f"{target} was replaced, because {problem}. A server that has loaded this number does "
            "not load it again: restart it",
        ]

    def _find_problem(self, target: Path, version: Version) -> str:
        """Returns why an entry is not a whole copy of a version, or ""."""
        if target.is_symlink() or not target.is_dir():
            return "it was not a folder"
        try:
            manifest = read_manifest(target / NAME)
            if manifest != version.read_manifest():
                return "it was another model"
            return next(iter(find_damage(target / NAME, manifest, checksums=True)), "")
        except TrainyardError as error:
            return str(error).rstrip(".")

    def _list_numbers(self) -> list[tuple[int, str]]:
        """Lists the entries that a server takes for versions, from the lowest number."""
        parsed = ((_POLLED.fullmatch(name), name) for name in os.listdir(self.folder))
        return sorted((int(found.group(1)), name) for found, name in parsed if found)

    def _rename(self, name: str, new_name: str, parent: int) -> None:
        try:
            os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            cure = f"A server that polls {self.folder} reads it. Move it away, then fetch again."
            raise make_write_error(self.folder / name, error, cure) from error

    def _sweep(self, parent: int) -> Iterator[str]:
        """Removes withdrawn copies of versions, and names everything else that was withdrawn."""
        for name in sorted(os.listdir(parent)):
            if not (found := _WITHDRAWN.fullmatch(name)):
                continue
            if self._is_copy(name, parent):
                remove_by_rename(name, parent)
                yield f"withdrawn and removed: {self.folder}/{found.group(1)}"
            else:
                yield (
                    f"withdrawn: {self.folder}/{found.group(1)} is now {self.folder / name}, "
                    f"because it is not only a copy of a version of {self._model}. Remove it"
                )

    def _is_copy(self, name: str, parent: int) -> bool:
        """Returns whether an entry is a copy of one of the model's versions, and has nothing else.

        The version itself may be gone from the registry.
        """
        path = self.folder / name
        if path.is_symlink() or not path.is_dir() or not is_own_folder(name, parent):
            return False
        try:
            manifest = read_manifest(path / NAME)
            figures = ModelFigures.model_validate(manifest.figures)
        except (TrainyardError, ValidationError):
            return False
        files = {NAME, *(file.path for file in manifest.files)}
        found = (each for each in path.rglob("*") if each.is_symlink() or not each.is_dir())
        return (
            manifest.job == "export"
            and figures.name == self._model
            and files >= {each.relative_to(path).as_posix() for each in found}
        )


def _make_name(number: int) -> str:
    """Returns a new name for an entry that no server may read."""
    return f"withdrawn-{number}-{secrets.token_hex(4)}"
