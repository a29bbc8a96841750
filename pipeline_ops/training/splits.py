"""The training and the validation split of the data set in a request."""

from __future__ import annotations

from pipeline_ops.artifacts.dataset import DatasetFigures, removed_positions, shard_paths, shards_of
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.config.train import Train
from pipeline_ops.errors import DataError
from pipeline_ops.input.split import SplitShards
from pipeline_ops.jobs.request import Request


def open_splits(request: Request) -> tuple[SplitShards, SplitShards, DatasetFigures]:
    """The training split, the validation split and the data set's figures."""
    uri = request.inputs["preprocess"].uri
    manifest = read_manifest(uri)
    figures = DatasetFigures.model_validate(manifest.figures)

    def split(name: str) -> SplitShards:
        num_bytes = sum(file.num_bytes for file in shards_of(manifest, name))
        return SplitShards(
            tuple(shard_paths(uri, manifest, name)),
            figures.num_examples[name],
            num_bytes,
            removed_positions(manifest, name),
        )

    return split("train"), split("validation"), figures


def refuse_small(split: SplitShards, config: Train) -> None:
    """Raises DataError if the split has less than one global batch."""
    if split.num_examples < config.global_batch:
        raise DataError(
            f"the train split has {split.num_examples} examples, fewer than one global_batch "
            f"({config.global_batch}); lower train.global_batch or add data"
        )
