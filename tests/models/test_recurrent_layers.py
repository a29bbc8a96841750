"""Recurrent layers with dropout are served without it, and without random numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.config.train import Train


@pytest.mark.parametrize("kind", ["dropout", "recurrent dropout", "stacked", "bidirectional"])
def test_a_recurrent_layer_with_dropout_is_served(user_package, monkeypatch, tmp_path, kind):
    import tensorflow as tf
    from acme_vision import nets
    from keras import Input, Sequential, layers

    from pipeline_ops.models import build_model
    from pipeline_ops.served.model import ServedClassifier

    def build(image_shape, num_classes):
        made = {
            "dropout": lambda: layers.GRU(6, dropout=0.3),
            "recurrent dropout": lambda: layers.LSTM(6, recurrent_dropout=0.3),
            "stacked": lambda: layers.RNN([layers.GRUCell(6, dropout=0.3), layers.LSTMCell(5)]),
            "bidirectional": lambda: layers.Bidirectional(layers.SimpleRNN(6, dropout=0.3)),
        }
        rows = layers.Reshape(image_shape[:2])
        return Sequential([Input(image_shape), rows, made[kind](), layers.Dense(num_classes)])

    monkeypatch.setattr(nets, "recurrent", build, raising=False)
    config = Train(model="acme_vision.nets:recurrent")
    trained, model = (
        build_model(config, (8, 8, 1), 3, Path("/nowhere"), for_training=is_trained)
        for is_trained in (True, False)
    )
    model.set_weights(trained.get_weights())
    served = ServedClassifier(model, (8, 8, 1))
    tf.saved_model.save(served, str(tmp_path), signatures=served.signatures)
    images = np.random.default_rng(1).uniform(0, 2, (5, 8, 8, 1)).astype(np.float32)
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.signatures["images"](images=tf.constant(images))["probabilities"]
    expected = tf.nn.softmax(trained(images, training=False))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    graph = loaded.signatures["images"].graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    assert not [node.op for node in nodes if "Random" in node.op or "Assign" in node.op]
