"""A split, and the part of a batch that one worker reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline_ops.input.remote_split import RemoteSplit


@dataclasses.dataclass(frozen=True)
class BatchSlice:
    """This worker's part of each global batch: `[start, end)`."""

    start: int
    end: int

    @classmethod
    def for_worker(cls, worker: int, workers: int, global_batch_size: int) -> BatchSlice:
        return cls(
            worker * global_batch_size // workers, (worker + 1) * global_batch_size // workers
        )


@dataclasses.dataclass(frozen=True)
class SplitShards:
    """The shards of one split, as the manifest lists them.

    `paths` are URIs if the shards are streamed.
    """

    paths: tuple[str, ...]
    num_examples: int
    num_bytes: int
    removed: tuple[tuple[int, ...], ...] = ()
    """The positions of removed records, for each shard. `num_examples` does not count them. Empty
    if no shard has any.
    """
    shard_sizes: tuple[int, ...] = ()
    """The number of examples of each shard without removed ones."""
    remote: RemoteSplit | None = None
    """Reads the shards if they are streamed from a store."""

    def release(self) -> None:
        """Ends the reading of a split in a store. It begins again with the next use."""
        if self.remote is not None:
            self.remote.close()

    def compute_epoch_end_step(self, epoch: int, global_batch_size: int) -> int:
        """Returns the step before which the last example of an epoch has been used.

        Epochs count from 0. The batch that holds this example may go on with the next epoch, so the
        lengths of epochs differ by at most one step.
        """
        return -(-self.num_examples * (epoch + 1) // global_batch_size)
