"""`train.input.augment.own`: a function of an image and its seed, or refused with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.config.train import AugmentOptions, Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import ModelCheckRequest
from pipeline_ops.user_code.models import check_names, digest_user_code

SHAPE = (12, 12, 3)
CHANGES = "acme_vision.changes"
FILE = Path(__file__).parents[1] / "own" / "acme_vision" / "changes.py"


def load(name: str, shape=SHAPE):
    from pipeline_ops.training.worker import load_own_change

    config = Train(model="dense", input={"augment": {"own": f"{CHANGES}:{name}"}})
    return load_own_change(config, shape, Path("/nowhere"))


def line_of(text: str) -> int:
    lines = FILE.read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("name", "message", "place"),
    [
        ("stateful", "draws random numbers without its seed", "random_brightness"),
        ("in_python", "two calls with the same image and seed return other pixels", None),
        ("with_numpy", "two calls with the same image and seed return other pixels", None),
        ("with_a_layer", "uses variables", "return _layer"),
        ("smaller", "returns float32 [11, 11, 3] for an image of float32 [12, 12, 3]", None),
        ("whole_numbers", "returns uint8 [12, 12, 3] for an image of float32", None),
        ("scaled", "returns pixels from 0 to 1. Pixels are in 0..255 here", None),
        ("undefined", "returns pixels from ", None),
        ("raising", "raised ValueError: ", None),
        ("failing", "raised InvalidArgumentError: ", None),
        ("without_seed", "raised TypeError: ", None),
        ("nothing", "returns None for an image", None),
        ("pair", "returns (", None),
        ("not_callable", "is a int. It must be a function", None),
        ("jiter", "has no function 'jiter'; the nearest valid name is 'jitter'", None),
    ],
)
@pytest.mark.training
def test_what_is_no_function_of_image_and_seed_is_refused(user_package, name, message, place):
    with pytest.raises(ConfigError, match=rf"^train\.input\.augment\.own: .*{name}") as refused:
        load(name)
    assert message in str(refused.value)
    if place:
        assert f"changes.py:{line_of(place)}" in str(refused.value)


@pytest.mark.parametrize("name", ["jitter", "in_numpy"])
def test_each_image_gets_a_seed_of_its_own_wherever_it_is_in_a_batch(user_package, name):
    import tensorflow as tf

    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.input.order import StatelessRandom

    images = np.full([40, *SHAPE], 100, np.uint8)
    config = AugmentOptions(own=f"{CHANGES}:{name}", flip_left_right=True)
    changes = build_augmentation(config, "classification", 40, own=load(name))

    def change(start: int, stop: int, epoch: int = 0) -> np.ndarray:
        examples = tf.range(start, stop, dtype=tf.int64)
        rng = StatelessRandom(1, tf.zeros_like(examples) + epoch, examples)
        changed, _ = changes.apply(tf.constant(images[start:stop]), 0, rng)
        assert changed.dtype == tf.uint8 and changed.shape == (stop - start, *SHAPE)
        return changed.numpy()

    whole = change(0, 40)
    assert (whole == np.concatenate([change(n, min(n + 7, 40)) for n in range(0, 40, 7)])).all()
    assert len({image.tobytes() for image in whole}) > 25
    assert (whole != change(0, 40, epoch=1)).any(axis=(1, 2, 3)).mean() > 0.9
    if name == "jitter":
        medians = np.median(whole, axis=(1, 2, 3))
        assert 0.2 < (medians > 140).mean() < 0.8 and (abs(medians - 127) > 20).all()


def test_boxes_stay_where_they_are(user_package):
    import tensorflow as tf

    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.input.order import StatelessRandom
    from pipeline_ops.models.boxes import Boxes

    corners = tf.constant([[[0.1, 0.2, 0.5, 0.6]]])
    boxes = Boxes(corners, tf.zeros([1, 1], tf.int32), tf.zeros([1, 1], tf.bool))
    config = AugmentOptions(own=f"{CHANGES}:jitter")
    changes = build_augmentation(config, "detection", 1, own=load("jitter"))
    zeros = tf.zeros([1], tf.int64)
    images = tf.fill([1, *SHAPE], tf.constant(100, tf.uint8))
    changed, labels = changes.apply(images, boxes, StatelessRandom(1, zeros, zeros))
    assert (changed != images).numpy().any() and (labels.corners == corners).numpy().all()


def test_the_check_of_a_model_and_the_fingerprint_have_it(user_package, tmp_path):
    from pipeline_ops.job.model_check import requires_process
    from pipeline_ops.training.check import check_model

    config = Train(model="dense", input={"augment": {"own": f"{CHANGES}:smaller"}})
    assert requires_process(config)
    train = config.model_dump(mode="json")
    question = ModelCheckRequest(
        config_file="/nowhere/a.yaml",
        train=train,
        task="classification",
        image_shape=SHAPE,
        num_classes=3,
    )
    with pytest.raises(ConfigError, match=re.escape("smaller returns float32 [11, 11, 3]")):
        check_model(question)
    assert any("changes.py" in file for file in digest_user_code(config, tmp_path))
    with pytest.raises(ConfigError, match="augment.own: .*defines no 'nowhere'"):
        check_names(
            Train(model="dense", input={"augment": {"own": f"{CHANGES}:nowhere"}}), tmp_path
        )
