"""The reads of a bucket that a plan makes in any case, started before it needs them.

An unchanged run consists of hardly anything else: four tasks that each ask the store a few dozen
questions. Nothing is decided here, so a question that turns out to be unnecessary costs a request.
In a folder such reads cost nothing, so none is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from pipeline_ops.artifacts.layout import Layout, iterate_manifests
from pipeline_ops.artifacts.manifest import NAME, read_manifest
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.planning.inputs import find_champion_dataset
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_near
from pipeline_ops.storage.snapshot import prefetch, remember
from pipeline_ops.storage.store_path import StorePath


def prefetch_for_plan(job: str, config: PipelineConfig) -> None:
    """Starts the reads that do not depend on the earlier tasks, once in a block of `read_once`."""
    remember(("prefetch", job), lambda: prefetch(*_list_questions(job, config)))


def _list_questions(job: str, config: PipelineConfig) -> Iterator[Callable[[], object]]:
    if not config.root.is_local:
        if job in ("preprocess", "evaluate"):  # they compare with earlier ones
            artifacts = Layout(config.root, config.pipeline).artifacts(job)
            yield partial(_read_newest, artifacts)
        if job == "preprocess":
            yield partial(find_champion_dataset, config)
    if not config.registry.is_local:
        registry = Registry(config.registry)
        if job == "evaluate":
            yield partial(_read_champion, registry)
        if job != "train" or config.train.warm_start:
            yield registry.read_aliases
            yield registry.store.list_numbers


def prefetch_manifests(config: PipelineConfig, manifests: Iterable[str]) -> None:
    """Starts to read the manifests that earlier tasks have left."""
    if not config.root.is_local:
        prefetch(*(partial(read_manifest, open_near(config.root, uri)) for uri in manifests))


def prefetch_artifact(artifact: StorePath) -> None:
    """Starts to read whether an artifact is there and whole."""
    if not artifact.is_local:
        prefetch((artifact / NAME).exists, partial(read_manifest, artifact / NAME), artifact.walk)


def _read_newest(artifacts: StorePath) -> None:
    for path, _ in iterate_manifests(artifacts):
        prefetch_artifact(path.parent)
        return


def _read_champion(registry: Registry) -> None:
    if champion := registry.find_champion():
        champion.read_manifest()
