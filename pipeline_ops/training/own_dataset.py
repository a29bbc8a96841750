"""Training examples from a `tf.data` pipeline of the author's own, `train.dataset`.

    def dataset(split, index, count):  # "train", and which of how many equal parts
        return tf.data.Dataset...      # of (image, label)

The data set of the preprocess job gives the size of the images, the classes, and the splits of
validation and test, on which the model is judged as it is served. A worker gets a part of its own,
repeats it without end, and takes its slice of each global batch from it. A training that begins at
a later step skips as many of its part as the epochs before have left over.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.batches import find_worker_slice
from pipeline_ops.input.reading import SplitShards
from pipeline_ops.job.local_inputs import HostDataset
from pipeline_ops.models import load_function
from pipeline_ops.models.task import Task
from pipeline_ops.models.user_errors import convert_user_errors, list_own_frames, locate
from pipeline_ops.storage.read_errors import make_read_error
from pipeline_ops.training.input_pipeline import InputPipeline
from pipeline_ops.training.loop import Batches
from pipeline_ops.training.strategy import Gather

_NUM_CHECKED, _CHECK_SECONDS = 2, 60
_MARGIN, _DARK = 64, 16
"""How far changes of brightness may leave the range of pixels. And what the largest of a batch
exceeds, unless it is rescaled to 0..1, -1..1, or to mean and deviation."""
_CARDINALITY = "append .apply(tf.data.experimental.assert_cardinality(NUMBER))"


def open_own_dataset(
    config: Train, image_shape: tuple[int, int, int], folder: Path, index: int, count: int
) -> tf.data.Dataset:
    """Returns part `index` of `count` of the examples: an image [H, W, C], and a label int64 [].

    The function draws the same numbers in each process. Raises ConfigError for what is no data set
    of a known number of such examples.
    """
    name = f"train.dataset: {config.dataset}"
    function = load_function(str(config.dataset), "train.dataset", folder)
    keras.utils.set_random_seed(config.seed)
    with convert_user_errors(name, True, f' when called with ("train", {index}, {count})'):
        dataset = function("train", index, count)
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigError(f"{name} returns a {type(dataset).__name__}, and no tf.data.Dataset.")
    number = int(dataset.cardinality())
    if number == tf.data.INFINITE_CARDINALITY:
        raise ConfigError(f"{name} repeats its examples without end. Leave out repeat().")
    if number == tf.data.UNKNOWN_CARDINALITY:
        raise ConfigError(f"{name} does not tell its number of examples. Please {_CARDINALITY}.")
    if not number:
        raise ConfigError(f"{name} has no example in part {index} of {count}.")
    _check_spec(name, dataset.element_spec, image_shape)
    return dataset.map(
        lambda image, label: (
            tf.ensure_shape(image, image_shape),
            tf.reshape(tf.cast(label, tf.int64), []),
        )
    )


def _check_spec(name: str, spec: Any, image_shape: tuple[int, int, int]) -> None:
    is_pair = isinstance(spec, tuple) and len(spec) == 2
    if not (is_pair and all(isinstance(each, tf.TensorSpec) for each in spec)):
        raise ConfigError(f"{name} must yield pairs (image, label), and it yields {spec}.")
    image, label = spec
    if not image.shape.is_compatible_with(image_shape):
        hint = ""
        if image.shape.rank == 4:
            hint = f" Leave out batch() (batch_size=None), or append .unbatch(), and {_CARDINALITY}"
        raise ConfigError(
            f"{name} yields images of the shape {image.shape}, and those of the data set of the "
            f"preprocess job have {image_shape}.{hint}"
        )
    if image.dtype not in (tf.uint8, tf.float32):
        raise ConfigError(f"{name}: images must be uint8 or float32, got {image.dtype.name}.")
    if not label.dtype.is_integer or label.shape.num_elements() not in (1, None):
        raise ConfigError(
            f"{name}: a label must be the whole number of a class, got {label.dtype.name} of the "
            f'shape {label.shape}. Use label_mode="int", or tf.argmax of a one-hot label.'
        )


def _check_batches(batches: tf.data.Dataset, num_classes: int) -> tf.data.Dataset:
    """Has the values of all batches checked when they are made."""

    def check(number: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> Any:
        images, labels = batch
        low, high = tf.reduce_min(images), tf.reduce_max(images)
        if images.dtype.is_floating:
            is_dark = (number == 0) & (low < high) & (high < _DARK)
            is_range = (low > -_MARGIN) & (high < 255 + _MARGIN) & ~is_dark
            text = "images must have values of 0 to 255. Leave out rescaling, which the model does"
            tf.debugging.Assert(is_range, [text])
        is_class = tf.reduce_all((labels >= 0) & (labels < num_classes))
        tf.debugging.Assert(is_class, [f"labels must be 0 to {num_classes - 1}"])
        return batch

    return batches.enumerate().map(check)


@contextlib.contextmanager
def raise_dataset_errors(name: str) -> Iterator[None]:
    """Raises DataError for what fails in the author's pipeline while a batch is read."""
    try:
        yield
    except tf.errors.OpError as error:
        if "IteratorGetNext" not in str(error):
            raise
        message = f"{name}: no batch can be read{locate(list_own_frames(error))}"
        raise make_read_error(message, error, ". Correct it.") from error


def check_own_dataset(
    config: Train, image_shape: tuple[int, int, int], num_classes: int, folder: Path
) -> None:
    """Reads two examples. Raises ConfigError if they cannot be trained with."""
    name = f"train.dataset: {config.dataset}"
    dataset = open_own_dataset(config, image_shape, folder, 0, 1)
    batches = _check_batches(dataset.batch(_NUM_CHECKED), num_classes)
    future: Future[None] = Future()

    def read() -> None:
        try:
            with raise_dataset_errors(name):
                next(iter(batches))
            future.set_result(None)
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        future.result(_CHECK_SECONDS)
    except TimeoutError:
        raise ConfigError(
            f"{name} gives no {_NUM_CHECKED} examples within {_CHECK_SECONDS} s. Shuffle file "
            "names or small buffers, and not all images."
        ) from None
    if config.effective_max_workers > 1:
        part = open_own_dataset(config, image_shape, folder, 0, 2)
        if part.cardinality() >= dataset.cardinality():
            raise ConfigError(
                f"{name} returns {int(part.cardinality())} examples for part 0 of 2, and "
                f"{int(dataset.cardinality())} in all, so each worker would train with all of "
                "them. Use .shard(count, index), before shuffle and map."
            )


class OwnInputPipeline(InputPipeline):
    """The batches of one worker, from its part of the author's own examples."""

    @tf.autograph.experimental.do_not_convert  # see `loop.py`
    def __init__(
        self,
        config: Train,
        dataset: HostDataset,
        task: Task,
        shard: tuple[int, int],
        part: tf.data.Dataset,
        gather: Gather,
        report: Callable[[str], None],
    ):
        self._config, self._part, self._name = config, part, f"train.dataset: {config.dataset}"
        self._part_size = int(part.cardinality())
        total = sum(map(int, gather(str(self._part_size).encode())))
        if total < config.batch_size:
            raise ConfigError(
                f"{self._name} has {total} examples, fewer than one global batch "
                f"({config.batch_size}). Lower train.{config.batch_key}."
            )
        report(f"{self._name} has {total} examples. {config.dataset_remark}")
        self._split = SplitShards((), total, 0)
        self._slice = find_worker_slice(*shard, config.batch_size)
        self._set_length()
        self._open_validation(dataset, task, shard, dataset.cache.limit_bytes)

    @tf.autograph.experimental.do_not_convert
    def make_batches(self, step: int) -> Batches:
        size = len(self._slice)
        rest = self._part.skip(step * size % self._part_size)
        batches = rest.concatenate(self._part.repeat()).batch(size, drop_remainder=True)
        checked = _check_batches(batches, len(self.figures.class_names))
        return iter(checked.prefetch(2))

    def read_first_examples(self, count: int) -> None:
        """Returns nothing: a pipeline of the author's may shuffle anew each time it is read."""

    def raise_errors(self) -> contextlib.AbstractContextManager[None]:
        return raise_dataset_errors(self._name)
