"""The data set that a preprocess job starts from, chosen during planning for the request.

A data set is made from the raw files and, if there is one, from the data set before it. Unchanged
examples are taken over. A job can only start from a data set with the same code, package versions
and config. The config may differ in the rules for rejects, schema or drift. Other rules change the
fingerprint, but not the example that a record becomes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.input_names import BASE
from pipeline_ops.artifacts.layout import iterate_manifests
from pipeline_ops.artifacts.manifest import Input, Manifest
from pipeline_ops.storage.store_path import StorePath

_KEYS_WITHOUT_EFFECT_ON_SHARDS = ("rejects", "schema", "drift", "balance", "incremental")
"""Keys of `preprocess` that decide what is checked, weighed or taken over.

They do not change the example that a record becomes.
"""


def choose_base(artifacts: StorePath, fingerprint: Fingerprint) -> Input | None:
    """Returns the data set to start from, or None if everything has to be made from scratch.

    A complete data set may already have the very same fingerprint, for the same raw files and the
    same reference. Its own base is then the result, so the request gets the fingerprint of
    that data set. Otherwise the result is the newest complete data set. It may be one of the same
    files with another reference, of which everything is taken over. Damaged data sets count as
    absent.

    Args:
      artifacts: the folder of all data sets of the pipeline.
      fingerprint: the fingerprint of the data set to make, without a base.
    """
    newest = None
    for uri, manifest in _find_compatible(artifacts, fingerprint):
        if manifest.fingerprint.without_inputs(BASE) == fingerprint:
            return manifest.inputs.get(BASE)
        newest = newest or Input(uri=str(uri), digest=manifest.digest)
    return newest


def _find_compatible(
    artifacts: StorePath, fingerprint: Fingerprint
) -> Iterator[tuple[StorePath, Manifest]]:
    """Yields whole data sets in which a record becomes the same example, newest first."""
    shard_keys = _keep_shard_keys(fingerprint)
    for uri, manifest in iterate_manifests(artifacts):
        if _keep_shard_keys(manifest.fingerprint) == shard_keys and not find_damage(uri, manifest):
            yield uri, manifest


def _keep_shard_keys(fingerprint: Fingerprint) -> Fingerprint:
    """Returns the part of a fingerprint that determines the example that a record becomes."""
    config = {
        key: value
        for key, value in fingerprint.config.items()
        if key not in _KEYS_WITHOUT_EFFECT_ON_SHARDS
    }
    return fingerprint.model_copy(update={"inputs": {}, "config": config})
