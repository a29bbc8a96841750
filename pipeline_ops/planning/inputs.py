"""The artifacts that a plan depends on besides the results of earlier tasks.

An unchanged second run must find everything made. So where an input depends on the champion or on
the newest artifact, and the artifact to make exists already, the inputs of that artifact count.

Base data set: preprocessing copies unchanged examples from an earlier data set of the same code,
package versions and config. Only the rules for rejects, schema and drift may differ, because they
do not change the example that a record becomes.

Reference data set: a new data set is compared with the champion's, or else with the newest before
it. What can fail the comparison belongs to the fingerprint: the reference's schema unless
`preprocess.allowed_changes` allows every change, its statistics if `preprocess.drift` fails. The
rest is only reported, so another champion is no reason to make a data set again. Damaged data sets
count as absent.

Requests: an evaluation that compares the training data with the requests to the model in service
gets their counts in its own request, as they are when it is planned. Their digest is in its
fingerprint. No other task depends on them.

Warm start: the digest of the initial weights (`train.warm_start`) is in the fingerprint. It is the
SHA-256 of a file. `champion` is the model in service when the training is planned.
"""

from __future__ import annotations

import contextlib
import time
from typing import get_args

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import SchemaChange
from pipeline_ops.contract.dataset import SCHEMA, STATISTICS
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout, find_input, iterate_manifests
from pipeline_ops.contract.manifest import (
    BASE,
    REFERENCE_DIGESTS,
    REFERENCES,
    SCHEMA_DIGEST,
    STATISTICS_DIGEST,
    WARM_START,
    Input,
    Manifest,
    find_damage,
    read_manifest,
)
from pipeline_ops.contract.serving_statistics import ServingStatistics
from pipeline_ops.errors import ConfigError, DataError, TrainyardError
from pipeline_ops.registry.registry import Registry, check_origin
from pipeline_ops.registry.serving_statistics import locate_statistics, read_statistics
from pipeline_ops.registry.versions import Version
from pipeline_ops.registry.weights import find_weights
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.open_store import open_near
from pipeline_ops.storage.store_path import StorePath

_KEYS_WITHOUT_EFFECT_ON_SHARDS = {"rejects", "allowed_changes", "drift", "balance", "incremental"}
"""Keys of `preprocess` that do not change the example that a record becomes."""


def choose_base(artifacts: StorePath, fingerprint: Fingerprint) -> Input | None:
    """Returns the data set to start from, or None if there is none.

    It is the newest data set in which a record becomes the same example.

    Args:
      artifacts: the folder of all data sets of the pipeline.
      fingerprint: the fingerprint of the data set to make, without a base.
    """
    newest, shard_keys = None, _keep_shard_keys(fingerprint)
    for uri, manifest in iterate_manifests(artifacts):
        if _keep_shard_keys(manifest.fingerprint) != shard_keys or find_damage(uri, manifest):
            continue
        if manifest.fingerprint.without_inputs(BASE) == fingerprint:
            return manifest.inputs.get(BASE)
        newest = newest or Input(uri=str(uri), digest=manifest.digest)
    return newest


def _keep_shard_keys(fingerprint: Fingerprint) -> Fingerprint:
    kept = fingerprint.config.keys() - _KEYS_WITHOUT_EFFECT_ON_SHARDS
    config = {key: fingerprint.config[key] for key in kept}
    return fingerprint.model_copy(update={"inputs": {}, "config": config})


def find_reference(
    config: PipelineConfig, layout: Layout, fingerprint: Fingerprint
) -> tuple[dict[str, Input], dict[str, str]]:
    """Finds the reference of the data set with this fingerprint, which lacks reference and base.

    Returns:
      The inputs of the request, and the digests for the inputs of the fingerprint. Both are empty
      without a reference.
    """
    name, found = "champion_data", find_champion_dataset(config)
    if found is None:
        name, found = "previous_data", _find_previous_dataset(layout, fingerprint)
    if found is None:
        return {}, {}
    uri, manifest = found
    digests = {}
    if _without_reference(manifest) == fingerprint:
        inputs = {key: entry for key, entry in manifest.inputs.items() if key in REFERENCES}
        for key in manifest.fingerprint.inputs.keys() & {*REFERENCE_DIGESTS}:
            digests[key] = manifest.fingerprint.inputs[key]
        return inputs, digests
    if not set(get_args(SchemaChange)) <= set(config.preprocess.allowed_changes):
        digests[SCHEMA_DIGEST] = compute_digest(manifest.get_file(SCHEMA).identity)
    if config.preprocess.drift.action == "fail":
        digests[STATISTICS_DIGEST] = compute_digest(manifest.get_file(STATISTICS).identity)
    return {name: Input(uri=uri, digest=manifest.digest)}, digests


def find_champion(config: PipelineConfig) -> Version | None:
    """Returns the version in service.

    Raises ConfigError if it comes from a pipeline that does not share the model with this one.
    """
    champion = Registry(config.registry).find_champion()
    if champion:
        try:
            check_origin(champion, config.pipeline, config.export.shared_with)
        except ConfigError as error:
            where = f"{config.locate(('export', 'model'))}: export.model"
            error.add_location(where)
            raise
    return champion


def find_champion_dataset(config: PipelineConfig) -> tuple[str, Manifest] | None:
    """Finds the data set of the champion, if it is whole. Returns its URI and its manifest.

    Raises ConfigError as `find_champion` does.
    """
    champion = find_champion(config)
    if champion is None:
        return None
    try:
        train = find_input(champion.read_manifest().inputs["train"], config.root)
        training = read_manifest(open_near(config.root, train.uri))
        uri = find_input(training.inputs["preprocess"], config.root).uri
        path = open_near(config.root, uri)
        manifest = read_manifest(path)
    except TrainyardError:
        return None
    return (uri, manifest) if _is_described(path, manifest) else None


def _find_previous_dataset(layout: Layout, fingerprint: Fingerprint) -> tuple[str, Manifest] | None:
    """Finds the data set with the same fingerprint, or else the newest."""
    newest = None
    for path, manifest in iterate_manifests(layout.artifacts("preprocess")):
        if _is_described(path, manifest):
            found = str(path), manifest
            if _without_reference(manifest) == fingerprint:
                return found
            newest = newest or found
    return newest


def _is_described(path: StorePath, manifest: Manifest) -> bool:
    """Returns whether a data set is whole and has a schema and statistics."""
    is_described = {SCHEMA, STATISTICS} <= {file.path for file in manifest.files}
    return is_described and not find_damage(path, manifest)


def _without_reference(manifest: Manifest) -> Fingerprint:
    return manifest.fingerprint.without_inputs(*REFERENCE_DIGESTS, BASE)


_MAX_LISTED = 8


def find_dataset(layout: Layout, version: str) -> StorePath:
    """Returns the manifest of the data set whose version or folder name begins with `version`.

    Raises ConfigError if there is not exactly one, and DataError if it is damaged.
    """
    made = list(iterate_manifests(layout.artifacts("preprocess")))
    found = [
        (path, manifest)
        for path, manifest in made
        if manifest.digest.startswith(version) or path.parent.name.startswith(version)
    ]
    if len({manifest.digest for _, manifest in found}) != 1:
        lines = []
        for path, manifest in made[:_MAX_LISTED]:
            entry, count = path.stat(), sum(manifest.figures["num_examples"].values())
            at = time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.modified if entry else 0))
            lines.append(f"  {manifest.digest[:12]}  made {at} UTC, {count} examples")
        listing = "\n".join(lines)
        raise ConfigError(
            f"preprocess.dataset: {'no' if not found else 'more than one'} data set of "
            f"{layout.pipeline} has a version that begins with {version}. "
            + (f"The data sets are, newest first:\n{listing}" if made else "There is none yet.")
        )
    path, manifest = found[0]
    if damage := find_damage(path, manifest):
        raise DataError(
            f"preprocess.dataset: the data set {version} is damaged: {damage[0]}. "
            "Leave out preprocess.dataset to make it again."
        )
    return path


def find_baseline(config: PipelineConfig, challenger: Input) -> Input | None:
    """Returns the model that the challenger has to beat.

    For a challenger that is the champion by now, it is the model that it was compared with then.
    Raises ConfigError as `find_champion` does.
    """
    registry = Registry(config.registry)
    champion = find_champion(config)
    if champion and champion.read_manifest().inputs["train"].digest == challenger.digest:
        compared_with = champion.read_manifest().figures["compared_with"]
        champion = next((v for v in registry.list_versions() if v.number == compared_with), None)
    return Input(uri=champion.uri, digest=champion.read_manifest().digest) if champion else None


def find_serving_statistics(config: PipelineConfig) -> ServingStatistics | None:
    """Returns the counts of the requests to the model in service, if the evaluation needs them."""
    comparison = config.evaluate.serving_comparison
    if comparison is None:
        return None
    return read_statistics(locate_statistics(config.registry), comparison.days, time.time())


def find_previous_evaluation(layout: Layout, fingerprint: Fingerprint) -> Input | None:
    """Returns the newest readable evaluation of the pipeline, except this one."""
    for path, manifest in iterate_manifests(layout.artifacts("evaluate")):
        if path.parent.name != fingerprint.digest:
            return Input(uri=str(path), digest=manifest.digest)
    return None


CHAMPION = "champion"


def find_warm_start(config: PipelineConfig, fingerprint: Fingerprint) -> Input | None:
    """Returns the initial weights of a training, or None without `train.warm_start`.

    The fingerprint of the training lacks this input. Raises ConfigError if there is no such
    version, file or folder.
    """
    if config.train.warm_start == CHAMPION:
        return _find_champion_input(config, fingerprint)
    return _find_named_input(config)


def check_warm_start(config: PipelineConfig) -> None:
    """Raises ConfigError as `find_warm_start` does, in the first task of a run."""
    if config.train.warm_start != CHAMPION:
        _find_named_input(config)


def _find_champion_input(config: PipelineConfig, fingerprint: Fingerprint) -> Input | None:
    champion = find_champion(config)
    if champion is None:
        return None
    manifest = champion.read_manifest()
    with contextlib.suppress(DataError):  # its training may have been removed
        train = find_input(manifest.inputs["train"], config.root)
        training = read_manifest(open_near(config.root, train.uri))
        start = training.inputs.get(WARM_START)
        digests = {WARM_START: start.digest} if start else {}
        if training.fingerprint.digest == fingerprint.with_inputs(digests).digest:
            return start
    return Input(uri=champion.uri, digest=manifest.digest)


def _find_named_input(config: PipelineConfig) -> Input | None:
    weights, source = config.initial_weights, config.train.warm_start
    try:
        if weights:
            return find_weights(weights, config.root)
        return _find_version(config, source) if isinstance(source, str) else None
    except ConfigError as error:
        where = config.locate(("train", "warm_start"))
        error.add_location(where)
        raise


def _find_version(config: PipelineConfig, source: str) -> Input:
    number = int(source.removeprefix("version "))
    versions = {version.number: version for version in Registry(config.registry).list_versions()}
    if version := versions.get(number):
        name = "train.warm_start: the version"
        check_origin(version, config.pipeline, config.export.shared_with, name)
        return Input(uri=version.uri, digest=version.read_manifest().digest)
    raise ConfigError(
        f"train.warm_start: there is no {source} of the model {config.export.model}. Its versions "
        f"are {', '.join(map(str, versions)) or 'none'}."
    )
