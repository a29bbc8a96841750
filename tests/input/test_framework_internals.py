"""The private parts of TensorFlow and Keras are checked in one place, with a clear error."""

from __future__ import annotations

import importlib
import math
import operator
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from pipeline_ops.errors import ConfigError
from pipeline_ops.input import framework_internals

ROOT = Path(__file__).resolve().parents[2]


PARTS = [
    path
    for path in framework_internals.PRIVATE_NAMES
    if not path.endswith((".__init__", "_FIELD_NUMBER"))  # cannot be removed
]


@pytest.mark.parametrize("path", PARTS)
def test_a_part_that_is_missing_is_named_with_the_versions(monkeypatch, path):
    module, _, names = path.partition(":")
    *owners, name = names.split(".")
    holder = importlib.import_module(module)
    if owners:
        owner = operator.attrgetter(".".join(owners))(holder)
        holder = next(kind for kind in owner.__mro__ if name in vars(kind))
    monkeypatch.delattr(holder, name)
    with pytest.raises(ConfigError) as error:
        runpy.run_path(framework_internals.__file__)
    assert re.fullmatch(
        r"TensorFlow 2\.21\.\d+ and Keras 3\.15\.\d+ have no \S+" + name + r"\S*, which is used "
        r"here. The tested versions are TensorFlow 2\.21 and Keras 3\.15\. Install these: "
        r"pip install 'tensorflow>=2\.21,<2\.22' 'keras>=3\.15,<3\.16'",
        str(error.value),
    )


def test_an_attribute_that_only_instances_have_is_checked_too(monkeypatch):
    from tensorflow.python.eager.context import Context

    monkeypatch.setattr(Context, "__init__", lambda self: None)
    with pytest.raises(ConfigError, match="have no tensorflow.python.eager.context:Context._con"):
        runpy.run_path(framework_internals.__file__)


@pytest.mark.parametrize(
    "name, slots",
    [
        ("SGD", {"momentums"}),
        ("RMSprop", {"momentums", "velocities"}),
        ("Adam", {"momentums", "velocities"}),
        ("AdamW", {"momentums", "velocities"}),
    ],
)
def test_each_variable_of_an_optimizer_is_in_one_slot(name, slots):
    import keras

    weights = [keras.Variable([1.0], name=name) for name in ("average", "a_velocity", "momentum")]
    options = {} if name.startswith("Adam") else {"momentum": 0.9}
    optimizer = getattr(keras.optimizers, name)(use_ema=True, **options)
    optimizer.build(weights)
    found = framework_internals.get_slots(optimizer)
    assert found.keys() == {*slots, "averages"}
    assert [len(variables) for variables in found.values()] == [3] * len(found)
    rest = {"iteration", "learning_rate"}
    of_weights = [each for each in optimizer.variables if each.name not in rest]
    assert {id(each) for variables in found.values() for each in variables} == set(
        map(id, of_weights)
    )


# What each part means, for the day on which it still exists and means something else.


def make_optimizer(**options):
    """Returns an optimizer with a learning rate of 1, and its weight."""
    import keras

    weight = keras.Variable([0.0])
    optimizer = keras.optimizers.SGD(1.0, **options)
    optimizer.build([weight])
    return optimizer, weight


def test_an_optimizer_adds_up_gradients_in_one_place_and_once():
    import tensorflow as tf

    optimizer, weight = make_optimizer()
    calls = []

    def triple(pairs):
        calls.append(pairs)
        return [(3 * gradient, variable) for gradient, variable in pairs]

    optimizer._all_reduce_sum_gradients = triple
    optimizer.apply_gradients([(tf.ones(1), weight)])
    assert len(calls) == 1 and weight.numpy().tolist() == [-3.0]


def test_with_kept_gradients_an_optimizer_exchanges_nothing(monkeypatch):
    import tensorflow as tf

    def exchange(*_):
        raise AssertionError("gradients are added up once more")

    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        kept, weight = make_optimizer()
        plain, other = make_optimizer()
    framework_internals.keep_gradients(kept)
    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", exchange)
    strategy.run(lambda: kept.apply_gradients([(tf.ones(1), weight)]))
    assert weight.numpy().tolist() == [-1.0]
    with pytest.raises(AssertionError, match="once more"):
        strategy.run(lambda: plain.apply_gradients([(tf.ones(1), other)]))


def test_averages_are_updated_by_the_replaced_method_alone_once_in_a_step():
    import tensorflow as tf

    optimizer, weight = make_optimizer(use_ema=True)
    calls = []
    framework_internals.replace_average_update(optimizer, calls.append)
    optimizer.apply_gradients([(tf.ones(1), weight)])
    [[updated]] = calls
    [average] = framework_internals.get_slots(optimizer)["averages"]
    assert updated is weight and average.numpy().tolist() == [0.0]


def test_dropout_draws_from_the_state_that_is_known_by_its_name():
    import keras

    layer = keras.layers.Dropout(0.5, seed=7)
    [state] = layer.variables
    assert state.name == framework_internals.SEED_STATE
    assert state.numpy()[0] == 7, "a generator is known by its seed"
    before, images = state.numpy(), keras.ops.ones((1, 100))
    first = layer(images, training=True).numpy()
    assert (state.numpy() != before).any()
    state.assign(before)
    assert (layer(images, training=True).numpy() == first).all()


def test_the_path_of_a_variable_is_known_while_it_is_created():
    import keras

    paths = []

    class Layer(keras.layers.Layer):
        def build(self, shape):
            def initial(shape, dtype):
                paths.append(framework_internals.get_creation_path())
                return keras.ops.zeros(shape, dtype)

            self.kernel = self.add_weight(shape=[1], initializer=initial, name="kernel")

    layer = Layer(name="mine")
    layer.build([1])
    assert [f"{path}/kernel" for path in paths] == [layer.kernel.path]


def test_the_layers_inside_of_layers_are_listed():
    import keras

    inner = keras.Sequential([keras.layers.Dense(1, name="inner")])
    model = keras.Sequential([keras.Input([1]), inner, keras.layers.ReLU(name="outer")])
    names = {layer.name for layer in framework_internals.list_layers(model)}
    assert names >= {"inner", "outer", inner.name} and model.name not in names


def test_the_assigned_weights_of_a_graph_are_listed_and_those_that_depend_on_a_batch():
    import keras
    import tensorflow as tf

    read, counted, learned = (keras.Variable([0.0], name=name) for name in ("a", "b", "c"))
    found = []

    @tf.function
    def step(batch):
        counted.assign(counted.value + 1)
        learned.assign(read.value + tf.reduce_mean(batch))
        weights = [read, counted, learned]
        found.append(framework_internals.list_assigned(weights))
        found.append(framework_internals.list_assigned(weights, [batch]))

    step(tf.ones([2]))
    assert found == [["b", "c"], ["c"]]


def test_a_compiled_model_has_its_variables_before_a_step():
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    framework_internals.build_compiled_parts(model, (np.zeros((2, 3)), np.zeros((2, 1))))
    rate_step_and_slots = 2 + 2 * len(model.weights)
    assert len(model.optimizer.variables) == rate_step_and_slots
    assert model.metrics_variables


def make_callback(kind, folder):
    """Returns one of Keras's callbacks, for a model of its own."""
    import keras

    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    options = {
        "EarlyStopping": {"monitor": "loss", "patience": 2, "restore_best_weights": True},
        "History": {},
        "ModelCheckpoint": {"filepath": folder / "{epoch}-{batch}.keras", "save_freq": 3},
        "ReduceLROnPlateau": {"monitor": "loss", "patience": 2, "cooldown": 1},
        "TensorBoard": {"log_dir": folder, "update_freq": 1},
    }
    callback = getattr(keras.callbacks, kind)(**options[kind])
    callback.set_model(model)
    callback.on_train_begin()
    return callback


def run_epoch(callback, epoch):
    """Runs an epoch of four batches. Its loss is 3, then 1, and then 2."""
    callback.model.layers[0].kernel.assign([[float(epoch)]])
    callback.on_epoch_begin(epoch)
    for batch in range(4):
        callback.on_train_batch_begin(batch)
        callback.on_train_batch_end(batch, {"loss": 1.0})
    callback.on_epoch_end(epoch, {"loss": [3.0, 1.0, 2.0, 2.0][min(epoch, 3)]})


def describe_callback(callback, folder):
    """Returns what a callback has done, as far as a user can see it."""
    model, names = callback.model, [file.name for file in folder.rglob("*.keras")]
    done = [model.stop_training, float(model.optimizer.learning_rate), sorted(names)]
    done.append([weight.tolist() for weight in model.get_weights()])
    return [*done, getattr(callback, "history", None), getattr(callback, "_global_train_batch", 0)]


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "kind", ["EarlyStopping", "History", "ModelCheckpoint", "ReduceLROnPlateau", "TensorBoard"]
)
def test_a_callback_goes_on_from_what_it_remembers(kind, at, tmp_path):
    def run(folder, restart_at=None):
        callback = make_callback(kind, folder)
        for epoch in range(4):
            if epoch == restart_at:
                before, callback = callback, make_callback(kind, folder)
                callback.model.set_weights(before.model.get_weights())
                callback.model.optimizer.learning_rate = before.model.optimizer.learning_rate
                for name in framework_internals.list_remembered(callback):
                    setattr(callback, name, getattr(before, name))
            run_epoch(callback, epoch)
        callback.on_train_end()
        return describe_callback(callback, folder)

    undisturbed = run(tmp_path / "whole")
    assert run(tmp_path / "restarted", at) == undisturbed
    untouched = describe_callback(make_callback(kind, tmp_path / "new"), tmp_path / "new")
    assert untouched != undisturbed


@pytest.mark.parametrize("batches, is_profiling", [(0, False), ((2, 3), True)])
def test_a_callback_that_profiles_says_so(batches, is_profiling, tmp_path):
    import keras

    callback = keras.callbacks.TensorBoard(tmp_path, profile_batch=batches)
    assert framework_internals.will_profile(callback) == is_profiling


def test_only_a_finite_figure_is_an_improvement(tmp_path):
    callback = make_callback("EarlyStopping", tmp_path)
    callback._set_monitor_op()
    assert callback._is_improvement(-math.inf, 1.0), "or Keras does it"
    framework_internals.compare_only_finite(callback)
    assert not callback._is_improvement(-math.inf, 1.0)
    assert not callback._is_improvement(math.nan, None)
    assert callback._is_improvement(0.5, 1.0) and not callback._is_improvement(1.5, 1.0)


def test_the_tested_versions_are_those_that_the_distribution_requires():
    project = (ROOT / "pyproject.toml").read_text()
    requirements = tomllib.loads(project)["project"]["optional-dependencies"]["train"]
    for package, (first, end) in framework_internals.TESTED.items():
        assert any(line.startswith(f"{package}>={first},<{end}") for line in requirements)


def test_no_other_module_imports_private_parts():
    found = {
        str(file.relative_to(ROOT))
        for package in ("pipeline_ops", "beam_jobs")
        for file in (ROOT / package).rglob("*.py")
        if re.search(r"\b(tensorflow\.python|keras\.src)\b", file.read_text())
    }
    assert found == {"pipeline_ops/input/framework_internals.py", "pipeline_ops/models/slim.py"}


def test_there_are_at_most_eighteen_private_parts():
    """Besides the parts above there are `Context._config`, and four and a moved module of tf_keras
    in `models/slim.py`, whose tests fail without them."""
    assert len(PARTS) + 1 + 5 <= 18
