"""A small classifier that learns from a few hundred photographs, without any other weights.

It is the downward path of `center_detector` with a mean over the image at its end. It uses group
normalisation, because batch normalisation makes a network of this size, trained with so few images,
far worse in inference than in training.
"""

from __future__ import annotations

from keras import Input, Model, layers

from pipeline_ops.models.center_detector import build_conv_block
from pipeline_ops.models.detection import check_that

_SMALL_SIDE = 96
"""Images with a shorter side of at least this many pixels are reduced once more, to 1/32."""


def build(image_shape: tuple[int, int, int], num_classes: int, width: int = 24) -> Model:
    """Builds a model of 0.3 million parameters, or of 0.6 million for larger images.

    `width` is the number of channels of the first layer, a multiple of 8.
    """
    check_that(width >= 8 and width % 8 == 0, "width", "a multiple of 8", width)
    images = Input(image_shape, name="images")
    x = layers.Rescaling(1 / 128, -1)(images)
    x = build_conv_block(x, width, strides=2)
    stages = [2 * width, 3 * width, 4 * width]
    if min(image_shape[:2]) >= _SMALL_SIDE:
        stages.append(6 * width)
    for filters in stages:
        x = build_conv_block(build_conv_block(x, filters, strides=2), filters)
    x = layers.GlobalAveragePooling2D()(x)
    return Model(images, layers.Dense(num_classes, dtype="float32")(x))
