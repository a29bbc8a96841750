"""A network in TF-Slim, as in older projects."""

from __future__ import annotations

from keras import Model

from pipeline_ops.models.slim import build_slim_model


def build(image_shape: tuple[int, int, int], num_classes: int, dropout: float = 0.0) -> Model:
    def network(images, is_training):
        import tf_slim as slim

        with slim.arg_scope(
            [slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(1e-3)
        ):
            net = slim.max_pool2d(slim.conv2d(images / 255.0, 8, [3, 3], scope="conv"), [2, 2])
            net = (
                slim.flatten(net)
                if not dropout
                else slim.dropout(slim.flatten(net), 1 - dropout, is_training=is_training)
            )
            return slim.fully_connected(net, num_classes, activation_fn=None, scope="logits")

    return build_slim_model(network, image_shape)
