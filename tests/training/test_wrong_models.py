"""Models, losses and callbacks that would silently train a wrong model are rejected when they are
loaded or built.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import ModelCheckRequest
from pipeline_ops.training.check import check_model

SHAPE = (8, 8, 1)
NOWHERE = Path("/nowhere")


@pytest.mark.parametrize(
    "function, message",
    [
        (
            "several_labels",
            "ends in sigmoid, which gives several labels for an image. Multi-label class",
        ),
        ("several_labels_of_a_map", "ends in sigmoid, which gives several labels"),
        (
            "one_output_too_many",
            "has outputs of shape [4] for each image, and the data set has 3 classes. End the "
            "model with keras.layers.Dense",
        ),
        (
            "a_map",
            "has outputs of shape [6, 6, 3] for each image, and the data set has 3 classes. "
            "Segmentation (a class for each pixel) is not supported",
        ),
        (
            "a_number",
            "has outputs of shape [1] for each image, and the data set has 3 classes. End the "
            "model with keras.layers.Dense(num_classes). Regression (a number for each image)",
        ),
        ("two_outputs", "has 2 outputs, and a classifier has one: the logits"),
        ("no_model", "must return a Keras model, got <Dense name="),
    ],
)
def test_a_model_whose_outputs_are_not_logits_of_the_classes_is_refused_when_it_is_built(
    user_package, function, message
):
    from pipeline_ops.models import build_model

    config = Train(model=f"acme_vision.mistakes:{function}")
    with pytest.raises(
        ConfigError, match=re.escape(f"train.model: acme_vision.mistakes:{function} {message}")
    ):
        build_model(config, SHAPE, 3, NOWHERE, for_training=True)


@pytest.mark.parametrize("function", ["normalized", "smooth", "dropping", "pooled"])
def test_a_model_that_returns_logits_is_built(user_package, function):
    from pipeline_ops.models import build_model

    assert build_model(
        Train(model=f"acme_vision.nets:{function}"), SHAPE, 3, NOWHERE, for_training=True
    ).built


@pytest.mark.parametrize(
    "path, message",
    [
        (
            "acme_vision.mistakes:loss_object",
            "is an object of the class SparseCategoricalCrossentropy of Keras, which reduces a "
            "batch",
        ),
        (
            "acme_vision.objectives:focal_los",
            "has no function 'focal_los'; the nearest valid name is 'focal_loss'",
        ),
    ],
)
def test_a_loss_that_is_no_function_of_labels_and_outputs_is_refused_with_the_cure(
    user_package, path, message
):
    from pipeline_ops.models import load_per_example

    with pytest.raises(ConfigError, match="^train.loss: ") as refused:
        load_per_example(path, "train.loss", NOWHERE)
    assert message in str(refused.value)
    assert "has no function" in message or "from_logits=True" in str(refused.value)


@pytest.mark.parametrize(
    "path, hint",
    [
        ("keras.callbacks.CSVLogger", "Write keras.callbacks:CSVLogger"),
        ("tf.keras.callbacks:CSVLogger", "Write keras.callbacks:CSVLogger"),
        ("tf.keras.callbacks.CSVLogger", "Write keras.callbacks:CSVLogger"),
    ],
)
def test_a_callback_in_the_spelling_of_python_gets_that_of_a_config(path, hint):
    for entry in (path, {path: {"filename": "log.csv"}}):
        with pytest.raises(ValueError, match=hint):
            Train(model="digits_cnn", callbacks=[entry])


@pytest.mark.parametrize("place", ["class", "object", "inner class"])
@pytest.mark.parametrize(
    "method",
    [
        "predict_step",
        "make_train_function",
        "fit",
        "predict",
    ],
)
def test_a_model_with_its_own_part_of_fit_is_refused(user_package, monkeypatch, method, place):
    import keras
    from acme_vision import nets

    from pipeline_ops.models import build_model

    class Own(keras.Sequential):
        pass

    def build(shape, classes):
        layers = [keras.layers.Flatten(), keras.layers.Dense(classes)]
        model = Own([keras.Input(shape), *layers])
        setattr(Own if "class" in place else model, method, lambda *arguments: None)
        return keras.Sequential([keras.Input(shape), model]) if "inner" in place else model

    monkeypatch.setattr(nets, "with_own_step", build, raising=False)
    config = Train(model="acme_vision.nets:with_own_step")
    if "inner" in place:  # fit does not call it, either
        build_model(config, SHAPE, 3, NOWHERE, for_training=True)
        return
    with pytest.raises(ConfigError, match=rf"Own\.{method} would never be called"):
        build_model(config, SHAPE, 3, NOWHERE, for_training=True)


@pytest.mark.parametrize("name", ["predict", "evaluate", "compiled"])
def test_a_layer_may_have_the_name_of_a_part_of_fit(user_package, monkeypatch, name):
    import keras
    from acme_vision import nets

    from pipeline_ops.models import build_model

    class Network(keras.Model):
        def __init__(self, shape, classes):
            super().__init__()
            self.flat = keras.layers.Flatten()
            setattr(self, name, keras.layers.Dense(classes))

        def call(self, images, training=False):
            return getattr(self, name)(self.flat(images))

    monkeypatch.setattr(nets, "named", Network, raising=False)
    assert build_model(Train(model="acme_vision.nets:named"), SHAPE, 3, NOWHERE, True).built


@pytest.mark.parametrize("is_inner", [True, False])
def test_a_loaded_model_trains(user_package, monkeypatch, tmp_path, is_inner):
    import keras
    from acme_vision import nets

    from pipeline_ops.models import build_model

    compiled = nets.smooth(SHAPE, 3)
    compiled.compile("adam", "mse")
    compiled.save(tmp_path / "a.keras")
    model = keras.models.load_model(tmp_path / "a.keras", compile=is_inner)
    if is_inner:  # Keras's fit does not look at it, either
        model = keras.Sequential([keras.Input(SHAPE), model])
    monkeypatch.setattr(nets, "loaded", lambda *_: model, raising=False)
    assert build_model(Train(model="acme_vision.nets:loaded"), SHAPE, 3, NOWHERE, True).built


def test_a_model_of_keras_2_is_named_as_one(user_package, monkeypatch):
    import tf_keras
    from acme_vision import nets

    from pipeline_ops.models import build_model

    class Network(tf_keras.Model):
        built = True

    layers = [tf_keras.layers.Flatten(), tf_keras.layers.Dense(3)]
    models = [
        tf_keras.Sequential([tf_keras.layers.Input(SHAPE), *layers]),
        tf_keras.Sequential(layers),
        Network(),
    ]
    for model in models:
        monkeypatch.setattr(nets, "old", lambda *_, model=model: model, raising=False)
        with pytest.raises(ConfigError, match=r"a model of Keras 2 \(tf_keras\), which Keras 3\."):
            build_model(Train(model="acme_vision.nets:old"), SHAPE, 3, NOWHERE, True)


@pytest.mark.parametrize(
    "path, arguments, message",
    [
        (
            "keras.callbacks:LearningRateScheduler",
            {"schedule": "my_module:f"},
            "takes functions, which a YAML does not have. Name a function of your own",
        ),
        ("keras.callbacks:ProgbarLogger", {}, "Log and progress page show it. Leave it out."),
        ("keras.callbacks:SwapEMAWeights", {}, "Set train.optimizer.average_weights instead."),
        (
            "keras.callbacks:BackupAndRestore",
            {"backup_dir": "here"},
            "is a BackupAndRestore, which has no use here. The training has checkpoints of its own",
        ),
        (
            "keras.callbacks:EarlyStopping",
            {"monitor": "val_acc"},
            "monitors 'val_acc', which is not among the logs: learning_rate, loss, accuracy, "
            "val_loss, val_accuracy.",
        ),
        ("keras.callbacks:CSVLogger", {}, "cannot be created: TypeError: "),
        (
            "keras.callbacks:CSVLogger",
            {"filename": "/tmp/log.csv"},
            "writes to /tmp/log.csv. Name a relative path",
        ),
        (
            "keras.callbacks:ModelCheckpoint",
            {"filepath": "gs://bucket/best.keras"},
            "writes to gs://bucket/best.keras. Name a relative path",
        ),
        ("acme_vision.mistakes:lambda_callback", {"x": 1}, "is an object, which takes no argume"),
        (
            "acme_vision.mistakes:OfBatches",
            {},
            "has a hook for the batches of the validation. They are not the same on every worker",
        ),
        (
            "acme_vision.mistakes:WithoutMethods",
            {},
            "gives an object of the class WithoutMethods. It must be a subclass of "
            "keras.callbacks.Callback",
        ),
        (
            "acme_vision.mistakes:WithoutMethod",
            {},
            "has no function 'WithoutMethod'; the nearest valid name is 'WithoutMethods'",
        ),
        (
            "keras.callbacks:EarlyStoping",
            {},
            "has no function 'EarlyStoping'; the nearest valid name is 'EarlyStopping'",
        ),
    ],
)
def test_a_callback_that_could_not_do_its_work_is_refused_with_the_reason(
    user_package, path, arguments, message
):
    from pipeline_ops.training.callbacks import load_callbacks

    with pytest.raises(ConfigError, match="^train.callbacks: ") as refused:
        load_callbacks(path, arguments, Train(model="digits_cnn"), NOWHERE)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"model": "acme_vision.mistakes:averaged"},
            "train.model: acme_vision.mistakes:averaged returns probabilities (the outputs of "
            "every image sum to 1) that are not the result of a softmax at its end",
        ),
        (
            {"model": "acme_vision.mistakes:WithoutArguments"},
            "3 were given. It is called as WithoutArguments(image_shape, num_classes, **model_para",
        ),
        (
            {
                "model": "acme_vision.endings:Subclassed",
                "model_parameters": {"width": 3},
            },
            "unexpected keyword argument 'width'. It is called as Subclassed(image_shape,",
        ),
        (
            {"model": "acme_vision.mistakes:one_output_too_many"},
            "has outputs of shape [4] for each image, and the data set has 3 classes",
        ),
        (
            {"loss": "acme_vision.mistakes:without_gradient"},
            "has no gradient with respect to the weights, so nothing would be learned",
        ),
        ({"loss": "acme_vision.mistakes:broken_loss"}, "broken_loss raised "),
        (
            {"loss": "acme_vision.mistakes:swapped"},
            "when called with (labels, outputs). Correct it.",
        ),
        (
            {"model": "acme_vision.endings:layer", "loss": "acme_vision.objectives:focal_loss"},
            "train.model ends in one already, so it would be applied twice",
        ),
        (
            {"loss": "acme_vision.objectives:mean_loss"},
            "train.loss: acme_vision.objectives:mean_loss: must return a value for each example",
        ),
        (
            {"loss": "acme_vision.mistakes:loss_object"},
            "is an object of the class SparseCategoricalCrossentropy of Keras",
        ),
        (
            {"metrics": ["acme_vision.mistakes:swapped"]},
            "train.metrics: acme_vision.mistakes:swapped raised ",
        ),
        (
            {"callbacks": ["acme_vision.mistakes:WithoutMethods"]},
            "gives an object of the class WithoutMethods",
        ),
        ({"model_parameters": {"depth": 3}}, "got an unexpected keyword argument 'depth'"),
        (
            {"model": "dense", "model_parameters": {"units": "many"}},
            "train.model: cannot build dense for images of shape (8, 8, 1) and 3 classes",
        ),
        (
            {"model": "acme_vision.mistakes:raising"},
            "train.model: acme_vision.mistakes:raising raised KeyError: 'width' (",
        ),
    ],
)
def test_one_batch_shows_what_would_be_found_after_the_training(user_package, options, message):
    with pytest.raises(ConfigError) as refused:
        check_model(_question(options))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "acme_vision.objectives:focal_loss", "metrics": ["acme_vision.objectives:top3"]},
        {"model": "acme_vision.nets:normalized"},
        {"model": "acme_vision.endings:layer", "loss": "acme_vision.objectives:brier_of_answers"},
        {"model": "acme_vision.endings:Subclassed", "model_parameters": {"penalty": 0.1}},
        {"model": "dense", "model_parameters": {"units": 3}},
    ],
)
def test_what_can_be_trained_passes(user_package, options):
    check_model(_question(options))


def test_a_detector_is_built_with_its_head():
    options = {"model": "center_detector", "model_parameters": {"width": 8}}
    check_model(_question(options | {"best_checkpoint": None}, "detection", (32, 32, 3)))
    with pytest.raises(ConfigError, match=r"train.model_parameters.width must be a multiple of 8"):
        wrong = options | {"best_checkpoint": None, "model_parameters": {"width": 9}}
        check_model(_question(wrong, "detection", (32, 32, 3)))


def _question(
    options: dict, task: str = "classification", shape: tuple[int, int, int] = SHAPE
) -> ModelCheckRequest:
    train = Train.model_validate({"model": "acme_vision.nets:smooth"} | options)
    return ModelCheckRequest(
        config_file="/nowhere/digits.yaml",
        train=train.model_dump(mode="json"),
        task=task,
        image_shape=shape,
        num_classes=3,
    )
