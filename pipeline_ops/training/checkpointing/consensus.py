"""Checkpoint consensus: all workers of a gang resume from the same checkpoint, or none does.

Each worker reads the checkpoints from a shared folder, or from its host's copy of a bucket. A file
that is complete for one worker may be damaged or missing for another, because of a bad disk under a
cache, or a share with an older state. Workers with different weights would train nonsense without
an error. They therefore exchange name and digest of their checkpoint before they use it, and go
back together.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline_ops.errors import MachineError
from pipeline_ops.training.all_reduce import Gather
from pipeline_ops.training.checkpointing.checkpoint_store import CheckpointId
from pipeline_ops.training.checkpointing.checkpoints import Checkpoints, Restored

_NO_CHECKPOINT = -1
_MESSAGE_BYTES = 64  # the same number on all workers


def restore_common_checkpoint(
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
        number, digest = (restored.id.number, restored.digest) if restored else (_NO_CHECKPOINT, "")
        messages = gather(f"{number:019d} {digest}".ljust(_MESSAGE_BYTES).encode())
        if len(set(messages)) == 1:
            return restored
        answers = [message.decode().partition(" ") for message in messages]
        numbers = [int(number) for number, _, _ in answers]
        oldest, newest = min(numbers), CheckpointId.from_number(max(numbers))
        behind = _format_workers([each for each, number in enumerate(numbers) if number == oldest])
        if oldest == _NO_CHECKPOINT:
            raise MachineError(
                f"{behind} cannot read any checkpoint in {checkpoints.folder}, but other workers "
                f"read the one of step {newest.step}. {checkpoints.remedy}"
            )
        at_most = CheckpointId.from_number(oldest)
        if at_most == newest:
            raise MachineError(
                f"the checkpoint of step {newest.step} in {checkpoints.folder} is not the same for "
                f"all workers ({', '.join(digest[:8] for _, _, digest in answers)}). "
                f"{checkpoints.remedy}"
            )
        warn(
            f"{behind} cannot read a checkpoint in {checkpoints.folder} that is newer than step "
            f"{at_most.step}, but other workers read the one of step {newest.step}. All workers "
            f"resume from step {at_most.step}."
        )


def _format_workers(workers: list[int]) -> str:
    more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers[:5]))}{more}"
