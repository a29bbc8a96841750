"""Checks the promises of a user source, for the tests of its author.

    records, rejects = check_source({"type": "patients:patients", "path": "raw"}, FOLDER)

The source is loaded and run as in the job. No other module of the product calls this one.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beam_jobs.planning.plan import Record
from beam_jobs.sources.source import SourceRecords
from beam_jobs.sources.user_source import bind_source, collect_entries
from pipeline_ops.config.sources import UserSource
from pipeline_ops.raw_data.folder import list_folder, resolve_raw_folder
from pipeline_ops.storage.open_store import open_root

_OUTSIDE = ("../", "/")


def check_source(
    source: Mapping[str, Any], config_folder: Path | str = "."
) -> tuple[dict[str, Record], dict[str, str]]:
    """Runs a source on a folder of raw data and checks its promises.

    Entries are valid and have unique paths inside of the folder. A second run gives the same
    result, and so does a run with the files in reverse order. No file in the folder changes.

    `source` is the section `preprocess.source` of a config in `config_folder`, with `type` and
    `path`. Returns the records by path, and the reasons of rejected entries by path or place.

    Raises AssertionError for a broken promise, and what the job raises for a source that fails.
    """
    section = UserSource.model_validate(dict(source))
    config_folder = Path(config_folder).resolve()
    folder = resolve_raw_folder(section.folder, config_folder)
    with (
        bind_source(section, config_folder / "check_source") as bound,
        tempfile.TemporaryDirectory() as scratch,
    ):
        indexes = open_root(Path(scratch))
        listing = list_folder(folder, indexes)
        found, again = collect_entries(bound, listing), collect_entries(bound, listing)
        backwards = collect_entries(bound, listing, is_reversed=True)
        is_unchanged = list_folder(folder, indexes) == listing
    if difference := _find_difference(found, again):
        raise AssertionError(f"a second run of {bound.name} gives another result: {difference}")
    if difference := _find_difference(found, backwards):
        raise AssertionError(f"{bound.name} depends on the order of the files: {difference}")
    if not is_unchanged:
        raise AssertionError(f"{bound.name} changes files in {folder}")
    for reject in found.rejected:
        if reject.reason == "duplicate":
            raise AssertionError(f"{bound.name}: {reject.key} is {reject.detail}")
        if reject.key.startswith(_OUTSIDE):
            raise AssertionError(f"{bound.name}: {reject.key} is not in {folder}")
    return (
        {record.key: record for record in found.records},
        {reject.key: reject.reason for reject in found.rejected},
    )


def _find_difference(first: SourceRecords, second: SourceRecords) -> str | None:
    entries = [*first.records, *first.rejected], [*second.records, *second.rejected]
    pairs = itertools.zip_longest(*entries)
    return next((f"{one} and {other}" for one, other in pairs if one != other), None)
