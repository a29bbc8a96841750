"""RetinaNet: a feature pyramid on a network of `keras.applications`, with nine anchors in each
cell.

Each anchor has a class and a box, as in Lin, Goyal, Girshick, He and Dollár, "Focal Loss for Dense
Object Detection" (2017), section 4, with the details of the authors' own program, Detectron. The
pyramid is that of Lin et al., "Feature Pyramid Networks for Object Detection" (2017). The model is
for GPUs. On CPU cores, `center_detector` learns in a tenth of the time. Training starts from
scratch, or with the weights of a local file (`train.warm_start`: a file of `keras.applications`
fills the backbone). Nothing is downloaded.

The loss has two parts: focal loss on the classes of all anchors, and smooth L1 or generalised IoU
on the boxes of the anchors that stand for an object. Both are divided by the number of these
anchors, which is the last of the sums, after all workers have counted theirs. Every shape except
the number of boxes is fixed. With `max_boxes`, that number is fixed, too, and XLA compiles a step
once.

A box is (ymin, xmin, ymax, xmax) in pixels of the image that the network sees.

Legend: B batch, A anchors of an image, N boxes of an image (padded), C classes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import keras
import numpy as np
import tensorflow as tf
from keras import Input, KerasTensor, Model, initializers, layers

from pipeline_ops.artifacts.results import COCO_DETECTIONS
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.backbones import preprocess_images
from pipeline_ops.models.detection import (
    Boxes,
    Candidates,
    Head,
    compute_areas,
    compute_focal_losses,
    compute_intersections,
    compute_overlaps,
    compute_pairwise_ious,
    require,
    require_max_detections,
    require_multiple,
    select_best,
)

Normalization = Literal["none", "group"]
BoxLoss = Literal["smooth_l1", "giou"]

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

LEVELS = range(3, 8)
"""The levels of the pyramid. Level l has a cell for every 2**l pixels."""
SCALES = (2**0, 2 ** (1 / 3), 2 ** (2 / 3))
RATIOS = (0.5, 1.0, 2.0)
"""Height by width."""
ANCHORS_PER_CELL = len(SCALES) * len(RATIOS)

_IS_OBJECT_IOU, _IS_BACKGROUND_IOU = 0.5, 0.4
_MIN_CROWD_FRACTION = 0.7
"""The share of an anchor's area in a crowd from which on the anchor is ignored: Detectron's
TRAIN.CROWD_FILTER_THRESH.
"""
_MAX_LOG_SCALE = math.log(1000 / 16)
"""The largest logarithm of a box's size relative to its anchor: Detectron's BBOX_XFORM_CLIP. Keeps
`exp` finite.
"""
_MIN_SIDE = 1e-3
_ALPHA = 0.25
"""The weight of the focal loss of objects. That of background is 1 - _ALPHA."""
_BETA = 0.11
"""The error at which smooth L1 turns from a parabola into a line: Detectron's
RETINANET.BBOX_REG_BETA.
"""
_MAX_CANDIDATES = 1000
"""The number of best scores that are kept for each level, and then for all levels together. The
portable suppression compares all of them with all others.
"""
_CANDIDATES_OF_DETECTION = 3
"""At least so many are kept for each detection of an answer."""
_NUM_PARALLEL_IMAGES = 2
"""The number of images that are matched at once. Each takes some 60 MB of memory at 640x640 pixels
and 100 boxes.
"""


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
    max_detections: int | None = None,
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
      frozen_batch_normalization: keeps the backbone's statistics and scales as in the file of
          weights, as in the paper.
      anchor_scale, box_loss, max_boxes, max_detections: arguments of the head, described in
          `AnchorHead`.
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
    # Checks the parameters of the head.
    make_head(image_shape, num_classes, anchor_scale, box_loss, max_boxes, max_detections)
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
    max_detections: int | None = None,
    **_: Any,
) -> AnchorHead:
    """Returns the head that interprets the outputs."""
    require(anchor_scale > 0, "anchor_scale", "above 0", anchor_scale)
    require(box_loss in get_args(BoxLoss), "box_loss", "smooth_l1 or giou", box_loss)
    require(max_boxes is None or max_boxes >= 1, "max_boxes", "at least 1", max_boxes)
    limit = require_max_detections(max_detections)
    return AnchorHead(image_shape[:2], num_classes, anchor_scale, box_loss, max_boxes, limit)


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
    blocks = [
        (
            layers.Conv2D(width, 3, name=each, kernel_initializer=random.clone(), **options),
            _make_normalization(width, normalization, each),
        )
        for each in (f"{name}_{number}" for number in range(depth))
    ]
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
        for conv, normalize in blocks:
            x = layers.ReLU()(normalize(conv(x)))
        flat.append(layers.Reshape((-1, values), dtype="float32")(last(x)))
    return layers.Concatenate(axis=1, dtype="float32", name=f"{name}_outputs")(flat)


class AnchorTargets(NamedTuple):
    """The targets of the anchors of an image. Those of a batch have B as first axis.

    An anchor that is neither an object nor ignored is background.

    Attributes:
      classes: int32 [A], -1 where `is_object` is false.
      corners: float32 [A, 4] in pixels: the box that the anchor overlaps most, the first of equals.
          It counts where `is_object` is true.
      is_object, is_ignored: bool [A].
    """

    classes: tf.Tensor
    corners: tf.Tensor
    is_object: tf.Tensor
    is_ignored: tf.Tensor


@dataclasses.dataclass(frozen=True)
class AnchorHead(Head):
    """Computes losses and detections from {"logits": [B, A, C], "deltas": [B, A, 4]}.

    `image_size` is height and width in pixels, `anchor_scale` the scale of `make_anchors`. The loss
    of the boxes is `smooth_l1` of the result of `encode_boxes`, summed over the four values, or
    `giou`: 1 - GIoU (Rezatofighi et al. 2019).
    """

    image_size: tuple[int, int]
    num_classes: int
    anchor_scale: float = 4.0
    box_loss: BoxLoss = "smooth_l1"
    max_boxes: int | None = None
    max_detections: int = COCO_DETECTIONS
    metrics = ("class_loss", "box_iou")

    @functools.cached_property
    def anchors(self) -> np.ndarray:
        """float32 [A, 4] in pixels."""
        return make_anchors(self.image_size, self.anchor_scale)

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], labels: Boxes, class_weights: tf.Tensor | float = 1.0
    ) -> tf.Tensor:
        """Returns float32 [4]: the sums of the loss, of the classes' part of it and of the IoU of
        the boxes with their objects, and the number of anchors that stand for an object.
        """
        targets = self.build_targets(labels)
        is_class = tf.one_hot(targets.classes, self.num_classes, on_value=True, off_value=False)
        positive_weights = _ALPHA * class_weights
        losses = compute_focal_losses(outputs["logits"], is_class, positive_weights, 1 - _ALPHA)
        class_losses = tf.reduce_sum(losses, axis=-1)
        class_loss = tf.reduce_sum(tf.where(targets.is_ignored, 0.0, class_losses))
        ious, gious = _compute_ious(decode_boxes(outputs["deltas"], self.anchors), targets.corners)
        if self.box_loss == "giou":
            box_losses = 1 - gious
        else:
            errors = outputs["deltas"] - encode_boxes(targets.corners, self.anchors)
            box_losses = _compute_smooth_l1(errors)
        box_loss = tf.reduce_sum(tf.where(targets.is_object, box_losses, 0.0))
        iou = tf.reduce_sum(tf.where(targets.is_object, ious, 0.0))
        count = tf.reduce_sum(tf.cast(targets.is_object, tf.float32))
        return tf.stack([class_loss + box_loss, class_loss, iou, count])

    def build_targets(self, labels: Boxes) -> AnchorTargets:
        """Returns the targets of all anchors.

        Matches a few images at a time, so that they can use the same memory one after another.
        """
        # Each image gets a padding box, so that an image without boxes has one, too.
        one_more = [[0, 0], [0, 1]]
        corners = tf.pad(labels.to_pixels(*self.image_size), [*one_more, [0, 0]])
        classes = tf.pad(labels.classes, one_more, constant_values=-1)
        count = len(self.anchors)
        targets: AnchorTargets = tf.map_fn(
            lambda each: match_anchors(tf.constant(self.anchors), *each),
            (corners, classes, tf.pad(labels.is_crowd, one_more)),
            parallel_iterations=_NUM_PARALLEL_IMAGES,
            fn_output_signature=AnchorTargets(
                tf.TensorSpec([count], tf.int32),
                tf.TensorSpec([count, 4], tf.float32),
                tf.TensorSpec([count], tf.bool),
                tf.TensorSpec([count], tf.bool),
            ),
        )
        return targets

    def find_candidates(self, outputs: dict[str, tf.Tensor]) -> Candidates:
        """Returns the best candidates of all levels."""
        scores = tf.sigmoid(outputs["logits"])
        sizes = [rows * columns for rows, columns in compute_grid_shapes(self.image_size)]
        ends = [ANCHORS_PER_CELL * cells for cells in itertools.accumulate(sizes, initial=0)]
        limit = max(_MAX_CANDIDATES, _CANDIDATES_OF_DETECTION * self.max_detections)
        levels = []
        for start, end in itertools.pairwise(ends):
            best, positions, classes = select_best(scores[:, start:end], limit)
            levels.append((best, start + positions, classes))
        best, anchors, classes = (tf.concat(parts, axis=1) for parts in zip(*levels, strict=True))
        best, indices = tf.math.top_k(best, min(limit, best.shape[1]))
        anchors, classes = (tf.gather(each, indices, batch_dims=1) for each in (anchors, classes))
        deltas = tf.gather(outputs["deltas"], anchors, batch_dims=1)
        corners = decode_boxes(deltas, tf.gather(tf.constant(self.anchors), anchors))
        height, width = self.image_size
        return corners / tf.constant([height, width, height, width], tf.float32), best, classes


def compute_grid_shapes(image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns the rows and columns of each level, for an image of this height and width."""
    height, width = image_size
    return [(math.ceil(height / 2**level), math.ceil(width / 2**level)) for level in LEVELS]


def make_anchors(image_size: tuple[int, int], scale: float) -> np.ndarray:
    """Returns float32 [A, 4] in pixels: level by level, row by row, cell by cell.

    Within a cell, anchors are ordered by scale and then by ratio. An anchor of level l has the area
    (scale * 2**l * s)**2 for each s of SCALES. Its centre is that of its cell. It may reach out of
    the image. `scale` is the side of a level's smallest square anchor, in cells. The paper's value
    is 4, which makes 32 to 813 pixels in all.
    """
    levels = []
    for level, shape in zip(LEVELS, compute_grid_shapes(image_size), strict=True):
        stride = 2**level
        sizes = [(scale * stride * s, math.sqrt(ratio)) for s in SCALES for ratio in RATIOS]
        sides = np.array([(size * root, size / root) for size, root in sizes])
        y, x = ((np.arange(count) + 0.5) * stride for count in shape)
        centers = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1)[:, :, None, :]
        corners = np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1)
        levels.append(corners.reshape(-1, 4).astype(np.float32))
    return np.concatenate(levels)


def match_anchors(
    anchors: tf.Tensor, corners: tf.Tensor, classes: tf.Tensor, is_crowd: tf.Tensor
) -> AnchorTargets:
    """Matches anchors to the boxes of one image.

    An anchor stands for an object from an IoU of 0.5 on, and for background below 0.4. The anchors
    that overlap an object most, all of equals, stand for an object at any overlap ("low-quality
    matches", Ren et al. 2015, section 3.1.2). This object is the one that the anchor itself
    overlaps most, as in Detectron. A crowd is not an object, and anchors inside a crowd are not
    background.

    Args:
      anchors, corners: float32 [A, 4] and [N, 4], N at least 1.
      classes, is_crowd: int32 and bool [N]. A padding box has the class -1.
    """
    is_box = classes >= 0
    is_learned = is_box & ~is_crowd
    ious = tf.where(is_learned[None, :], compute_pairwise_ious(anchors, corners), 0.0)
    best_iou = tf.reduce_max(ious, axis=1)
    best_iou_per_box = tf.reduce_max(ious, axis=0, keepdims=True)
    is_best = tf.reduce_any((ious == best_iou_per_box) & (best_iou_per_box > 0), axis=1)
    is_object = (best_iou >= _IS_OBJECT_IOU) | is_best
    common = compute_intersections(anchors[:, None, :], corners[None, :, :])
    is_inside = common / compute_areas(anchors)[:, None] >= _MIN_CROWD_FRACTION
    is_in_crowd = tf.reduce_any(is_inside & (is_box & is_crowd)[None, :], axis=1)
    is_ignored = ~is_object & ((best_iou >= _IS_BACKGROUND_IOU) | is_in_crowd)
    box = tf.argmax(ious, axis=1, output_type=tf.int32)
    return AnchorTargets(
        tf.where(is_object, tf.gather(classes, box), -1),
        tf.gather(corners, box),
        is_object,
        is_ignored,
    )


def encode_boxes(corners: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., A, 4]: boxes in the encoding of the network's outputs.

    (dy, dx) of the centre are in units of the anchor's height and width. (dh, dw) are the
    logarithms of the box's size relative to the anchor's (Girshick et al. 2014, appendix C).
    """
    centers, sizes = _to_centers_and_sizes(corners)
    from_centers, from_sizes = _to_centers_and_sizes(anchors)
    shifts = (centers - from_centers) / from_sizes
    return tf.concat([shifts, tf.math.log(tf.maximum(sizes, _MIN_SIDE) / from_sizes)], axis=-1)


def decode_boxes(deltas: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., A, 4]: the inverse of `encode_boxes`, in pixels."""
    from_centers, from_sizes = _to_centers_and_sizes(anchors)
    centers = from_centers + deltas[..., :2] * from_sizes
    halves = tf.exp(tf.minimum(deltas[..., 2:], _MAX_LOG_SCALE)) * from_sizes / 2
    return tf.concat([centers - halves, centers + halves], axis=-1)


def _to_centers_and_sizes(corners: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = corners[..., :2], corners[..., 2:]
    return (low + high) / 2, high - low


def _compute_smooth_l1(errors: tf.Tensor) -> tf.Tensor:
    """Returns the smooth L1 loss (Girshick 2015, equation 3), summed over the last axis."""
    sizes = tf.abs(errors)
    losses = tf.where(sizes < _BETA, sizes**2 / (2 * _BETA), sizes - _BETA / 2)
    return tf.reduce_sum(losses, axis=-1)


def _compute_ious(corners: tf.Tensor, others: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns IoU and generalised IoU of boxes, one by one."""
    low = tf.minimum(corners[..., :2], others[..., :2])
    high = tf.maximum(corners[..., 2:], others[..., 2:])
    hull = tf.reduce_prod(high - low, axis=-1)
    intersection, union = compute_overlaps(corners, others)
    iou = tf.math.divide_no_nan(intersection, union)
    return iou, iou - tf.math.divide_no_nan(hull - union, hull)
