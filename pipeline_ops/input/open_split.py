"""Opens a split of a data set that this host reads."""

from __future__ import annotations

from pipeline_ops.artifacts.dataset import (
    list_removed_positions,
    list_shard_paths,
    list_shards,
)
from pipeline_ops.errors import DataError
from pipeline_ops.input.remote_shard import RemoteShard
from pipeline_ops.input.remote_split import RemoteSplit
from pipeline_ops.input.split import SplitShards
from pipeline_ops.jobs.host_dataset import HostDataset


def open_split(dataset: HostDataset, name: str, budget_bytes: int = 0) -> SplitShards:
    """Opens a split.

    Args:
      dataset: the data set.
      name: the name of the split.
      budget_bytes: the size of the shards that one reader of a streamed split may hold on this
        host. Others are read in parts.

    Raises:
      DataError: the data set does not count the examples of its shards.
    """
    files = list_shards(dataset.manifest, name)
    removed = list_removed_positions(dataset.manifest, name)
    counts = [file.num_examples for file in files if file.num_examples is not None]
    if len(counts) < len(files):
        raise DataError(
            f"{dataset.uri} does not count the examples of its shards. Run preprocess again."
        )
    num_bytes = sum(file.num_bytes for file in files)
    remote = None
    if dataset.is_streamed:
        remote = RemoteSplit(
            tuple(
                RemoteShard(
                    dataset.locate(file), file, skipped, dataset.record_lengths.get(file.path)
                )
                for file, skipped in zip(files, removed, strict=True)
            ),
            dataset.cache,
            budget_bytes,
        )
        paths = [str(shard.place) for shard in remote.shards]
    else:
        paths = list_shard_paths(dataset.uri, dataset.manifest, name)
    return SplitShards(
        tuple(paths),
        dataset.figures.num_examples[name],
        num_bytes,
        removed,
        tuple(count - len(each) for count, each in zip(counts, removed, strict=True)),
        remote,
    )
