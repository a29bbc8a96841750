"""Where the raw files of a pipeline lie: a local folder, or a place in an object store. The one place that tells which."""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.contracts.listing import Listing, list_raw_files
from pipeline_ops.contracts.remote_files import RemoteFolder

RawFolder = Path | RemoteFolder


def raw_folder(named: str, config_folder: Path) -> RawFolder:
    """The folder that a source names: a URI, or a path that is taken from the folder of the config file."""
    if "://" in named and not named.startswith("file://"):
        return RemoteFolder(named.rstrip("/"))
    return (config_folder / Path(named.removeprefix("file://")).expanduser()).resolve()


def list_folder(folder: RawFolder, indexes: Path) -> Listing:
    """Lists it; `indexes` is for local folders, see `list_raw_files`. Raises ConfigError, DataError, MachineError."""
    return folder.list_files() if isinstance(folder, RemoteFolder) else list_raw_files(folder, indexes)
