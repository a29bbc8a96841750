"""The model and the evaluation that a new evaluation is compared with."""

from __future__ import annotations

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.layout import Layout, iterate_manifests
from pipeline_ops.artifacts.manifest import Input
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.registry.registry import Registry


def find_baseline(config: PipelineConfig, challenger: Input) -> Input | None:
    """Returns the model that the challenger has to beat.

    If the challenger itself is the champion by now, that is the model that it was compared with
    when it was published. An unchanged second run then asks the same question as the first, and
    finds it answered.
    """
    registry = Registry(config.registry)
    champion = registry.find_champion()
    if champion and champion.read_manifest().inputs["train"].digest == challenger.digest:
        compared_with = champion.read_manifest().figures["compared_with"]
        champion = next((v for v in registry.list_versions() if v.number == compared_with), None)
    return Input(uri=champion.uri, digest=champion.read_manifest().digest) if champion else None


def find_previous_evaluation(layout: Layout, fingerprint: Fingerprint) -> Input | None:
    """The newest readable evaluation of the pipeline, except this one."""
    for path, manifest in iterate_manifests(layout.artifacts("evaluate")):
        if path.parent.name != fingerprint.digest:
            return Input(uri=str(path), digest=manifest.digest)
    return None
