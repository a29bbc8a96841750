"""The mistakes and surprises that an evaluation shows."""

from __future__ import annotations

import io
import json

import pytest
from linear_models import read_examples
from PIL import Image

from pipeline_ops.artifacts.dataset import KEY, list_shard_paths
from pipeline_ops.artifacts.manifest import (
    read_manifest,
)
from pipeline_ops.artifacts.results import METRICS, PREDICTIONS


def test_the_worst_mistakes_are_the_most_confident_ones(sandbox):
    train = sandbox.train("poor")
    _, folder = sandbox.run(sandbox.plan("evaluate", train, evaluate__worst_mistakes=500))
    every = json.loads((folder / METRICS).read_bytes())["worst_mistakes"]
    _, other = sandbox.run(
        sandbox.plan("evaluate", train, evaluate__worst_mistakes=3, evaluate__batch_size=10)
    )
    few = json.loads((other / METRICS).read_bytes())
    assert len(every) == 53
    assert [m["confidence"] for m in every] == sorted(
        (m["confidence"] for m in every), reverse=True
    )
    assert [m["key"] for m in few["worst_mistakes"]] == [m["key"] for m in every[:3]]
    assert all(
        m["label"] != m["prediction"] and m["label_probability"] <= m["confidence"] for m in every
    )


def test_the_examples_with_predictions_do_not_depend_on_the_batches_nor_on_the_model(sandbox):
    pictures = []
    good, poor = sandbox.train("good"), sandbox.train("poor")
    for train, batch_size in ((good, 32), (good, 7), (poor, 100)):
        plan = sandbox.plan("evaluate", train, evaluate__batch_size=batch_size)
        picture = (sandbox.run(plan)[1] / PREDICTIONS).read_bytes()
        pictures.append(Image.open(io.BytesIO(picture)))
    left = (0, 0, 348, 1154)  # images, keys and true classes
    assert [each.size for each in pictures] == [(704, 1154)] * 3
    assert pictures[0] == pictures[1] != pictures[2]
    assert pictures[0].crop(left) == pictures[2].crop(left)


@pytest.mark.training
def test_the_surprises_are_what_the_models_judge_most_differently(sandbox):
    sandbox.publish("poor", evaluate__gate=[{"metric": "accuracy", "at_least": 0.1}])
    train = sandbox.train("good")
    _, folder = sandbox.run(
        sandbox.plan("evaluate", train, evaluate__worst_mistakes=500, evaluate__batch_size=9)
    )
    every = json.loads((folder / METRICS).read_bytes())["surprises"]
    changes = [abs(s["label_probability"] - s["champion_label_probability"]) for s in every]
    assert len(every) == 100 and changes == sorted(changes, reverse=True)
    _, folder = sandbox.run(sandbox.plan("evaluate", train, evaluate__worst_mistakes=4))
    assert [s["key"] for s in json.loads((folder / METRICS).read_bytes())["surprises"]] == [
        s["key"] for s in every[:4]
    ]


def test_the_keys_of_the_mistakes_are_those_of_the_examples(sandbox):
    import tensorflow as tf

    _, folder = sandbox.run(
        sandbox.plan("evaluate", sandbox.train("poor"), evaluate__worst_mistakes=500)
    )
    records, _, labels = read_examples(
        list_shard_paths(sandbox.dataset, read_manifest(sandbox.dataset), "test")
    )
    keys = tf.io.parse_example(records, {KEY: tf.io.FixedLenFeature([], tf.string)})[KEY].numpy()
    labels_by_key = {key.decode(): str(label) for key, label in zip(keys, labels, strict=True)}
    mistakes = json.loads((folder / METRICS).read_bytes())["worst_mistakes"]
    assert all(labels_by_key[mistake["key"]] == mistake["label"] for mistake in mistakes)
