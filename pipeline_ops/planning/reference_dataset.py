"""The data set that a new one is checked against.

It is the one that the champion was trained on, or else the newest before it.

The parts that the check can fail by belong to the fingerprint: the reference's schema if
`preprocess.schema` has a rule that fails, its statistics if `preprocess.drift` fails. Reported
parts do not belong to it. Another champion is no reason to make a data set again, and the page of
an existing one shows the champion of its time.

If the reference was made from the same files with the same config and code, it was asked the same
question. So its own reference counts, and an unchanged second run finds everything made. Without a
champion the same holds for any older data set of the same files. Damaged data sets count as absent.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_ops.artifacts.dataset import SCHEMA, STATISTICS
from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.input_names import BASE, REFERENCES
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import NAME, Input, Manifest, find_damage, read_manifest
from pipeline_ops.errors import TrainyardError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.digest import digest_of

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
    name, found = "champion_data", _champions_data(config)
    if found is None:
        name, found = "previous_data", _data_before(layout, fingerprint)
    if found is None:
        return ReferenceInputs()
    uri, manifest = found
    if _raw_question(manifest) == fingerprint:
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
        digests[_SCHEMA_DIGEST] = digest_of(manifest.file(SCHEMA).model_dump())
    if config.preprocess.drift.action == "fail":
        digests[_STATISTICS_DIGEST] = digest_of(manifest.file(STATISTICS).model_dump())
    return ReferenceInputs({name: Input(uri=uri, digest=manifest.digest)}, digests)


def _champions_data(config: PipelineConfig) -> tuple[str, Manifest] | None:
    champion = Registry(config.registry).champion()
    if champion is None:
        return None
    try:
        uri = read_manifest(champion.manifest().inputs["train"].uri).inputs["preprocess"].uri
    except TrainyardError:
        return None
    return (uri, manifest) if (manifest := _read_described(Path(uri))) else None


def _data_before(layout: Layout, fingerprint: Fingerprint) -> tuple[str, Manifest] | None:
    """The data set that was asked the same question, or else the newest."""
    made = sorted(
        layout.artifacts("preprocess").glob(f"*/{NAME}"),
        key=lambda path: (path.stat().st_mtime_ns, path),
        reverse=True,
    )
    found = [(str(path), manifest) for path in made if (manifest := _read_described(path))]
    return next(
        (each for each in found if _raw_question(each[1]) == fingerprint),
        found[0] if found else None,
    )


def _read_described(path: Path) -> Manifest | None:
    """The manifest of a whole data set that has a schema and statistics, or None."""
    try:
        manifest = read_manifest(path)
    except TrainyardError:
        return None
    is_described = {SCHEMA, STATISTICS} <= {file.path for file in manifest.files}
    return manifest if is_described and not find_damage(path, manifest) else None


def _raw_question(manifest: Manifest) -> Fingerprint:
    """The question of a data set, without its reference and its base."""
    kept = {
        key: value
        for key, value in manifest.fingerprint.inputs.items()
        if key not in (_SCHEMA_DIGEST, _STATISTICS_DIGEST, BASE)
    }
    return manifest.fingerprint.model_copy(update={"inputs": kept})
