"""Random augmentation of images with boxes: the boxes move with their objects.

Flips, scale and place are drawn as for any image (`augment.py`). The area beyond the edge of an
image is grey, PADDING, instead of the repeated edge. Half an object that is stretched to a smear
would be neither an object with a box nor background.

Legend: k images, as in `mosaic.py`, N boxes of an image (padded), H W C canvas.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline_ops.config.input import AugmentOptions
from pipeline_ops.input.augment import (
    Load,
    adjust_colors,
    draw_windows,
    has_geometric_transforms,
    to_uint8,
)
from pipeline_ops.input.image_transforms import Window, render
from pipeline_ops.input.mosaic import QUARTERS, Mosaics
from pipeline_ops.input.stateless_random import StatelessRandom
from pipeline_ops.input.tensorflow_start import tf

PADDING = 128
"""The value of a pixel beyond the image, in all channels: the middle of the range, which the
catalogue's detectors scale to zero.
"""

_ROUNDING_TOLERANCE = 1e-3
"""The share of its area that a box may lose to rounding without being cut off."""


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
    is not background.
    """

    config: AugmentOptions
    num_examples: int
    max_boxes: int | None = None

    def get_example_indices(self, rng: StatelessRandom) -> tf.Tensor:
        return self._draw_mosaics(rng).examples_k if self.config.mosaic else rng.examples_b

    def load(self, load: Load, rng: StatelessRandom) -> tuple[Any, Any]:
        if self.config.mosaic:
            images, labels = self._load_mosaics(load, self._draw_mosaics(rng))
        else:
            images, labels = load(rng.examples_b)
            if has_geometric_transforms(self.config):
                images, labels = self._transform(
                    images, labels, *draw_windows(self.config, images.shape[1:3], rng)
                )
        return to_uint8(adjust_colors(self.config, images, rng)), self._compact_boxes(labels)

    def _draw_mosaics(self, rng: StatelessRandom) -> Mosaics:
        return Mosaics.draw(rng, self.config.mosaic, self.num_examples)

    def _load_mosaics(self, load: Load, mosaics: Mosaics) -> tuple[tf.Tensor, Any]:
        images, labels = load(mosaics.examples_k)
        shape = images.shape[1:3]
        rows, columns = draw_windows(
            self.config, shape, mosaics.rng_k, mosaics.compute_parts(*shape)
        )
        images, labels = self._transform(images, labels, rows, columns)
        return mosaics.merge_images(images, rows, columns), mosaics.merge_boxes(labels)

    def _transform(
        self, images_kHWC: tf.Tensor, labels: Any, rows: Window, columns: Window
    ) -> tuple[tf.Tensor, Any]:
        has_image_kHW = rows.has_image()[:, :, None] & columns.has_image()[:, None, :]
        rendered_kHWC = render(images_kHWC, rows, columns)
        rendered_kHWC = tf.where(
            has_image_kHW[..., None], rendered_kHWC, tf.constant(PADDING, rendered_kHWC.dtype)
        )
        ymin, xmin, ymax, xmax = tf.unstack(labels.corners, axis=-1)
        (ymin, ymax), (xmin, xmax) = (
            rows.to_canvas_edges(ymin, ymax),
            columns.to_canvas_edges(xmin, xmax),
        )
        whole = (ymax - ymin) * (xmax - xmin)
        ymin, ymax, xmin, xmax = (
            rows.clip(ymin),
            rows.clip(ymax),
            columns.clip(xmin),
            columns.clip(xmax),
        )
        visible = tf.math.divide_no_nan((ymax - ymin) * (xmax - xmin), whole)
        corners = tf.stack(
            [ymin / rows.size, xmin / columns.size, ymax / rows.size, xmax / columns.size], axis=-1
        )
        is_crowd = labels.is_crowd | (visible < self.config.min_visible - _ROUNDING_TOLERANCE)
        return rendered_kHWC, type(labels)(
            corners, tf.where(visible > 0, labels.classes, -1), is_crowd
        )

    def _compact_boxes(self, labels: Any) -> Any:
        """Moves the boxes to the front, in their order, and cuts the unused columns."""
        is_box = labels.classes >= 0
        order = tf.argsort(tf.cast(~is_box, tf.int32), axis=1, stable=True)
        if self.max_boxes is None:
            order = order[:, : tf.reduce_max(tf.math.count_nonzero(is_box, axis=1))]
        else:
            order = tf.ensure_shape(
                order, [None, self.max_boxes * (QUARTERS if self.config.mosaic else 1)]
            )
        return type(labels)(*(tf.gather(values, order, batch_dims=1) for values in labels))
