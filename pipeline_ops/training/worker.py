"""A worker's life: join the gang, go on from the last checkpoint, train epoch by epoch, say what the weights were.

All workers run the same code on the same state; only the chief writes. Forked by `preloaded.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.figures import TENSORBOARD, Epoch
from pipeline_ops.contracts.files import write_json, write_whole
from pipeline_ops.contracts.fingerprint import digest_of
from pipeline_ops.contracts.gang import STATE, TRAINED, WorkerSpec, worker_digest_name
from pipeline_ops.contracts.local_dataset import host_cache, with_local_dataset
from pipeline_ops.contracts.progress import ProgressWriter
from pipeline_ops.contracts.request import Request, read_request
from pipeline_ops.input.dataset import Slice, evaluation_batches, training_batches
from pipeline_ops.input.sources import open_source
from pipeline_ops.models.task import means
from pipeline_ops.training.callbacks import end_epoch
from pipeline_ops.training.checkpoints import Checkpoints
from pipeline_ops.training.loop import Taken
from pipeline_ops.training.optimizer import schedule_factor
from pipeline_ops.training.preemption import Preempted, StopRequest
from pipeline_ops.training.splits import open_splits, refuse_small
from pipeline_ops.training.state import Arrays, TrainingState, digest_of_weights, write_arrays
from pipeline_ops.training.strategy import ChosenStrategy, make_strategy
from pipeline_ops.training.trainee import make_loop, make_task

_REPORT_SECONDS = 0.25


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
    chosen = make_strategy(config, spec)
    progress.report("building", message=f"strategy {chosen.name}{', because ' + chosen.reason if chosen.reason else ''}")
    training = Training(spec, request, config, chosen, progress)
    training.run()
    return training


class Training:
    """One process's side of a training: all workers of a gang that train in step, or the chief of one with parameter servers.

    Args:
      spec: which process this is.
      request: the train job's request; its input is the data set.
      config: the training section.
      chosen: the strategy, joined, and why it is the one.
      progress: where to report to; silence is taken for a hang.
    """

    def __init__(self, spec: WorkerSpec, request: Request, config: Train, chosen: ChosenStrategy, progress: ProgressWriter):
        self._spec, self._config, self._chosen, self._progress, self._stop = spec, config, chosen, progress, StopRequest()
        cache = host_cache(config.input)
        request = with_local_dataset(request, config.input, cache, self._say)
        self._train, self._validation, figures = open_splits(request)
        refuse_small(self._train, config)
        self._total_steps = self._train.end_of_epoch(config.epochs - 1, config.global_batch)
        self._task = make_task(config, request, figures)
        self._loop = make_loop(config, request, chosen.strategy, self._task, figures)
        self._work = Path(spec.work)
        self._checkpoints = Checkpoints(self._work, config.keep_checkpoints, config.best_checkpoint.keep if config.best_checkpoint else 1)
        if spec.is_chief:
            self._checkpoints.remove_leftovers()
        self._state = self._restore()
        self._writer = tf.summary.create_file_writer(str(self._work / TENSORBOARD)) if spec.is_chief else tf.summary.create_noop_writer()

        # Attributes, so that they live as long as the training does; `run_worker` says why.
        self._source = open_source(self._train, self._task.parse, config.input, cache, digest_of(request.fingerprint.code), self._say)
        self._batches = self._batches_from(self._state.step)
        self._validation_batches = evaluation_batches(self._validation, self._task.parse, self._task.evaluation_batch, *self._share())

    def run(self) -> None:
        while not self._is_done():
            self._train_epoch()
            if self._is_limited():
                break
            self._end_epoch(self._loop.evaluate(self._validation_batches))
        self._leave()

    def _batches_from(self, step: int) -> Iterator:
        part = Slice.of(*self._share(), self._config.global_batch)
        return iter(training_batches(self._train, self._source, self._config.global_batch, part, self._config.seed, step, self._config.input.augment))

    def _share(self) -> tuple[int, int]:
        """This process's number among those that read the data, and how many these are."""
        return (self._spec.index, self._spec.workers) if self._spec.is_peer else (0, 1)

    def _is_done(self) -> bool:
        return len(self._state.history) >= self._config.epochs or self._state.stopped_early or self._is_limited()

    def _is_limited(self) -> bool:
        return self._spec.steps_limit is not None and self._state.step >= self._spec.steps_limit

    def _train_epoch(self) -> None:
        """Steps to the end of the running epoch, a few in each call of the compiled function."""
        state, end = self._state, self._train.end_of_epoch(len(self._state.history), self._config.global_batch)
        end = min(end, self._spec.steps_limit or end)
        reported = 0.0
        while state.step < end:
            taken = self._take_steps(min(self._config.steps_per_call, end - state.step, self._steps_to_checkpoint()))
            self._checkpoints.raise_failure()
            if time.monotonic() - reported > _REPORT_SECONDS or state.step == end:
                self._report(means(self._task, state.epoch_sums))
                reported = time.monotonic()
            if state.step % self._config.checkpoint_every_steps == 0:
                self._save()
            if taken.is_asked_to_stop:
                self._save()
                self._checkpoints.wait()
                self._progress.report("preempted", state.step, unit="steps")
                raise Preempted(state.step)

    def _take_steps(self, num_steps: int) -> Taken:
        """Steps in one call of the compiled function, counted in the state."""
        state = self._state
        learning_rates = [self._learning_rate(state.step + i) for i in range(num_steps)]
        taken = self._loop.train(self._batches, learning_rates, self._stop.as_number)
        if not taken.is_sound:
            raise not_a_number(state.step, num_steps, learning_rates[0])
        state.step += num_steps
        sums = state.epoch_sums or [0.0] * len(taken.sums)
        state.epoch_sums = [a + float(b) for a, b in zip(sums, taken.sums, strict=True)]
        return taken

    def _learning_rate(self, step: int) -> float:
        """Of one step: what the callbacks have left of the config's, times the schedule's factor."""
        return self._state.learning_rate * schedule_factor(self._config.optimizer.schedule, step, self._total_steps)

    def _steps_to_checkpoint(self) -> int:
        return self._config.checkpoint_every_steps - self._state.step % self._config.checkpoint_every_steps

    def _end_epoch(self, validation_sums: np.ndarray) -> None:
        state, trained, validated = self._state, means(self._task, self._state.epoch_sums), means(self._task, validation_sums)
        epoch = Epoch(epoch=len(state.history), step=state.step, learning_rate=self._learning_rate(state.step - 1),
                      metrics=trained | {f"validation_{name}": value for name, value in validated.items()})
        end_epoch(self._config, state, epoch)
        state.epoch_sums = []
        best = self._loop.best_weights()  # by all workers: some variables are averaged over them when they are read
        if state.best_epoch == epoch.epoch:
            self._best = best
            self._save(best)
        self._write_scalars(epoch)
        self._report(epoch.metrics)

    def _save(self, best: Arrays | None = None) -> None:
        weights, optimizer_values = self._loop.weights(), self._loop.optimizer_values()  # by all workers, written by one
        if self._spec.is_chief:
            self._checkpoints.save(self._state, weights, optimizer_values, best)

    def _restore(self) -> TrainingState:
        """The state to go on from; weights and optimizer are set to what belongs to it."""
        warnings: list[str] = []
        restored = self._checkpoints.restore(warnings.append)
        for warning in warnings:
            self._progress.report("warning", message=warning)
        if restored is None:
            self._best = self._loop.best_weights()
            return TrainingState(learning_rate=self._config.optimizer.learning_rate, warnings=warnings)
        self._loop.assign(restored.weights, restored.optimizer)
        self._best = restored.weights if restored.best is None else restored.best
        self._progress.report("restored", restored.state.step, unit="steps", message=f"goes on from step {restored.state.step}")
        restored.state.warnings += warnings
        return restored.state

    def _leave(self) -> None:
        """Every worker says what it ended with; the chief leaves the trained weights and the state that belongs to them.

        A worker takes the best weights from its own memory, so equal digests show that all have trained alike.
        """
        weights = self._loop.best_weights() if self._is_limited() else self._best
        self._checkpoints.wait()
        if self._spec.is_chief:
            write_arrays(self._work / TRAINED, weights)
            write_json(self._work / STATE, self._state.model_dump(mode="json") | {
                "num_parameters": self._loop.model.count_params(), "strategy": self._chosen.name, "strategy_reason": self._chosen.reason})
        write_whole(self._work / worker_digest_name(self._spec.index), digest_of_weights(weights).encode())
        self._writer.close()
        self._progress.report("trained", self._state.step, self._state.step, "steps")

    def _report(self, metrics: dict[str, float]) -> None:
        self._progress.report("train", self._state.step, self._total_steps, "steps", metrics)

    def _say(self, message: str) -> None:
        self._progress.report("input", message=message)

    def _write_scalars(self, epoch: Epoch) -> None:
        with self._writer.as_default(step=epoch.step):
            for name, value in (epoch.metrics | {"learning_rate": epoch.learning_rate}).items():
                tf.summary.scalar(name, value)
        self._writer.flush()


def not_a_number(step: int, num_steps: int, learning_rate: float) -> ConfigError:
    """For a loss or weights that are no numbers: from there on, no step can mend the weights."""
    return ConfigError(f"the loss or the weights became infinite or no number in the {num_steps} steps after step {step}, at learning rate "
                       f"{learning_rate:g}; lower train.optimizer.learning_rate, or set train.optimizer.clip")
