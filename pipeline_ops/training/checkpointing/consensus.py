"""All workers of a gang go on from the same checkpoint, or none of them does.

Each worker reads the checkpoints for itself, from a folder that all share. But what is whole for one may be damaged, or not there
yet, for another: a bad disk under a cache, a share that shows an older state. Workers that began with different weights would train
nonsense without an error, so they tell each other what they have read before they use it, and go back together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pipeline_ops.errors import MachineError
from pipeline_ops.training.checkpointing.checkpoints import Checkpoints, Restored
from pipeline_ops.training.collectives.ring import Gather

_NOTHING = -1


@dataclasses.dataclass(frozen=True)
class _Read:
    """What one worker has read: a step, and a digest of all that belongs to it."""

    step: int
    digest: str

    @classmethod
    def of(cls, restored: Restored | None) -> _Read:
        return cls(_NOTHING, "") if restored is None else cls(restored.state.step, restored.digest)

    @classmethod
    def parse(cls, said: bytes) -> _Read:
        step, _, digest = said.decode().strip().partition(" ")
        return cls(int(step), digest)

    def say(self) -> bytes:
        return f"{self.step:019d} {self.digest}".ljust(64).encode()  # all workers say equally many bytes


def restore_together(checkpoints: Checkpoints, gather: Gather, warn: Callable[[str], None]) -> Restored | None:
    """The newest checkpoint that is whole for all workers, or None where there is none for any. Called by all workers at once.

    Args:
      checkpoints: as this worker sees them.
      gather: tells all workers what each has read.
      warn: is told of each checkpoint that is damaged here, and of one that is not whole for others.

    Raises:
      MachineError: some workers find none where others do, or one and the same checkpoint has different contents.
    """
    at_most = None
    while True:
        restored = checkpoints.restore(warn, at_most)
        reads = [_Read.parse(said) for said in gather(_Read.of(restored).say())]
        if len(set(reads)) == 1:
            return restored
        steps = [read.step for read in reads]
        at_most, newest = min(steps), max(steps)
        behind = _names([worker for worker, step in enumerate(steps) if step == at_most])
        if at_most == _NOTHING:
            raise MachineError(f"{behind} can read no checkpoint in {checkpoints.folder}, while others read that of step {newest}; "
                               "do all hosts see the same files there?")
        if at_most == newest:
            raise MachineError(f"the checkpoint of step {newest} in {checkpoints.folder} is not the same for all workers "
                               f"({', '.join(read.digest[:8] for read in reads)}); do all hosts see the same files there?")
        warn(f"{behind} can read no checkpoint in {checkpoints.folder} that is newer than step {at_most}, while others read that of step {newest}; "
             f"all go back to step {at_most}")


def _names(workers: list[int]) -> str:
    named = ", ".join(map(str, workers[:5])) + (f" and {len(workers) - 5} more" if len(workers) > 5 else "")
    return f"worker{'s' if len(workers) > 1 else ''} {named}"
