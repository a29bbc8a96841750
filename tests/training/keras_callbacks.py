"""Callbacks of Keras for `test_keras_callbacks.py`, in the training and in `fit` alike."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import keras

RECEIVED = "received.jsonl"


class Diary(keras.callbacks.Callback):
    """Writes each hook with its logs, the learning rate and what it remembers to a file.

    It begins anew with the line that it remembers, so lines of an epoch that a killed training has
    repeated stand there once.
    """

    chief_only = True
    hooks = ("on_epoch_begin", "on_epoch_end", "on_test_begin", "on_test_end")

    def __init__(self, name="diary.jsonl"):
        super().__init__()
        self.name, self.lines = name, []
        for hook in self.hooks:
            setattr(self, hook, self._make(hook))

    def get_state(self):
        return self.lines

    def set_state(self, state):
        self.lines[:] = state

    def _make(self, hook):
        def write(*arguments, logs=None):
            *numbers, last = (*arguments, logs) if logs is not None else arguments or (None,)
            if not isinstance(last, dict | None):
                numbers, last = [*numbers, last], None
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            self.lines.append([hook, list(map(int, numbers)), dict(last or {}), rate])
            with open(self.name, "w") as file:
                file.writelines(json.dumps(line) + "\n" for line in self.lines)

        return write


class BatchDiary(Diary):
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_epoch_end")


class Own(keras.callbacks.Callback):
    """A callback as people write it: it remembers, looks at weights, and changes the training."""

    def __init__(self):
        super().__init__()
        self.norms, self.best = {}, float("inf")

    def get_state(self):
        return {"norms": self.norms, "best": self.best}

    def set_state(self, state):
        self.norms, self.best = state["norms"], state["best"]

    def on_epoch_end(self, epoch, logs=None):
        self.norms[epoch] = sum(float((weight**2).sum()) for weight in self.model.get_weights())
        self.best = min(self.best, logs["val_loss"])
        if epoch == 2:
            self.model.set_weights([weight / 2 for weight in self.model.get_weights()])
        with open(f"norms-{os.environ.get('WORKER', '')}.json", "w") as file:
            json.dump(
                [[epoch, norm] for epoch, norm in self.norms.items()] + [[-1, self.best]], file
            )


class StopWithinEpoch(keras.callbacks.Callback):
    epoch = 0

    def get_state(self):
        return self.epoch

    def set_state(self, state):
        self.epoch = state

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (2, 1):
            self.model.stop_training = True


def rate_by_epoch(epoch, rate):
    return rate * 0.5 if epoch in (2, 4) else rate


def make_schedule():
    return keras.callbacks.LearningRateScheduler(rate_by_epoch)


def make_lambda():
    def tell(epoch, logs):
        with open("told.txt", "a") as file:
            file.write(f"{epoch} {logs['val_loss']:.3f}\n")

    callback = keras.callbacks.LambdaCallback(on_epoch_end=tell)
    callback.chief_only = True
    return callback


def make_monitor():
    """A RemoteMonitor with the server that it writes to, in a thread of the same process."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with open(RECEIVED, "ab") as file:
                file.write(body + b"\n")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    return keras.callbacks.RemoteMonitor(root=address, send_as_json=True)
