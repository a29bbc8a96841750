"""A data set as this host reads it: checked against its manifest, or streamed from its store.

Shards in a folder are read where they lie, at random, so they must be on a fast disk. They are
checked once by the first process of a host that needs them, and the others use its result. Shards
in an object store, or in a folder that the config calls slow, are streamed: each is fetched and
checked when its turn comes (`input/streaming.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.dataset import DatasetFigures, list_shards
from pipeline_ops.artifacts.manifest import Manifest, ManifestFile, locate_file, read_manifest
from pipeline_ops.artifacts.record_lengths import RECORD_LENGTHS, parse_record_lengths
from pipeline_ops.config.train import InputOptions
from pipeline_ops.errors import MachineError
from pipeline_ops.storage.atomic import write_json
from pipeline_ops.storage.checksums import ChecksumAccumulator
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.open_store import is_remote, open_path
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.disk_cache import HostCache

REMEDY = "Remove the damaged file. Clear the task preprocess, which makes it again."


def open_host_cache(config: InputOptions) -> HostCache:
    """The cache of this host."""
    folder = config.local_folder or os.environ.get("TRAINYARD_LOCAL_FOLDER") or "~/.cache"
    return HostCache(Path(folder), int(config.local_limit_gib * 2**30))


@dataclasses.dataclass(frozen=True)
class HostDataset:
    """A data set that this host can read.

    Attributes:
      uri: the URI of its manifest.
      manifest: the manifest.
      cache: the cache of this host.
      is_streamed: whether its shards are streamed, and not read where they lie.
    """

    uri: str
    manifest: Manifest
    cache: HostCache
    is_streamed: bool

    @functools.cached_property
    def figures(self) -> DatasetFigures:
        return DatasetFigures.model_validate(self.manifest.figures)

    @functools.cached_property
    def record_lengths(self) -> dict[str, Sequence[int]]:
        """The lengths of the records by shard. Empty if the data set does not list them."""
        content = self.read_file(RECORD_LENGTHS)
        return parse_record_lengths(content, self._describe(RECORD_LENGTHS)) if content else {}

    def locate(self, file: ManifestFile) -> StorePath:
        """The location of a file in the store."""
        return locate_file(open_path(self.uri), file)

    def read_file(self, path: str) -> bytes | None:
        """Reads a small file. Returns None if the data set has no such file.

        Raises:
          MachineError: the file is missing, or does not match the manifest.
        """
        file = next((file for file in self.manifest.files if file.path == path), None)
        if file is None:
            return None
        try:
            content = self.locate(file).read(file.num_bytes)
        except FileNotFoundError:
            raise MachineError(
                f"{self._describe(path)} is missing, but the manifest lists it. {REMEDY}"
            ) from None
        checksums = ChecksumAccumulator()
        checksums.update(content)
        if not file.has_content(checksums.result):
            raise MachineError(
                f"{self._describe(path)} has another checksum than in the manifest. {REMEDY}"
            )
        return content

    def _describe(self, path: str) -> str:
        return str(self.locate(self.manifest.get_file(path)))


def open_host_dataset(
    uri: str, config: InputOptions, cache: HostCache, on_message: Callable[[str], None]
) -> HostDataset:
    """Opens a data set. Shards that are not streamed match the manifest.

    Args:
      uri: the URI of the data set's manifest.
      config: the input section of the training.
      cache: the cache of this host.
      on_message: receives a message if the shards are streamed.

    Raises:
      MachineError: a file can't be read, or does not match the manifest. The message names the file
        and the remedy.
      DataError: there is no such manifest.
    """
    manifest = read_manifest(open_path(uri))
    is_streamed = is_remote(uri) or config.local_copy == "always"
    if is_streamed:
        shards = list_shards(manifest, "train")
        num_mib = sum(shard.num_bytes for shard in shards) / 2**20
        on_message(
            f"streaming {len(shards)} shards, {num_mib:.1f} MiB, from {uri.rpartition('/')[0]}. "
            f"Up to {cache.limit_bytes / 2**20:.1f} MiB of them are kept on this host"
        )
    else:
        cache.get_or_create(
            "checked",
            _compute_disk_identity(uri, manifest),
            lambda folder: _check_dataset(uri, manifest, folder),
        )
    return HostDataset(uri, manifest, cache, is_streamed)


def _compute_disk_identity(uri: str, manifest: Manifest) -> str:
    """A digest that changes when a file is written again.

    Name, size and times of a file are cheaper to read than its bytes.
    """
    folder, found = Path(uri).parent, []
    read_status = operator.attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
    for file in manifest.files:
        try:
            found.append([file.path, *read_status(os.lstat(file.locate(folder)))])
        except (FileNotFoundError, NotADirectoryError):
            found.append([file.path])
    return compute_digest([str(folder.resolve()), manifest.digest, found])


def _check_dataset(uri: str, manifest: Manifest, folder: Path) -> None:
    if damage := find_damage(Path(uri), manifest, checksums=True):
        raise MachineError(f"the data set is damaged: {'; '.join(damage[:5])}. {REMEDY}")
    write_json(folder / "checked.json", {"uri": uri, "digest": manifest.digest})
