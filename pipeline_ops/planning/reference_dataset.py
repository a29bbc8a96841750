"""The data set that a new one is checked against.

It is the one that the champion was trained on, or else the newest before it.

The parts that the check can fail by belong to the fingerprint: the reference's schema if
`preprocess.schema` has a rule that fails, its statistics if `preprocess.drift` fails. Reported
parts do not belong to it. Another champion is no reason to make a data set again, and the page of
an existing one shows the champion of its time.

If the reference was made from the same files with the same config and code, it has the same
fingerprint. So its own reference counts, and an unchanged second run finds everything made. Without
a champion the same holds for any older data set of the same files. Damaged data sets count as
absent.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.dataset import SCHEMA, STATISTICS
from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.input_names import BASE, REFERENCES
from pipeline_ops.artifacts.layout import Layout, iterate_manifests
from pipeline_ops.artifacts.manifest import Input, Manifest, read_manifest
from pipeline_ops.artifacts.moved_root import find_input
from pipeline_ops.errors import TrainyardError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.open_store import open_near
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from pipeline_ops.config.pipeline import PipelineConfig

_SCHEMA_DIGEST, _STATISTICS_DIGEST = "reference schema", "reference statistics"


@dataclasses.dataclass(frozen=True)
class ReferenceInputs:
    """The inputs from a reference. Both fields are empty without a reference.

    `inputs` are for the request, `digests` for the inputs of the fingerprint.
    """

    inputs: dict[str, Input] = dataclasses.field(default_factory=dict)
    digests: dict[str, str] = dataclasses.field(default_factory=dict)


def find_reference(
    config: PipelineConfig, layout: Layout, fingerprint: Fingerprint
) -> ReferenceInputs:
    """Finds the reference of the data set that will have this fingerprint.

    The fingerprint has no reference and no base yet. An artifact that is gone, or that has no
    schema because an older version made it, is no reference.
    """
    name, found = "champion_data", find_champion_dataset(config)
    if found is None:
        name, found = "previous_data", _find_previous_dataset(layout, fingerprint)
    if found is None:
        return ReferenceInputs()
    uri, manifest = found
    if _without_reference(manifest) == fingerprint:
        return ReferenceInputs(
            {key: entry for key, entry in manifest.inputs.items() if key in REFERENCES},
            {
                key: value
                for key, value in manifest.fingerprint.inputs.items()
                if key in (_SCHEMA_DIGEST, _STATISTICS_DIGEST)
            },
        )
    digests = {}
    if config.preprocess.schema.can_fail:
        digests[_SCHEMA_DIGEST] = compute_digest(manifest.get_file(SCHEMA).identity)
    if config.preprocess.drift.action == "fail":
        digests[_STATISTICS_DIGEST] = compute_digest(manifest.get_file(STATISTICS).identity)
    return ReferenceInputs({name: Input(uri=uri, digest=manifest.digest)}, digests)


def find_champion_dataset(config: PipelineConfig) -> tuple[str, Manifest] | None:
    """The data set of the model in service, if it is whole: the URI of its manifest, and that."""
    champion = Registry(config.registry).find_champion()
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
    found = [
        (str(path), manifest)
        for path, manifest in iterate_manifests(layout.artifacts("preprocess"))
        if _is_described(path, manifest)
    ]
    return next(
        (each for each in found if _without_reference(each[1]) == fingerprint),
        found[0] if found else None,
    )


def _is_described(path: StorePath, manifest: Manifest) -> bool:
    """Returns whether a data set is whole and has a schema and statistics."""
    is_described = {SCHEMA, STATISTICS} <= {file.path for file in manifest.files}
    return is_described and not find_damage(path, manifest)


def _without_reference(manifest: Manifest) -> Fingerprint:
    """Returns the fingerprint of a data set without its reference and its base."""
    return manifest.fingerprint.without_inputs(_SCHEMA_DIGEST, _STATISTICS_DIGEST, BASE)
