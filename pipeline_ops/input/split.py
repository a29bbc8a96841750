"""A split, and the part of a batch that one worker reads."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Slice:
    """Which part of each global batch is this worker's: `[start, end)`."""

    start: int
    end: int

    @classmethod
    def of(cls, worker: int, workers: int, global_batch: int) -> Slice:
        return cls(worker * global_batch // workers, (worker + 1) * global_batch // workers)


@dataclasses.dataclass(frozen=True)
class Split:
    """The shards of one split, as the manifest lists them."""

    paths: tuple[str, ...]
    num_examples: int
    num_bytes: int
    removed: tuple[tuple[int, ...], ...] = ()
    """For each shard the positions of records that don't count; `num_examples` is without them. Empty: none anywhere."""

    def end_of_epoch(self, epoch: int, global_batch: int) -> int:
        """The step before which the last example of an epoch has been used; epochs count from 0. The batch that holds it may
        go on with the next epoch, so epochs differ by a step at most."""
        return -(-self.num_examples * (epoch + 1) // global_batch)
