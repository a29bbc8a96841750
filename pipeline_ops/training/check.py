"""The check of a model on one batch: `python -m pipeline_ops.training.check ANSWER`.

`jobs/model_check.py` starts it, writes the question to its stdin, and explains why the check is a
process of its own. It builds the model, the loss, the metrics and the callbacks, and computes one
batch of random pixels. The answer is a JSON file. Its `fault` begins with a key of the config. Its
`missing` gives the reason why the check could not run. An empty object means that the check passed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_ops.config.model_catalogue import is_own
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.tensorflow_start import import_tensorflow
from pipeline_ops.jobs.model_check import ModelQuestion
from pipeline_ops.storage.atomic import write_json

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_IMAGES = 2


def check(question: ModelQuestion) -> None:
    """Checks the model. Raises ConfigError, whose message begins with a key of the config."""
    from pipeline_ops.models import build_model
    from pipeline_ops.training.own_callbacks import make_callback

    config, folder = Train.model_validate(question.train), Path(question.config_file).parent
    for path in config.callbacks:
        make_callback(path, folder)
    with _blamed_on(f"train.model: {config.model}", is_own(config.model)):
        model = build_model(
            config, question.image_shape, question.num_classes, folder, for_training=False
        )
    if question.task == "classification":
        _check_classifier(config, model, question, folder)
    else:
        _check_detector(config, model, question)


def _check_classifier(
    config: Train, model: keras.Model, question: ModelQuestion, folder: Path
) -> None:
    import tensorflow as tf

    from pipeline_ops.models.outputs import validate_logits
    from pipeline_ops.training.builders import own_functions

    images, labels = _images(question), tf.range(_IMAGES, dtype=tf.int64) % question.num_classes
    with _blamed_on(f"train.model: {config.model}", is_own(config.model)):
        logits = model(images, training=False)
    validate_logits(tf.convert_to_tensor(logits).numpy(), config.model, question.num_classes)
    loss, metrics = own_functions(config, folder)
    for path, metric in zip(config.metrics, metrics.values(), strict=True):
        _values("train.metrics", path, metric, labels, tf.cast(logits, tf.float32))
    if loss is not None:
        _check_loss(config, model, loss, images, labels)


def _check_loss(
    config: Train, model: keras.Model, loss: Callable, images: tf.Tensor, labels: tf.Tensor
) -> None:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        logits = tf.cast(model(images, training=True), tf.float32)
        values = _values("train.loss", config.loss, loss, labels, logits)
    weights = [variable.value for variable in model.trainable_variables]
    if tf.reduce_any(tf.math.is_nan(values)):
        raise ConfigError(
            f"train.loss: {config.loss} returns {values.numpy().tolist()} for new weights and "
            "images of random pixels; it must be a number for any labels and logits"
        )
    if weights and all(gradient is None for gradient in tape.gradient(values, weights)):
        raise ConfigError(
            f"train.loss: {config.loss} has no gradient with respect to the weights, so nothing "
            "would be learned; do not round, compare or take argmax of the logits"
        )


def _check_detector(config: Train, model: keras.Model, question: ModelQuestion) -> None:
    from pipeline_ops.models import make_head

    head = make_head(config, question.image_shape, question.num_classes)
    head.detect(model(_images(question), training=False))


def _values(
    key: str, path: str, function: Callable, labels: tf.Tensor, logits: tf.Tensor
) -> tf.Tensor:
    """The values of a user's loss or metric. Raises ConfigError if there is not one per example."""
    import tensorflow as tf

    from pipeline_ops.models.classification import per_example

    with _blamed_on(f"{key}: {path}", True, " when called with (labels, logits)"):
        values = per_example(key, function, labels, logits)
    if values.shape[0] != _IMAGES:
        raise ConfigError(
            f"{key}: {path} returns {values.shape[0]} values for a batch of {_IMAGES} images; it "
            "must return one for each"
        )
    return tf.cast(values, tf.float32)


@contextlib.contextmanager
def _blamed_on(what: str, is_user_code: bool, how: str = "") -> Iterator[None]:
    """Turns any error of user code into a ConfigError that names the key."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if not is_user_code:
            raise
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise ConfigError(f"{what} raised {said}{how}; correct it") from error


def _images(question: ModelQuestion) -> tf.Tensor:
    """Random pixels, the same on every call."""
    import tensorflow as tf

    shape = (_IMAGES, *question.image_shape)
    values = tf.random.stateless_uniform(shape, [1, 2], 0, 256, tf.int32)
    return tf.cast(values, tf.float32)


def main() -> None:
    question = ModelQuestion.model_validate_json(sys.stdin.read())
    answer: dict[str, str] = {}
    try:
        import_tensorflow()
    except ImportError as error:
        answer = {"missing": f"{sys.executable} has no TensorFlow ({error})"}
    try:
        if not answer:
            check(question)
    except ConfigError as error:
        answer = {"fault": str(error)}
    write_json(Path(sys.argv[1]), answer)


if __name__ == "__main__":
    main()
