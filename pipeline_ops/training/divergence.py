"""Divergence: the decision after a step diverged, and the record of its batch.

The loop takes several steps in one call, so it only learns that one of them diverged. The training
then goes back to the last checkpoint and takes the same steps one by one to find the step. All
workers see the same reduced metrics and so find the same step. The state holds the decision and is
saved before anything else happens, so a restart in between changes nothing.
"""

from __future__ import annotations

import math
from pathlib import Path

import tensorflow as tf

from pipeline_ops.artifacts.dataset import KEY
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import write_json
from pipeline_ops.training.checkpointing.state import DivergedStep, TrainingState
from pipeline_ops.training.loops.loop import StepResult


class DivergedError(Exception):
    """Some steps have diverged.

    `until` is the step after the last of them. `step` is the one that diverged, once it is known.
    """

    def __init__(self, until: int, step: int | None, loss: float):
        super().__init__(until, step, loss)
        self.until, self.step, self.loss = until, step, loss


def is_sound(result: StepResult, config: Train) -> bool:
    """Returns whether training may continue after these steps."""
    limit = config.on_divergence.max_loss
    return result.is_sound and (limit is None or result.worst_loss <= limit)


def apply_divergence_policy(
    config: Train, state: TrainingState, step: int, loss: float, batch: Path
) -> None:
    """Applies the policy for divergences to the state.

    Raises:
      ConfigError: The policy is to stop, or the budget is spent.
    """
    policy = config.on_divergence
    description = (
        f"the loss or the weights diverged at step {step} (loss {loss:g}, "
        f"learning rate {state.learning_rate:g}). Its batch is in {batch}."
    )
    if policy.action == "stop":
        raise ConfigError(
            f"{description} Check the batch, lower train.optimizer.learning_rate, "
            "set train.optimizer.clip, or choose an action in train.on_divergence."
        )
    if len(state.divergences) >= policy.max_times:
        raise ConfigError(
            f"{description} This is one divergence more than train.on_divergence.max_times "
            f"({policy.max_times}) allows. Raise the limit, or check the batches and the optimizer."
        )
    if policy.factor is not None:
        state.learning_rate *= policy.factor
        consequence = f"The learning rate is {state.learning_rate:g} from step {state.step} on."
    else:
        consequence = "The batch was skipped."
    state.divergences.append(
        DivergedStep(step=step, loss=repr(loss), is_skipped=policy.action == "skip_batch")
    )
    state.warnings.append(f"{description} {consequence}")


def save_batch(
    file: Path, examples: list[bytes], step: int, epoch: int, loss: float, learning_rate: float
) -> None:
    """Writes the examples of a step as a TFRecord file, and their keys as a JSON file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for example in examples:
            writer.write(example)
    keys = tf.io.parse_example(examples, {KEY: tf.io.FixedLenFeature([], tf.string)})[KEY].numpy()
    write_json(
        file.with_suffix(".json"),
        {
            "step": step,
            "epoch": epoch,
            "loss": loss if math.isfinite(loss) else repr(loss),
            "learning_rate": learning_rate,
            "keys": [key.decode("utf-8", "backslashreplace") for key in keys],
        },
    )
