"""Removes what dead jobs have left on this host: folders of jobs, and cached files.

Both are used by processes of this host only, so their age is enough. What a living job of this user
works in, and what any process uses, stays.
"""

from __future__ import annotations

import re
import time

from pipeline_ops.config.train import InputOptions
from pipeline_ops.job.local_inputs import open_host_cache
from pipeline_ops.job.workspace import find_jobs_folder
from pipeline_ops.retention.inventory import Total
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.system.processes import ATTEMPT_VARIABLE, find_environment_values

UNUSED_DAYS = 7
_JOB_FOLDER = re.compile(r"[0-9a-f]{32}")


def remove_host_leftovers(config: InputOptions, is_dry_run: bool) -> dict[str, Total]:
    """Removes what was not used for `UNUSED_DAYS`. Returns what was, or would be, removed."""
    before = time.time() - UNUSED_DAYS * 86400
    cached = open_host_cache(config).remove_older(before, is_dry_run)
    return {
        "folder of a job on this host": _remove_job_folders(before, is_dry_run),
        "cache entry on this host": Total(*cached),
    }


def _remove_job_folders(before: float, is_dry_run: bool) -> Total:
    removed = Total()
    living = {compute_digest(attempt) for attempt in find_environment_values(ATTEMPT_VARIABLE)}
    root = open_root(find_jobs_folder())
    for entry in root.list_folder():
        if entry.is_folder and entry.name not in living and _JOB_FOLDER.fullmatch(entry.name):
            files = (root / entry.name).walk()
            if max((file.modified for file in files), default=entry.modified) < before:
                removed.add(Total.of(files))
                if not is_dry_run:
                    (root / entry.name).remove_tree()
    return removed
