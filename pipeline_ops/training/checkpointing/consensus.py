"""Checkpoint consensus: all workers of a gang resume from the same checkpoint, or none does.

Each worker reads the checkpoints from a shared folder. A file that is complete for one worker may
be damaged or missing for another, because of a bad disk under a cache, or a share with an older
state. Workers with different weights would train nonsense without an error. So they exchange step
and digest of their checkpoint before they use it, and go back together.
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
    """The checkpoint that one worker has read: its step, and a digest of its contents."""

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
        return f"{self.step:019d} {self.digest}".ljust(
            64
        ).encode()  # all workers send the same number of bytes


def restore_together(
    checkpoints: Checkpoints, gather: Gather, warn: Callable[[str], None]
) -> Restored | None:
    """Returns the newest checkpoint that all workers can read, or None if no worker finds one.

    All workers call it at the same time.

    Args:
      checkpoints: The checkpoints as this worker sees them.
      gather: Sends each worker's message to all workers.
      warn: Called for each checkpoint that is damaged here or unreadable for other workers.

    Raises:
      MachineError: Only some workers find a checkpoint, or its contents differ between workers.
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
            raise MachineError(
                f"{behind} can read no checkpoint in {checkpoints.folder}, "
                f"while others read that of step {newest}; do all hosts see the same files there?"
            )
        if at_most == newest:
            raise MachineError(
                f"the checkpoint of step {newest} in {checkpoints.folder} is not the same for all "
                f"workers ({', '.join(read.digest[:8] for read in reads)}); "
                "do all hosts see the same files there?"
            )
        warn(
            f"{behind} can read no checkpoint in {checkpoints.folder} that is newer than step "
            f"{at_most}, while others read that of step {newest}; all go back to step {at_most}"
        )


def _names(workers: list[int]) -> str:
    named = ", ".join(map(str, workers[:5])) + (
        f" and {len(workers) - 5} more" if len(workers) > 5 else ""
    )
    return f"worker{'s' if len(workers) > 1 else ''} {named}"
