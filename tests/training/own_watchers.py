"""Callbacks as a user may write them, and a loss that is NaN for a broken label."""

from __future__ import annotations

import logging
import os
import signal

import keras
import tensorflow as tf

from pipeline_ops import card

BROKEN = 77


def loss(labels, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.minimum(labels, 9), logits)
    return tf.where(labels == BROKEN, float("nan"), losses)


class HalveTwice(keras.callbacks.Callback):
    """Changes the training, so it runs on all workers. What it counts survives a restart."""

    times = 0

    def get_state(self):
        return {"times": self.times}

    def set_state(self, state):
        self.times = state["times"]

    def on_epoch_end(self, epoch, logs=None):
        if self.times < 2:
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2
            self.times += 1
        self.model.stop_training = epoch == 3


class Meddler(keras.callbacks.Callback):
    chief_only = True

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


class Thawer(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.layers[-1].trainable = False


class Writer(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open("/dev/full", "w") as file:
            file.write("more than fits")


class Hoarder(keras.callbacks.Callback):
    def get_state(self):
        return {1, 2}


class Forgetful(keras.callbacks.Callback):
    """Counts epochs, and a restart forgets it."""

    def __init__(self):
        super().__init__()
        self.epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        with open("epochs.txt", "w") as file:
            file.write(str(self.epochs))


def talkative(labels, logits):
    """A loss whose author looks what it does."""
    print("printed while it is traced", flush=False)
    logging.getLogger(__name__).info("logged while it is traced")
    tf.print("printed in a step:", tf.shape(labels)[0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


class TalkAndDie(keras.callbacks.Callback):
    """Says something, and is killed at once, on one worker."""

    def on_epoch_begin(self, epoch, logs=None):
        print("printed before the end \N{SNOWMAN}")
        logging.getLogger(__name__).info("logged before the end")
        os.kill(os.getpid(), signal.SIGKILL)


clumsy = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: {}["oh"])


class Shower(keras.callbacks.Callback):
    """Shows figures of each epoch, on all workers."""

    def on_epoch_begin(self, epoch, logs=None):
        card.text("<script>alert(1)</script>")

    def on_epoch_end(self, epoch, logs=None):
        card.figure(f"Loss of epoch {epoch + 1}", logs["loss"])
        card.figure("Epochs", epoch + 1)

    def on_train_end(self, logs=None):
        card.table(
            "Weights", [{"name": w.name, "axes": len(w.shape)} for w in self.model.weights[:2]]
        )


class ShowNan(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        card.figure("loss", float("nan"))


class DieOnce(keras.callbacks.Callback):
    """Kills the chief once, at the end of an epoch."""

    chief_only = True

    def __init__(self, epoch=0):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
