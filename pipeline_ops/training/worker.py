"""A worker: join the gang, resume from the last checkpoint, train, report the weights' digest.

All workers run the same code on the same state. Only the chief writes checkpoints and results.
`fork_server.py` forks the workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline_ops.artifacts.input_names import WARM_START
from pipeline_ops.artifacts.results import DIVERGED, TENSORBOARD, Epoch
from pipeline_ops.config.train import Train
from pipeline_ops.input.augmentation import make_changes
from pipeline_ops.input.dataset import evaluation_batches, examples_of_step, training_batches
from pipeline_ops.input.sources import EncodedSource, open_source
from pipeline_ops.input.split import BatchSlice
from pipeline_ops.jobs.gang_protocol import STATE, TRAINED, WorkerSpec, worker_digest_name
from pipeline_ops.jobs.local_copy import host_cache, with_local_dataset
from pipeline_ops.jobs.progress import ProgressWriter
from pipeline_ops.jobs.request import Request, read_request
from pipeline_ops.models.task import means
from pipeline_ops.storage.atomic import write_json, write_whole
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.training.builders import make_board, make_loop, make_task, warm_start_of
from pipeline_ops.training.callbacks import end_epoch
from pipeline_ops.training.checkpointing.checkpoints import Checkpoints
from pipeline_ops.training.checkpointing.consensus import restore_together
from pipeline_ops.training.checkpointing.state import (
    Arrays,
    TrainingState,
    digest_of_weights,
    write_arrays,
)
from pipeline_ops.training.collectives.all_reduce import make_gather
from pipeline_ops.training.debugging import debugging
from pipeline_ops.training.divergence import (
    DivergedError,
    batch_file,
    decide,
    is_sound,
    loss_of,
    save_batch,
)
from pipeline_ops.training.loops.parameter_server import serve
from pipeline_ops.training.loops.synchronous import Taken, snapshot
from pipeline_ops.training.optimizer import schedule_factor
from pipeline_ops.training.own_callbacks import OwnCallbacks
from pipeline_ops.training.preemption import Preempted, StopRequest, report_stop
from pipeline_ops.training.splits import open_splits, refuse_small
from pipeline_ops.training.strategy import (
    ChosenStrategy,
    cluster_resolver,
    make_strategy,
    use_threads,
)

_REPORT_SECONDS = 0.25


def run_worker(spec: WorkerSpec, token: bytes) -> Training:
    """Trains to the end, as one worker of the gang.

    Args:
      spec: The assignment of this worker.
      token: The gang's secret, by which its workers know each other.

    Returns:
      The finished training. The caller must hold it until the process exits. Its destruction
      exchanges messages with peers that may have left already, and then blocks for the ten seconds
      of TensorFlow's timeout.
    """
    progress = ProgressWriter(Path(spec.progress), spec.index)
    progress.report("joining", message=f"{spec.name} of {spec.workers} joins")
    if spec.is_server:
        use_threads(spec)
        report_stop(
            lambda: progress.report("preempted", message="asked to stop; the chief is told to save")
        )
        serve(cluster_resolver(spec))
    request = read_request(spec.request)
    config = Train.model_validate(request.config)
    with debugging(config.debug, Path(spec.work) / TENSORBOARD, spec.name):
        chosen = make_strategy(config, spec, token)
        progress.report(
            "building",
            message=(
                f"strategy {chosen.name}{', because ' + chosen.reason if chosen.reason else ''}"
            ),
        )
        training = Training(spec, request, config, chosen, progress)
        training.run()
    return training


class Training:
    """One process's side of a training: a synchronous worker, or the chief of parameter servers.

    Args:
      spec: The assignment of this process.
      request: The train job's request, whose input is the data set.
      config: The training section.
      chosen: The strategy that the process has joined, and the reason for the choice.
      progress: The progress writer. A process that reports nothing counts as hung.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        request: Request,
        config: Train,
        chosen: ChosenStrategy,
        progress: ProgressWriter,
    ):
        self._spec, self._config, self._chosen, self._progress, self._stop = (
            spec,
            config,
            chosen,
            progress,
            StopRequest(),
        )
        self._cache = cache = host_cache(config.input)
        request = with_local_dataset(request, config.input, cache, self._say)
        self._request = request
        self._train, self._validation, self._figures = open_splits(request)
        refuse_small(self._train, config)
        self._total_steps = self._train.end_of_epoch(config.epochs - 1, config.global_batch)
        self._task = make_task(config, request, self._figures)
        self._gather = make_gather(chosen.strategy)
        self._loop = make_loop(config, request, chosen, self._task, self._figures)
        self._work = Path(spec.work)
        self._checkpoints = Checkpoints(
            self._work,
            config.keep_checkpoints,
            config.best_checkpoint.keep if config.best_checkpoint else 1,
        )
        if spec.is_chief:
            self._checkpoints.remove_leftovers()
        self._state = self._restore()
        self._one_by_one_until = 0
        """The step up to which each step has a call of its own, because one of them diverged."""
        self._board = (
            make_board(
                self._work / TENSORBOARD,
                config,
                request,
                self._figures,
                self._validation,
                self._task,
            )
            if spec.is_chief
            else None
        )
        self._callbacks = OwnCallbacks(
            config.callbacks,
            Path(request.config_file).parent,
            self._loop.model,
            self._work / TENSORBOARD,
            spec.is_chief,
        )

        # Attributes, so that they live as long as the training. `run_worker` gives the reason.
        self._source = open_source(
            self._train,
            self._task.parse,
            config.input,
            cache,
            digest_of(request.fingerprint.code),
            self._say,
        )
        max_boxes = config.model_parameters.get("max_boxes")
        self._changes = make_changes(
            config.input.augment, self._figures.task, self._train.num_examples, max_boxes
        )
        self._batches = self._batches_from(self._state.step)
        self._validation_batches = evaluation_batches(
            self._validation, self._task.parse, self._task.evaluation_batch, *self._share()
        )

    def run(self) -> None:
        if self._state.step == 0:
            self._save()  # the checkpoint for a divergence in the first steps
        self._callbacks.begin(self._state)
        while not self._is_done():
            try:
                self._train_epoch()
            except DivergedError as error:
                self._recover(error)
                continue
            if self._is_limited():
                break
            self._end_epoch(self._loop.evaluate(self._validation_batches))
        self._callbacks.end(self._state)
        self._leave()

    def _batches_from(self, step: int) -> Iterator:
        part = BatchSlice.of(*self._share(), self._config.global_batch)
        return iter(
            training_batches(
                self._train,
                self._source,
                self._config.global_batch,
                part,
                self._config.seed,
                step,
                self._changes,
            )
        )

    def _share(self) -> tuple[int, int]:
        """This process's number among the readers of the data, and the number of readers."""
        return (self._spec.index, self._spec.workers) if self._spec.is_peer else (0, 1)

    def _is_done(self) -> bool:
        return (
            len(self._state.history) >= self._config.epochs
            or self._state.stopped_early
            or self._is_limited()
        )

    def _is_limited(self) -> bool:
        return self._spec.steps_limit is not None and self._state.step >= self._spec.steps_limit

    def _train_epoch(self) -> None:
        """Trains to the end of the running epoch, a few steps per call of the compiled function."""
        state, end = (
            self._state,
            self._train.end_of_epoch(len(self._state.history), self._config.global_batch),
        )
        end = min(end, self._spec.steps_limit or end)
        reported = 0.0
        while state.step < end:
            taken = self._take_steps(
                min(self._config.steps_per_call, end - state.step, self._steps_to_checkpoint())
            )
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

    def _take_steps(self, most: int) -> Taken:
        """Takes at most the given number of steps in one call, and counts them in the state.

        A skipped step counts, too.

        Raises:
          DivergedError: One of the steps diverged.
        """
        state, skipped = self._state, self._state.skipped
        while most and state.step in skipped:
            next(self._batches)
            state.step, most = state.step + 1, most - 1
        is_alone = state.step < self._one_by_one_until
        num_steps = (
            1 if is_alone else next((i for i in range(most) if state.step + i in skipped), most)
        )
        learning_rates = [self._learning_rate(state.step + i) for i in range(num_steps)]
        if is_alone and num_steps:
            taken = self._loop.train_on(next(self._batches), state.step, learning_rates[0])
        else:
            taken = self._loop.train(
                self._batches, state.step, learning_rates, self._stop.as_number
            )
        if num_steps and not is_sound(taken, self._config):
            raise DivergedError(
                state.step + num_steps, state.step if is_alone else None, loss_of(taken)
            )
        state.step += num_steps
        sums = state.epoch_sums or [0.0] * len(taken.sums)
        state.epoch_sums = [a + float(b) for a, b in zip(sums, taken.sums, strict=True)]
        return taken

    def _recover(self, error: DivergedError) -> None:
        """Goes back to the last checkpoint after a divergence.

        Repeats the steps one by one until the diverged step is known, then applies the config's
        policy.
        """
        epoch = len(self._state.history)
        self._restore_step(self._saved_step)
        self._batches = self._batches_from(self._state.step)
        if error.step is None:
            self._one_by_one_until = error.until
            self._progress.report(
                "diverged",
                self._state.step,
                unit="steps",
                message=(
                    f"the loss or the weights diverged before step {error.until} "
                    f"(loss {error.loss:g}); step {self._state.step} again, one by one"
                ),
            )
            return
        self._one_by_one_until = 0
        batch = self._keep_batch(error, self._learning_rate(error.step), epoch)
        decide(self._config, self._state, error.step, error.loss, batch)
        self._save()  # the decision is part of the checkpoint
        self._progress.report(
            "diverged", self._state.step, unit="steps", message=self._state.warnings[-1]
        )

    def _restore_step(self, step: int) -> None:
        """Goes back to a checkpoint of this incarnation, which the chief may still be writing."""
        self._checkpoints.wait()
        self._checkpoints.wait_for(step, self._config.step_timeout_seconds)
        self._state = self._restore()

    def _keep_batch(self, error: DivergedError, learning_rate: float, epoch: int) -> Path:
        """Returns the path of a step's batch. The chief writes the file."""
        folder, batch = self._work / DIVERGED, self._config.global_batch
        if self._spec.is_chief:
            source = EncodedSource(self._train, self._task.parse, self._cache)
            examples = examples_of_step(
                self._train, batch, self._config.seed, error.step, source, self._changes
            )
            save_batch(folder, examples, error.step, epoch, error.loss, learning_rate)
        return batch_file(folder, error.step)

    def _learning_rate(self, step: int) -> float:
        """The learning rate of a step: the state's rate times the schedule's factor."""
        return self._state.learning_rate * schedule_factor(
            self._config.optimizer.schedule, step, self._total_steps
        )

    def _steps_to_checkpoint(self) -> int:
        return (
            self._config.checkpoint_every_steps
            - self._state.step % self._config.checkpoint_every_steps
        )

    def _end_epoch(self, validation_sums: np.ndarray) -> None:
        state, trained, validated = (
            self._state,
            means(self._task, self._state.epoch_sums),
            means(self._task, validation_sums),
        )
        epoch = Epoch(
            epoch=len(state.history),
            step=state.step,
            learning_rate=self._learning_rate(state.step - 1),
            metrics=trained | {f"validation_{name}": value for name, value in validated.items()},
        )
        end_epoch(self._config, state, epoch)
        self._callbacks.after_epoch(state, epoch)
        state.epoch_sums = []
        best = (
            self._loop.best_weights()
        )  # all workers: some variables are averaged over them when they are read
        if state.best_epoch == epoch.epoch:
            self._best = best
            self._save(best)
        if self._board:
            self._board.write(epoch, best)
        self._report(epoch.metrics)

    def _save(self, best: Arrays | None = None) -> None:
        weights, optimizer_values = snapshot(self._loop)  # by all workers, written by one
        if self._spec.is_chief:
            self._checkpoints.save(self._state, weights, optimizer_values, best)
        self._saved_step = self._state.step

    def _restore(self) -> TrainingState:
        """Sets weights and optimizer to the state to resume from, which all workers share."""
        warnings: list[str] = []
        restored = restore_together(self._checkpoints, self._gather, warnings.append)
        for warning in warnings:
            self._progress.report("warning", message=warning)
        if restored is None:
            self._begin()
            self._best = self._loop.best_weights()
            return TrainingState(
                learning_rate=self._config.optimizer.learning_rate, warnings=warnings
            )
        self._loop.assign(restored.weights, restored.optimizer)
        self._best = restored.weights if restored.best is None else restored.best
        self._progress.report(
            "restored",
            restored.state.step,
            unit="steps",
            message=f"goes on from step {restored.state.step}",
        )
        restored.state.warnings += warnings
        self._saved_step = restored.state.step
        return restored.state

    def _begin(self) -> None:
        """Starts with the weights of another model if the request names one."""
        if warm_start := warm_start_of(self._config, self._request, self._loop, self._figures):
            self._loop.assign(warm_start.weights)
            anew = f"; {', '.join(warm_start.left_out)} begin anew" if warm_start.left_out else ""
            self._progress.report(
                "warm start",
                message=f"begins with the weights of {self._request.inputs[WARM_START].uri}{anew}",
            )
        elif self._config.warm_start:
            self._progress.report(
                "warm start", message="there is no champion yet to begin with; begins anew"
            )

    def _leave(self) -> None:
        """Writes this worker's digest of the weights, and as the chief the weights and the state.

        A worker takes the best weights from its own memory, so equal digests show that all workers
        have trained alike.
        """
        weights = self._loop.best_weights() if self._is_limited() else self._best
        self._checkpoints.wait()
        if self._spec.is_chief:
            write_arrays(self._work / TRAINED, weights)
            write_json(
                self._work / STATE,
                self._state.model_dump(mode="json")
                | {
                    "num_parameters": self._loop.model.count_params(),
                    "strategy": self._chosen.name,
                    "strategy_reason": self._chosen.reason,
                },
            )
        write_whole(
            self._work / worker_digest_name(self._spec.index), digest_of_weights(weights).encode()
        )
        if self._board:
            self._board.close()
        self._progress.report("trained", self._state.step, self._state.step, "steps")

    def _report(self, metrics: dict[str, float]) -> None:
        per_step = {"examples_per_second": self._config.global_batch}
        self._progress.report(
            "train", self._state.step, self._total_steps, "steps", metrics, per_unit=per_step
        )

    def _say(self, message: str) -> None:
        self._progress.report("input", message=message)
