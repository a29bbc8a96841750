"""Random augmentation of training examples, drawn only from (seed, epoch, example).

An example is therefore changed in the same way on every worker and after every restart of the gang,
and differently in each epoch. The changes apply to whole batches, after the cache, in the threads
that prepare batches, and run entirely in the graph. `ImageAugmentation` changes images with one
label, and may mix each with another image and its label. `SceneAugmentation` changes images with
boxes: the boxes move with their objects, and some examples become mosaics of four images.

Legend: b examples, k images of which they consist (b images, or more with mosaics and mixtures), n
pixels along an axis, N boxes of an image (padded), H W C image, and canvas of the same size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.train import AugmentOptions
from pipeline_ops.input.order import StatelessRandom
from pipeline_ops.input.tensorflow_start import tf

Part = tuple[tf.Tensor, tf.Tensor]
"""The first and the last edge of the shown part along an axis, in pixels: float32 [k] each."""

LEFT_RIGHT, DOWN, RIGHT, BRIGHTNESS, CONTRAST, TOP_BOTTOM, SCALE = range(7)
SATURATION, ROW, COLUMN = range(7, 10)
IS_MOSAIC, MOSAIC_MEMBER, MEETING_ROW, MEETING_COLUMN = range(10, 14)
CROP_KIND, CROP = SCALE, IS_MOSAIC  # in an image with a crop these two are not drawn
PARTNER = MOSAIC_MEMBER
"""The names of the draws. Each has its own random numbers. `order.py` uses 14 and 15."""
ANGLE, OWN_SEED, MIXTURE = range(3)
"""Names for `uniform_many`, which draws other numbers than the methods that draw one."""

QUARTERS = 4
"""The number of images of a mosaic."""
_MIN_MARGIN = 0.25
"""The smallest distance between the point where the four images of a mosaic meet and each edge, as
a fraction of the canvas.
"""
_PADDING = 128
"""The value of a pixel beyond an image with boxes, in all channels: the middle of the range, which
the catalogue's detectors scale to zero.
"""
_CROP_DRAWS = 50
_TABLE_SIZE = 4096
"""The number of angles and shares that are drawn from."""
_ROUNDING_TOLERANCE = 1e-3
"""The share of its area that a box may lose to rounding without being cut off."""


OwnChange = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Maps an image, float32 [H, W, C] in 0..255, and a seed, int32 [2], to an image."""


class MixedLabels(NamedTuple):
    """The labels of images that are mixtures of two."""

    first: tf.Tensor
    """int64 [b]"""
    second: tf.Tensor
    share: tf.Tensor
    """float32 [b], the share of the first image."""


def build_augmentation(
    config: AugmentOptions,
    task: Task,
    num_examples: int,
    max_boxes: int | None = None,
    own: OwnChange | None = None,
) -> Augmentation:
    """Returns the augmentation for a task, a split of `num_examples`, and a detector that may fix
    the number of boxes. `own` is the function of `config.own`.
    """
    if task == "detection":
        return SceneAugmentation(config, num_examples, max_boxes, own)
    return ImageAugmentation(config, num_examples, own)


@dataclasses.dataclass(frozen=True)
class ImageAugmentation:
    """Changes uint8 images as the config describes. Labels stay the same, or become `MixedLabels`.

    The area beyond the edge of an image repeats that edge.
    """

    config: AugmentOptions
    num_examples: int = 0
    own: OwnChange | None = None

    def get_example_indices(self, rng: StatelessRandom) -> tf.Tensor:
        """Returns the numbers of all examples that `apply` needs, int64."""
        if not self._has_mixtures:
            return rng.examples_b
        others_k = _draw_for_pairs(rng).uniform_int(self.num_examples, PARTNER)
        return tf.concat([rng.examples_b, tf.split(others_k, 2)[1]], 0)

    def apply(self, images_kHWC: tf.Tensor, labels: Any, rng: StatelessRandom) -> tuple[Any, Any]:
        """Returns the images of the draws, changed, and the labels.

        With mixtures, the b images that others are mixed with come after the b others. Both are
        changed before.
        """
        if not self._has_mixtures:
            return self._change(images_kHWC, rng), labels
        images_kHWC = self._change(images_kHWC, _draw_for_pairs(rng))
        return _mix(self.config, images_kHWC, labels, rng)

    @property
    def _has_mixtures(self) -> bool:
        return bool(self.config.mixup or self.config.cutmix)

    def _change(self, images_kHWC: tf.Tensor, rng: StatelessRandom) -> tf.Tensor:
        shape = images_kHWC.shape[1:3]
        if self.config.rotation:
            images_kHWC = _Rotation(self.config.rotation, shape, rng).render(images_kHWC)
        if self.config.crops:
            rows, columns, _ = _draw_crops(self.config, shape, rng)
            images_kHWC = _render(images_kHWC, rows, columns)
        elif _has_geometric_transforms(self.config):
            images_kHWC = _render(images_kHWC, *_draw_windows(self.config, shape, rng))
        return _apply_own(self.own, _adjust_colors(self.config, images_kHWC, rng), rng)


@dataclasses.dataclass(frozen=True)
class SceneAugmentation:
    """Changes uint8 images and their boxes as the config describes.

    The labels are a named tuple: corners float32 [b, N, 4] (ymin, xmin, ymax, xmax as fractions),
    classes int32 [b, N], -1 where there is no box, and is_crowd bool [b, N], a region where nothing
    is learned. The returned labels have as many columns as the fullest example of the batch needs.
    With `max_boxes`, which is the N of the loaded labels, they always have N columns, and 4 N with
    mosaics.

    A box is cut off at the edge of the shown part. If less than `min_visible` of it is left, it
    becomes a region where nothing is learned. The visible rest is not enough of an object, and it
    is not background. The area beyond an image is grey: half an object that is stretched to a smear
    would be neither an object with a box nor background.
    """

    config: AugmentOptions
    num_examples: int
    max_boxes: int | None = None
    own: OwnChange | None = None

    def get_example_indices(self, rng: StatelessRandom) -> tf.Tensor:
        """Returns the numbers of all examples that `apply` needs, int64."""
        if not self.config.mosaic:
            return rng.examples_b
        return _Mosaics(rng, self.config.mosaic, self.num_examples).examples_k

    def apply(self, images: tf.Tensor, labels: Any, rng: StatelessRandom) -> tuple[Any, Any]:
        """Returns the batch of the draws, made of the images of `get_example_indices`."""
        shape = images.shape[1:3]
        if self.config.mosaic:
            mosaics = _Mosaics(rng, self.config.mosaic, self.num_examples)
            images, labels = self._rotate(images, labels, mosaics.rng_k)
            parts = mosaics.compute_parts(*shape)
            windows = _draw_windows(self.config, shape, mosaics.rng_k, parts)
            images, labels = self._transform(images, labels, *windows)
            images, labels = mosaics.merge_images(images, *windows), mosaics.merge_boxes(labels)
        else:
            images, labels = self._rotate(images, labels, rng)
        if self.config.crops:
            rows, columns, min_overlap_b = _draw_crops(self.config, shape, rng, labels)
            images, labels = self._transform(images, labels, rows, columns, min_overlap_b)
        elif _has_geometric_transforms(self.config) and not self.config.mosaic:
            windows = _draw_windows(self.config, shape, rng)
            images, labels = self._transform(images, labels, *windows)
        images = _apply_own(self.own, _adjust_colors(self.config, images, rng), rng)
        return images, self._compact_boxes(labels)

    def _rotate(
        self, images_kHWC: tf.Tensor, labels: Any, rng: StatelessRandom
    ) -> tuple[tf.Tensor, Any]:
        if not self.config.rotation:
            return images_kHWC, labels
        rotation = _Rotation(self.config.rotation, images_kHWC.shape[1:3], rng)
        turned = rotation.turn(labels.corners)
        corners = tf.clip_by_value(turned, 0, 1)
        visible = tf.math.divide_no_nan(_compute_areas(corners), _compute_areas(turned))
        classes = tf.where(visible > 0, labels.classes, -1)
        is_crowd = labels.is_crowd | (visible < self.config.min_visible - _ROUNDING_TOLERANCE)
        return rotation.render(images_kHWC, _PADDING), type(labels)(corners, classes, is_crowd)

    def _transform(
        self,
        images_kHWC: tf.Tensor,
        labels: Any,
        rows: _Window,
        columns: _Window,
        min_overlap_k: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Any]:
        has_image_kHW = rows.has_image()[:, :, None] & columns.has_image()[:, None, :]
        rendered_kHWC = _render(images_kHWC, rows, columns)
        rendered_kHWC = tf.where(
            has_image_kHW[..., None], rendered_kHWC, tf.constant(_PADDING, rendered_kHWC.dtype)
        )
        ymin, xmin, ymax, xmax = tf.unstack(labels.corners, axis=-1)
        ymin, ymax = rows.to_canvas_edges(ymin, ymax)
        xmin, xmax = columns.to_canvas_edges(xmin, xmax)
        whole = (ymax - ymin) * (xmax - xmin)
        ymin, ymax = rows.clip(ymin), rows.clip(ymax)
        xmin, xmax = columns.clip(xmin), columns.clip(xmax)
        visible = tf.math.divide_no_nan((ymax - ymin) * (xmax - xmin), whole)
        corners = tf.stack(
            [ymin / rows.size, xmin / columns.size, ymax / rows.size, xmax / columns.size], axis=-1
        )
        classes, is_crowd = tf.where(visible > 0, labels.classes, -1), labels.is_crowd
        if min_overlap_k is None:
            is_crowd |= visible < self.config.min_visible - _ROUNDING_TOLERANCE
        else:
            is_left = visible >= min_overlap_k[:, None] - _ROUNDING_TOLERANCE
            classes = tf.where(is_left, classes, -1)
        return rendered_kHWC, type(labels)(corners, classes, is_crowd)

    def _compact_boxes(self, labels: Any) -> Any:
        """Moves the boxes to the front, in their order, and cuts the unused columns."""
        is_box = labels.classes >= 0
        order = tf.argsort(tf.cast(~is_box, tf.int32), axis=1, stable=True)
        if self.max_boxes is None:
            order = order[:, : tf.reduce_max(tf.math.count_nonzero(is_box, axis=1))]
        else:
            images_per_example = QUARTERS if self.config.mosaic else 1
            order = tf.ensure_shape(order, [None, self.max_boxes * images_per_example])
        return type(labels)(*(tf.gather(values, order, batch_dims=1) for values in labels))


Augmentation = ImageAugmentation | SceneAugmentation


def _has_geometric_transforms(config: AugmentOptions) -> bool:
    return bool(config.flip_left_right or config.flip_top_bottom or config.scale or config.shift)


def _compute_areas(corners: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(corners[..., 2:] - corners[..., :2], axis=-1)


def _adjust_colors(
    config: AugmentOptions, images_bHWC: tf.Tensor, rng: StatelessRandom
) -> tf.Tensor:
    """Changes the colours of uint8 or float32 images. Returns uint8."""

    def factor(max_change: float, draw_id: int) -> tf.Tensor:
        return (1 + max_change * rng.uniform_symmetric(draw_id))[:, None, None, None]

    if config.saturation:
        images_bHWC = tf.cast(images_bHWC, tf.float32)
        grey = tf.reduce_mean(images_bHWC, axis=-1, keepdims=True)
        images_bHWC = grey + (images_bHWC - grey) * factor(config.saturation, SATURATION)
    if config.brightness or config.contrast:
        images_bHWC = tf.cast(images_bHWC, tf.float32)
        mean = tf.reduce_mean(images_bHWC, axis=[1, 2], keepdims=True)
        offset = 255 * config.brightness * rng.uniform_symmetric(BRIGHTNESS)[:, None, None, None]
        images_bHWC = (images_bHWC - mean) * factor(config.contrast, CONTRAST) + (mean + offset)
    return _to_uint8(images_bHWC)


def _to_uint8(images_bHWC: tf.Tensor) -> tf.Tensor:
    if images_bHWC.dtype == tf.float32:
        return tf.cast(tf.clip_by_value(tf.round(images_bHWC), 0, 255), tf.uint8)
    return images_bHWC


def _apply_own(own: OwnChange | None, images_bHWC: tf.Tensor, rng: StatelessRandom) -> tf.Tensor:
    """Changes each uint8 image by the author's function. Returns uint8."""
    if own is None:
        return images_bHWC
    seeds_b2 = tf.cast(rng.uniform_many(OWN_SEED, 2) * (1 << 24), tf.int32)
    changed = tf.map_fn(
        lambda pair: own(*pair),
        (tf.cast(images_bHWC, tf.float32), seeds_b2),
        fn_output_signature=tf.float32,
    )
    return _to_uint8(tf.ensure_shape(changed, images_bHWC.shape))


def _draw_from(table: np.ndarray, numbers_b: tf.Tensor) -> tf.Tensor:
    """Returns one of the values, all equally likely, for each number in [0, 1).

    Like exponential functions, sines and quantiles would have another last digit at other positions
    in the batch.
    """
    return tf.gather(tf.constant(table, tf.float32), tf.cast(numbers_b * len(table), tf.int32))


def _draw_for_pairs(rng: StatelessRandom) -> StatelessRandom:
    """Returns draws for the images of a batch, and then for those that they are mixed with."""
    streams_k = tf.concat([tf.zeros_like(rng.examples_b), tf.ones_like(rng.examples_b)], 0)
    epochs_k, examples_k = (tf.concat([each, each], 0) for each in (rng.epochs_b, rng.examples_b))
    return StatelessRandom(rng.seed, epochs_k, examples_k, streams_k)


def _mix(
    config: AugmentOptions, images_kHWC: tf.Tensor, labels_k: tf.Tensor, rng: StatelessRandom
) -> tuple[tf.Tensor, MixedLabels]:
    """Mixes the first half of uint8 images with the second, by pixels or by a rectangle.

    The rectangle is that of Yun et al. (2019). It ends at the edge of the image, and the share is
    that of the pixels that are left.
    """
    kind_b, number_b, row_b, column_b = tf.unstack(rng.uniform_many(MIXTURE, 4), axis=1)
    mixup_b, cutmix_b = (
        _draw_from(_list_shares(alpha or 1.0), number_b) for alpha in (config.mixup, config.cutmix)
    )
    is_cut_b = kind_b < (0.5 if config.mixup else 1.0) * bool(config.cutmix)
    rows_bH, columns_bW = (
        _cut_out(size, center_b, cutmix_b)
        for size, center_b in zip(images_kHWC.shape[1:3], (row_b, column_b), strict=True)
    )
    left_bHW = 1 - rows_bH[:, :, None] * columns_bW[:, None, :]
    weights_bHW = tf.where(is_cut_b[:, None, None], left_bHW, mixup_b[:, None, None])
    share_b = tf.where(is_cut_b, tf.reduce_mean(left_bHW, axis=[1, 2]), mixup_b)
    first, second = tf.split(tf.cast(images_kHWC, tf.float32), 2)
    mixed = second + weights_bHW[..., None] * (first - second)
    own_b, other_b = tf.split(labels_k, 2)
    return _to_uint8(mixed), MixedLabels(own_b, other_b, share_b)


def _cut_out(size: int, center_b: tf.Tensor, share_b: tf.Tensor) -> tf.Tensor:
    """Returns float32 [b, n], 1 at the pixels of an axis that are within the rectangles."""
    middle_b = tf.floor(center_b * size)
    half_b = tf.floor(tf.floor(tf.sqrt(1 - share_b) * size) / 2)
    distance_bn = tf.range(size, dtype=tf.float32) - middle_b[:, None]
    is_inside = (distance_bn >= -half_b[:, None]) & (distance_bn < half_b[:, None])
    return tf.cast(is_inside, tf.float32)


def _list_shares(alpha: float) -> np.ndarray:
    """Returns quantiles of the distribution Beta(alpha, alpha)."""
    from scipy.special import betaincinv  # only for those who mix

    return betaincinv(alpha, alpha, (np.arange(_TABLE_SIZE) + 0.5) / _TABLE_SIZE)


class _Rotation:
    """k images of a height and a width, turned about their centres by up to some degrees."""

    def __init__(self, degrees: float, shape: tuple[int, int], rng: StatelessRandom):
        self._height, self._width = shape
        angles = np.radians(np.linspace(-degrees, degrees, _TABLE_SIZE))
        number_k = rng.uniform_many(ANGLE, 1)[:, 0]
        self._cos_k, self._sin_k = (_draw_from(f(angles), number_k) for f in (np.cos, np.sin))

    def render(self, images_kHWC: tf.Tensor, padding: int | None = None) -> tf.Tensor:
        """Returns float32 images with bilinear interpolation, and `padding` around them. None
        repeats the edge.
        """
        x, y = (self._width - 1) / 2, (self._height - 1) / 2
        cos_k, sin_k, zeros_k = self._cos_k, self._sin_k, tf.zeros_like(self._cos_k)
        shift_x_k, shift_y_k = x - cos_k * x + sin_k * y, y - sin_k * x - cos_k * y
        rows = [cos_k, -sin_k, shift_x_k, sin_k, cos_k, shift_y_k, zeros_k, zeros_k]
        turned = tf.raw_ops.ImageProjectiveTransformV3(
            images=tf.cast(images_kHWC, tf.float32),
            transforms=tf.stack(rows, axis=1),
            output_shape=tf.constant([self._height, self._width]),
            fill_value=float(padding or 0),
            interpolation="BILINEAR",
            fill_mode="NEAREST" if padding is None else "CONSTANT",
        )
        return tf.ensure_shape(turned, images_kHWC.shape)

    def turn(self, corners: tf.Tensor) -> tf.Tensor:
        """Returns the boxes around turned boxes, float32 [k, N, 4], as fractions of the image. They
        may leave it.
        """
        y = (tf.gather(corners, [0, 0, 2, 2], axis=-1) - 0.5) * self._height
        x = (tf.gather(corners, [1, 3, 1, 3], axis=-1) - 0.5) * self._width
        cos_k, sin_k = self._cos_k[:, None, None], self._sin_k[:, None, None]
        turned = (cos_k * y - sin_k * x) / self._height, (sin_k * y + cos_k * x) / self._width
        low, high = (reduce(turned, axis=-1) for reduce in (tf.reduce_min, tf.reduce_max))
        return tf.stack([*tf.unstack(low), *tf.unstack(high)], axis=-1) + 0.5


@dataclasses.dataclass(frozen=True)
class _Window:
    """One axis of k images on their canvases: mirrored, scaled and moved. Nothing here is random.

    The same few numbers move pixels and boxes. Coordinates are in pixels of the canvas. The first
    pixel goes from 0 to 1.

    Attributes:
      size: n, of image and canvas.
      origin_k: the beginning of the image. It may lie beyond the canvas.
      scale_k: pixels of the canvas for a pixel of the image. None means exactly one, and then all
          origins are whole numbers.
      is_mirrored_k: whether the image's end comes first. None mirrors no image.
      part_k: the part of the canvas where the image is shown.
    """

    size: int
    origin_k: tf.Tensor
    scale_k: tf.Tensor | None
    is_mirrored_k: tf.Tensor | None
    part_k: Part

    def compute_source_coordinates(self) -> tf.Tensor:
        """Returns float32 [k, n]: the centre of each pixel of the canvas, in pixels of the image.
        It is -0.5 to n - 0.5 inside the image.
        """
        sources_kn = tf.range(self.size, dtype=tf.float32)[None, :] + 0.5 - self.origin_k[:, None]
        if self.scale_k is not None:
            sources_kn /= self.scale_k[:, None]
        sources_kn -= 0.5
        if self.is_mirrored_k is None:
            return sources_kn
        return tf.where(self.is_mirrored_k[:, None], self.size - 1 - sources_kn, sources_kn)

    def has_image(self) -> tf.Tensor:
        """bool [k, n]"""
        sources_kn = self.compute_source_coordinates()
        return (sources_kn >= -0.5) & (sources_kn <= self.size - 0.5)

    def is_shown(self) -> tf.Tensor:
        """bool [k, n]"""
        centers_n = tf.range(self.size, dtype=tf.float32)[None, :] + 0.5
        low_k, high_k = self.part_k
        return (centers_n > low_k[:, None]) & (centers_n < high_k[:, None])

    def to_canvas_edges(self, low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Converts the two edges of boxes, float32 [k, N], from fractions of the image to pixels of
        the canvas. The edges may lie outside of it.
        """
        if self.is_mirrored_k is not None:
            mirrored = self.is_mirrored_k[:, None]
            low, high = tf.where(mirrored, 1 - high, low), tf.where(mirrored, 1 - low, high)
        pixels = self.size if self.scale_k is None else self.size * self.scale_k[:, None]
        return self.origin_k[:, None] + low * pixels, self.origin_k[:, None] + high * pixels

    def clip(self, edge: tf.Tensor) -> tf.Tensor:
        """Clips edges, float32 [k, N], to the shown part."""
        low_k, high_k = self.part_k
        return tf.clip_by_value(edge, low_k[:, None], high_k[:, None])


def _draw_windows(
    config: AugmentOptions,
    shape: tuple[int, int],
    rng: StatelessRandom,
    parts: tuple[Part, Part] | None = None,
) -> tuple[_Window, _Window]:
    """Returns the rows and columns of images of this height and width on their canvases.

    An image covers the shown part, or lies somewhere in it if it is too small to cover it. `parts`
    are the rows and the columns that are shown of each canvas. None shows all of them, and only
    then images are shifted.
    """
    scale_k = None
    if config.scale is not None:
        # Not an exponential function: its last digit depends on the position in the batch.
        scale_k = config.scale.min + (config.scale.max - config.scale.min) * rng.uniform(SCALE)

    def draw_window(axis: int, position: int, shift: int, mirror: int | None) -> _Window:
        size = shape[axis]
        zeros_k = tf.zeros_like(rng.examples_b, tf.float32)
        low_k, high_k = parts[axis] if parts else (zeros_k, zeros_k + size)
        slack_k = high_k - low_k - size * (1.0 if scale_k is None else scale_k)
        origin_k = low_k + rng.uniform(position) * slack_k
        if config.shift and not parts:
            origin_k += config.shift * rng.uniform_symmetric(shift) * size
        return _Window(
            size,
            tf.round(origin_k) if scale_k is None else origin_k,
            scale_k,
            None if mirror is None else rng.uniform(mirror) < 0.5,
            (low_k, high_k),
        )

    return (
        draw_window(0, ROW, DOWN, TOP_BOTTOM if config.flip_top_bottom else None),
        draw_window(1, COLUMN, RIGHT, LEFT_RIGHT if config.flip_left_right else None),
    )


def _draw_crops(
    config: AugmentOptions, shape: tuple[int, int], rng: StatelessRandom, labels: Any = None
) -> tuple[_Window, _Window, tf.Tensor]:
    """Returns rows and columns that show a part of each image on its whole canvas.

    The third value is the `min_overlap` of the crop that was drawn, float32 [b]. The sizes are
    drawn as `tf.image.sample_distorted_bounding_box` draws them: first the aspect ratio, then the
    height. Legend: d draws.
    """
    height, width = shape
    kinds = tf.constant([list(crop.model_dump().values()) for crop in config.crops], tf.float32)
    chosen_b = rng.uniform_int(len(config.crops), CROP_KIND)
    min_area, max_area, low, high, min_covered, min_overlap, keep_whole = tf.unstack(
        tf.gather(kinds, chosen_b)[:, None, :], axis=-1
    )
    numbers = rng.uniform_many(CROP, 4 * _CROP_DRAWS + 1)
    ratio_bd, size_bd, top_bd, left_bd = tf.split(numbers[:, 1:], 4, axis=1)
    ratio_bd = low + (high - low) * ratio_bd
    smallest_bd = tf.sqrt(min_area * height * width / ratio_bd)
    largest_bd = tf.minimum(
        tf.sqrt(max_area * height * width / ratio_bd), tf.minimum(float(height), width / ratio_bd)
    )
    heights_bd = smallest_bd + (largest_bd - smallest_bd) * size_bd
    # Rows and columns as fractions of the image.
    sizes_bd2 = tf.stack([heights_bd / height, heights_bd * ratio_bd / width], axis=-1)
    begins_bd2 = tf.stack([top_bd, left_bd], axis=-1) * (1 - sizes_bd2)
    is_enough_bd = largest_bd >= smallest_bd
    if labels is not None:
        covered_bd = _compute_largest_cover(labels, begins_bd2, sizes_bd2)
        is_enough_bd &= covered_bd >= min_covered - 1e-5  # which rounding may cost
    is_whole_b = (numbers[:, 0] < keep_whole[:, 0]) | ~tf.reduce_any(is_enough_bd, axis=1)
    first_b = tf.argmax(tf.cast(is_enough_bd, tf.int32), axis=1)

    def make_window(axis: int, is_flipped: bool, draw_id: int) -> _Window:
        size, is_mirrored_b = shape[axis], None
        begin_b, share_b = (
            tf.where(is_whole_b, whole, tf.gather(each[..., axis], first_b, batch_dims=1))
            for each, whole in ((begins_bd2, 0.0), (sizes_bd2, 1.0))
        )
        if is_flipped:
            is_mirrored_b = rng.uniform(draw_id) < 0.5
            begin_b = tf.where(is_mirrored_b, 1 - share_b - begin_b, begin_b)
        part = tf.zeros_like(begin_b), tf.zeros_like(begin_b) + size
        return _Window(size, -begin_b / share_b * size, 1 / share_b, is_mirrored_b, part)

    rows = make_window(0, config.flip_top_bottom, TOP_BOTTOM)
    columns = make_window(1, config.flip_left_right, LEFT_RIGHT)
    return rows, columns, min_overlap[:, 0]


def _compute_largest_cover(labels: Any, begins_bd2: tf.Tensor, sizes_bd2: tf.Tensor) -> tf.Tensor:
    """Returns the largest share of a box that each part shows, float32 [b, d].

    An image without boxes counts as one box.
    """
    low_b1N2, high_b1N2 = tf.split(labels.corners[:, None], 2, axis=-1)
    begins_bd12, ends_bd12 = begins_bd2[:, :, None], (begins_bd2 + sizes_bd2)[:, :, None]
    shown = tf.minimum(high_b1N2, ends_bd12) - tf.maximum(low_b1N2, begins_bd12)
    share_bdN = tf.math.divide_no_nan(
        tf.reduce_prod(tf.maximum(0.0, shown), axis=-1),
        tf.reduce_prod(high_b1N2 - low_b1N2, axis=-1),
    )
    is_box_bN = labels.classes >= 0
    largest_bd = tf.reduce_max(tf.where(is_box_bN[:, None, :], share_bdN, 0.0), axis=2)
    whole_bd = tf.reduce_prod(sizes_bd2, axis=-1)
    return tf.where(tf.reduce_any(is_box_bN, axis=1, keepdims=True), largest_bd, whole_bd)


def _render(images_kHWC: tf.Tensor, rows: _Window, columns: _Window) -> tf.Tensor:
    """Returns the canvases. The image's edge is repeated where there is no image.

    The result is uint8 if no pixel was scaled, otherwise float32 with bilinear interpolation.
    """
    return _resample(_resample(images_kHWC, rows, axis=1), columns, axis=2)


def _resample(images_kHWC: tf.Tensor, window: _Window, axis: int) -> tf.Tensor:
    sources_kn = window.compute_source_coordinates()
    low_kn = tf.floor(sources_kn)

    def gather_pixels(indices_kn: tf.Tensor) -> tf.Tensor:
        within = tf.clip_by_value(tf.cast(indices_kn, tf.int32), 0, window.size - 1)
        pixels = tf.gather(images_kHWC, within, axis=axis, batch_dims=1)
        return tf.ensure_shape(pixels, [None, *images_kHWC.shape[1:]])

    if window.scale_k is None:
        return gather_pixels(low_kn)
    shape = [-1, window.size, 1, 1] if axis == 1 else [-1, 1, window.size, 1]
    weights = tf.reshape(sources_kn - low_kn, shape)
    first = tf.cast(gather_pixels(low_kn), tf.float32)
    second = tf.cast(gather_pixels(low_kn + 1), tf.float32)
    return first + weights * (second - first)


class _Mosaics:
    """The images of a batch in which some examples are mosaics.

    A mosaic is an example's own image and three others of the split, each shown in one of four
    parts of the canvas, which meet at a random point. It is one example with objects of four
    images, with other neighbours and cut off at other positions. Objects do not get smaller. The
    three others are drawn from (seed, epoch, example), too. Each example still comes once in an
    epoch in its own right, and sometimes also as a part of others.

    Attributes:
      examples_k: int64, the numbers of the images in the split.
      rng_k: separate draws for each image, derived from those of the example that it is part of.
    """

    def __init__(self, rng: StatelessRandom, fraction: float, num_examples: int):
        is_mosaic_b = rng.uniform(IS_MOSAIC) < fraction
        is_used_b4 = tf.stack([tf.ones_like(is_mosaic_b)] + [is_mosaic_b] * (QUARTERS - 1), axis=1)
        # The example that each image becomes part of, counted in the batch, and its part there:
        # top left, top right, bottom left or bottom right. An example that is not a mosaic has only
        # the first, which is then the whole canvas.
        self._owners_k, self._quarters_k = tf.unstack(tf.where(is_used_b4), axis=1)
        self._rng, self._is_mosaic_k = rng, tf.gather(is_mosaic_b, self._owners_k)
        own_k = tf.gather(rng.examples_b, self._owners_k)
        epochs_k = tf.gather(rng.epochs_b, self._owners_k)
        self.rng_k = StatelessRandom(rng.seed, epochs_k, own_k, self._quarters_k)
        others_k = self.rng_k.uniform_int(num_examples, MOSAIC_MEMBER)
        self.examples_k = tf.where(self._quarters_k == 0, own_k, others_k)

    def compute_parts(self, height: int, width: int) -> tuple[Part, Part]:
        """Returns the rows and the columns of its canvas in which each image is shown."""

        def compute_part(size: int, draw_id: int, is_second_k: tf.Tensor) -> Part:
            fraction_b = _MIN_MARGIN + (1 - 2 * _MIN_MARGIN) * self._rng.uniform(draw_id)
            center_k = tf.gather(tf.round(size * fraction_b), self._owners_k)
            ends_at_edge_k = is_second_k | ~self._is_mosaic_k
            return (
                tf.where(is_second_k, center_k, 0.0),
                tf.where(ends_at_edge_k, float(size), center_k),
            )

        return (
            compute_part(height, MEETING_ROW, self._quarters_k >= 2),
            compute_part(width, MEETING_COLUMN, self._quarters_k % 2 == 1),
        )

    def merge_images(self, images_kHWC: tf.Tensor, rows: _Window, columns: _Window) -> tf.Tensor:
        """Joins the parts to images [b, H, W, C]."""
        is_shown_kHW = rows.is_shown()[:, :, None] & columns.is_shown()[:, None, :]
        parts_kHWC = tf.where(is_shown_kHW[..., None], images_kHWC, tf.zeros([], images_kHWC.dtype))
        num_examples = tf.size(self._rng.examples_b)
        merged = tf.math.unsorted_segment_sum(parts_kHWC, self._owners_k, num_examples)
        return tf.ensure_shape(merged, [None, *images_kHWC.shape[1:]])

    def merge_boxes(self, labels: Any) -> Any:
        """Joins the boxes to labels [b, 4 N, ...], with class -1 where there is no box."""
        slots_k = (self._owners_k * QUARTERS + self._quarters_k)[:, None]
        num_slots = tf.size(self._rng.examples_b) * QUARTERS

        def scatter(values_kN: tf.Tensor) -> tf.Tensor:
            shape = tf.concat([[num_slots], tf.shape(values_kN)[1:]], 0)
            scattered = tf.scatter_nd(slots_k, values_kN, tf.cast(shape, tf.int64))
            return tf.reshape(scattered, tf.concat([[-1, QUARTERS * shape[1]], shape[2:]], 0))

        return type(labels)(
            scatter(labels.corners),
            scatter(labels.classes + 1) - 1,
            scatter(tf.cast(labels.is_crowd, tf.int32)) > 0,
        )
