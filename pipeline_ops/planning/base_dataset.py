"""The data set that a preprocess job starts from, chosen during planning for the request.

A data set is made from the raw files and, if there is one, from the data set before it. Unchanged
examples are taken over. A job can only start from a data set with the same code, package versions
and config. The config may differ in the rules for rejects, schema or drift. Other rules are a new
question, but they do not change the example that a record becomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.input_names import BASE
from pipeline_ops.artifacts.manifest import Input, Manifest, find_damage, read_manifest
from pipeline_ops.errors import DataError

_CHANGES_NO_SHARD = ("rejects", "schema", "drift", "balance", "deltas")
"""Keys of `preprocess` that decide what is checked, weighed or taken over.

They do not change the example that a record becomes.
"""


def choose_base(artifacts: Path, question: Fingerprint) -> Input | None:
    """Returns the data set to start from, or None if everything has to be made from scratch.

    A whole data set may already answer the very same question, for the same raw files and the same
    reference. Its own base is then the result, so the fingerprint of the request is that of the
    answer. Otherwise the result is the newest whole data set. It may be one of the same files with
    another reference, of which everything is taken over. Damaged data sets count as absent.

    Args:
      artifacts: the folder of all data sets of the pipeline.
      question: the fingerprint, without a base.
    """
    newest = None
    for uri, manifest in _made_alike(artifacts, question):
        if without_base(manifest.fingerprint) == question:
            return manifest.inputs.get(BASE)
        newest = newest or Input(uri=str(uri), digest=manifest.digest)
    return newest


def without_base(fingerprint: Fingerprint) -> Fingerprint:
    """Returns the question that a data set answers, without its base."""
    return fingerprint.model_copy(
        update={
            "inputs": {name: digest for name, digest in fingerprint.inputs.items() if name != BASE}
        }
    )


def _made_alike(artifacts: Path, question: Fingerprint) -> Iterator[tuple[Path, Manifest]]:
    """Yields whole data sets in which a record becomes the same example, newest first."""
    chain = _chain_of(question)
    for uri in sorted(
        artifacts.glob("*/manifest.json"),
        key=lambda path: (path.stat().st_mtime_ns, path),
        reverse=True,
    ):
        try:
            manifest = read_manifest(uri)
        except DataError:  # made by another version of Trainyard, so it cannot be a base
            continue
        if _chain_of(manifest.fingerprint) == chain and not find_damage(uri, manifest):
            yield uri, manifest


def _chain_of(fingerprint: Fingerprint) -> Fingerprint:
    """The part of a fingerprint that determines the example that a record becomes."""
    config = {
        key: value for key, value in fingerprint.config.items() if key not in _CHANGES_NO_SHARD
    }
    return fingerprint.model_copy(update={"inputs": {}, "config": config})
