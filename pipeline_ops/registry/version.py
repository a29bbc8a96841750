"""One published version of a model: its manifest, and checked copies of its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pipeline_ops.artifacts.damage import check_files, open_listed
from pipeline_ops.artifacts.manifest import NAME, SIGNATURE, Manifest, parse_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.registry.minisign import PublicKey
from pipeline_ops.registry.model_store import ModelStore
from pipeline_ops.storage.checksums import read_blocks
from pipeline_ops.storage.local_files import write_atomically, write_blocks
from pipeline_ops.storage.snapshot import map_requests
from pipeline_ops.system.disk_cache import release_entry


def parse_version(content: bytes, uri: str) -> Manifest:
    """Parses the manifest of a version, which holds all of its files itself.

    What a server finds in the folder is therefore what the manifest's checksums cover.

    Raises:
      DataError: the manifest is invalid, or references a file elsewhere.
    """
    manifest = parse_manifest(content, uri)
    if file := next((file for file in manifest.files if file.stored_at), None):
        raise DataError(
            f"{uri}: {file.path} is stored at {file.stored_at}, but a version holds all of its "
            "files itself. Publish the model again."
        )
    return manifest


@dataclasses.dataclass(frozen=True)
class Version:
    """One published model."""

    number: int
    store: ModelStore

    @property
    def folder(self) -> str:
        """The version's path or URI."""
        return self.store.get_uri(self.number)

    @property
    def uri(self) -> str:
        """The manifest's URI."""
        return f"{self.folder}/{NAME}"

    def read_manifest(self) -> Manifest:
        """The manifest. Raises DataError if it is gone or invalid."""
        return parse_version(self._read_manifest_bytes(), self.uri)

    def fetch(self) -> Path:
        """Returns a local folder that holds the version.

        If the version is not local, it is a copy in the host's cache. Raises DataError if a file
        does not match the manifest.
        """
        folder, manifest = self.store.fetch(self.number), self.read_manifest()
        check_files(folder / NAME, manifest, manifest.files)
        return folder

    def copy_to(self, target: Path, key: PublicKey | None = None) -> None:
        """Copies the version into an empty local folder.

        Each file is checked during the copy, so that no file can change after its check.

        Args:
          target: the folder.
          key: verifies the signature, which covers the manifest, and so all files.

        Raises:
          DataError: a file does not match the manifest, or the version is not signed by the key.
          MachineError: the disk failed.
        """
        content = self._read_manifest_bytes()
        signature = self.store.read_file(self.number, SIGNATURE)
        if key:
            key.verify(content, signature, self.uri)
        source = self.store.fetch(self.number)
        for file in parse_version(content, self.uri).files:
            with open_listed(source, file) as opened:
                found = write_blocks(read_blocks(opened), target / file.path)
            if not file.has_content(found):
                raise DataError(
                    f"{self.folder}/{file.path} has another checksum than in the manifest. "
                    "Publish the model again."
                )
        release_entry(source)
        write_atomically(target / NAME, content)
        if signature is not None:
            write_atomically(target / SIGNATURE, signature)

    def _read_manifest_bytes(self) -> bytes:
        content = self.store.read_file(self.number, NAME)
        if content is None:
            raise DataError(
                f"{self.uri}: there is no such manifest. "
                "Remove the version, and run the task that makes it again."
            )
        return content


def read_manifests(versions: Sequence[Version]) -> list[Manifest | DataError]:
    """Reads several manifests at once. A DataError takes the place of an unreadable one."""

    def read(version: Version) -> Manifest | DataError:
        try:
            return version.read_manifest()
        except DataError as error:
            return error

    return map_requests(read, versions)
