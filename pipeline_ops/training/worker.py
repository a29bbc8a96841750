"""A worker's life: join the gang, go on from the last checkpoint, train epoch by epoch, say what the weights were.

All workers run the same code on the same state; only the chief writes. Forked by `preloaded.py`.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.errors import ConfigError, DataError
from pipeline_ops.contracts.figures import TENSORBOARD, Epoch
from pipeline_ops.contracts.files import write_json, write_whole
from pipeline_ops.contracts.gang import STATE, TRAINED, WorkerSpec, worker_digest_name
from pipeline_ops.contracts.manifest import read_manifest
from pipeline_ops.contracts.progress import ProgressWriter
from pipeline_ops.contracts.request import Request, read_request
from pipeline_ops.contracts.shards import DatasetFigures, removed_positions, shard_paths, shards_of
from pipeline_ops.input.dataset import Slice, Split, evaluation_batches, training_batches
from pipeline_ops.models import builder
from pipeline_ops.models.classification import means
from pipeline_ops.training.callbacks import end_epoch
from pipeline_ops.training.loop import Loop
from pipeline_ops.training.preemption import Preempted, StopRequest
from pipeline_ops.training.state import Checkpoints, TrainingState, digest_of_weights, read_arrays, write_arrays
from pipeline_ops.training.strategy import make_strategy

_REPORT_SECONDS = 0.25
_EVALUATION_BATCH = 256


def run_worker(spec: WorkerSpec) -> Training:
    """Trains to the end, as one worker of the gang.

    Returns:
      The finished training. The caller must hold it until the process exits: taking it apart exchanges messages with
      peers that may have left already, and then blocks for the ten seconds in which TensorFlow notices.
    """
    progress = ProgressWriter(Path(spec.progress), spec.index)
    progress.report("joining", message=f"{spec.name} of {spec.workers} joins")
    request = read_request(spec.request)
    config = Train.model_validate(request.config)
    strategy = make_strategy(config, spec)
    progress.report("building")
    training = Training(spec, request, config, strategy, progress)
    training.run()
    return training


class Training:
    """One worker's side of a training.

    Args:
      spec: which worker this is.
      request: the train job's request; its input is the data set.
      config: the training section.
      strategy: the gang, joined.
      progress: where to report to; silence is taken for a hang.
    """

    def __init__(self, spec: WorkerSpec, request: Request, config: Train, strategy: tf.distribute.Strategy, progress: ProgressWriter):
        self._spec, self._config, self._progress, self._stop = spec, config, progress, StopRequest()
        self._train, self._validation, figures = open_splits(request)
        self._steps_per_epoch = _steps_per_epoch(self._train, config)
        keras.utils.set_random_seed(config.seed)
        with strategy.scope():
            model = builder(config.model)(figures.image_shape, len(figures.class_names))
        self._loop = Loop(strategy, model, config)
        self._work = Path(spec.work)
        self._checkpoints = Checkpoints(self._work)
        self._state = self._restore()
        self._writer = tf.summary.create_file_writer(str(self._work / TENSORBOARD)) if spec.is_chief else tf.summary.create_noop_writer()

        # Attributes, so that they live as long as the training does; `run_worker` says why.
        self._batches = iter(training_batches(self._train, config.global_batch, self._slice(), config.seed, self._state.step))
        self._validation_batches = evaluation_batches(self._validation, _EVALUATION_BATCH, spec.index, spec.workers)

    def run(self) -> None:
        while not self._is_done():
            self._train_epoch()
            if self._is_limited():
                break
            self._end_epoch(self._loop.evaluate(self._validation_batches))
        self._leave()

    def _slice(self) -> Slice:
        return Slice.of(self._spec.index, self._spec.workers, self._config.global_batch)

    def _is_done(self) -> bool:
        return len(self._state.history) >= self._config.epochs or self._state.stopped_early or self._is_limited()

    def _is_limited(self) -> bool:
        return self._spec.steps_limit is not None and self._state.step >= self._spec.steps_limit

    def _train_epoch(self) -> None:
        """Steps to the end of the running epoch, a few in each call of the compiled function."""
        state, end = self._state, self._steps_per_epoch * (len(self._state.history) + 1)
        end = min(end, self._spec.steps_limit or end)
        reported = 0.0
        while state.step < end:
            num_steps = min(self._config.steps_per_call, end - state.step, self._steps_to_checkpoint())
            *sums, stop = self._loop.train(self._batches, tf.constant(num_steps), tf.constant(self._stop.as_number)).numpy()
            refuse_infinite(float(sums[0]), state.step, state.learning_rate)
            state.step += num_steps
            state.epoch_sums = [a + float(b) for a, b in zip(state.epoch_sums, sums, strict=True)]
            if time.monotonic() - reported > _REPORT_SECONDS or state.step == end:
                self._report(means(state.epoch_sums))
                reported = time.monotonic()
            if state.step % self._config.checkpoint_every_steps == 0:
                self._save()
            if stop:
                self._save()
                self._progress.report("preempted", state.step, unit="steps")
                raise Preempted(state.step)

    def _steps_to_checkpoint(self) -> int:
        return self._config.checkpoint_every_steps - self._state.step % self._config.checkpoint_every_steps

    def _end_epoch(self, validation_sums: np.ndarray) -> None:
        state, trained, validated = self._state, means(self._state.epoch_sums), means(validation_sums)
        epoch = Epoch(epoch=len(state.history), step=state.step, loss=trained["loss"], accuracy=trained["accuracy"],
                      validation_loss=validated["loss"], validation_accuracy=validated["accuracy"], learning_rate=state.learning_rate)
        end_epoch(self._config, state, epoch)
        state.epoch_sums = [0.0, 0.0, 0.0]
        self._loop.set_learning_rate(state.learning_rate)
        weights = self._loop.weights()
        if state.best_epoch == epoch.epoch:
            self._remember_best(weights)
        self._write_scalars(epoch)
        self._report({name: getattr(epoch, name) for name in ("loss", "accuracy", "validation_loss", "validation_accuracy")})

    def _remember_best(self, weights: list[np.ndarray]) -> None:
        """Before the state that refers to them: a restart between the two finds the epoch not done, and does it again."""
        if self._spec.is_chief:
            write_arrays(self._best_file(), weights)
        self._save()
        for old in self._work.glob("best-*.npz") if self._spec.is_chief else ():
            if old != self._best_file():
                old.unlink()
        self._best = weights

    def _best_file(self) -> Path:
        return self._work / f"best-{self._state.best_epoch:05d}.npz"

    def _save(self) -> None:
        weights, optimizer_values = self._loop.weights(), self._loop.optimizer_values()  # by all workers, written by one
        if self._spec.is_chief:
            self._checkpoints.save(self._state, weights, optimizer_values)

    def _restore(self) -> TrainingState:
        restored = self._checkpoints.restore()
        if restored is None:
            self._best = self._loop.weights()
            return TrainingState(learning_rate=self._config.optimizer.learning_rate)
        self._state, weights, optimizer_values = restored
        self._loop.assign(weights, optimizer_values)
        self._best = read_arrays(self._best_file()) if self._state.best_epoch >= 0 else weights
        self._progress.report("restored", self._state.step, unit="steps", message=f"goes on from step {self._state.step}")
        return self._state

    def _leave(self) -> None:
        """Every worker says what it ended with; the chief leaves the trained weights and the state that belongs to them.

        A worker takes the best weights from its own memory, so equal digests show that all have trained alike.
        """
        weights = self._loop.weights() if self._is_limited() else self._best
        if self._spec.is_chief:
            write_arrays(self._work / TRAINED, weights)
            write_json(self._work / STATE, self._state.model_dump(mode="json") | {"num_parameters": self._loop.model.count_params()})
        write_whole(self._work / worker_digest_name(self._spec.index), digest_of_weights(weights).encode())
        self._writer.close()
        self._progress.report("trained", self._state.step, self._state.step, "steps")

    def _report(self, metrics: dict[str, float]) -> None:
        self._progress.report("train", self._state.step, self._config.epochs * self._steps_per_epoch, "steps", metrics)

    def _write_scalars(self, epoch: Epoch) -> None:
        with self._writer.as_default(step=epoch.step):
            for name in ("loss", "accuracy", "validation_loss", "validation_accuracy", "learning_rate"):
                tf.summary.scalar(name, getattr(epoch, name))
        self._writer.flush()


def refuse_infinite(loss: float, step: int, learning_rate: float) -> None:
    """Raises ConfigError for a loss that is no number: from there on, no step can mend the weights."""
    if not math.isfinite(loss):
        raise ConfigError(f"the loss became {loss} after step {step} at learning rate {learning_rate:g}; lower train.optimizer.learning_rate")


def open_splits(request: Request) -> tuple[Split, Split, DatasetFigures]:
    """Training and validation split of the data set that the request names."""
    uri = request.inputs["preprocess"].uri
    manifest = read_manifest(uri)
    figures = DatasetFigures.model_validate(manifest.figures)

    def split(name: str) -> Split:
        return Split(tuple(shard_paths(uri, manifest, name)), figures.num_examples[name], sum(file.num_bytes for file in shards_of(manifest, name)),
                     figures.image_shape, removed_positions(manifest, name))

    return split("train"), split("validation"), figures


def _steps_per_epoch(split: Split, config: Train) -> int:
    steps = split.steps_per_epoch(config.global_batch)
    if steps == 0:
        raise DataError(f"the train split has {split.num_examples} examples, fewer than one global_batch ({config.global_batch}); "
                        "lower train.global_batch or add data")
    return steps
