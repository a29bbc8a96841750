"""The check of a model on one batch: `python -m pipeline_ops.training.check ANSWER`.

`job/model_check.py` starts it, writes the request to its stdin, and explains why the check has its
own process. It builds the model, the loss, the metrics, the callbacks and the change of images of
the author's own, and computes one batch of random pixels. The answer is a JSON file. Its `fault`
is an `Explanation` whose message begins with a key of the config. Its `missing` gives the reason
why the check could not run. Its `remark` is something to tell about a model that has passed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline_ops.config.model_catalogue import is_user_function
from pipeline_ops.config.train import MAX_STEPS, Train
from pipeline_ops.contract.explanation import Explanation
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.job.job_code import write_user_files
from pipeline_ops.job.model_check import ModelCheckRequest
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.user_code.planned_imports import PlannedCode, import_as_planned

_missing = ""
try:
    import pipeline_ops.input.keras_start  # noqa: F401  (before other imports of Keras)
except ImportError as error:
    _missing = f"{sys.executable} has no TensorFlow ({error})"
else:
    import tensorflow as tf

    from pipeline_ops.models import build_model, has_own_step, make_head
    from pipeline_ops.models.classification import (
        TAKES_LOGITS,
        Classification,
        PerExample,
        check_logits,
    )
    from pipeline_ops.models.own_functions import check_loss
    from pipeline_ops.models.user_errors import convert_user_errors
    from pipeline_ops.training.callbacks import load_callbacks
    from pipeline_ops.training.loop import check_scaled_loss
    from pipeline_ops.training.optimizer import load_schedule, make_optimizer
    from pipeline_ops.training.own_dataset import check_own_dataset
    from pipeline_ops.training.self_consistency import (
        check_model_of_author,
        check_twin,
        draws_unrepeatably,
        list_images,
        spread_weights,
    )
    from pipeline_ops.training.step_check import Steps, check_step, configure_two_devices
    from pipeline_ops.training.strategy import check_matches
    from pipeline_ops.training.warm_start import read_warm_start
    from pipeline_ops.training.worker import load_own_change, load_user_functions

_NUM_IMAGES = 4


def check_model(
    request: ModelCheckRequest, code_folder: Path | None = None, work: Path | None = None
) -> str:
    """Checks the model. Raises ConfigError, whose message begins with a key of the config.

    Returns a remark on its step, or nothing.

    `code_folder` has the author's modules, by default the folder of the config. A second process
    is started only with a folder `work` for its files.
    """
    folder = code_folder or Path(request.config_file).parent
    config = Train.model_validate(request.train)
    for path, arguments in config.callback_arguments:
        load_callbacks(path, arguments, config, folder)
    load_own_change(config, request.image_shape, folder)
    make_optimizer(config.optimizer, False, folder)
    load_schedule(config.optimizer, folder)(config.optimizer.schedule.warmup_steps, MAX_STEPS)
    size = request.image_shape, request.num_classes
    if config.dataset:
        check_own_dataset(config, *size, folder)
    images, remark = list_images((_NUM_IMAGES, *request.image_shape)), ""
    name, is_own = f"train.model: {config.model}", is_user_function(config.model)
    with convert_user_errors(name, is_own):
        model = build_model(config, *size, folder, for_training=False)
        check_scaled_loss(config, model)
        initial = model.get_weights()
        if is_own:
            spread_weights(model)
            check_model_of_author(model, images, name)
    task = Classification(
        request.image_shape,
        None,
        config.label_smoothing,
        *load_user_functions(config, folder),
        num_classes=request.num_classes,
    )
    if (is_own or config.step) and work is not None and request.task == "classification":
        if is_own:
            check_twin(model, images, name, work, request.model_dump_json().encode())
        if has_own_step(model, config) or not draws_unrepeatably(model, images, name):
            with convert_user_errors(name, True):
                build = functools.partial(build_model, config, *size, folder, True)
                # The metrics have a check of their own, which names them as the config does.
                without = task.copy(own_metrics={}, metrics=("accuracy",))
                without = without.copy(validation_metrics=without.metrics)
                remark = check_step(config, Steps(config, without, build, *size, folder))
    model.set_weights(initial)
    outputs = model(images, training=False)
    check_matches("train.freeze", config.freeze, "weight", [each.path for each in model.weights])
    if request.weights:
        try:
            build = functools.partial(build_model, config, *size, folder, False)
            read_warm_start(request.weights, model, model.get_weights(), build)
        except DataError as error:
            raise ConfigError(f"train.warm_start: {error}") from error
    if request.task == "detection":
        make_head(config, *size).detect(outputs)
        return remark
    check_logits(tf.convert_to_tensor(outputs).numpy(), config.model, request.num_classes)
    labels = tf.range(_NUM_IMAGES, dtype=tf.int64) % request.num_classes
    task = task.for_model(model)
    for path, metric in zip(config.own_metrics, task.own_metrics.values(), strict=True):
        _compute_values(f"train.metrics: {path}", task, metric, labels, outputs)
    if task.loss is None:
        return remark
    where = f"train.loss: {config.loss}"
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        values = _compute_values(where, task, task.loss, labels, logits)
    if not getattr(task.loss, TAKES_LOGITS, False):
        check_loss(task, task.loss, where)
    weights = [variable.value for variable in model.trainable_variables]
    if tf.reduce_any(tf.math.is_nan(values)):
        raise ConfigError(
            f"train.loss: {config.loss} returns {values.numpy().tolist()} for new weights and "
            "images of random pixels. It must return a number for any labels and logits."
        )
    if weights and all(gradient is None for gradient in tape.gradient(values, weights)):
        raise ConfigError(
            f"train.loss: {config.loss} has no gradient with respect to the weights, so nothing "
            "would be learned. Do not round, compare or take argmax of the logits."
        )
    return remark


def _compute_values(
    where: str, task: Classification, function: PerExample, labels: tf.Tensor, logits: Any
) -> tf.Tensor:
    """Computes the values of a user's loss or metric, one for each example."""
    with convert_user_errors(where, True, " when called with (labels, outputs)"):
        return task.compute_own(where, function, labels, tf.cast(logits, tf.float32))


@contextlib.contextmanager
def use_code(request: ModelCheckRequest, work: Path) -> Iterator[Path]:
    """Imports the author's modules as planned, from copies in the folder that it yields."""
    folder = write_user_files(request.code.files, work)
    original = Path(request.config_file).parent
    with import_as_planned(PlannedCode(folder, original, request.code.digests)):
        yield folder


def main() -> None:
    request = ModelCheckRequest.model_validate_json(sys.stdin.read())
    answer: dict[str, Any] = {"missing": _missing} if _missing else {}
    try:
        if not _missing:
            configure_two_devices()
            work = Path(sys.argv[1]).parent
            with use_code(request, work) as folder:
                answer = {"remark": check_model(request, folder, work)}
    except (ConfigError, DataError) as error:
        fault = Explanation(message=str(error), cure=error.cure, location=error.location)
        answer = {"fault": fault.model_dump(mode="json")}
    write_json(Path(sys.argv[1]), answer)


def exit_for_machine(main: Callable[[], None]) -> None:
    """Calls `main`, and ends this process with a line instead of a traceback for a MachineError."""
    try:
        main()
    except MachineError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    exit_for_machine(main)
