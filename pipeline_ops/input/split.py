"""A split, and the part of a batch that one worker reads."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class BatchSlice:
    """This worker's part of each global batch: `[start, end)`."""

    start: int
    end: int

    @classmethod
    def of(cls, worker: int, workers: int, global_batch: int) -> BatchSlice:
        return cls(worker * global_batch // workers, (worker + 1) * global_batch // workers)


@dataclasses.dataclass(frozen=True)
class SplitShards:
    """The shards of one split, as the manifest lists them."""

    paths: tuple[str, ...]
    num_examples: int
    num_bytes: int
    removed: tuple[tuple[int, ...], ...] = ()
    """The positions of removed records, for each shard. `num_examples` does not count them. Empty
    if no shard has any.
    """

    def end_of_epoch(self, epoch: int, global_batch: int) -> int:
        """Returns the step before which the last example of an epoch has been used.

        Epochs count from 0. The batch that holds this example may go on with the next epoch, so the
        lengths of epochs differ by at most one step.
        """
        return -(-self.num_examples * (epoch + 1) // global_batch)
