"""Finds the inputs of an artifact after its storage root was moved.

A manifest holds the URIs that its inputs had when it was made. It is never rewritten, because it
may be signed. An artifact has the same place below any root, so an input is looked for below the
present one first. Its digest shows whether it is the same.
"""

from __future__ import annotations

from pipeline_ops.artifacts.layout import Layout, parse_artifact_uri
from pipeline_ops.artifacts.manifest import Input, read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.storage.store_path import StorePath


def find_input(entry: Input, root: StorePath) -> Input:
    """An input with its URI below the root, if the same artifact is there, or else as it is."""
    if entry.uri.startswith(f"{root}/") or not (place := parse_artifact_uri(entry.uri)):
        return entry
    pipeline, job, fingerprint = place
    here = Layout(root, pipeline).manifest(job, fingerprint)
    try:
        is_same = read_manifest(here).digest == entry.digest
    except DataError:
        return entry
    return entry.model_copy(update={"uri": str(here)}) if is_same else entry
