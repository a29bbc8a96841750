"""Training examples from a `tf.data` pipeline of the author's own (`train.dataset`)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from gangs import ALONE, QUICK, KillOnce, distance, read_state, run_gang
from PIL import Image

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import TRAINED
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.job.model_check import ModelCheckRequest
from pipeline_ops.training import own_dataset
from pipeline_ops.training.check import check_model
from pipeline_ops.training.weight_files import read_arrays

SHAPE, NOWHERE = (16, 16, 1), Path("/nowhere")
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
OWN = {**QUICK, "train__model": "acme_vision.nets:smooth", "train__optimizer": SGD}


def make_config(function: str, **more) -> Train:
    return Train(model="digits_cnn", dataset=f"acme_vision.examples:{function}", **more)


# A training


def train(make_job, host_pool, name: str, on_event=None, **options):
    job = make_job(name, **OWN, **options)
    shutil.rmtree(job.work, ignore_errors=True)  # equal trainings share it
    run_gang(job, host_pool, on_event)
    return read_state(job), read_arrays(job.work / TRAINED)


DIGITS = {"train__dataset": "acme_vision.examples:digits"}


@pytest.mark.training
def test_two_workers_train_as_one_does_and_a_killed_one_goes_on(make_job, host_pool):
    state, alone = train(make_job, host_pool, "alone", **DIGITS, **ALONE)
    assert state.step == -(-2 * 700 // 32)
    assert state.history[-1].metrics["validation_accuracy"] > 0.5
    _, gang = train(make_job, host_pool, "gang", **DIGITS, train__workers=2)
    assert distance(alone, gang) <= 1e-6
    kill = KillOnce("killed", after=20)
    _, again = train(make_job, host_pool, "killed", kill, **DIGITS, train__workers=2)
    assert kill.is_done
    assert distance(gang, again) == 0


@pytest.mark.training
@pytest.mark.parametrize(
    "strategy",
    [
        {"train__strategy": "mirrored", "train__devices_per_worker": 2, "train__workers": 1},
        {
            "train__strategy": "parameter_server",
            "train__parameter_servers": 1,
            "train__workers": 1,
        },
        {"train__workers": 2, "train__global_batch_size": 64, "train__micro_batches": 2},
        {"train__workers": 2, "train__global_batch_size": 64, "train__steps": 9},
    ],
    ids=["mirrored", "parameter_server", "micro-batches", "steps"],
)
def test_other_strategies_train_as_one_device_does(make_job, host_pool, strategy):
    shared = {
        k: v for k, v in strategy.items() if k in ("train__global_batch_size", "train__steps")
    }
    _, alone = train(make_job, host_pool, "alone", **DIGITS, **ALONE | shared)
    state, other = train(make_job, host_pool, "other", **DIGITS, **strategy)
    assert distance(alone, other) <= 1e-6
    assert state.step == min(strategy.get("train__steps", 99), state.step)


@pytest.mark.training
def test_a_killed_worker_goes_on_in_another_order_with_uneven_slices(make_job, host_pool):
    kill = KillOnce("shuffled", after=20)
    options = {"train__dataset": "acme_vision.examples:changed", "train__global_batch_size": 33}
    state, _ = train(make_job, host_pool, "shuffled", kill, **options, train__workers=2)
    assert kill.is_done
    assert state.step == -(-2 * 700 // 33)
    assert len(state.history) == 2


@pytest.mark.training
def test_random_changes_are_translated_and_said_to_be_unrepeatable(make_job, host_pool):
    events = []
    options = {"train__dataset": "acme_vision.examples:changed", "train__workers": 2}
    state, _ = train(make_job, host_pool, "changed", events.append, **options)
    assert state.history[-1].metrics["accuracy"] > 0.3
    told = [event.message or "" for event in events if event.phase == "input"]
    text = "train.dataset: acme_vision.examples:changed has 700 examples. The training images came"
    assert any(message.startswith(text) for message in told), told


@pytest.mark.training
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "that_raises",
            r"train.dataset: acme_vision.examples:that_raises: no batch can be read "
            r"\(.*/acme_vision/examples.py:\d+\): ValueError: no such picture. Correct it",
        ),
        (
            "of_a_wrong_label",
            r":of_a_wrong_label: no batch can be read: labels must be 0 to 9. Correct it",
        ),
    ],
)
def test_an_error_while_examples_are_read_ends_the_training_with_its_cause(
    make_job, host_pool, function, message
):
    options = {"train__dataset": f"acme_vision.examples:{function}", "train__workers": 2}
    with pytest.raises((ConfigError, DataError), match=message):
        train(make_job, host_pool, "broken", **options)


@pytest.mark.training
def test_a_batch_that_diverges_is_said_not_to_be_saved(make_job, host_pool):
    with pytest.raises(ConfigError, match="Its batch came from train.dataset, and is not saved."):
        train(
            make_job,
            host_pool,
            "diverged",
            train__on_divergence={"max_loss": 0.1},
            **DIGITS,
            **ALONE,
        )


# The check


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_dataset", "returns a tuple, and no tf.data.Dataset"),
        ("endless", "repeats its examples without end. Leave out repeat()"),
        ("of_unknown_number", "does not tell its number of examples. Please append .apply(tf.data"),
        ("empty", "has no example in part 0 of 1"),
        (
            "batched",
            "those of the data set of the preprocess job have (16, 16, 1). Leave out batch",
        ),
        ("larger", "yields images of the shape (24, 24, 1), and those of the data set"),
        ("one_hot", 'got float32 of the shape (10,). Use label_mode="int", or tf.argmax of a'),
        ("doubles", "images must be uint8 or float32, got float64"),
        ("named", "must yield pairs (image, label), and it yields {'image': TensorSpec("),
        ("weighted", "must yield pairs (image, label), and it yields (TensorSpec("),
        ("fractions", "images must have values of 0 to 255. Leave out rescaling, which the model"),
        ("centred", "images must have values of 0 to 255. Leave out rescaling"),
        ("without_mean", "images must have values of 0 to 255. Leave out rescaling"),
        ("not_finite", "images must have values of 0 to 255"),
        ("from_one", "labels must be 0 to 9"),
        ("whole", "returns 700 examples for part 0 of 2, and 700 in all, so each worker would"),
        ("of_two_arguments", "raised TypeError: of_two_arguments() takes 2 positional arguments"),
        ("broken", "raised FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/di"),
        ("failing", "no batch can be read: /nowhere/1.png; No such file or directory. Correct it"),
    ],
)
def test_a_function_that_cannot_be_trained_with_is_refused(user_package, function, message):
    config = make_config(function, workers=2)
    with pytest.raises((ConfigError, DataError)) as refused:
        own_dataset.check_own_dataset(config, SHAPE, 10, NOWHERE)
    assert str(refused.value).startswith(f"train.dataset: acme_vision.examples:{function}")
    assert message in str(refused.value)


def test_the_check_of_the_model_checks_the_examples_and_names_the_line(user_package):
    train = make_config("broken").model_dump(mode="json")
    request = ModelCheckRequest(
        config_file="/nowhere/a.yaml",
        train=train,
        task="classification",
        image_shape=SHAPE,
        num_classes=10,
    )
    with pytest.raises(ConfigError, match=r"^train.dataset: .*acme_vision/examples.py:\d+"):
        check_model(request)
    changed = train | {"dataset": "acme_vision.examples:changed"}
    check_model(request.model_copy(update={"train": changed}))


def test_a_function_that_is_too_slow_is_refused(user_package, monkeypatch):
    monkeypatch.setattr(own_dataset, "_CHECK_SECONDS", 1)
    with pytest.raises(ConfigError, match="slow gives no 2 examples within 1 s"):
        own_dataset.check_own_dataset(make_config("slow"), SHAPE, 10, NOWHERE)


# The pipelines of tutorials


@pytest.fixture
def written(user_package, tmp_path, monkeypatch) -> tuple[np.ndarray, np.ndarray]:
    """The digits as files, in the formats of tutorials, in the order of their classes."""
    import tensorflow as tf
    from acme_vision.examples import load

    images, labels = load()
    order = np.argsort(labels, kind="stable")
    images, labels = images[order], labels[order]
    np.savez(tmp_path / "mnist.npz", x_train=images[..., 0], y_train=labels)
    with tf.io.TFRecordWriter(str(tmp_path / "images.tfrecords")) as writer:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = tmp_path / str(label) / f"{number:04}.png"
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(image[..., 0]).save(file)
            features = {
                "image_raw": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[file.read_bytes()])
                ),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    monkeypatch.setenv("ACME_DATA", str(tmp_path))
    return images, labels


def to_rows(images: np.ndarray, labels: np.ndarray) -> list[bytes]:
    """Each image with its label, sorted."""
    pairs = zip(images.astype(np.uint8), labels, strict=True)
    return sorted(image.tobytes() + bytes([label]) for image, label in pairs)


@pytest.mark.parametrize(
    "function",
    ["of_a_folder", "of_npz", "of_cifar", "of_a_generator", "of_tfrecords", "of_files"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_the_parts_of_a_tutorials_pipeline_have_its_pixels_and_labels(written, function, count):
    config = make_config(function, workers=count)
    own_dataset.check_own_dataset(config, SHAPE, 10, NOWHERE)
    pairs = [
        pair
        for index in range(count)
        for pair in own_dataset.open_own_dataset(
            config, SHAPE, NOWHERE, index, count
        ).as_numpy_iterator()
    ]
    images, labels = map(np.stack, zip(*pairs, strict=True))
    assert to_rows(images, labels) == to_rows(*written)


# The config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": {"augment": {"flip_left_right": True}}}, "input.augment is for the data set's"),
        ({"input": {"shuffle": "shards"}}, "input.shuffle is for the data set's train split"),
        ({"input": {"repeat_threshold": 0.1}}, "input.repeat_threshold is for the data set's"),
        ({"input": {"cache": "disk"}}, "input.cache is for the data set's train split"),
        ({"class_weights": True}, "class_weights are counted on the data set's train split"),
        ({"model": "retinanet"}, "is not for the detector retinanet, and the key is for"),
        ({"dataset": "digits"}, "a function of your own is named as my_package.my_module:function"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(options, message):
    given = {"model": "digits_cnn", "dataset": "acme_vision.examples:digits"} | options
    with pytest.raises(ValueError, match=re.escape(message)):
        Train.model_validate(given)
