"""RetinaNet and EfficientDet: a feature pyramid on a network of `keras.applications`, with anchors.

Each anchor has a class and a box, as in Lin, Goyal, Girshick, He and Dollár, "Focal Loss for Dense
Object Detection" (2017), section 4, with the details of the authors' own program, Detectron. The
pyramid is that of Lin et al., "Feature Pyramid Networks for Object Detection" (2017), or the BiFPN
of Tan, Pang and Le, "EfficientDet: Scalable and Efficient Object Detection" (2020). With separable
convolutions, the first one is FPNLite of the Object Detection API. `anchor_head.py` interprets the
outputs.

The model is for GPUs. On CPU cores, `center_detector` learns in a tenth of the time. Training
starts from scratch, or with the weights of a local file (`train.warm_start`: a file of
`keras.applications` fills the backbone). Nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import keras
from keras import Input, KerasTensor, Model, initializers, layers

from pipeline_ops.config.reading import suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.anchor_head import AnchorHead
from pipeline_ops.models.backbones import preprocess_images
from pipeline_ops.models.detection import check_max_detections, check_multiple, check_that

Normalization = Literal["none", "group"]
Activation = Literal["relu", "relu6", "silu"]

_EFFICIENT_NET = ("block4a_expand_activation", "block6a_expand_activation", "top_activation")
ENDPOINTS: Mapping[str, tuple[str, str, str]] = {
    **{f"EfficientNetB{number}": _EFFICIENT_NET for number in range(5)},
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
_HEAD_PARAMETERS = {field.name for field in dataclasses.fields(AnchorHead)}


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    backbone: str = "ResNet50",
    backbone_parameters: Mapping[str, Any] | None = None,
    width: int = 256,
    depth: int = 4,
    normalization: Normalization = "none",
    activation: Activation = "relu",
    separable: bool = False,
    bifpn_rounds: int = 0,
    frozen_batch_normalization: bool = False,
    batch_normalization_momentum: float | None = None,
    **head_parameters: Any,
) -> Model:
    """Builds a model from images to logits and deltas, in the order of `make_anchors`.

    The outputs are {"logits": [B, A, classes], "deltas": [B, A, 4]}.

    Args:
      image_shape: height and width must be multiples of 32.
      backbone: the name of its function in `keras.applications`, one of ENDPOINTS.
      backbone_parameters: arguments of that function, for example `alpha`.
      width: channels of the pyramid and of the two small networks on it, a multiple of 8.
      depth: convolutions of each of these two, before the last one.
      normalization: the normalisation of the pyramid and of these two. The paper has none, with a
          pretrained backbone. Use `group` to train from scratch.
      activation: the activation of these two, and of a BiFPN.
      separable: makes the 3x3 convolutions of the pyramid and of these two separable.
      bifpn_rounds: repetitions of a BiFPN. With 0, the pyramid passes features down only.
      frozen_batch_normalization: keeps the backbone's statistics and scales as in the file of
          weights, as in the paper.
      batch_normalization_momentum: the momentum of the backbone's moving statistics. Without a
          value, it is that of `keras.applications`: 0.999 in MobileNetV2, with which they still
          hold a twentieth of their initial values after 3,000 steps, and 0.99 in the others.
      head_parameters: attributes of `AnchorHead`.
    """
    check_multiple("retinanet", image_shape, _DEEPEST_STRIDE)
    if backbone not in ENDPOINTS:
        raise ConfigError(
            f"train.model_parameters.backbone: there is no backbone {backbone!r}; "
            f"{suggest_name(backbone, ENDPOINTS)}"
        )
    is_multiple = width >= _GROUP_SIZE and width % _GROUP_SIZE == 0
    check_that(is_multiple, "width", f"a multiple of {_GROUP_SIZE}", width)
    check_that(depth >= 1, "depth", "at least 1", depth)
    check_that(bifpn_rounds >= 0, "bifpn_rounds", "at least 0", bifpn_rounds)
    is_known = normalization in get_args(Normalization)
    check_that(is_known, "normalization", "none or group", normalization)
    check_that(activation in get_args(Activation), "activation", "relu, relu6 or silu", activation)
    momentum = batch_normalization_momentum
    is_share = momentum is None or 0 <= momentum < 1
    check_that(is_share, "batch_normalization_momentum", "from 0 to below 1, or null", momentum)
    head = make_head(image_shape, num_classes, **head_parameters)
    images = Input(image_shape, name="images")
    network = _build_backbone(backbone, image_shape[:2], backbone_parameters or {})
    for layer in network.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.trainable = not frozen_batch_normalization
            layer.momentum = layer.momentum if momentum is None else momentum
    blocks = _Blocks(width, normalization, activation, separable)
    pyramid = _build_pyramid(network(preprocess_images(backbone, images)), blocks, bifpn_rounds)
    predict = functools.partial(_build_predictions, pyramid, blocks, depth, head.anchors_per_cell)
    deltas = predict("box", 4, "zeros")
    logits = predict("class", num_classes, initializers.Constant(_INITIAL_LOGIT))
    return Model(images, {"deltas": deltas, "logits": logits}, name="retinanet")


def make_head(image_shape: tuple[int, int, int], num_classes: int, **parameters: Any) -> AnchorHead:
    """Returns the head that interprets the outputs. Raises ConfigError."""
    found = {name: value for name, value in parameters.items() if name in _HEAD_PARAMETERS}
    found["max_detections"] = check_max_detections(parameters.get("max_detections"))
    return AnchorHead(image_shape[:2], num_classes, **found)


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


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """The parts of the pyramid and of the small networks on it."""

    width: int
    normalization: Normalization
    activation: Activation
    separable: bool

    def make_conv(
        self, filters: int, name: str, kernel: int = 3, strides: int = 1, **options: Any
    ) -> layers.Layer:
        options = {"padding": "same", "strides": strides, "name": name} | options
        if not self.separable or kernel == 1:
            return layers.Conv2D(filters, kernel, **options)
        if initializer := options.pop("kernel_initializer", None):
            options["pointwise_initializer"] = initializer
        return layers.SeparableConv2D(filters, kernel, **options)

    def make_normalized(
        self, name: str, kernel: int = 3, strides: int = 1, **options: Any
    ) -> Callable[[KerasTensor], KerasTensor]:
        """Returns a convolution with its normalization."""
        use_bias = self.normalization == "none"
        conv = self.make_conv(self.width, name, kernel, strides, use_bias=use_bias, **options)
        if use_bias:
            return conv
        groups = self.width // _GROUP_SIZE
        normalize = layers.GroupNormalization(groups, name=f"{name}_normalization")
        return lambda x: normalize(conv(x))

    def activate(self, x: KerasTensor) -> KerasTensor:
        return layers.Activation(self.activation)(x)


def _build_pyramid(
    endpoints: list[KerasTensor], blocks: _Blocks, bifpn_rounds: int
) -> list[KerasTensor]:
    """Returns levels 3 to 7: three of the backbone with higher levels added, and two above it."""
    laterals = [
        blocks.make_normalized(f"lateral_{level}", kernel=1)(endpoint)
        for level, endpoint in enumerate(endpoints, start=3)
    ]
    if bifpn_rounds:
        sixth = layers.MaxPooling2D(3, 2, "same")(
            blocks.make_normalized("level_6", kernel=1)(endpoints[-1])
        )
        pyramid = [*laterals, sixth, layers.MaxPooling2D(3, 2, "same")(sixth)]
        for number in range(bifpn_rounds):
            pyramid = _build_bifpn_round(pyramid, blocks, f"bifpn_{number}")
        return pyramid
    merged = [laterals[-1]]
    for lateral in laterals[-2::-1]:
        merged.insert(0, layers.Add()([layers.UpSampling2D(2)(merged[0]), lateral]))
    smooth = [
        blocks.make_normalized(f"level_{level}")(each) for level, each in enumerate(merged, start=3)
    ]
    sixth = blocks.make_normalized("level_6", strides=2)(endpoints[-1])
    seventh = blocks.make_normalized("level_7", strides=2)(layers.ReLU()(sixth))
    return [*smooth, sixth, seventh]


def _build_bifpn_round(
    levels: Sequence[KerasTensor], blocks: _Blocks, name: str
) -> list[KerasTensor]:
    """Passes features down the pyramid and up again: Tan et al. 2020, section 3.2."""

    def fuse(parts: list[KerasTensor], place: str) -> KerasTensor:
        fused = WeightedSum(name=f"{name}_{place}_sum")(parts)
        return blocks.make_normalized(f"{name}_{place}")(blocks.activate(fused))

    down = [levels[-1]]
    for level in range(len(levels) - 2, 0, -1):
        higher = _enlarge(down[0], levels[level])
        down.insert(0, fuse([levels[level], higher], f"down_{level + 3}"))
    found = [fuse([levels[0], _enlarge(down[0], levels[0])], "out_3")]
    for level, (before, passed) in enumerate(zip(levels[1:], down, strict=True), start=1):
        lower = layers.MaxPooling2D(3, 2, "same")(found[-1])
        is_last = level == len(levels) - 1
        found.append(fuse([before, *[passed] * (not is_last), lower], f"out_{level + 3}"))
    return found


def _enlarge(x: KerasTensor, like: KerasTensor) -> KerasTensor:
    """Returns `x` with twice the height and width, cropped to the height and width of `like`."""
    x = layers.UpSampling2D(2)(x)
    more = [have - want for have, want in zip(x.shape[1:3], like.shape[1:3], strict=True)]
    return layers.Cropping2D([(0, each) for each in more])(x) if any(more) else x


@keras.saving.register_keras_serializable("trainyard")  # type: ignore[untyped-decorator]
class WeightedSum(layers.Layer):
    """Adds tensors of one shape with trained shares: the fast fusion of Tan et al. 2020."""

    def build(self, input_shape: Sequence[Any]) -> None:
        count = (len(input_shape),)
        self.shares = self.add_weight(shape=count, initializer="ones", name="shares")

    def call(self, parts: Sequence[KerasTensor]) -> KerasTensor:
        shares = keras.ops.relu(self.shares)
        shares = shares / (keras.ops.sum(shares) + 1e-4)
        return sum(part * shares[number] for number, part in enumerate(parts))


def _build_predictions(
    pyramid: list[KerasTensor],
    blocks: _Blocks,
    depth: int,
    anchors_per_cell: int,
    name: str,
    values: int,
    bias: Any,
) -> KerasTensor:
    """Returns float32 [B, A, values]: the outputs of the same small network on every level."""
    # Section 4.1: "all new conv layers except the final one ... sigma = 0.01".
    random = initializers.RandomNormal(stddev=0.01)
    hidden = [
        blocks.make_normalized(f"{name}_{number}", kernel_initializer=random.clone())
        for number in range(depth)
    ]
    last = blocks.make_conv(
        anchors_per_cell * values,
        f"{name}_last",
        kernel_initializer=random.clone(),
        bias_initializer=bias,
        dtype="float32",
    )
    flat = []
    for x in pyramid:
        for block in hidden:
            x = blocks.activate(block(x))
        flat.append(layers.Reshape((-1, values), dtype="float32")(last(x)))
    return layers.Concatenate(axis=1, dtype="float32", name=f"{name}_outputs")(flat)
