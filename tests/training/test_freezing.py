"""Only weights that a warm start has not set learn in the first `train.freeze_epochs` epochs, and
those that match a pattern of `train.freeze` learn from their epoch on."""

from __future__ import annotations

import importlib
import shutil

import numpy as np
import pytest
from gangs import ALONE, QUICK, read_state, run_gang
from scenes import DETECTORS

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import TRAINED
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.training.weight_files import read_arrays, write_arrays

SHAPE = (16, 16, 1)
STEPS_PER_EPOCH = 22
HEAD = 2
"""The number of weights of the last layer."""
ADAMW = {"name": "adamw", "learning_rate": 1e-2, "weight_decay": 0.1, "average_weights": 0.9}


def make_loop(**options):
    """Makes a loop of a network with batch normalization, whose first layer never learns."""
    import keras
    import tensorflow as tf

    from pipeline_ops.models.classification import Classification
    from pipeline_ops.training.loop import SynchronousLoop

    keras.utils.set_random_seed(1)
    body = keras.Sequential(
        [keras.layers.Conv2D(2, 3, name="conv"), keras.layers.BatchNormalization(name="normal")],
        name="body",
    )
    images = keras.Input(SHAPE)
    x = keras.layers.Conv2D(2, 3, trainable=False, name="fixed")(images)
    x = keras.layers.Dropout(0.1)(keras.layers.Flatten()(body(x)))
    model = keras.Model(images, keras.layers.Dense(3, name="logits")(x))
    config = Train(
        model="a:b", strategy="one_device", global_batch_size=8, optimizer=ADAMW, **options
    )
    return SynchronousLoop(tf.distribute.get_strategy(), model, Classification(SHAPE), config)


def take_steps(loop, first: int) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(first)
    images = rng.integers(0, 256, (8, *SHAPE)).astype(np.uint8)
    batch = tf.data.Dataset.from_tensors((images, rng.integers(0, 3, 8)))
    assert loop.train(iter(batch.repeat()), first, [1e-2] * 4).is_sound


def list_changed(before: list[np.ndarray], loop, best: bool = False) -> set[str]:
    after = loop.get_best_weights() if best else loop.get_weights()
    paths = [each.path for each in loop.model.weights]
    return {
        path for path, a, b in zip(paths, before, after, strict=True) if not np.array_equal(a, b)
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"micro_batches": 2, "precision": "float16"}, marks=pytest.mark.training),
        pytest.param({"xla": "step"}, marks=pytest.mark.training),
    ],
)
def test_frozen_weights_and_statistics_keep_every_bit_and_all_learn_after_the_thaw(options):
    loop = make_loop(**options)
    weights, values = loop.get_weights(), loop.get_views()[1]
    head = {each.path for each in loop.model.weights[-HEAD:]}
    loop.freeze(range(len(weights) - HEAD))
    take_steps(loop, 0)
    assert list_changed(weights, loop) == head
    assert list_changed(weights, loop, best=True) == head  # averages are no less exact
    assert [layer.trainable for layer in loop.model.get_layer("body").layers] == [False, False]

    frozen = loop.get_weights()
    loop.freeze([])
    take_steps(loop, 4)
    assert list_changed(frozen, loop) == {
        each.path for each in loop.model.weights if not each.path.startswith("fixed")
    }
    assert not loop.model.get_layer("fixed").trainable
    assert [each.shape for each in loop.get_views()[1]] == [each.shape for each in values]


def test_statistics_learn_unless_all_weights_of_their_layer_are_frozen():
    loop = make_loop()
    paths = [each.path for each in loop.model.weights]
    weights = loop.get_weights()
    loop.freeze([paths.index("body/normal/gamma"), paths.index("body/normal/moving_mean")])
    take_steps(loop, 0)
    changed = list_changed(weights, loop)
    assert "body/normal/gamma" not in changed
    assert {"body/normal/beta", "body/normal/moving_mean"} <= changed


@pytest.mark.training
def test_a_pattern_matches_all_batch_normalization_of_resnet50():
    import keras

    from pipeline_ops.models import backbones
    from pipeline_ops.training.loop import list_layers
    from pipeline_ops.training.strategy import find_match

    model = backbones.build((32, 32, 3), 5, name="ResNet50")
    normal = [x for x in list_layers(model) if isinstance(x, keras.layers.BatchNormalization)]
    matched = {each.path for each in model.weights if find_match(each.path, {"*_bn/*": 1})}
    assert matched == {weight.path for layer in normal for weight in layer.weights}
    assert len(matched) == 4 * 53


def test_a_model_whose_weights_are_all_frozen_is_refused():
    loop = make_loop()
    with pytest.raises(ConfigError, match=r"train\.freeze: all weights of the model are frozen"):
        loop.freeze(range(len(loop.model.weights)))


@pytest.fixture
def make_fine_tuning(make_job, user_package, tmp_path):
    """Makes jobs that begin with weights for a number of classes. The data set has ten."""

    def make(name: str, classes: int = 5, **options):
        import keras
        from acme_vision import nets

        keras.utils.set_random_seed(3)
        weights = nets.smooth(SHAPE, classes).get_weights()
        write_arrays(tmp_path / "start.npz", weights)
        defaults = {
            "train__model": "acme_vision.nets:smooth",
            "train__warm_start": str(tmp_path / "start.npz"),
            "train__freeze_epochs": 1,
            "train__optimizer": {"name": "adam", "learning_rate": 1e-3, "average_weights": 0.9},
        }
        return make_job(name, **(QUICK | defaults | options)), weights

    return make


def trained(job, host_pool, **options) -> list[np.ndarray]:
    run_gang(job, host_pool, **options)
    return read_arrays(job.work / TRAINED)


def get_messages(job, phase: str) -> list[str]:
    events = ProgressReader(open_path(job.attempt.progress)).read_new()
    return [event.message for event in events if event.phase == phase]


@pytest.mark.training
def test_the_head_learns_first_then_all_and_any_gang_gives_the_same_weights(
    make_fine_tuning, host_pool
):
    job, start = make_fine_tuning("frozen", **ALONE)
    weights = trained(job, host_pool, steps_limit=STEPS_PER_EPOCH)
    assert all(np.array_equal(a, b) for a, b in zip(weights[:-HEAD], start, strict=False))
    [message] = get_messages(job, "warm start")
    assert message.endswith("logits/bias. The others are frozen at first (train.freeze_epochs: 1)")

    alone = trained(make_fine_tuning("alone", **ALONE, train__seed=2)[0], host_pool)
    assert not any(np.array_equal(a, b) for a, b in zip(alone[:-HEAD], start, strict=False))
    others = {
        "gang": {"train__workers": 2},
        "parts": {"train__workers": 2, "train__micro_batches": 2},
        "mirrored": {
            "train__workers": 1,
            "train__strategy": "mirrored",
            "train__devices_per_worker": 2,
        },
        "placed": {
            "train__workers": 1,
            "train__strategy": "device_placement",
            "train__devices_per_worker": 2,
            "train__placement": {"conv2d": "CPU:1", "hidden": "CPU:0", "log*": "CPU:1"},
        },
    }
    for name, options in others.items():
        job, _ = make_fine_tuning(name, **options, train__seed=2)
        for a, b in zip(trained(job, host_pool), alone, strict=True):
            assert float(np.abs(a - b).max()) <= 1e-6, name


@pytest.mark.training
def test_a_restart_in_either_phase_and_at_the_thaw_gives_the_same_weights(
    make_fine_tuning, host_pool
):
    job, _ = make_fine_tuning("calm", train__workers=2)
    calm = trained(job, host_pool)
    thaw = STEPS_PER_EPOCH
    for limit, every, resumed in [(12, 8, 8), (thaw + 8, 1000, thaw), (thaw + 8, 8, thaw + 2)]:
        options = {"train__workers": 2, "train__checkpoint_every_steps": every}
        job, _ = make_fine_tuning(f"restarted-{resumed}", **options)
        shutil.rmtree(job.work)  # checkpoint_every_steps is operational
        run_gang(job, host_pool, steps_limit=limit)
        weights = trained(job, host_pool)
        assert f"resumes from step {resumed}" in get_messages(job, "restored")
        assert all(np.array_equal(a, b) for a, b in zip(weights, calm, strict=True)), resumed


@pytest.mark.training
def test_a_worker_that_is_killed_at_the_thaw_changes_nothing(make_fine_tuning, host_pool):
    calm = trained(make_fine_tuning("calm", **ALONE)[0], host_pool)
    job, _ = make_fine_tuning("killed", **ALONE, train__callbacks=["own_watchers:DieOnce"])
    weights = trained(job, host_pool)
    assert get_messages(job, "restored") == [f"resumes from step {STEPS_PER_EPOCH}"]
    assert all(np.array_equal(a, b) for a, b in zip(weights, calm, strict=True))


@pytest.mark.training
def test_weights_that_match_a_pattern_thaw_at_their_epoch_also_after_a_restart(
    make_job, user_package, host_pool
):
    freeze = {"*conv2d/*": 1, "*hidden/kernel": None}
    options = {"train__model": "acme_vision.nets:smooth", "train__freeze": freeze}

    def begin(name: str, limit: int | None = None) -> tuple:
        job = make_job(name, **QUICK, **options, train__workers=2)
        shutil.rmtree(job.work, ignore_errors=True)  # all of these have one fingerprint
        return job, trained(job, host_pool, steps_limit=limit)

    def find_changes(after: list[np.ndarray]) -> list[int]:
        pairs = enumerate(zip(first, after, strict=True))
        return [number for number, (a, b) in pairs if not np.array_equal(a, b)]

    (_, first), (_, frozen), (_, calm) = begin("1", 1), begin("2", STEPS_PER_EPOCH), begin("3")
    assert find_changes(frozen) == [3, 4, 5]  # the bias of `hidden`, and the head
    assert find_changes(calm) == [0, 1, 3, 4, 5]  # the convolution, too
    for limit, resumed in [(12, 8), (STEPS_PER_EPOCH + 8, STEPS_PER_EPOCH + 2)]:
        job, _ = begin(f"to-{limit}", limit)
        weights = trained(job, host_pool)
        assert f"resumes from step {resumed}" in get_messages(job, "restored")
        assert all(np.array_equal(a, b) for a, b in zip(weights, calm, strict=True))


@pytest.mark.training
def test_a_weight_learns_when_neither_freeze_nor_freeze_epochs_holds_it(
    make_fine_tuning, host_pool
):
    freeze = {"*hidden/kernel": None, "*logits/bias": 1}
    job, start = make_fine_tuning("both", **ALONE, train__freeze=freeze)
    first = trained(job, host_pool, steps_limit=STEPS_PER_EPOCH)
    assert all(np.array_equal(a, b) for a, b in zip(first[:-HEAD], start, strict=False))
    assert first[-2].std() > 0 and not first[-1].any()  # the bias begins with zeros
    job, _ = make_fine_tuning("both", **ALONE, train__freeze=freeze)
    after = trained(job, host_pool)
    pairs = enumerate(zip(first, after, strict=True))
    assert [n for n, (a, b) in pairs if not np.array_equal(a, b)] == [0, 1, 3, 4, 5]


def test_a_pattern_that_matches_no_weight_is_refused_with_the_names(
    make_job, user_package, host_pool
):
    job = make_job("none", **QUICK, **ALONE, train__freeze={"*conv9*": None})
    with pytest.raises(ConfigError, match=r"train\.freeze: no weight matches \*conv9\*\. The we"):
        run_gang(job, host_pool)


@pytest.mark.training
def test_nothing_is_frozen_if_the_weights_are_those_of_the_whole_model(make_fine_tuning, host_pool):
    job, start = make_fine_tuning("whole", classes=10, **ALONE)
    weights = trained(job, host_pool, steps_limit=4)
    assert not any(np.array_equal(a, b) for a, b in zip(weights, start, strict=True))
    [message] = get_messages(job, "warm start")
    assert message.endswith("They are all weights of the model, so none is frozen")
    assert read_state(job).new_weights == []


@pytest.mark.training
@pytest.mark.parametrize("model", DETECTORS)
def test_a_detector_for_other_classes_learns_its_class_outputs_first(
    make_detection_job, host_pool, tmp_path, model
):
    module = importlib.import_module(f"pipeline_ops.models.{model}")
    source = module.build((128, 128, 1), 3, **DETECTORS[model])
    start = source.get_weights()
    write_arrays(tmp_path / "start.npz", start)
    options = {
        "train__model": model,
        "train__model_parameters": DETECTORS[model],
        "train__warm_start": str(tmp_path / "start.npz"),
        "train__freeze_epochs": 1,
        "train__global_batch_size": 16,
        "train__optimizer": {"name": "adam", "learning_rate": 1e-3},
    }
    for limit, is_frozen in [(8, True), (14, False)]:  # an epoch has 9 steps
        job = make_detection_job("detector", **options, train__workers=2)
        weights = trained(job, host_pool, steps_limit=limit)
        same = [np.array_equal(a, b) for a, b in zip(weights, start, strict=True)]
        assert same.count(False) == HEAD if is_frozen else same.count(False) > len(same) / 4
