"""Callbacks as a user may write them, and a loss that is NaN for a broken label."""

from __future__ import annotations

import json
import os
import signal

import tensorflow as tf

BROKEN = 77


def loss(labels, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.minimum(labels, 9), logits)
    return tf.where(labels == BROKEN, float("nan"), losses)


class HalveTwice:
    """Changes the training, so it runs on all workers. It counts in its memory, which survives a
    restart."""

    def begin(self, run):
        run.memory.setdefault("begun_at", run.step)

    def after_epoch(self, run, epoch):
        if run.memory.get("times", 0) < 2:
            run.learning_rate /= 2
            run.memory["times"] = run.memory.get("times", 0) + 1
        if epoch.epoch == 3:
            run.stop()


class Diary:
    chief_only = True

    def end(self, run):
        (run.folder / "diary.json").write_text(
            json.dumps([epoch.learning_rate for epoch in run.history])
        )


def after_each_epoch(run, epoch):
    run.memory["last"] = epoch.epoch


class Meddler:
    chief_only = True

    def after_epoch(self, run, epoch):
        run.stop()


def clumsy(run, epoch):
    raise KeyError("oh")


class DieOnce:
    """Kills its process once, at the end of the first epoch."""

    chief_only = True

    def after_epoch(self, run, epoch):
        died = run.folder / "died"
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
