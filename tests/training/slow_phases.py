"""A model and a callback that are slow, or hang once, for `test_phases.py`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

_disturbed: set[str] = set()


class Trouble:
    """A process meets trouble in a place: it takes time there, or never goes on.

    It hangs in `hang_in` once it has been there `after` times, as long as there is a file `hang`.
    A test removes that after the restart. It adds the name of its process to a file `hangs`.
    """

    def __init__(
        self, folder: str, slow_in=(), seconds=0.0, hang_in="", kind="loop", worker=None, after=0
    ):
        self._folder, self._slow_in, self._seconds = Path(folder), slow_in, seconds
        self._hang_in, self._kind, self._worker, self._left = hang_in, kind, worker, after

    def meet(self, place: str) -> None:
        if Path(sys.argv[0]).stem in ("check", "model_twin"):  # before the training
            return
        worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index")
        if place in self._slow_in and place not in _disturbed:
            _disturbed.add(place)
            time.sleep(self._seconds)
        hang = self._folder / "hang"
        if place != self._hang_in or self._worker not in (None, worker):
            return
        self._left -= 1
        if self._left < 0 and hang.exists():
            with (self._folder / "hangs").open("a") as file:
                file.write("candidate\n" if worker is None else f"worker {worker}\n")
            if self._kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self._kind == "collective":  # the other worker never takes part in it
                tf.raw_ops.CollectiveReduceV2(
                    input=tf.ones(1),
                    group_size=2,
                    group_key=77,
                    instance_key=77,
                    ordering_token=[],
                    merge_op="Add",
                    final_op="Id",
                )
            while hang.exists():
                pass


def trouble_disk(trouble: Trouble) -> None:
    """Makes the disk of this process slow, below what it writes there."""
    savez, write = np.savez, tf.io.TFRecordWriter.write

    def save(file, *arrays, **named):
        trouble.meet("saving" if named else Path(file).stem)
        savez(file, *arrays, **named)

    def write_record(self, record):
        trouble.meet("decoding")
        write(self, record)

    np.savez, tf.io.TFRecordWriter.write = save, write_record


class Brake(keras.layers.Layer):
    """Takes time for each batch of a validation. It hangs once if there is a file `hang`."""

    def __init__(self, seconds: float, folder: str, trouble: Trouble | None):
        super().__init__()
        self._seconds, self._hang, self._trouble = seconds, Path(folder) / "hang", trouble

    def call(self, inputs, training=None):
        if self._trouble:
            return self._meet_trouble(inputs) if training else inputs
        if training:
            return inputs

        def wait(values):
            time.sleep(self._seconds)
            if self._hang.exists():
                (self._hang.parent / "hangs").touch()
                while self._hang.exists():
                    time.sleep(0.05)
            return values

        return tf.ensure_shape(tf.py_function(wait, [inputs], inputs.dtype), inputs.shape)

    def _meet_trouble(self, inputs):
        self._trouble.meet("tracing")
        calls = []

        def take(values):
            calls.append(1)
            if len(calls) > 24:  # the first steps, of eight micro-batches each, are over
                self._trouble.meet("step")
            return values

        return tf.ensure_shape(tf.py_function(take, [inputs], inputs.dtype), inputs.shape)


def build(
    image_shape,
    num_classes,
    seconds: float = 0.0,
    folder: str = "/nowhere",
    trouble: dict | None = None,
):
    met = Trouble(folder, seconds=seconds, **trouble) if trouble else None
    is_worker = "TF_CONFIG" in os.environ
    if met:
        met.meet("building" if is_worker else "candidate")
        if is_worker:
            trouble_disk(met)
    images = keras.Input(image_shape)
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images))
    if is_worker or not met:  # what is served may not call Python
        features = Brake(seconds, folder, met)(features)
    return keras.Model(images, keras.layers.Dense(num_classes)(features))


class SlowCallback(keras.callbacks.Callback):
    """Takes time in a hook, once in the training, on one worker or on all."""

    chief_only = True

    def __init__(self, hook: str, seconds: float):
        super().__init__()
        setattr(self, hook, self._wait)
        self._seconds = seconds

    def _wait(self, *_, logs=None):
        time.sleep(self._seconds)
        self._seconds = 0.0


class GreedyCallback(keras.callbacks.Callback):
    """Runs code in C that lets no other thread of Python run, at the end of the first epoch."""

    chief_only = True

    def __init__(self, seconds: float):
        super().__init__()
        self._seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        begun, count = time.perf_counter(), 10**7
        sum(range(count))
        if epoch == 0:
            sum(range(int(count * self._seconds / (time.perf_counter() - begun))))


class StuckCallback(keras.callbacks.Callback):
    """Meets trouble in a hook, on one worker."""

    def __init__(self, hook: str, folder: str, **trouble):
        super().__init__()
        setattr(self, hook, lambda *_, logs=None: Trouble(folder, **trouble).meet("callback"))
