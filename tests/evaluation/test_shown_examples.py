"""The mistakes and surprises that an evaluation shows."""

from __future__ import annotations

import io
import json

from linear_models import read_examples
from PIL import Image

from pipeline_ops.artifacts.dataset import KEY, list_shard_paths
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import METRICS, PREDICTIONS, SAVED_MODEL
from pipeline_ops.evaluation.pictures import NUM_SHOWN
from pipeline_ops.evaluation.predictions import predict_all
from pipeline_ops.input.saved_model_client import SavedModelClient, read_encoded_batches


def predict(sandbox, folder, models, num_shown, batch_size=32):
    """Runs models on the test split. `folder` is for their probabilities."""
    shards = list_shard_paths(sandbox.dataset, read_manifest(sandbox.dataset), "test")
    return predict_all(
        [SavedModelClient(sandbox.saved_models[name] / SAVED_MODEL, name, 10) for name in models],
        read_encoded_batches(shards, batch_size),
        100,
        10,
        [],
        folder,
        lambda done: None,
        num_shown,
    )


def test_the_worst_mistakes_are_the_most_confident_ones(sandbox, tmp_path):
    every = predict(sandbox, tmp_path, ["poor"], 500).worst_mistakes
    few = predict(sandbox, tmp_path, ["poor"], 3, batch_size=10).worst_mistakes
    confidences = [mistake.confidence for mistake in every]
    assert len(every) == 53 and confidences == sorted(confidences, reverse=True)
    assert [m.key for m in few] == [m.key for m in every[:3]]
    assert all(not m.is_right and m.label_probability <= m.confidence for m in every)


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


def test_the_surprises_are_what_the_models_judge_most_differently(sandbox, tmp_path):
    every = predict(sandbox, tmp_path, ["good", "poor"], 500, batch_size=9).surprises
    changes = [abs(s.label_probability - s.champion_label_probability) for s in every]
    assert len(every) == 100 and changes == sorted(changes, reverse=True)
    few = predict(sandbox, tmp_path, ["good", "poor"], 4).surprises
    assert [s.key for s in few] == [s.key for s in every[:4]]


def test_the_keys_of_the_mistakes_are_those_of_the_examples(sandbox):
    import tensorflow as tf

    _, folder = sandbox.run(sandbox.plan("evaluate", sandbox.train("poor")))
    records, _, labels = read_examples(
        list_shard_paths(sandbox.dataset, read_manifest(sandbox.dataset), "test")
    )
    keys = tf.io.parse_example(records, {KEY: tf.io.FixedLenFeature([], tf.string)})[KEY].numpy()
    labels_by_key = {key.decode(): str(label) for key, label in zip(keys, labels, strict=True)}
    mistakes = json.loads((folder / METRICS).read_bytes())["worst_mistakes"]
    assert len(mistakes) == NUM_SHOWN
    assert all(labels_by_key[mistake["key"]] == mistake["label"] for mistake in mistakes)
