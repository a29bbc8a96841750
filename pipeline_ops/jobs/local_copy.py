"""A data set as this host reads it: every shard is checked against the manifest once.

Shards are read at random, one example at a time, so they must be on a fast disk. A data set in an
object store, or in a folder that the config calls slow, is first copied to the host's own disk.
Every worker and the train job call this module. The first one on a host does the work, and the
others use its result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec

from pipeline_ops.artifacts.manifest import (
    NAME,
    Manifest,
    ManifestFile,
    find_damage,
    is_remote,
    open_listed,
    read_manifest,
    write_manifest,
)
from pipeline_ops.config.input import InputOptions
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.atomic import write_blocks, write_json
from pipeline_ops.storage.checksums import Summing, blocks_of
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.system.disk_cache import HostCache

_MEND = "clear the task preprocess, and it is made again"


def host_cache(config: InputOptions) -> HostCache:
    """The cache of this host."""
    folder = config.local_folder or os.environ.get("TRAINYARD_LOCAL_FOLDER") or "~/.cache"
    return HostCache(Path(folder), config.local_limit_gib << 30)


def with_local_dataset(
    request: Request, config: InputOptions, cache: HostCache, say: Callable[[str], None]
) -> Request:
    """The request of a train job with a data set on this host. Raises as `local_dataset` does."""
    given = request.inputs["preprocess"]
    local = given.model_copy(update={"uri": local_dataset(given.uri, config, cache, say)})
    return request.model_copy(update={"inputs": request.inputs | {"preprocess": local}})


def local_dataset(
    uri: str, config: InputOptions, cache: HostCache, say: Callable[[str], None]
) -> str:
    """The URI of a manifest that this host reads, whose shards match the manifest.

    Args:
      uri: the URI of the data set's manifest.
      config: the input section of the training.
      cache: the cache of this host.
      say: receives a message before slow work.

    Raises:
      MachineError: a file can't be read, or does not match the manifest. The message names the file
        and the remedy.
      DataError: there is no such manifest.
    """
    manifest = read_manifest(uri)
    if is_remote(uri) or config.stage == "always":
        return str(
            cache.entry(
                "dataset", manifest.digest, lambda folder: _stage(uri, manifest, folder, say)
            )
            / NAME
        )
    cache.entry(
        "checked", _identity_on_disk(uri, manifest), lambda folder: _check(uri, manifest, folder)
    )
    return uri


def _identity_on_disk(uri: str, manifest: Manifest) -> str:
    """A digest that changes when a file is written again.

    Name, size and times of a file are cheaper to read than its bytes.
    """
    folder, found = Path(uri).parent, []
    for file in manifest.files:
        try:
            status = os.lstat(folder / file.path)
            found.append(
                [
                    file.path,
                    status.st_mode,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    status.st_ino,
                ]
            )
        except (FileNotFoundError, NotADirectoryError):
            found.append([file.path])
    return digest_of([str(folder.resolve()), manifest.digest, found])


def _check(uri: str, manifest: Manifest, folder: Path) -> None:
    damage = find_damage(uri, manifest, checksums=True)
    if damage:
        raise MachineError(f"the data set is damaged: {'; '.join(damage[:5])}; {_MEND}")
    write_json(folder / "checked.json", {"uri": uri, "digest": manifest.digest})


def _stage(uri: str, manifest: Manifest, folder: Path, say: Callable[[str], None]) -> None:
    """Copies all files of a data set. The manifest comes last and makes the copy a data set."""
    shards = [file for file in manifest.files if file.path.endswith(".tfrecord")]
    wanted = sum(file.num_bytes for file in manifest.files)
    say(
        f"copying {len(shards)} shards, {wanted / 2**20:.1f} MiB in {len(manifest.files)} files, "
        f"from {_parent(uri)} to this host's disk"
    )
    for file in manifest.files:
        _copy(uri, file, folder / file.path)
    write_manifest(folder, manifest)


def _copy(uri: str, file: ManifestFile, target: Path) -> None:
    """Copies one file of a data set and checks it on the way."""
    source = f"{_parent(uri)}/{file.path}"
    blocks, summing = (
        _remote_blocks(source) if is_remote(uri) else _local_blocks(Path(_parent(uri)), file),
        Summing(),
    )
    write_blocks(summing.through(blocks), target)
    if not file.has_content(found := summing.result):
        raise MachineError(
            f"{source} has {found.num_bytes} bytes with the checksum {found.crc32c}, "
            f"the manifest says {file.num_bytes} with {file.crc32c}; {_MEND}"
        )


def _local_blocks(folder: Path, file: ManifestFile) -> Iterator[bytes]:
    try:
        with open_listed(folder, file) as reader:
            yield from blocks_of(reader)
    except DataError as error:
        raise MachineError(f"{error}; {_MEND}") from None


def _remote_blocks(source: str) -> Iterator[bytes]:
    """Yields a file's content in parts.

    Raises MachineError if the file can't be read. Every store has its own kinds of errors.
    """
    try:
        with fsspec.open(source, "rb") as reader:
            yield from blocks_of(reader)
    except FileNotFoundError:
        raise MachineError(
            f"{source} is missing, but the manifest beside it names it; {_MEND}"
        ) from None
    except ImportError as error:
        raise DataError(
            f"{source} can't be read without another package: {error}; install it on every host"
        ) from None
    except Exception as error:
        raise MachineError(
            f"{source} can't be read: {type(error).__name__}: {error}; "
            "check the store and this host's credentials"
        ) from error


def _parent(uri: str) -> str:
    return uri.rpartition("/")[0]
