"""RetinaNet: a feature pyramid on a network of `keras.applications`, with nine anchors in each
cell.

Each anchor has a class and a box, as in Lin, Goyal, Girshick, He and Dollár, "Focal Loss for Dense
Object Detection" (2017), section 4, on the pyramid of Lin et al., "Feature Pyramid Networks for
Object Detection" (2017). The model is for GPUs. On CPU cores, `center_detector` learns in a tenth
of the time. Training starts from scratch, or with the weights of a local file (`train.warm_start`:
a file of `keras.applications` fills the backbone). Nothing is downloaded.

Losses, targets and decoding are in `anchor_head.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import keras
from keras import Input, KerasTensor, Model, initializers, layers

from pipeline_ops.config.yaml_source import suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.anchor_head import ANCHORS_PER_CELL, AnchorHead, BoxLoss
from pipeline_ops.models.backbones import preprocess_images
from pipeline_ops.models.detection import require, require_multiple

_EFFICIENT_NET = ("block4a_expand_activation", "block6a_expand_activation", "top_activation")
ENDPOINTS: Mapping[str, tuple[str, str, str]] = {
    "EfficientNetB0": _EFFICIENT_NET,
    "EfficientNetV2B0": _EFFICIENT_NET,
    "EfficientNetV2S": _EFFICIENT_NET,
    "MobileNetV2": ("block_6_expand_relu", "block_13_expand_relu", "out_relu"),
    "ResNet50": ("conv3_block4_out", "conv4_block6_out", "conv5_block3_out"),
    "ResNet101": ("conv3_block4_out", "conv4_block23_out", "conv5_block3_out"),
}
"""The last layers of each backbone with 8, 16 and 32 pixels to a cell."""

_DEEPEST_STRIDE = 32
_GROUP_SIZE = 8
"""Channels that are normalised together."""
_INITIAL_LOGIT = -math.log((1 - 0.01) / 0.01)
"""The initial value of the logits. Every anchor predicts 0.01 for every class, so that the many
background anchors do not dominate the first steps.
"""

Normalization = Literal["none", "group"]


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    backbone: str = "ResNet50",
    backbone_parameters: Mapping[str, Any] | None = None,
    width: int = 256,
    depth: int = 4,
    normalization: Normalization = "none",
    frozen_batch_normalization: bool = False,
    anchor_scale: float = 4.0,
    box_loss: BoxLoss = "smooth_l1",
    max_boxes: int | None = None,
) -> Model:
    """Builds a model from images to logits and deltas, in the order of `anchor_head.make_anchors`.

    The outputs are {"logits": [B, A, classes], "deltas": [B, A, 4]}.

    Args:
      image_shape: height and width must be multiples of 32.
      backbone: the name of its function in `keras.applications`, one of ENDPOINTS.
      backbone_parameters: arguments of that function, for example `alpha`.
      width: channels of the pyramid and of the two small networks on it, a multiple of 8.
      depth: convolutions of each of these two, before the last one.
      normalization: the normalisation of the pyramid and of these two. The paper has none, with a
          pretrained backbone. Use `group` to train from scratch.
      frozen_batch_normalization: keeps the backbone's statistics and scales as in the file of
          weights, as in the paper.
      anchor_scale, box_loss, max_boxes: arguments of the head, described in `AnchorHead`.
    """
    require_multiple("retinanet", image_shape, _DEEPEST_STRIDE)
    if backbone not in ENDPOINTS:
        raise ConfigError(
            f"train.model_parameters.backbone: there is no backbone {backbone!r}; "
            f"{suggest_name(backbone, ENDPOINTS)}"
        )
    is_multiple = width >= _GROUP_SIZE and width % _GROUP_SIZE == 0
    require(is_multiple, "width", f"a multiple of {_GROUP_SIZE}", width)
    require(depth >= 1, "depth", "at least 1", depth)
    is_known = normalization in get_args(Normalization)
    require(is_known, "normalization", "none or group", normalization)
    make_head(image_shape, num_classes, anchor_scale, box_loss, max_boxes)  # checks its parameters
    images = Input(image_shape, name="images")
    network = _build_backbone(backbone, image_shape[:2], backbone_parameters or {})
    for layer in network.layers if frozen_batch_normalization else ():
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    pyramid = _build_pyramid(network(preprocess_images(backbone, images)), width, normalization)
    sizes = (width, depth, normalization)
    deltas = _build_predictions(pyramid, "box", 4, *sizes, "zeros")
    initial_logits = initializers.Constant(_INITIAL_LOGIT)
    logits = _build_predictions(pyramid, "class", num_classes, *sizes, initial_logits)
    return Model(images, {"deltas": deltas, "logits": logits}, name="retinanet")


def make_head(
    image_shape: tuple[int, int, int],
    num_classes: int,
    anchor_scale: float = 4.0,
    box_loss: BoxLoss = "smooth_l1",
    max_boxes: int | None = None,
    **_: Any,
) -> AnchorHead:
    """Returns the head that interprets the outputs."""
    require(anchor_scale > 0, "anchor_scale", "above 0", anchor_scale)
    require(box_loss in get_args(BoxLoss), "box_loss", "smooth_l1 or giou", box_loss)
    require(max_boxes is None or max_boxes >= 1, "max_boxes", "at least 1", max_boxes)
    return AnchorHead(image_shape[:2], num_classes, anchor_scale, box_loss, max_boxes)


def _build_backbone(name: str, image_size: tuple[int, int], parameters: Mapping[str, Any]) -> Model:
    """Returns the backbone as a nested model, as a weights file of `keras.applications` expects."""
    network = getattr(keras.applications, name)(
        include_top=False, weights=None, input_shape=(*image_size, 3), **parameters
    )
    return Model(
        network.inputs,
        [network.get_layer(endpoint).output for endpoint in ENDPOINTS[name]],
        name=name.lower(),
    )


def _build_pyramid(
    endpoints: list[KerasTensor], width: int, normalization: Normalization
) -> list[KerasTensor]:
    """Returns levels 3 to 7: three that include higher levels, and two above the backbone's."""
    laterals = [
        _build_conv(endpoint, width, normalization, f"lateral_{level}", 1, 1)
        for level, endpoint in enumerate(endpoints, start=3)
    ]
    merged = [laterals[-1]]
    for lateral in laterals[-2::-1]:
        merged.insert(0, layers.Add()([layers.UpSampling2D(2)(merged[0]), lateral]))
    smooth = [
        _build_conv(each, width, normalization, f"level_{level}", 3, 1)
        for level, each in enumerate(merged, start=3)
    ]
    sixth = _build_conv(endpoints[-1], width, normalization, "level_6", 3, 2)
    seventh = _build_conv(layers.ReLU()(sixth), width, normalization, "level_7", 3, 2)
    return [*smooth, sixth, seventh]


def _build_conv(
    x: KerasTensor, width: int, normalization: Normalization, name: str, kernel: int, strides: int
) -> KerasTensor:
    use_bias = normalization == "none"
    conv = layers.Conv2D(width, kernel, strides, "same", use_bias=use_bias, name=name)
    return _make_normalization(width, normalization, name)(conv(x))


def _make_normalization(width: int, normalization: Normalization, name: str) -> layers.Layer:
    if normalization == "group":
        return layers.GroupNormalization(width // _GROUP_SIZE, name=f"{name}_normalization")
    return layers.Identity()


def _build_predictions(
    pyramid: list[KerasTensor],
    name: str,
    values: int,
    width: int,
    depth: int,
    normalization: Normalization,
    bias: Any,
) -> KerasTensor:
    """Returns float32 [B, A, values]: the outputs of the same small network on every level."""
    # Section 4.1: "all new conv layers except the final one ... sigma = 0.01".
    random = initializers.RandomNormal(stddev=0.01)
    options = {"padding": "same", "use_bias": normalization == "none"}
    names = [f"{name}_{number}" for number in range(depth)]
    convs = [
        layers.Conv2D(width, 3, name=each, kernel_initializer=random.clone(), **options)
        for each in names
    ]
    normalizations = [_make_normalization(width, normalization, each) for each in names]
    last = layers.Conv2D(
        ANCHORS_PER_CELL * values,
        3,
        padding="same",
        kernel_initializer=random.clone(),
        bias_initializer=bias,
        dtype="float32",
        name=f"{name}_last",
    )
    flat = []
    for x in pyramid:
        for conv, normalize in zip(convs, normalizations, strict=True):
            x = layers.ReLU()(normalize(conv(x)))
        flat.append(layers.Reshape((-1, values), dtype="float32")(last(x)))
    return layers.Concatenate(axis=1, dtype="float32", name=f"{name}_outputs")(flat)
