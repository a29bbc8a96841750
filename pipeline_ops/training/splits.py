"""The training and the validation split of the data set in a request."""

from __future__ import annotations

import dataclasses

from pipeline_ops.artifacts.dataset import DatasetFigures, list_shards
from pipeline_ops.errors import DataError
from pipeline_ops.input.open_split import open_split
from pipeline_ops.input.split import SplitShards
from pipeline_ops.jobs.host_dataset import HostDataset

_VALIDATION_SHARE = 4
"""The validation split gets at most this part of the cache."""


@dataclasses.dataclass(frozen=True)
class Splits:
    """The splits that a training reads, and the data set's figures."""

    train: SplitShards
    validation: SplitShards
    figures: DatasetFigures


def open_splits(dataset: HostDataset, global_batch_size: int = 1) -> Splits:
    """Opens the splits. Raises DataError if there is less than one global batch to train on."""
    limit = dataset.cache.limit_bytes
    num_bytes = sum(shard.num_bytes for shard in list_shards(dataset.manifest, "validation"))
    for_validation = min(num_bytes, limit // _VALIDATION_SHARE)
    train = open_split(dataset, "train", limit - for_validation)
    if train.num_examples < global_batch_size:
        raise DataError(
            f"the train split of {dataset.uri} has {train.num_examples} examples, fewer than one "
            f"global_batch_size ({global_batch_size}). Lower train.global_batch_size or add data."
        )
    return Splits(train, open_split(dataset, "validation", for_validation), dataset.figures)
