"""Where the raw files of a pipeline lie: a local folder, or a place in an object store. The one place that tells which."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.listing import Listing, list_raw_files, list_stats
from pipeline_ops.contracts.remote_files import RemoteFolder

if TYPE_CHECKING:
    from pipeline_ops.contracts.config import PipelineConfig

RawFolder = Path | RemoteFolder


def raw_folder(named: str, config_folder: Path) -> RawFolder:
    """The folder that a source names: a URI, or a path that is taken from the folder of the config file."""
    if "://" in named and not named.startswith("file://"):
        return RemoteFolder(named.rstrip("/"))
    return (config_folder / Path(named.removeprefix("file://")).expanduser()).resolve()


def list_folder(folder: RawFolder, indexes: Path) -> Listing:
    """Lists it; `indexes` is for local folders, see `list_raw_files`. Raises ConfigError, DataError, MachineError."""
    return folder.list_files() if isinstance(folder, RemoteFolder) else list_raw_files(folder, indexes)


def glance(folder: RawFolder) -> tuple[str, int]:
    """A text that is another one when files have come, gone or been written to, and their number. No file is read. Raises as `list_folder` does."""
    if isinstance(folder, RemoteFolder):
        listing = folder.list_files()
        return listing.digest, len(listing.files)
    lines = sorted(f"{key}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\0" for key, stat in list_stats(folder))
    return hashlib.blake2b("".join(lines).encode(), digest_size=16).hexdigest(), len(lines)


def refuse_interval(config: PipelineConfig) -> None:
    """Raises ConfigError where the raw data lie somewhere else for each data interval, and nobody has said which one is meant."""
    if config.preprocess.source.has_interval:
        raise ConfigError(f"preprocess.source.path is {config.preprocess.source.path}, and this run has no data interval, because the clock has not "
                          "started it; give it a preprocess.source.path of its own, or start a backfill")
