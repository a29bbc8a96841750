"""Answers and figures of a validation that are not finite: named by the keys of their images."""

from __future__ import annotations

import math

import pytest
from gangs import ALONE, QUICK, train
from small_datasets import blacken

from pipeline_ops.errors import ConfigError

SHORT = QUICK | {
    "train__optimizer": {"name": "sgd", "learning_rate": 0.01},
    "train__best_checkpoint": {"monitor": "validation_loss"},
    "train__reduce_learning_rate": None,
}
GANGS = {
    "one device": ALONE,
    "two devices": ALONE | {"train__strategy": "mirrored", "train__devices_per_worker": 2},
    "two workers": {"train__workers": 2},
    "averages": ALONE | {"train__optimizer": {"name": "sgd", "average_weights": 0.9}},
    "parameter servers": {
        "train__strategy": "parameter_server",
        "train__workers": 1,
        "train__parameter_servers": 1,
    },
    "divided layers": ALONE
    | {
        "train__strategy": "dtensor",
        "train__devices_per_worker": 2,
        "train__sharding": {"*logits/kernel": 0},
    },
}


@pytest.fixture(scope="module")
def black_dataset(dataset, tmp_path_factory) -> tuple[str, list[str]]:
    """A data set with black images at the positions 1, 4 and 77 of the validation split, of which
    each of two workers reads one at least, and their keys."""
    return blacken(dataset, tmp_path_factory.mktemp("black") / "dataset", "validation", (1, 4, 77))


@pytest.fixture
def make_black(black_dataset, make_job_in, tmp_path):
    make = make_job_in(tmp_path, black_dataset[0])
    return lambda **more: make("attempt", **SHORT | more)


@pytest.mark.training
@pytest.mark.parametrize("gang", GANGS)
def test_answers_that_are_not_finite_end_the_training_with_their_keys(
    make_black, black_dataset, host_pool, gang
):
    job = make_black(train__model="standardizing:standardized", **GANGS[gang])
    with pytest.raises(ConfigError) as error:
        train(job, host_pool)
    keys = ", ".join(black_dataset[1])
    assert (
        "the answers of train.model standardizing:standardized to 3 of 100 validation images are "
        f"not finite after epoch 1: {keys}. Its weights are finite" in str(error.value)
    )


@pytest.mark.training
@pytest.mark.parametrize("gang", GANGS)
def test_a_loss_that_is_not_finite_is_a_warning_and_the_worst(
    make_black, black_dataset, host_pool, gang
):
    job = make_black(
        train__model="standardizing:unbiased",
        train__loss="standardizing:contrast_loss",
        **GANGS[gang],
    )
    state = train(job, host_pool)
    assert not any(math.isfinite(epoch.metrics["validation_loss"]) for epoch in state.history)
    assert len(state.history) == 2
    keys = ", ".join(black_dataset[1])
    [warning] = state.warnings
    assert warning == (
        "validation_loss of epoch 1 is not a finite number: it is not finite for 3 of 100 images: "
        f"{keys}. Such an epoch counts as the worst."
    )


def test_a_logit_of_minus_infinity_is_an_answer():
    """Its probability is 0, as of a class that the model leaves out."""
    import tensorflow as tf

    from pipeline_ops.models.classification import Classification
    from pipeline_ops.models.task import count_answers_not_finite

    task, inf, nan = Classification((4, 4, 1)), math.inf, math.nan
    logits = tf.constant([[1.0, -inf], [-inf, -inf], [inf, 1.0], [nan, 1.0], [0.0, 1e30]])
    assert task.are_answers_finite(logits).numpy().tolist() == [True, False, False, False, True]
    sums = task.compute_batch_sums(logits, tf.zeros(5, tf.int64), training=False)
    assert count_answers_not_finite(task, sums) == 3


@pytest.mark.parametrize("kind", ["center_detector", "retinanet"])
def test_a_detector_with_a_map_that_is_not_finite_is_found_by_its_example(kind):
    import tensorflow as tf
    from models.test_class_weights import PIXELS, make

    from pipeline_ops.models.detection import Detection
    from pipeline_ops.models.task import count_answers_not_finite, judge_examples

    head, outputs, labels = make(kind)
    task = Detection((PIXELS, PIXELS, 1), head)
    double = [
        tf.nest.map_structure(lambda value: tf.concat([value, value], 0), each)
        for each in (outputs, labels)
    ]
    for broken in range(len(tf.nest.flatten(outputs))):
        leaves = tf.nest.flatten(double[0])
        noise = tf.reshape(
            tf.constant([0.0, math.nan]), [2, *[1] * (leaves[broken].shape.rank - 1)]
        )
        leaves[broken] = leaves[broken] + noise
        changed = tf.nest.pack_sequence_as(double[0], leaves)
        assert task.are_answers_finite(changed).numpy().tolist() == [True, False]
        sums = task.compute_batch_sums(changed, double[1], training=False)
        assert count_answers_not_finite(task, sums) == 1
        assert judge_examples(task, changed, double[1]).numpy()[0].tolist() == [True, True]
