"""A small detector without anchors: a heat map gives an object's centre, four distances its extent.

The idea is CenterNet's (Zhou, Wang and Krähenbühl 2019) with the box regression of FCOS (Tian et
al. 2019), and a network small enough to learn on two CPU cores in minutes. It uses group
normalisation instead of batch normalisation. Group normalisation looks at one image at a time, so
neither the number of workers nor a small batch changes the result, and no worker waits for another
inside the network.

Losses, targets and decoding are in `centers.py`.
"""

from __future__ import annotations

from keras import Input, KerasTensor, Model, initializers, layers

from pipeline_ops.errors import ConfigError
from pipeline_ops.models.centers import DISTANCE_SCALE_PIXELS, STRIDE, CenterHead

_DEEPEST_STRIDE = 16
_INITIAL_LOGIT = -3.5
"""The initial value of the heat map's logits. Nearly every cell is not a centre, and the first
steps should not be spent on learning that.
"""


def build(image_shape: tuple[int, int, int], num_classes: int, width: int = 16) -> Model:
    """Builds a model from images to heat maps and distances on a grid of stride 4.

    The outputs are {"heat": logits [B, G, H, classes], "sides": distances [B, G, H, 4]}.

    Args:
      image_shape: height and width must be multiples of 16.
      num_classes: the number of heat maps, one for each class.
      width: channels of the first layer, a multiple of 8; 16 makes about 0.2 million parameters, 32
          0.9 million, 48 2 million.
    """
    height, width_pixels, _ = image_shape
    if height % _DEEPEST_STRIDE or width_pixels % _DEEPEST_STRIDE:
        raise ConfigError(
            "center_detector: height and width of the images must be multiples of "
            f"{_DEEPEST_STRIDE}, got {height}x{width_pixels}. Set them in preprocess.stages, "
            "with resize"
        )
    if width < 8 or width % 8:
        raise ConfigError(f"train.model_parameters.width must be a multiple of 8, got {width}")
    images = Input(image_shape, name="images")
    features = _build_features(layers.Rescaling(1 / 128, -1)(images), width)
    heat = layers.Conv2D(
        num_classes, 1, bias_initializer=initializers.Constant(_INITIAL_LOGIT), dtype="float32"
    )(_build_conv_block(features, 3 * width))
    sides = layers.Conv2D(4, 1, activation="softplus", dtype="float32")(
        _build_conv_block(features, 2 * width)
    )
    return Model(
        images,
        {"heat": heat, "sides": layers.Rescaling(DISTANCE_SCALE_PIXELS, dtype="float32")(sides)},
    )


def make_head(image_shape: tuple[int, int, int], num_classes: int, width: int = 16) -> CenterHead:
    return CenterHead((image_shape[0] // STRIDE, image_shape[1] // STRIDE), num_classes)


def _build_features(x: KerasTensor, width: int) -> KerasTensor:
    """Goes down to stride 16 and back up to stride 4, and adds the features of the way down."""
    x = _build_conv_block(_build_conv_block(x, width, strides=2), 2 * width, strides=2)
    quarter = _build_conv_block(x, 2 * width)
    eighth = _build_conv_block(_build_conv_block(quarter, 3 * width, strides=2), 3 * width)
    x = _build_conv_block(_build_conv_block(eighth, 4 * width, strides=2), 4 * width)
    x = _build_conv_block(
        x, 4 * width, dilation=2
    )  # objects of more than a hundred pixels need a view of more than a hundred pixels
    x = _build_conv_block(
        layers.Add()([layers.UpSampling2D(2)(_build_conv_block(x, 3 * width, kernel=1)), eighth]),
        3 * width,
    )
    return _build_conv_block(
        layers.Add()([layers.UpSampling2D(2)(_build_conv_block(x, 2 * width, kernel=1)), quarter]),
        3 * width,
    )


def _build_conv_block(
    x: KerasTensor, filters: int, kernel: int = 3, strides: int = 1, dilation: int = 1
) -> KerasTensor:
    x = layers.Conv2D(filters, kernel, strides, "same", dilation_rate=dilation, use_bias=False)(x)
    return layers.ReLU()(layers.GroupNormalization(8)(x))
