"""The files of a job's inputs on this host.

Inputs in a folder are read where they are. The files that a job needs from a bucket are fetched
into this host's cache, and compared with the manifest on the way.

Shards in a folder are read at random, so they must be on a fast disk. The first process of a host
that needs them checks them once for all. Shards in an object store, or in a folder that the config
calls slow, are streamed: each is fetched and checked when its turn comes (`input/streaming.py`).

Processes of a gang on different hosts exchange files through a folder in the bucket. Its index is
written last and has the checksum of each file.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.config.train import InputOptions
from pipeline_ops.contract.dataset import (
    RECORD_LENGTHS,
    DatasetFigures,
    list_shards,
    parse_record_lengths,
)
from pipeline_ops.contract.manifest import (
    NAME,
    Input,
    Manifest,
    ManifestFile,
    fetch_file,
    find_damage,
    locate_file,
    read_manifest,
    write_manifest,
)
from pipeline_ops.contract.request import Request
from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import ChecksumAccumulator, compute_checksums, compute_digest
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.open_store import is_remote, open_path
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.disk_cache import HostCache

_INDEX = "index.json"
_MAX_INDEX_BYTES = 64 << 20


class _Index(BaseModel):
    model_config = ConfigDict(frozen=True)

    files: list[ManifestFile]


def store_files(folder: Path, paths: Iterable[str], target: StorePath) -> None:
    """Copies files of a folder to the store. Raises MachineError or ConfigError if it fails."""

    def store(path: str) -> ManifestFile:
        with open(folder / path, "rb") as file:
            checksums = compute_checksums(file)
        (target / path).upload(folder / path)
        return ManifestFile(path=path, **dataclasses.asdict(checksums))

    index = _Index(files=map_requests(store, paths))
    (target / _INDEX).write(index.model_dump_json().encode())


def fetch_files(source: StorePath, folder: Path, only: Collection[str] | None = None) -> None:
    """Copies the files of `store_files`, or `only` these paths, into a folder. Replaces files."""

    def fetch(file: ManifestFile) -> None:
        (folder / file.path).unlink(missing_ok=True)
        fetch_file(source / file.path, file, folder / file.path, "Retry.")

    try:
        index = parse_json_as(_Index, (source / _INDEX).read(_MAX_INDEX_BYTES), source / _INDEX)
    except FileNotFoundError as error:
        raise MachineError(f"{source} is not complete: {error}. Retry.") from None
    map_requests(fetch, [file for file in index.files if only is None or file.path in only])


REMEDY = "Remove the damaged file. Clear the task preprocess, which makes it again."


def open_host_cache(
    config: InputOptions, on_wait: Callable[[str], None] = lambda message: None
) -> HostCache:
    """The cache of this host. `on_wait` is that of `HostCache`."""
    folder = config.local_folder or os.environ.get("TRAINYARD_LOCAL_FOLDER") or "~/.cache"
    return HostCache(Path(folder), int(config.local_limit_gib * 2**30), on_wait)


@dataclasses.dataclass(frozen=True)
class HostDataset:
    """A data set that this host can read. `uri` is that of its manifest.

    With `is_streamed`, its shards are not read where they lie.
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
        """Reads a small file. Returns None if the data set has no such file."""
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

    Raises MachineError, with the file and the remedy, if one can't be read or does not match.
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

        def check(folder: Path) -> None:
            if damage := find_damage(Path(uri), manifest, checksums=True):
                raise MachineError(f"the data set is damaged: {'; '.join(damage[:5])}. {REMEDY}")
            write_json(folder / "checked.json", {"uri": uri, "digest": manifest.digest})

        cache.get_or_create("checked", _compute_disk_identity(uri, manifest), check)
    return HostDataset(uri, manifest, cache, is_streamed)


def _compute_disk_identity(uri: str, manifest: Manifest) -> str:
    """A digest of names, sizes and times, which changes when a file is written again."""
    folder, found = Path(uri).parent, []
    read_status = operator.attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
    for file in manifest.files:
        try:
            found.append([file.path, *read_status(os.lstat(file.locate(folder)))])
        except (FileNotFoundError, NotADirectoryError):
            found.append([file.path])
    return compute_digest([str(folder.resolve()), manifest.digest, found])


Select = Callable[[str], bool]
"""Decides by a file's path in its artifact whether a job needs it."""


def use_local_inputs(request: Request, needed: Mapping[str, Select]) -> Request:
    """Fetches the inputs, and returns the request with local URIs.

    `needed` selects the files that the job reads, for each input that the request may have.
    """
    local = {
        name: fetch_input(entry, needed[name])
        for name, entry in request.inputs.items()
        if name in needed
    }
    return request.model_copy(update={"inputs": request.inputs | local})


def fetch_input(entry: Input, is_needed: Select) -> Input:
    """An input whose needed files are on this host."""
    if not is_remote(entry.uri):
        return entry
    manifest = read_manifest(open_path(entry.uri))
    files = [file for file in manifest.files if is_needed(file.path)]
    folder = open_host_cache(InputOptions()).get_or_create(
        "artifact",
        compute_digest([manifest.digest, [file.path for file in files]]),
        lambda folder: _fetch(entry.uri, manifest, files, folder),
    )
    return entry.model_copy(update={"uri": str(folder / NAME)})


def _fetch(uri: str, manifest: Manifest, files: list[ManifestFile], folder: Path) -> None:
    """Fetches files into a folder, with a manifest that finds all of them there."""

    def fetch(file: ManifestFile) -> None:
        remedy = "Remove what is left of it, and run its task again."
        fetch_file(locate_file(open_path(uri), file), file, folder / file.path, remedy)

    map_requests(fetch, files)
    local = [file.model_copy(update={"stored_at": None}) for file in manifest.files]
    write_manifest(folder, manifest.model_copy(update={"files": local}))
