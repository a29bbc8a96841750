"""`train.precision` decides in which types a model computes, whatever the author's code does to
Keras's global state.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from keras import layers

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import ModelCheckRequest
from pipeline_ops.models import build_model, load_function
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.check import check_model
from pipeline_ops.training.loop import SynchronousLoop

SHAPE = (8, 8, 1)
_NUMBERS = itertools.count()
MODULE = """
import keras, tensorflow as tf
from keras import layers
{imported}
def build(shape, classes):
    {called}
    model = keras.Sequential([keras.Input(shape), layers.Flatten(), layers.Dense(classes)])
    {afterwards}
    return model

def loss(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
"""


HALF = {
    "a layer": lambda: [layers.Dense(8, dtype="mixed_float16", name="half")],
    "a layer in a model": lambda: [
        layers.Dense(8),
        keras.Sequential([layers.Dense(8, dtype="float16", name="half"), layers.Activation("elu")]),
    ],
    "a layer without weights": lambda: [layers.Activation("elu", dtype="float16", name="half")],
    "a layer in a layer": lambda: [
        layers.SpectralNormalization(layers.Dense(8, dtype="mixed_float16", name="half"))
    ],
}


class Half(keras.Model):
    """Computes in float16 itself."""

    def __init__(self, shape, classes):
        super().__init__(dtype="mixed_float16", name="half")
        self.flat = layers.Flatten(dtype="float32")
        self.answer = layers.Dense(classes, dtype="float32")

    def call(self, images, training=False):
        return self.answer(self.flat(images) / 255)


@pytest.fixture(params=[*HALF, "the model"])
def half(request, user_package, monkeypatch):
    """Returns the name of a model with a part that computes in float16."""
    from acme_vision import nets

    def build(shape, classes):
        inner = HALF[request.param]()
        answer = layers.Dense(classes, dtype="float32")
        return keras.Sequential([keras.Input(shape), layers.Flatten(), *inner, answer])

    model = Half if request.param == "the model" else build
    monkeypatch.setattr(nets, "half", model, raising=False)
    return "acme_vision.nets:half"


def make_own_loop(config: Train) -> SynchronousLoop:
    model = build_model(config, SHAPE, 3, Path("/nowhere"), for_training=True)
    return SynchronousLoop(tf.distribute.get_strategy(), model, Classification(SHAPE), config)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_layer_in_float16_without_a_scaled_loss_is_refused_by_name(half, precision):
    config = Train(model=half, precision=precision)
    message = (
        rf"layer (\w+/)*half computes .* train.precision: {precision} does not .*: float16, or"
    )
    with pytest.raises(ConfigError, match=message):
        make_own_loop(config)
    request = ModelCheckRequest(
        config_file="/nowhere/digits.yaml",
        train=config.model_dump(mode="json"),
        task="classification",
        image_shape=SHAPE,
        num_classes=3,
    )
    with pytest.raises(ConfigError, match=message):
        check_model(request)


def test_a_layer_in_float16_trains_with_a_scaled_loss(half):
    loop = make_own_loop(Train(model=half, precision="float16"))
    assert isinstance(loop.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.parametrize("kind", ["mixed_bfloat16", "bfloat16", "float64"])
def test_a_layer_of_another_type_trains_in_any_precision(user_package, monkeypatch, kind):
    from acme_vision import nets

    def build(shape, classes):
        inner, answer = layers.Dense(8, dtype=kind), layers.Dense(classes, dtype="float32")
        return keras.Sequential([keras.Input(shape), layers.Flatten(), inner, answer])

    monkeypatch.setattr(nets, "other", build, raising=False)
    make_own_loop(Train(model="acme_vision.nets:other"))


@pytest.fixture(autouse=True)
def _types():
    keras.utils.clear_session()
    yield
    keras.config.set_floatx("float32")
    keras.utils.clear_session()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(imported: str = "", called: str = "pass", afterwards: str = "") -> str:
        name = f"own_types_{next(_NUMBERS)}"
        text = MODULE.format(imported=imported, called=called, afterwards=afterwards)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def build(module: str, precision: str, for_training: bool = True) -> keras.Model:
    config = Train(model=f"{module}:build", precision=precision)
    return build_model(config, SHAPE, 3, Path("/nowhere"), for_training)


def set_policy(name: str) -> str:
    return f"keras.config.set_dtype_policy({name!r})"


@pytest.mark.parametrize("for_training", [True, False], ids=["trained", "served"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("call", ["keras.backend.clear_session()", "keras.utils.clear_session()"])
@pytest.mark.models
def test_clear_session_is_refused_by_name(write, call, precision, for_training):
    for module in (write(called=call), write(imported=call)):
        with pytest.raises(ConfigError, match=rf"^train.model: {module}:build calls .*clear_sess"):
            build(module, precision, for_training)


@pytest.mark.parametrize("for_training", [True, False], ids=["trained", "served"])
@pytest.mark.parametrize(
    ("precision", "policy", "cure"),
    [
        ("float32", "mixed_bfloat16", "set train.precision: bfloat16."),
        ("float32", "mixed_float16", "set train.precision: float16."),
        ("bfloat16", "float32", "set train.precision: float32."),
        ("bfloat16", "mixed_float16", "set train.precision: float16."),
        ("float16", "float32", "set train.precision: float32."),
        ("float32", "float64", "give single layers the argument dtype."),
    ],
)
@pytest.mark.models
def test_another_policy_is_refused_with_the_key(write, precision, policy, cure, for_training):
    setting = set_policy(policy)
    for module in (
        write(imported=setting),
        write(called=setting),
        write(afterwards=f"keras.mixed_precision.set_global_policy({policy!r})"),
    ):
        with pytest.raises(ConfigError) as refused:
            build(module, precision, for_training)
        message = str(refused.value)
        assert message.startswith(f"train.model: {module}:build: its code")
        assert f"policy to {policy}, and train.precision: {precision} sets" in message
        assert message.endswith(cure)


def test_the_policy_of_a_module_counts_if_a_loss_has_imported_it(write):
    module = write(imported=set_policy("mixed_float16"))
    load_function(f"{module}:loss", "train.loss", Path("/nowhere"))
    with pytest.raises(ConfigError, match=r"to mixed_float16, .* set train.precision: float16"):
        build(module, "bfloat16")


@pytest.mark.parametrize("for_training", [True, False], ids=["trained", "served"])
@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_another_float_of_keras_is_refused(write, kind, for_training):
    call = f"keras.config.set_floatx({kind!r})"
    for module in (write(imported=call), write(called=call)):
        with pytest.raises(ConfigError, match=f"set_floatx has set {kind}. Remove the call"):
            build(module, "float32", for_training)
        keras.config.set_floatx("float32")


@pytest.mark.parametrize(
    ("precision", "policy"),
    [("float32", "float32"), ("bfloat16", "mixed_bfloat16"), ("float16", "mixed_float16")],
)
def test_the_policy_of_the_config_may_be_set_at_import(write, precision, policy):
    module = write(imported=set_policy(policy))
    served, trained = build(module, precision, False), build(module, precision)
    assert {each.dtype_policy.name for each in trained.layers} == {policy}
    assert {each.dtype_policy.name for each in served.layers} == {"float32"}


def test_a_policy_may_be_set_for_a_part_of_the_model(write):
    module = write(
        called="old = keras.config.dtype_policy(); " + set_policy("mixed_bfloat16"),
        afterwards="keras.config.set_dtype_policy(old)",
    )
    assert {each.compute_dtype for each in build(module, "float32").layers} == {"bfloat16"}
    assert keras.config.dtype_policy().name == "float32"


def test_the_policy_that_train_precision_sets_is_refused_in_a_function(write):
    """The model is built in float32 to be served."""
    module = write(called=set_policy("mixed_bfloat16"))
    for for_training in (True, False):
        with pytest.raises(ConfigError, match="sets Keras's dtype policy to mixed_bfloat16"):
            build(module, "bfloat16", for_training)
    keras.utils.clear_session()
    assert build(write(called=set_policy("float32")), "float32").built
