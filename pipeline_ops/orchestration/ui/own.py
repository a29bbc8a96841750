"""The page of a run's own content: what the author's code has shown in each of its jobs."""

from __future__ import annotations

from collections.abc import Callable

from pipeline_ops.card.page import CARD_PAGE, MAX_CARD_PAGE_BYTES, join_card_pages
from pipeline_ops.contract.manifest import find_file
from pipeline_ops.contract.task_record import find_recorded_manifest
from pipeline_ops.orchestration.airflow_runs import PipelineRun

_JOBS = ("preprocess", "train")
"""The jobs that run an author's code, in their order."""


def find_own_page(run: PipelineRun) -> Callable[[int], bytes] | None:
    """Finds what the artifacts of a run show, also those that it has found in the cache.

    Returns a function that reads the page, or None. Raises DataError if a record of the run is
    damaged, or names no artifact of the pipeline.
    """
    manifests = (find_recorded_manifest(run.layout, run.run_id, job, job) for job in _JOBS)
    files = [found for each in manifests if each and (found := find_file(each, CARD_PAGE))]
    if not files:
        return None
    places = [run.layout.locate(file) for file in files]

    def read(max_bytes: int) -> bytes:
        limit = min(max_bytes, MAX_CARD_PAGE_BYTES)
        return join_card_pages([place.read(limit) for place in places])

    return read
