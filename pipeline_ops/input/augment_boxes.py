"""Random changes of training images that move what is in them, with the boxes along: mirror, zoom, shift, mosaic.

Drawn from (seed, epoch, example), as in `augment.py`, which the colours are left to: no worker and no restart changes them. A mosaic
takes its other three images from the whole split, by number, so it is the same whichever worker makes it.

Legend: b examples, N boxes of an image (padded), H W C image. Places are fractions of the image's height and width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pipeline_ops.contracts.config_input import Augment
from pipeline_ops.input.augment import augment, uniform
from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

Load = Callable[[tf.Tensor], tuple[tf.Tensor, Any]]
"""Images and boxes of examples by number: `load` of a source."""

Draw = Callable[[int], tf.Tensor]
"""Random numbers for a batch, float32 [b] in [0, 1): others for each number that it is asked for."""

_FIRST_DRAW, _DRAWS_OF_TILE = 8, 8
"""`augment.py` has the draws below."""
_MIRROR_X, _MIRROR_Y, _ZOOM, _DOWN, _RIGHT, _PARTNER = range(6)
_IS_MOSAIC, _ROW, _COLUMN = range(_FIRST_DRAW + 4 * _DRAWS_OF_TILE, _FIRST_DRAW + 4 * _DRAWS_OF_TILE + 3)
_MIDDLE = 0.3, 0.7
"""Where the four images of a mosaic meet."""


class _Window(NamedTuple):
    """The part of the new image that an image is to fill, float32 [b] each."""

    ymin: tf.Tensor
    xmin: tf.Tensor
    ymax: tf.Tensor
    xmax: tf.Tensor


class _Placement(NamedTuple):
    """Where an image comes to lie, float32 [b] each: at `top` and `left`, `size` times as large, and mirrored where these are true."""

    top: tf.Tensor
    left: tf.Tensor
    size: tf.Tensor
    is_mirrored_y: tf.Tensor
    is_mirrored_x: tf.Tensor


def augment_boxes(config: Augment, load: Load, num_examples: int, seed: int, epochs_b: tf.Tensor, examples_b: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """uint8 images and their boxes, changed as the config says; epochs and examples are int64 numbers.

    Args:
      load: gives images [b, H, W, C], and boxes as a named tuple with `corners` [b, N, 4], `classes` [b, N], -1 for none, and others like that.
      num_examples: of the split.
    """
    def draw(what: int) -> tf.Tensor:
        return uniform(seed, epochs_b, examples_b, what)

    images_bHWC, boxes = load(examples_b)
    if config.moves_boxes:
        placed = _placed(config, draw, 0, _whole(examples_b), images_bHWC, boxes)
        images_bHWC, boxes = placed if not config.mosaic else _some_mosaics(config, load, num_examples, draw, placed)
    colors = Augment(brightness=config.brightness, contrast=config.contrast)
    return augment(colors, images_bHWC, seed, epochs_b, examples_b), boxes


def _some_mosaics(config: Augment, load: Load, num_examples: int, draw: Draw, single: tuple) -> tuple[tf.Tensor, Any]:
    """Some of the images, as mosaics of four, and the others as they are."""
    is_mosaic = draw(_IS_MOSAIC) < config.mosaic
    images_bHWC, boxes = _mosaics(config, load, num_examples, draw)
    padded = tf.nest.map_structure(_padded_like, single[1], boxes)
    chosen = tf.nest.map_structure(lambda new, old: tf.where(_over(is_mosaic, new), new, old), boxes, padded)
    return tf.where(_over(is_mosaic, images_bHWC), images_bHWC, single[0]), chosen


def _mosaics(config: Augment, load: Load, num_examples: int, draw: Draw) -> tuple[tf.Tensor, Any]:
    """Four images of the split on one, each in a corner."""
    low, high = _MIDDLE
    y, x = (low + (high - low) * draw(axis) for axis in (_ROW, _COLUMN))
    zero, one = tf.zeros_like(y), tf.ones_like(y)
    images, boxes = None, []
    for tile, window in enumerate((_Window(zero, zero, y, x), _Window(zero, x, y, one), _Window(y, zero, one, x), _Window(y, x, one, one))):
        partners = tf.cast(draw(_FIRST_DRAW + tile * _DRAWS_OF_TILE + _PARTNER) * num_examples, tf.int64)
        placed, found = _placed(config, draw, tile, window, *load(tf.minimum(partners, num_examples - 1)))
        images = placed if images is None else tf.where(_inside(window, placed), placed, images)
        boxes.append(found)
    return images, tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=1), *boxes)


def _placed(config: Augment, draw: Draw, tile: int, window: _Window, images_bHWC: tf.Tensor, boxes: Any) -> tuple[tf.Tensor, Any]:
    """Images mirrored, zoomed and moved to fill a window of the new image, and what of their boxes is seen there."""
    def own(what: int) -> tf.Tensor:
        return draw(_FIRST_DRAW + tile * _DRAWS_OF_TILE + what)

    span = tf.maximum(window.ymax - window.ymin, window.xmax - window.xmin)
    size = span * (1 + config.zoom * (2 * own(_ZOOM) - 1))

    def start(low: tf.Tensor, high: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        """Anywhere between flush with one end of the window and flush with the other."""
        return low + share * (high - size - low)

    never = tf.zeros_like(size, tf.bool)
    placement = _Placement(
        start(window.ymin, window.ymax, own(_DOWN)) + _within(config.shift, own(_DOWN)),
        start(window.xmin, window.xmax, own(_RIGHT)) + _within(config.shift, own(_RIGHT)), size,
        own(_MIRROR_Y) < 0.5 if config.flip_up_down else never, own(_MIRROR_X) < 0.5 if config.flip_left_right else never)
    return _moved(images_bHWC, placement), _moved_boxes(boxes, placement, window, config.min_visible)


def _within(bound: float, share: tf.Tensor) -> tf.Tensor:
    return bound * (2 * share - 1)


def _moved(images_bHWC: tf.Tensor, placement: _Placement) -> tf.Tensor:
    """Interpolated linearly; beyond an image its edge is repeated."""
    height, width = images_bHWC.shape[1:3]

    def axis(start: tf.Tensor, is_mirrored: tf.Tensor, pixels: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Slope and offset from a pixel of the new image to one of the old; a pixel's place is its middle."""
        slope, offset = 1 / placement.size, (0.5 - start * pixels) / placement.size - 0.5
        return tf.where(is_mirrored, -slope, slope), tf.where(is_mirrored, pixels - 1 - offset, offset)

    y_slope, y_offset = axis(placement.top, placement.is_mirrored_y, height)
    x_slope, x_offset = axis(placement.left, placement.is_mirrored_x, width)
    zero = tf.zeros_like(y_slope)
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=images_bHWC, transforms=tf.stack([x_slope, zero, x_offset, zero, y_slope, y_offset, zero, zero], axis=1),
        output_shape=tf.constant([height, width]), fill_value=0.0, interpolation="BILINEAR", fill_mode="NEAREST")
    return tf.ensure_shape(moved, images_bHWC.shape)


def _moved_boxes(boxes: Any, placement: _Placement, window: _Window, min_visible: float) -> Any:
    """Boxes in the new image, cut off at the window; one of which too little is left is none any more."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes.corners, axis=-1)
    top, left, size = (value[:, None] for value in placement[:3])
    ymin, ymax = _mirrored(ymin, ymax, placement.is_mirrored_y)
    xmin, xmax = _mirrored(xmin, xmax, placement.is_mirrored_x)
    whole = tf.stack([top + size * ymin, left + size * xmin, top + size * ymax, left + size * xmax], axis=-1)
    low, high = tf.stack([window.ymin, window.xmin] * 2, axis=-1)[:, None], tf.stack([window.ymax, window.xmax] * 2, axis=-1)[:, None]
    seen = tf.clip_by_value(whole, low, high)
    is_left = _area(seen) > tf.maximum(min_visible * _area(whole), 0.0)
    return boxes._replace(corners=tf.where(is_left[..., None], seen, 0.0), classes=tf.where(is_left, boxes.classes, -1))


def _mirrored(low: tf.Tensor, high: tf.Tensor, is_mirrored: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.where(is_mirrored[:, None], 1 - high, low), tf.where(is_mirrored[:, None], 1 - low, high)


def _area(corners: tf.Tensor) -> tf.Tensor:
    return (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])


def _whole(examples_b: tf.Tensor) -> _Window:
    zero = tf.zeros_like(examples_b, tf.float32)
    return _Window(zero, zero, zero + 1, zero + 1)


def _inside(window: _Window, images_bHWC: tf.Tensor) -> tf.Tensor:
    """bool [b, H, W, 1]: whether the middle of a pixel is in the window."""
    y, x = ((tf.range(size, dtype=tf.float32) + 0.5) / size for size in images_bHWC.shape[1:3])
    rows = (y >= window.ymin[:, None]) & (y < window.ymax[:, None])
    columns = (x >= window.xmin[:, None]) & (x < window.xmax[:, None])
    return rows[:, :, None, None] & columns[:, None, :, None]


def _over(values_b: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """[b] with as many axes as another tensor."""
    return tf.reshape(values_b, [-1] + [1] * (like.shape.rank - 1))


def _padded_like(few: tf.Tensor, many: tf.Tensor) -> tf.Tensor:
    """Boxes [b, N, ...] with so many more, which are none: 0, or class -1."""
    more = tf.shape(many)[1] - tf.shape(few)[1]
    padding = [[0, 0], [0, more]] + [[0, 0]] * (few.shape.rank - 2)
    return tf.pad(few, padding, constant_values=tf.constant(-1, few.dtype) if few.dtype == tf.int32 else tf.zeros([], few.dtype))
