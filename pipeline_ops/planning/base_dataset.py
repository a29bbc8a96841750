"""Which data set a preprocess job goes on from: decided while it is planned, so that the request covers it.

A data set is made from the raw files and, where there is one, from the data set before it: what did not change is taken
over. Only a data set that was made by the same code and package versions can be gone on from, and by the same config but for
what it is held to: other rules for rejects, schema or drift are a new question, but no record becomes another example by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.input_names import BASE
from pipeline_ops.artifacts.manifest import Input, Manifest, find_damage, read_manifest
from pipeline_ops.errors import DataError

_CHANGES_NO_SHARD = ("rejects", "schema", "drift", "balance", "deltas")
"""Keys of `preprocess` that decide what is checked, weighed or taken over, and not what a record becomes."""


def choose_base(artifacts: Path, question: Fingerprint) -> Input | None:
    """The data set to go on from, or None where everything has to be made anew.

    Where a whole data set is there that answers the very same question, of the same raw files and held against the same
    reference, it is what that one went on from: the fingerprint of the request is then that of the answer. Otherwise it is the newest
    that is whole; that may be one of the same files and another reference, of which everything is taken over. Damaged ones count as absent.

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
    """The question that a data set answers, whatever it went on from."""
    return fingerprint.model_copy(update={"inputs": {name: digest for name, digest in fingerprint.inputs.items() if name != BASE}})


def _made_alike(artifacts: Path, question: Fingerprint) -> Iterator[tuple[Path, Manifest]]:
    """Whole data sets in which a record becomes the same example, newest first."""
    chain = _chain_of(question)
    for uri in sorted(artifacts.glob("*/manifest.json"), key=lambda path: (path.stat().st_mtime_ns, path), reverse=True):
        try:
            manifest = read_manifest(uri)
        except DataError:  # of another version of Trainyard: nothing to go on from
            continue
        if _chain_of(manifest.fingerprint) == chain and not find_damage(uri, manifest):
            yield uri, manifest


def _chain_of(fingerprint: Fingerprint) -> Fingerprint:
    """All that a record goes through on its way to an example."""
    config = {key: value for key, value in fingerprint.config.items() if key not in _CHANGES_NO_SHARD}
    return fingerprint.model_copy(update={"inputs": {}, "config": config})
