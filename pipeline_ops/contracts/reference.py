"""Which data set a new one is checked against: the one that the champion was trained on, else the newest before it.

What the check can fail by belongs to the fingerprint: the reference's schema where `preprocess.schema` has a rule that
fails, its statistics where `preprocess.drift` fails. What is only reported does not: another champion is no reason to
make a data set again, and the page of one that is there tells of the champion at its time.

Once the reference was made from the same files with the same config and code, the question is the one that it was
asked itself, so its own reference counts: an unchanged second run finds everything made.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.contracts.config import PipelineConfig
from pipeline_ops.contracts.errors import TrainyardError
from pipeline_ops.contracts.fingerprint import Fingerprint, digest_of
from pipeline_ops.contracts.layout import Layout
from pipeline_ops.contracts.manifest import NAME, Input, read_manifest
from pipeline_ops.contracts.registry import Registry
from pipeline_ops.contracts.shards import SCHEMA, STATISTICS

REFERENCES = ("champion_data", "previous_data")
"""What the reference is called among the inputs of a preprocess job; there is one of them at most."""
_SCHEMA_DIGEST, _STATISTICS_DIGEST = "reference schema", "reference statistics"


@dataclasses.dataclass(frozen=True)
class ReferenceInputs:
    """`inputs` are for the request, `digests` for the inputs of the fingerprint; both are empty without a reference."""

    inputs: dict[str, Input] = dataclasses.field(default_factory=dict)
    digests: dict[str, str] = dataclasses.field(default_factory=dict)


def find_reference(config: PipelineConfig, layout: Layout, fingerprint: Fingerprint) -> ReferenceInputs:
    """Finds the reference of the data set that has this fingerprint, so far without any reference.

    An artifact that is gone, or that has no schema because an older version made it, is no reference.
    """
    name, uri = "champion_data", _champions_data(config, layout)
    if uri is None:
        name, uri = "previous_data", _newest(layout)
    if uri is None:
        return ReferenceInputs()
    manifest = read_manifest(uri)
    if _without_reference(manifest.fingerprint).digest == fingerprint.digest:
        return ReferenceInputs({key: entry for key, entry in manifest.inputs.items() if key in REFERENCES},
                               {key: value for key, value in manifest.fingerprint.inputs.items() if key in (_SCHEMA_DIGEST, _STATISTICS_DIGEST)})
    digests = {}
    if config.preprocess.schema.can_fail:
        digests[_SCHEMA_DIGEST] = digest_of(manifest.file(SCHEMA).model_dump())
    if config.preprocess.drift.action == "fail":
        digests[_STATISTICS_DIGEST] = digest_of(manifest.file(STATISTICS).model_dump())
    return ReferenceInputs({name: Input(uri=uri, digest=manifest.digest)}, digests)


def _champions_data(config: PipelineConfig, layout: Layout) -> str | None:
    champion = Registry(layout.models(config.export.model)).champion()
    if champion is None:
        return None
    try:
        uri = read_manifest(champion.manifest().inputs["train"].uri).inputs["preprocess"].uri
    except TrainyardError:
        return None
    return uri if _has_schema(Path(uri)) else None


def _newest(layout: Layout) -> str | None:
    made = sorted(layout.artifacts("preprocess").glob(f"*/{NAME}"), key=lambda path: (path.stat().st_mtime_ns, path))
    return next((str(path) for path in reversed(made) if _has_schema(path)), None)


def _has_schema(path: Path) -> bool:
    try:
        return {SCHEMA, STATISTICS} <= {file.path for file in read_manifest(path).files}
    except TrainyardError:
        return False


def _without_reference(fingerprint: Fingerprint) -> Fingerprint:
    kept = {key: value for key, value in fingerprint.inputs.items() if key not in (_SCHEMA_DIGEST, _STATISTICS_DIGEST)}
    return fingerprint.model_copy(update={"inputs": kept})

