"""The location of a pipeline's raw files: a local folder, or a URI in an object store.

Only this module distinguishes the two.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.config.sources import TfdsSource
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.raw_data.listing import Listing, RawFolder
from pipeline_ops.raw_data.local import list_raw_files, list_stats, matches_any
from pipeline_ops.raw_data.remote import RemoteFolder
from pipeline_ops.storage.store_path import StorePath


def resolve_raw_folder(path_or_uri: str, config_folder: Path) -> RawFolder:
    """The folder that a source names: a URI, or a path relative to the config file's folder."""
    if "://" in path_or_uri and not path_or_uri.startswith("file://"):
        return RemoteFolder(path_or_uri.rstrip("/"))
    return (config_folder / Path(path_or_uri.removeprefix("file://")).expanduser()).resolve()


def find_raw_folder(config: PipelineConfig) -> RawFolder:
    """The location of a pipeline's raw files."""
    return resolve_raw_folder(config.preprocess.source.folder, config.file.parent)


def list_folder(
    folder: RawFolder, indexes: StorePath, patterns: Sequence[str] | None = None
) -> Listing:
    """Lists a folder. `indexes` and `patterns` are for local folders, see `list_raw_files`.

    Raises ConfigError, DataError, MachineError.
    """
    return (
        Listing(folder, folder.list_files())
        if isinstance(folder, RemoteFolder)
        else list_raw_files(folder, indexes, patterns)
    )


def read_folder_state(folder: RawFolder, patterns: Sequence[str] | None = None) -> tuple[str, int]:
    """The state of a folder: a text and the number of files, of a local folder those that match.

    The text changes when files are added, removed or written. No file is read. Raises as
    `list_folder` does.
    """
    if isinstance(folder, RemoteFolder):
        listing = Listing(folder, folder.list_files())
        return listing.digest, len(listing.files)
    lines = sorted(
        f"{key}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\0"
        for key, stat in list_stats(folder)
        if matches_any(key, patterns)
    )
    return hashlib.blake2b("".join(lines).encode(), digest_size=16).hexdigest(), len(lines)


def check_interval(config: PipelineConfig) -> None:
    """Checks that the location of the raw data does not depend on a missing data interval.

    Raises:
      ConfigError: each data interval has its own location, and this run has no data interval.
    """
    source = config.preprocess.source
    if key := source.interval_key:
        cure = "Set preprocess.source.path for this run, or start a backfill."
        raise ConfigError(
            f"preprocess.source.{key} is {getattr(source, key)}, and this run has no data "
            "interval, because it was not scheduled. "
            + (cure if key == "path" else "Start a backfill.")
        )


def check_folder(config: PipelineConfig) -> None:
    """Checks a local folder of raw data without reading files.

    An object store is not checked here. The first task reports its problems.

    Raises:
      DataError: the folder is missing, is not a folder, cannot be read or is empty, or lacks a file
        that the source names.
    """
    folder, source = find_raw_folder(config), config.preprocess.source
    if not isinstance(folder, Path) or source.has_interval:
        return
    if isinstance(source, TfdsSource) and source.download:
        return  # the first task fetches it
    remedy = f"correct preprocess.source.path in {config.file}."
    if not folder.is_dir():
        raise DataError(f"{folder}: {_explain_missing_folder(folder)}", f"C{remedy[1:]}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataError(
            f"{folder}: this user cannot read it", f"Change its permissions, or {remedy}"
        )
    with os.scandir(folder) as entries:
        kinds = [
            entry.is_dir()
            for entry in itertools.islice(entries, _MAX_SCANNED_ENTRIES)
            if not entry.name.startswith(".")
        ]
    if not kinds:
        raise DataError(f"{folder}: is empty", f"Put the raw data there, or {remedy}")
    if source.type == "image_folder" and not any(kinds):
        raise DataError(
            f"{folder}: its files lie in no folder",
            "Put the images of each class into a folder of its own, named as the class.",
        )
    for name, path in source.required_files.items():
        if not (folder / path).is_file():
            raise DataError(
                f"{folder / path}: no such file",
                f"Correct preprocess.source.{name} in {config.file}.",
            )


_MAX_SCANNED_ENTRIES = 1000


def _explain_missing_folder(folder: Path) -> str:
    if folder.exists():
        return "is a file, not a folder"
    try:
        siblings = [entry.name for entry in os.scandir(folder.parent) if entry.is_dir()]
    except OSError:
        return "no such folder"
    if difflib.get_close_matches(folder.name, siblings, n=1):
        return f"no such folder; {suggest_name(folder.name, siblings)}"
    return "no such folder"
