"""The data set as one worker reads it: training batches from any step on, and validation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline_ops.config.model_data_rules import check_train_split
from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import KEY, list_shards
from pipeline_ops.input.augment import OwnChange, build_augmentation
from pipeline_ops.input.batches import (
    build_training_dataset,
    find_worker_slice,
    make_order,
    read_step_examples,
    repeat_rare_classes,
)
from pipeline_ops.input.reading import Tell, build_evaluation_dataset, open_split, read_batches
from pipeline_ops.input.sources import open_encoded_source, open_example_source
from pipeline_ops.job.local_inputs import HostDataset
from pipeline_ops.models.task import Task
from pipeline_ops.training.loop import Batches

_VALIDATION_SHARE = 4
"""The validation split gets at most this part of the cache."""


class InputPipeline:
    """The batches of one worker, and the data set's figures.

    `shard` is the index of this process among the readers of the data, and the number of readers.
    `version` is a part of the cache key that changes with the code of the task. `report` is called
    with a message when the data are prepared. `own_change` is that of the author.
    """

    @tf.autograph.experimental.do_not_convert  # see `loop.py`
    def __init__(
        self,
        config: Train,
        dataset: HostDataset,
        task: Task,
        shard: tuple[int, int],
        version: str,
        report: Callable[[str], None],
        tell: Tell = lambda *_: None,
        own_change: OwnChange | None = None,
    ):
        self._config, self._cache, self.figures = config, dataset.cache, dataset.figures
        limit = dataset.cache.limit_bytes
        num_bytes = sum(each.num_bytes for each in list_shards(dataset.manifest, "validation"))
        for_validation = min(num_bytes, limit // _VALIDATION_SHARE)
        self._split = open_split(dataset, "train", limit - for_validation)
        check_train_split(config, self._split.num_examples, dataset.uri)
        if threshold := config.input.repeat_threshold:
            self._split = repeat_rare_classes(
                self._split, task.parse, task.list_classes, threshold, self._cache, tell
            )
        self._parse = task.parse
        self._slice = find_worker_slice(*shard, config.batch_size)
        self._set_length()
        self._order = make_order(self._split, config.seed, config.input.window)
        self._source = open_example_source(
            self._split, task.parse, config.input, self._cache, version, report, self._order, tell
        )
        self._augmentation = build_augmentation(
            config.input.augment,
            self.figures.task,
            self._split.num_examples,
            config.model_parameters.get("max_boxes"),
            own_change,
        )
        self._open_validation(dataset, task, shard, for_validation)

    def _set_length(self) -> None:
        config = self._config
        self.num_epochs = config.count_epochs(self._split.num_examples)
        end = self._split.compute_epoch_end_step(self.num_epochs - 1, config.batch_size)
        self.total_steps = min(end, config.steps or end)

    def _open_validation(
        self, dataset: HostDataset, task: Task, shard: tuple[int, int], budget_bytes: int
    ) -> None:
        self.figures = dataset.figures
        self.validation = open_split(dataset, "validation", budget_bytes)
        # Its parts get smaller with those of training, where a device has little memory.
        size = self.validation_batch_size = max(
            1, task.evaluation_batch_size // self._config.micro_batches
        )
        index, workers = shard
        num_own = len(range(index, self.validation.num_examples, workers))
        self.num_validation_batches = math.ceil(num_own / size)
        self.validation_batches = build_evaluation_dataset(
            self.validation, task.parse, size, *shard
        )

    @tf.autograph.experimental.do_not_convert
    def make_batches(self, step: int) -> Batches:
        """Returns endless training batches from a step on."""
        return iter(
            build_training_dataset(
                self._split,
                self._source,
                self._config.batch_size,
                self._slice,
                self._config.seed,
                step,
                self._augmentation,
                self._config.input.window,
            )
        )

    def read_first_examples(self, count: int) -> tuple[Any, Any] | None:
        """Returns the first examples of the first global batch, as the model gets them.

        These are images [N, H, W, C] and their labels. Returns None if they cannot be read again.
        """
        return (
            build_training_dataset(
                self._split,
                self._source,
                self._config.batch_size,
                range(min(count, self._config.batch_size)),
                self._config.seed,
                0,
                self._augmentation,
                self._config.input.window,
            )
            .take(1)
            .get_single_element()
        )

    def raise_errors(self) -> contextlib.AbstractContextManager[None]:
        """Raises the author's errors, and not those of TensorFlow, if they make the batches."""
        return contextlib.nullcontext()

    def read_step(self, step: int) -> list[bytes]:
        """Returns the examples of one step's global batch, as they lie in the shards."""
        return read_step_examples(
            self._split,
            self._config.batch_size,
            self._config.seed,
            step,
            open_encoded_source(self._split, self._parse, self._cache, self._order),
            self._augmentation,
            self._config.input.window,
        )

    def read_validation_keys(self, numbers: Sequence[int]) -> list[str]:
        """Returns the keys of examples of the validation split, by their ascending numbers.

        The number of the i-th example of `validation_batches` is i times the number of readers
        plus the index of this one.
        """
        wanted, keys, start = list(numbers), list[str](), 0
        features = {KEY: tf.io.FixedLenFeature([], tf.string)}
        for records in read_batches(self.validation, self.validation_batch_size):
            own = [number - start for number in wanted if start <= number < start + len(records)]
            parsed = tf.io.parse_example(tf.gather(records, own), features) if own else {KEY: []}
            keys += [key.numpy().decode("utf-8", "backslashreplace") for key in parsed[KEY]]
            start += len(records)
            if len(keys) == len(wanted):
                break
        return keys

    def compute_epoch_end(self, epoch: int) -> int:
        """Returns the step before which the last example of an epoch, or of all, has been used."""
        end = self._split.compute_epoch_end_step(epoch, self._config.batch_size)
        return min(end, self.total_steps)
