"""Checks of what jobs read and write: the storage root, the raw data, keys."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from collections.abc import Iterator

from pipeline_ops.cli.checks.errors import make_finding
from pipeline_ops.config.hosts import TASKS
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import TrainyardError
from pipeline_ops.planning.storage_probe import check_storage
from pipeline_ops.raw_data.folder import find_raw_folder, read_folder_state, validate_folder
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host_check import Finding

_MAX_SKEW_SECONDS = 120.0


def check_store(config: PipelineConfig) -> Iterator[Finding]:
    """Writes, reads and removes a file, tries a conditional write, and compares the clocks."""
    check = "storage.root"
    if config.root.is_local and not config.root.local.exists():
        yield _describe_missing_root(config)
        return
    try:
        check_storage(config)
        skew_seconds = _try_file(config.root)
    except (TrainyardError, OSError) as error:
        cure = f"Correct `storage` in {config.file}, or give this user the right to write there."
        yield make_finding(check, error, cure)
        return
    yield Finding(check=check)
    if abs(skew_seconds) <= _MAX_SKEW_SECONDS:
        yield Finding(check="clock")
        return
    yield Finding(
        check="clock",
        problem=f"the store's clock differs from this host's by {skew_seconds:.0f} s, and stores "
        "refuse signed requests with a wrong time",
        cure="Set this host's clock, as with chrony.",
    )


def _describe_missing_root(config: PipelineConfig) -> Finding:
    """A missing folder is a warning before the first run, which makes it on this host.

    If other hosts share it, it is a problem: its file system is not mounted here.
    """
    root = config.root.local
    places = [config.hosts, *map(config.find_job_hosts, TASKS)]
    is_shared = any(hosts and hosts.launcher != "local" for hosts in places)
    return Finding(
        check="storage.root",
        problem=f"{root} does not exist",
        cure=f"Mount its file system, or make it: mkdir -p {shlex.quote(str(root))}"
        if is_shared
        else "If it belongs to a file system, mount that. Otherwise the first run makes it.",
        is_warning=not is_shared,
    )


def _try_file(root: StorePath) -> float:
    """Returns by how many seconds the store's clock is ahead. Raises TrainyardError."""
    probe, content = root / f".probe.{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        before = time.time()
        probe.write(content)
        entry = probe.stat()
        if entry is None or probe.read() != content:
            raise TrainyardError(
                f"{root}: a file that was just written is missing or has another content"
            )
        return entry.modified - before
    finally:
        probe.remove()


def check_raw_data(config: PipelineConfig) -> Iterator[Finding]:
    """Looks whether the raw data are there."""
    check, folder, source = "preprocess.source", find_raw_folder(config), config.preprocess.source
    try:
        validate_folder(config)
        num_files = 1 if source.has_interval else read_folder_state(folder, source.file_patterns)[1]
    except (TrainyardError, OSError) as error:
        yield make_finding(check, error, f"Correct preprocess.source in {config.file}.")
        return
    if num_files:
        yield Finding(check=check)
        return
    yield Finding(
        check=check,
        problem=f"{folder} has no files",
        cure="Put the raw data there, or correct preprocess.source.path.",
    )


def check_signing_key(config: PipelineConfig) -> Iterator[Finding]:
    """Looks whether the key of the export can be read."""
    if config.export.signing_key is None or config.export.runs_on:
        return
    file = config.resolve_path(config.export.signing_key)
    if os.access(file, os.R_OK):
        yield Finding(check="export.signing_key")
        return
    yield Finding(
        check="export.signing_key",
        problem=f"{file} is missing, or this user may not read it",
        cure="Make a key (docs/publish-and-serve.md), or correct export.signing_key.",
    )
