"""The record of an artifact's use, which keeps it from being removed in the next moment.

The package's docstring says why an artifact that was found after this record was written stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline_ops.artifacts.layout import Layout, parse_artifact_uri, usage_file
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath


def record_use(root: StorePath, manifests: Iterable[str]) -> bool:
    """Records that a run uses some artifacts. Manifests outside the root are ignored.

    Returns:
      Whether all of them are still there. Otherwise the caller plans again.
    """

    def record(uri: str) -> bool:
        place = parse_artifact_uri(uri)
        if place is None or not uri.startswith(f"{root}/"):
            return True
        pipeline, job, fingerprint = place
        layout = Layout(root, pipeline)
        usage_file(layout.artifact(job, fingerprint)).write(b"")
        return layout.manifest(job, fingerprint).exists()

    return all(map_requests(record, manifests))
