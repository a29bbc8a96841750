"""LeNet with batch normalisation in TF-Slim, as in older projects. `slim_digits.yaml` trains it."""

from __future__ import annotations

from pipeline_ops.models.slim import build_slim_model


def lenet(images, is_training: bool, num_classes: int):
    """Logits, of images in 0..255."""
    import tf_slim as slim

    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        weights_regularizer=slim.l2_regularizer(5e-4),
        normalizer_fn=slim.batch_norm,
        normalizer_params={"is_training": is_training, "decay": 0.9},
    ):
        net = slim.conv2d(images / 255.0, 32, [5, 5], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        net = slim.conv2d(net, 64, [5, 5], scope="conv2")
        net = slim.max_pool2d(net, [2, 2], scope="pool2")
        net = slim.fully_connected(slim.flatten(net), 128, scope="fc3")
    net = slim.dropout(net, 0.5, is_training=is_training, scope="dropout3")
    return slim.fully_connected(net, num_classes, activation_fn=None, scope="logits")


def build(image_shape, num_classes):
    return build_slim_model(
        lambda images, is_training: lenet(images, is_training, num_classes), image_shape
    )
