"""The mistakes and surprises that an evaluation shows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from linear_models import read_examples
from PIL import Image

from pipeline_ops.contract.dataset import ENCODED, KEY, list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import METRICS, PREDICTIONS, SAVED_MODEL


def predict(sandbox, train: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Keys, labels and probabilities of all test examples, by the SavedModel of a training."""
    import tensorflow as tf

    records, _, labels = read_examples(
        list_shard_paths(sandbox.dataset, read_manifest(sandbox.dataset), "test")
    )
    text = tf.io.FixedLenFeature([], tf.string)
    parsed = tf.io.parse_example(records, {KEY: text, ENCODED: text})
    model = tf.saved_model.load(str(Path(train).parent / SAVED_MODEL))
    outputs = model.signatures["serving_default"](parsed[ENCODED])
    keys = [key.decode() for key in parsed[KEY].numpy()]
    return keys, labels, outputs["probabilities"].numpy()


def test_the_worst_mistakes_are_the_most_confident_ones(sandbox):
    train = sandbox.train("poor")
    keys, labels, probabilities = predict(sandbox, train)
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    worst = sorted(wrong, key=lambda i: -probabilities[i].max())[:24]
    _, folder = sandbox.run(sandbox.plan("evaluate", train, evaluate__batch_size=10))
    shown = json.loads((folder / METRICS).read_bytes())["worst_mistakes"]
    assert len(wrong) == 53
    assert [m["key"] for m in shown] == [keys[i] for i in worst]
    assert [m["label"] for m in shown] == [str(labels[i]) for i in worst]
    assert all(
        m["label"] != m["prediction"] and m["label_probability"] <= m["confidence"] for m in shown
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


@pytest.mark.models
def test_the_surprises_are_what_the_models_judge_most_differently(sandbox):
    champion = sandbox.publish("poor", evaluate__gate=[{"metric": "accuracy", "at_least": 0.1}])
    train = sandbox.train("good")
    keys, labels, good = predict(sandbox, train)
    _, _, poor = predict(sandbox, champion)
    rows = np.arange(len(labels))
    changes = np.abs(good[rows, labels].astype(float) - poor[rows, labels])
    _, folder = sandbox.run(sandbox.plan("evaluate", train, evaluate__batch_size=9))
    shown = json.loads((folder / METRICS).read_bytes())["surprises"]
    assert [s["key"] for s in shown] == [keys[i] for i in np.argsort(-changes)[:24]]
