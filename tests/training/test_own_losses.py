"""A loss gets what its model returns. One that takes something else is refused."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from config_files import write_config

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import check_training, plan_training

SHAPE, BATCH, STEPS = (8, 8, 1), 16, 12
FOLDER = Path(__file__).parent
FOCAL = "keras.losses:CategoricalFocalCrossentropy"
TOP_2 = "keras.metrics:SparseTopKCategoricalAccuracy"


@pytest.fixture
def models_here(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def make_examples(classes: int):
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, BATCH * STEPS)
    images = draw.integers(0, 100, (len(labels), *SHAPE)) + 30 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def fit(name: str, classes: int, loss, initial):
    import own_losses
    import tensorflow as tf

    images, labels = make_examples(classes)
    model = getattr(own_losses, name)(SHAPE, classes)
    model.set_weights(initial)
    model.compile("adam", loss)
    batches = tf.data.Dataset.from_tensor_slices((images.astype(np.float32), labels)).batch(BATCH)
    model.fit(batches, epochs=1, verbose=0)
    return model.get_weights()


def train(name: str, classes: int, loss):
    import tensorflow as tf

    from pipeline_ops.models import build_model
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.training.own_step import make_synchronous_loop
    from pipeline_ops.training.worker import load_user_functions

    config = Train.model_validate(
        {
            "model": f"own_losses:{name}",
            "loss": loss,
            "strategy": "one_device",
            "global_batch_size": BATCH,
            "metrics": [] if name == "sigmoid" else [{TOP_2: {"k": 2}}],
        }
    )
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = build_model(config, SHAPE, classes, FOLDER, for_training=True)
    functions = load_user_functions(config, FOLDER)
    task = Classification(SHAPE, None, 0.0, *functions, num_classes=classes)
    loop = make_synchronous_loop(strategy, model, task, config, FOLDER)
    initial = loop.get_weights()
    batches = tf.data.Dataset.from_tensor_slices(make_examples(classes)).batch(BATCH)
    sums = loop.train(iter(batches), 0, [1e-3] * STEPS).sums
    figures = dict(zip(loop.task.metrics, sums.metrics, strict=True))
    assert figures.get("SparseTopKCategoricalAccuracy", BATCH * STEPS) >= figures["accuracy"]
    return initial, loop.get_weights()


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "classes", "loss", "of_keras"),
    [
        ("softmax", 3, "own_losses:focal", "focal"),
        ("softmax", 3, {"own_losses:focal": {"gamma": 1.0}}, "focal 1"),
        ("softmax", 3, {"own_losses:Focal": {"gamma": 1.0}}, "focal 1"),
        ("softmax", 3, {"own_losses:OneHotFocal": {"gamma": 1.0}}, "focal 1"),
        ("softmax", 3, "own_losses:cross_entropy", "cross_entropy"),
        ("logits", 3, "own_losses:of_logits", "of_logits"),
        ("softmax", 3, {FOCAL: {"gamma": 3.0, "label_smoothing": 0.1}}, "keras focal"),
        ("logits", 3, {FOCAL: {"gamma": 3.0, "label_smoothing": 0.1}}, "keras focal of logits"),
        ("softmax", 3, "keras.losses:KLDivergence", "divergence"),
        ("sigmoid", 2, "own_losses:binary", "binary"),
        ("sigmoid", 2, "keras.losses:BinaryCrossentropy", "binary"),
    ],
)
def test_a_loss_trains_as_in_fit(models_here, name, classes, loss, of_keras):
    import keras
    import own_losses
    import tensorflow as tf

    options = {"gamma": 3.0, "label_smoothing": 0.1}

    def one_hot(function):
        return lambda labels, outputs: function(
            tf.one_hot(tf.cast(labels, tf.int32), classes), outputs
        )

    expected = {
        "focal": own_losses.focal,
        "focal 1": lambda labels, outputs: own_losses.focal(labels, outputs, 1.0),
        "keras focal": one_hot(keras.losses.CategoricalFocalCrossentropy(**options)),
        "keras focal of logits": one_hot(
            keras.losses.CategoricalFocalCrossentropy(from_logits=True, **options)
        ),
        "divergence": one_hot(keras.losses.KLDivergence()),
        "binary": keras.losses.BinaryCrossentropy(),
    }
    of_fit = expected.get(of_keras) or getattr(own_losses, of_keras)
    initial, found = train(name, classes, loss)
    for one, other in zip(found, fit(name, classes, of_fit, initial), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def check(folder: Path, model: str, loss: str | dict, classes: int) -> None:
    # The other tests import it from this folder, and a module is looked for there first.
    shutil.copy(FOLDER / "own_losses.py", folder / "copied.py")
    keys = {"train.model": f"copied:{model}", "train.loss": loss}
    training = plan_training(load_config(write_config(folder, keys)), sys.executable)
    check_training(training, "classification", SHAPE, classes)


TWICE, OF_PROBABILITIES = "would be applied twice", "takes probabilities, and train.model returns"


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        ("logits", "copied:focal", OF_PROBABILITIES),
        ("logits", "copied:cross_entropy", OF_PROBABILITIES),
        ("logits", "copied:logarithm", OF_PROBABILITIES),
        ("logits", "keras.losses:KLDivergence", OF_PROBABILITIES),
        ("softmax", "copied:of_logits", TWICE),
        ("sigmoid", "copied:binary_of_logits", TWICE),
        ("softmax", {FOCAL: {"from_logits": False}}, "Remove from_logits: false"),
        ("softmax", {FOCAL: {"gama": 2}}, "unexpected keyword argument 'gama'"),
        ("softmax", "keras.losses:Dice", "must return a value for each example"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_in_the_check(tmp_path, model, loss, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check(tmp_path, model, loss, 2 if model == "sigmoid" else 4)
    assert "train.loss: " in str(refused.value)


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("softmax", "copied:focal"),
        ("softmax", "copied:logarithm"),
        ("softmax", "copied:squared"),
        ("logits", "copied:of_logits"),
        ("logits", "copied:squared"),
        ("logits", "copied:hinge"),
        ("logits", "keras.losses:CategoricalHinge"),
        ("sigmoid", "copied:binary"),
    ],
)
def test_a_loss_that_fits_passes_the_check(tmp_path, model, loss):
    check(tmp_path, model, loss, 2 if model == "sigmoid" else 4)


def test_metrics_of_keras_that_are_no_means_lead_to_the_gate():
    from pipeline_ops.models import load_per_example

    with pytest.raises(ConfigError, match=r"is not a mean over examples. The gate has"):
        load_per_example("keras.metrics:AUC", "train.metrics", Path("/nowhere"))
