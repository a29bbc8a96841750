"""The training itself: steps, epochs, checkpoints, and the reaction to a divergence.

`worker.py` builds the parts. All workers run this code on the same state and decide alike.

The loop takes several steps in one call, so it only learns that one of them diverged. The training
then goes back to the last checkpoint and takes the same steps one by one to find the step. All
workers see the same reduced metrics and so find the same step. The state holds the decision and is
saved before anything else happens, so a restart in between changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.card.collection import CardCollection
from pipeline_ops.config.train import MAX_EPOCHS, Train
from pipeline_ops.contract.dataset import KEY
from pipeline_ops.contract.gang_protocol import (
    COMPILING_PHASE,
    TRAIN_PHASE,
    WAITING_PHASE,
    WorkerSpec,
)
from pipeline_ops.contract.progress import ProgressWriter
from pipeline_ops.contract.results import DIVERGED, Epoch
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.models.task import (
    BatchSums,
    Task,
    compute_figures,
    compute_means,
    count_answers_not_finite,
)
from pipeline_ops.models.user_errors import describe_call
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.training.callbacks import KerasCallbacks, end_epoch, to_logs
from pipeline_ops.training.checkpoints import Checkpoints, Restored
from pipeline_ops.training.input_pipeline import InputPipeline
from pipeline_ops.training.loop import Batches, Loop, StepResult
from pipeline_ops.training.optimizer import Schedule
from pipeline_ops.training.stop_signal import StopReceived, StopSignal
from pipeline_ops.training.strategy import Gather, find_match
from pipeline_ops.training.tensorboard import TensorboardWriter
from pipeline_ops.training.training_state import DivergedStep, EpochSums, TrainingState
from pipeline_ops.training.usage import GpuMonitor, TimeSums
from pipeline_ops.training.weight_files import Arrays

_REPORT_SECONDS, _VALIDATION_REPORT_SECONDS = 0.25, 1.0
_SAVING = "saving"
_NOT_FINITE = "is not a finite number"
_MAX_NAMED = 5
"""The number of examples that a message names."""
_SUMMARY_COLUMNS, _SUMMARY_LINES = 100, 200
_DIVERGENCE_FACTOR = 0.5
"""The factor of `lower_learning_rate`."""


@dataclasses.dataclass(eq=False)
class DivergedError(Exception):
    """A step before `until` has diverged: `step`, once it is known."""

    until: int
    step: int | None
    loss: float


@dataclasses.dataclass(eq=False)
class Trainer:
    """One process's side of a training: a synchronous worker, or the chief of parameter servers.

    The supervisor restarts a gang in which no process reports progress.
    """

    spec: WorkerSpec
    config: Train
    task: Task
    loop: Loop
    input: InputPipeline
    checkpoints: Checkpoints
    initialize: Callable[[], TrainingState]
    """Sets the loop's weights for a new training, and returns its state."""
    schedule: Schedule
    callbacks: KerasCallbacks
    tensorboard: TensorboardWriter | None
    stop: StopSignal
    progress: ProgressWriter
    gpu_monitor: GpuMonitor
    card: CardCollection
    gather: Gather = lambda message: [message]
    times: TimeSums = dataclasses.field(default_factory=TimeSums, init=False)
    state: TrainingState = dataclasses.field(init=False)
    _best: Arrays = dataclasses.field(init=False)
    """The weights of the best epoch so far."""
    _batches: Batches = dataclasses.field(init=False)
    _reported: float = dataclasses.field(default=0.0, init=False)
    """The time of the last report of steps, of the monotonic clock."""
    _single_steps_until: int = dataclasses.field(default=0, init=False)
    """The step up to which each step has a call of its own, because one of them diverged."""

    def run(self) -> None:
        """Trains from the newest checkpoint to the end."""
        self._resume(self.checkpoints.restore_common)
        self._begin_callbacks()
        if self.state.step == 0:
            self._save()  # for a divergence in the first steps
        while len(self.state.history) < self.input.num_epochs and not self.state.stopped_early:
            try:
                self._train_epoch()
            except DivergedError as error:
                self._recover(error)
                continue
            if self._has_reached_limit():
                break
            # The epoch is saved before its validation, so a failed validation does not cost it. An
            # epoch that a callback has ended early is saved afterwards.
            if self.checkpoints.saved_step != self.state.step and not self.state.stopped_early:
                self._save()
            self._end_epoch()
        self.progress.report("finishing")
        self._end_callbacks()
        self.state.card = self.card.content
        self.checkpoints.wait()
        if self.tensorboard:
            self.tensorboard.close()

    def _resume(self, restore: Callable[[Callable[[str], None]], Restored | None]) -> None:
        """Restores the newest checkpoint that all workers can read, or begins a new training."""
        warnings: list[str] = []
        restored = restore(warnings.append)
        for warning in warnings:
            self.progress.report("warning", message=warning)
        if restored is None:
            self.state = self.initialize()
            if self.spec.is_chief:
                print(describe_model(self.loop.model))
            self._best = self.loop.get_best_weights()
        else:
            self.state = restored.state
            self.card.content = restored.state.card
            self.loop.assign(restored.weights, restored.optimizer)
            self._best = restored.weights if restored.best is None else restored.best
            step = restored.state.step
            message = f"resumes from step {step}"
            self.progress.report("restored", step, unit="steps", message=message)
        self.state.warnings += warnings
        self._batches = self.input.make_batches(self.state.step)

    def _save(self, best: Arrays | None = None) -> None:
        """Saves the loop and its state. `best` has the weights of a new best epoch."""
        if best is not None:
            self._best = best
        self.callbacks.save(self.state)
        self.state.card = self.card.content
        begun = time.perf_counter()
        # All workers read, because reading is an exchange between them for some variables.
        views = self.loop.get_views()
        with self._report_if_long(_SAVING):
            self.checkpoints.save(self.state, *views, best)
        self.times.add_saving(time.perf_counter() - begun)

    def get_trained_weights(self) -> Arrays:
        """Returns the weights of the best epoch, or the present ones at the limit of steps.

        They come from this worker's memory, so equal digests show that all have trained alike.
        """
        return self.loop.get_best_weights() if self._has_reached_limit() else self._best

    def _has_reached_limit(self) -> bool:
        return self.spec.steps_limit is not None and self.state.step >= self.spec.steps_limit

    def _train_epoch(self) -> None:
        """Trains to the end of the running epoch, a few steps per call of the compiled function.

        A worker that got SIGTERM adds it to the sums that all workers reduce at every step. So all
        see it in the same call, save the same step and leave. No separate message could be late.
        """
        steps = self._begin_epoch()
        while self.state.step < steps.stop and not self.state.stopped_early:
            result = self._call_steps(steps)
            self.checkpoints.raise_failure()
            self._report_if_due(steps)
            if result.is_stop_requested:
                self._save()
                self._leave()
            self._save_if_due()

    def _begin_epoch(self) -> range:
        """Freezes weights, and calls the hook of an epoch that begins. Returns its steps."""
        epoch = len(self.state.history)
        if self.config.freeze_epochs or self.config.freeze:
            self.loop.freeze(self._find_frozen())
        begin = self.input.compute_epoch_end(epoch - 1) if epoch else 0
        end = self.input.compute_epoch_end(epoch)
        if self.state.step == begin:
            self._call_hook("on_epoch_begin", epoch)
        if self.loop.is_traced:
            self._report_step()
        self._reported = 0.0
        return range(begin, min(end, self.spec.steps_limit or end))

    def _call_steps(self, steps: range) -> StepResult:
        """Takes as many steps as one call may take, one if callbacks watch each batch."""
        if not self.callbacks.has_batch_hooks:
            with self.input.raise_errors():
                return self._advance(self._count_next_steps(steps))
        batch = self.state.step - steps.start
        self._call_batch_hook("on_train_batch_begin", batch)
        with self.input.raise_errors():
            result = self._advance(1)
        self._call_batch_hook("on_train_batch_end", batch, self._compute_epoch_means())
        return result

    def _count_next_steps(self, steps: range) -> int:
        """Returns the number of steps to the next checkpoint or the epoch's end, with a limit."""
        step, every = self.state.step, self.config.checkpoint_every_steps
        limit = self.config.steps_per_call if step else 1  # a first loss is there soon
        return min(limit, steps.stop - step, every - step % every)

    def _report_if_due(self, steps: range) -> None:
        if self.state.step == steps.stop or time.monotonic() - self._reported > _REPORT_SECONDS:
            self._report(self._compute_epoch_means())
            self._reported = time.monotonic()

    def _save_if_due(self) -> None:
        is_due = self.state.step % self.config.checkpoint_every_steps == 0
        if is_due and not self.state.stopped_early:  # an epoch that was cut short ends first
            self._save()

    def _leave(self) -> NoReturn:
        with self._report_if_long(_SAVING):
            self.checkpoints.wait_until_stored()
        step = self.checkpoints.saved_step
        self.progress.report("preempted", step, unit="steps")
        raise MachineError(f"stopped by SIGTERM after step {step}. Its checkpoint is saved.")

    def _find_frozen(self) -> set[int]:
        """Finds the weights that do not learn in the running epoch, by their positions."""
        config, epoch = self.config, len(self.state.history)
        paths = dict(enumerate(self.loop.paths.weights))
        new = {number for number, path in paths.items() if path in self.state.new_weights}
        ends = {pattern: end or MAX_EPOCHS for pattern, end in config.freeze.items()}
        found = {number for number in paths if epoch < (find_match(paths[number], ends) or 0)}
        return found | (paths.keys() - new if new and epoch < config.freeze_epochs else set())

    def _advance(self, max_steps: int) -> StepResult:
        """Takes up to `max_steps` steps in one call, and leaves out those to be skipped."""
        state, skipped = self.state, self.state.skipped
        while max_steps and state.step in skipped:
            next(self._batches)
            state.step, max_steps = state.step + 1, max_steps - 1
        is_single = state.step < self._single_steps_until
        last = min(1, max_steps) if is_single else max_steps
        num_steps = next((i for i in range(last) if state.step + i in skipped), last)
        rates = [self._compute_learning_rate(state.step + i) for i in range(num_steps)]
        if not rates:
            return StepResult(BatchSums(0.0, (), 0.0), True, False, 0.0)
        if not self.loop.is_traced:
            self.progress.report("tracing", message="traces the training step")
            self.loop.trace(self._batches, state.step, rates)
            message = "compiles and takes the first step"
            self.progress.report(COMPILING_PHASE, message=message)
        board, first = self.tensorboard, state.step + 1
        with board.profile(first, first + num_steps) if board else contextlib.nullcontext():
            begun = time.perf_counter()
            result = self.loop.train(self._batches, state.step, rates, float(self.stop.is_set()))
            self.times.add_steps(time.perf_counter() - begun, result.waits)
        limit = self.config.on_divergence.max_loss
        if not result.is_sound or (limit is not None and result.worst_loss > limit):
            raise DivergedError(
                state.step + num_steps, state.step if is_single else None, result.worst_loss
            )
        state.step += num_steps
        sums, new = state.epoch_sums, result.sums
        metrics = np.add(sums.metrics or 0.0, new.metrics).tolist()
        state.epoch_sums = EpochSums(
            sums.loss + float(new.loss), metrics, sums.count + float(new.count)
        )
        return result

    def _recover(self, error: DivergedError) -> None:
        """Goes back to the last checkpoint, and applies the config's policy to a known step."""
        epoch, timeout_seconds = len(self.state.history), self.config.phase_timeout_seconds
        self.progress.report(_SAVING, message="waits for the last checkpoint")
        self._resume(lambda warn: self.checkpoints.roll_back(warn, timeout_seconds))
        state = self.state
        self._begin_callbacks()
        if error.step is None:
            self._single_steps_until = error.until
            message = (
                f"the loss or the weights diverged before step {error.until} "
                f"(loss {error.loss:g}). Repeating from step {state.step}, one step at a time."
            )
        else:
            self._single_steps_until = 0
            batch = self._save_batch(error.step, error.loss, epoch)
            _apply_divergence_policy(self.config, state, error.step, error.loss, batch)
            self._save()  # the decision is part of the checkpoint
            message = state.warnings[-1]
        self.progress.report("diverged", state.step, unit="steps", message=message)

    def _save_batch(self, step: int, loss: float, epoch: int) -> str:
        """Writes a step's examples as a TFRecord file, and their keys as JSON. Says where."""
        if self.config.dataset:
            return "Its batch came from train.dataset, and is not saved."
        file = Path(self.spec.work) / DIVERGED / f"step-{step:09d}.tfrecord"
        place = f"Its batch is in {file}."
        if not self.spec.is_chief:
            return place
        file.parent.mkdir(parents=True, exist_ok=True)
        examples = self.input.read_step(step)
        with tf.io.TFRecordWriter(str(file)) as writer:
            for example in examples:
                writer.write(example)
        features = {KEY: tf.io.FixedLenFeature([], tf.string)}
        keys = tf.io.parse_example(examples, features)[KEY].numpy()
        facts = {
            "step": step,
            "epoch": epoch,
            "loss": loss if math.isfinite(loss) else repr(loss),
            "learning_rate": self._compute_learning_rate(step),
            "keys": [key.decode("utf-8", "backslashreplace") for key in keys],
        }
        write_json(file.with_suffix(".json"), facts)
        return place

    def _compute_learning_rate(self, step: int) -> float:
        if self.loop.learning_rate is None:
            return self.loop.read_learning_rate()
        return self.state.learning_rate * self.schedule(step, self.input.total_steps)

    def _compute_epoch_means(self) -> dict[str, float]:
        sums = self.state.epoch_sums
        metrics = sums.metrics or [0.0] * len(self.task.metrics)  # if all steps were skipped
        return compute_means(self.task.metrics, BatchSums(sums.loss, metrics, sums.count))

    def _end_epoch(self) -> None:
        state = self.state
        try:
            with self.stop.interrupting():
                self._record_epoch()
        except StopReceived:
            self._leave()
        state.epoch_sums = EpochSums()
        # All workers read, because some variables are averaged over the workers when they are read.
        weights = self.loop.get_best_weights()
        epoch = state.history[-1]
        if state.best_epoch == epoch.epoch:
            self._save(weights)
        if self.tensorboard:
            shares, gpus = self.times.compute_shares(), self.gpu_monitor.gpus
            with self._report_if_long("tensorboard"):
                self.tensorboard.write(epoch, weights, shares, gpus)
        self._report(epoch.metrics, len(state.history))

    def _record_epoch(self) -> None:
        """Computes the figures of the epoch that ends, and adds them to the history."""
        state = self.state
        validated = self._compute_validation() if self.input.validation.num_examples else {}
        epoch = Epoch(
            epoch=len(state.history),
            step=state.step,
            learning_rate=self._compute_learning_rate(state.step - 1),
            metrics=self._compute_epoch_means()
            | {f"validation_{name}": value for name, value in validated.items()},
        )
        end_epoch(self.config, state, epoch)
        self._call_hook("on_epoch_end", epoch.epoch, to_logs(epoch.metrics))

    def _compute_validation(self) -> dict[str, float]:
        self._call_hook("on_test_begin")
        sums = self.loop.evaluate(self._iterate_validation())
        validated = compute_figures(self.task, sums)
        num_unusable = count_answers_not_finite(self.task, sums)
        if num_unusable or not all(map(math.isfinite, validated.values())):
            self._explain_not_finite(validated, num_unusable)
        self._call_hook("on_test_end", validated)
        return validated

    def _explain_not_finite(self, validated: dict[str, float], num_unusable: int) -> None:
        """Names the validation examples whose answers or figures are not finite.

        All workers know the same sums, so all come here. Each looks at its own examples, and all
        learn the first ones of each. Warns of figures, once in a training. Raises ConfigError if
        answers are not finite.
        """
        state, epoch = self.state, len(self.state.history) + 1
        if not num_unusable and any(_NOT_FINITE in warning for warning in state.warnings):
            return
        verdicts = self.loop.judge(self._iterate_validation())
        rows = np.flatnonzero(~verdicts[:, 0 if num_unusable else 1])
        index, workers = (self.spec.index, self.spec.workers) if self.spec.is_peer else (0, 1)
        first = [str(row * workers + index) for row in rows[:_MAX_NAMED].tolist()]
        own = " ".join([str(len(rows)), *first])
        messages = [text.decode().split() for text in self.gather(own.encode())]
        count = sum(int(message[0]) for message in messages)
        numbers = sorted(int(number) for message in messages for number in message[1:])
        keys = self.input.read_validation_keys(numbers[:_MAX_NAMED])
        total = self.input.validation.num_examples
        listed = ", ".join(keys) + ", ..." * (count > len(keys))
        if num_unusable:
            raise ConfigError(self._describe_unusable(epoch, num_unusable, total, listed))
        names = [name for name, value in validated.items() if not math.isfinite(value)]
        figures = ", ".join(f"validation_{name}" for name in names)
        cause = (
            f"it is not finite for {count} of {total} images: {listed}"
            if count
            else "though it is for each image, so its sum is too large"
        )
        message = (
            f"{figures} of epoch {epoch} {_NOT_FINITE}: {cause}. Such an epoch counts as the worst."
        )
        state.warnings.append(message)
        self.progress.report("warning", message=message)

    def _describe_unusable(self, epoch: int, count: int, total: int, keys: str) -> str:
        """Says which answers are not finite, and what to do."""
        weights = zip(self.loop.model.weights, self.loop.get_best_weights(), strict=True)
        broken = [each.path for each, value in weights if not np.isfinite(value).all()]
        answers = (
            f"the answers of train.model {self.config.model} to {count} of {total} validation "
            f"images are not finite after epoch {epoch}: {keys}. "
        )
        if broken:
            return (
                f"{answers}The cause are its weights: {', '.join(broken[:_MAX_NAMED])}. Lower "
                "train.optimizer.learning_rate, or correct the callback that sets them."
            )
        precision = self.config.precision
        return (
            f"{answers}Its weights are finite, so it cannot compute these images. Make it return "
            "numbers for every image (one of a single colour has a deviation of 0: add a small "
            "number before you divide by it), or take the images out of the data set"
            + (f", or set train.precision to float32 instead of {precision}" * ("16" in precision))
            + "."
        )

    @contextlib.contextmanager
    def _report_if_long(self, phase: str) -> Iterator[None]:
        """Reports the phase of a block once it has lasted for a moment, and afterwards a step.

        For what comes between steps, and is usually too short for a report each time.
        """
        is_reported = False

        def report() -> None:
            nonlocal is_reported
            self.progress.report(phase)
            is_reported = True

        timer = threading.Timer(_REPORT_SECONDS, report)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
        if is_reported and self.loop.is_traced:
            self._report_step()

    def _begin_callbacks(self) -> None:
        if not self.callbacks.is_empty:
            self.progress.report("callbacks")
        self.callbacks.begin(self.state)

    def _call_batch_hook(self, hook: str, *arguments: Any) -> None:
        with self._report_if_long("callbacks"):
            self.callbacks.call(hook, self.state, *arguments)

    def _call_hook(self, hook: str, *arguments: Any) -> bool:
        """Calls a hook of all callbacks, a phase of its own. See `KerasCallbacks.call`."""
        if self.callbacks.is_empty:
            return False
        self.progress.report("callbacks")
        return self.callbacks.call(hook, self.state, *arguments)

    def _iterate_validation(self) -> Iterator[Any]:
        """Yields this worker's batches of the validation split, and reports how many are done."""
        total, reported = self.input.num_validation_batches, time.monotonic()
        self.progress.report("validate", 0, total, "batches")
        for done, batch in enumerate(self.input.validation_batches):
            if time.monotonic() - reported > _VALIDATION_REPORT_SECONDS:
                self.progress.report("validate", done, total, "batches")
                reported = time.monotonic()
            yield batch
        self.progress.report(WAITING_PHASE, message="has validated its part")

    def _end_callbacks(self) -> None:
        state = self.state
        logs = to_logs(state.history[-1].metrics) if state.history else None
        if self._call_hook("on_train_end", logs) and not self._has_reached_limit():
            self._best = self.loop.get_weights()
            state.warnings.append(
                "A callback has set the weights at the end of the training. They may not be those "
                f"of epoch {state.best_epoch + 1}."
            )

    def _report_step(self) -> None:
        """Reports the start of a step, which starts its timeout."""
        self.progress.report(TRAIN_PHASE, self.state.step, self.input.total_steps, "steps")

    def _report(self, metrics: dict[str, float], epoch: int | None = None) -> None:
        step, total = self.state.step, self.input.total_steps
        rates = {"examples_per_second": self.config.batch_size}
        self.progress.report(
            TRAIN_PHASE,
            step,
            total,
            "steps",
            metrics,
            per_unit=rates,
            epoch=epoch,
            shares=self.times.compute_shares(),
            gpus=self.gpu_monitor.gpus,
        )


def describe_model(model: keras.Model) -> str:
    """Returns Keras's summary of a model. A long one is cut in its middle."""
    parts: list[str] = []
    try:
        model.summary(line_length=_SUMMARY_COLUMNS, print_fn=parts.append)
    except Exception as error:  # an author's compute_output_shape may raise any exception
        return f"There is no summary of the model: {describe_call(error)}"
    lines = "".join(parts).splitlines()
    if len(lines) > _SUMMARY_LINES:
        left_out = len(lines) - _SUMMARY_LINES
        half = _SUMMARY_LINES // 2
        lines[half:-half] = [f"... {left_out} lines are left out ..."]
    return "\n".join(lines)


def _apply_divergence_policy(
    config: Train, state: TrainingState, step: int, loss: float, batch: str
) -> None:
    """Raises ConfigError if the config's policy is to stop, or its budget is spent."""
    policy = config.on_divergence
    description = (
        f"the loss or the weights diverged at step {step} (loss {loss:g}, "
        f"learning rate {state.learning_rate:g}). {batch}"
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
    if policy.action == "lower_learning_rate":
        state.learning_rate *= _DIVERGENCE_FACTOR
        consequence = f"The learning rate is {state.learning_rate:g} from step {state.step} on."
    else:
        consequence = "The batch was skipped."
    state.divergences.append(
        DivergedStep(step=step, loss=repr(loss), is_skipped=policy.action == "skip_batch")
    )
    state.warnings.append(f"{description} {consequence}")
