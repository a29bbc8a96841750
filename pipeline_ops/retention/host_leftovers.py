"""Removes what dead jobs have left on this host: folders of jobs, and cached files.

Both are used by processes of this host only, so their age is enough. What a living job of this user
works in, and what any process uses, stays.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.config.train import InputOptions
from pipeline_ops.jobs.local_inputs import open_host_cache
from pipeline_ops.jobs.workspace import find_jobs_folder
from pipeline_ops.retention.collector import Total
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import remove_own_folder
from pipeline_ops.system.processes import ATTEMPT_VARIABLE, find_environment_values

UNUSED_DAYS = 7
_JOB_FOLDER = re.compile(r"[0-9a-f]{32}")


def remove_host_leftovers(config: InputOptions, is_dry_run: bool) -> dict[str, Total]:
    """Removes what was not used for `UNUSED_DAYS`. Returns what was, or would be, removed."""
    before = time.time() - UNUSED_DAYS * 86400
    return {
        "folder of a job on this host": _remove_job_folders(before, is_dry_run),
        "cache entry on this host": Total(
            *open_host_cache(config).remove_older(before, is_dry_run)
        ),
    }


def _remove_job_folders(before: float, is_dry_run: bool) -> Total:
    removed = Total()
    living = {compute_digest(attempt) for attempt in find_environment_values(ATTEMPT_VARIABLE)}
    folder = find_jobs_folder()
    for entry in os.scandir(folder) if folder.is_dir() else ():
        is_ours = _JOB_FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        if is_ours and entry.name not in living:
            sizes = list(_list_files(Path(entry.path)))
            newest = max((modified for _, modified in sizes), default=entry.stat().st_mtime)
            if newest < before:
                removed.add(len(sizes), sum(size for size, _ in sizes))
                if not is_dry_run:
                    remove_own_folder(Path(entry.path))
    return removed


def _list_files(folder: Path) -> Iterator[tuple[int, float]]:
    """Size and time of each file below a folder."""
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(path, name))
            except FileNotFoundError:
                continue
            yield found.st_size, found.st_mtime
