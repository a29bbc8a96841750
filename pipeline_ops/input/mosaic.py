"""The images of a batch in which some examples are mosaics.

A mosaic is an example's own image and three others of the split, each shown in one of four parts of
the canvas, which meet at a random point. It is one example with objects of four images, with other
neighbours and cut off at other positions. Objects do not get smaller. The three others are drawn
from (seed, epoch, example), too. Each example still comes once in an epoch in its own right, and
sometimes also as a part of others.

Legend: b examples, k images of which they consist (one for each, and three more for each mosaic), N
boxes of an image (padded), H W C canvas.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline_ops.input.image_transforms import Part, Window
from pipeline_ops.input.stateless_random import StatelessRandom
from pipeline_ops.input.tensorflow_start import tf

_IS_MOSAIC, _OTHER, _ROW, _COLUMN = range(10, 14)  # `augment.py` uses the lower numbers
QUARTERS = 4
_MIN_MARGIN = 0.25
"""The smallest distance between the point where the four meet and each edge, as a fraction of the
canvas.
"""


@dataclasses.dataclass(frozen=True)
class Mosaics:
    """The plan of a batch.

    Attributes:
      owners_k: int64, the example that each image becomes part of, counted in the batch.
      quarters_k: int64, the part of each image: top left, top right, bottom left or bottom right.
          An example that is not a mosaic has only the first, which is then the whole canvas.
    """

    rng: StatelessRandom
    num_examples: int
    owners_k: tf.Tensor
    quarters_k: tf.Tensor
    is_mosaic_k: tf.Tensor

    @classmethod
    def draw(cls, rng: StatelessRandom, fraction: float, num_examples: int) -> Mosaics:
        """Draws mosaics for a `fraction` of all examples, from a split of `num_examples`."""
        is_mosaic_b = rng.uniform(_IS_MOSAIC) < fraction
        is_used_b4 = tf.stack([tf.ones_like(is_mosaic_b)] + [is_mosaic_b] * (QUARTERS - 1), axis=1)
        owners_k, quarters_k = tf.unstack(tf.where(is_used_b4), axis=1)
        return cls(rng, num_examples, owners_k, quarters_k, tf.gather(is_mosaic_b, owners_k))

    @property
    def rng_k(self) -> StatelessRandom:
        """Separate draws for each image, derived from those of the example that it is part of."""
        return StatelessRandom(
            self.rng.seed,
            tf.gather(self.rng.epochs_b, self.owners_k),
            tf.gather(self.rng.examples_b, self.owners_k),
            self.quarters_k,
        )

    @property
    def examples_k(self) -> tf.Tensor:
        """The numbers of the images in the split, int64."""
        rng_k = self.rng_k
        return tf.where(
            self.quarters_k == 0, rng_k.examples_b, rng_k.uniform_int(self.num_examples, _OTHER)
        )

    def compute_parts(self, height: int, width: int) -> tuple[Part, Part]:
        """Returns the rows and the columns of its canvas in which each image is shown."""
        return self._compute_part(height, _ROW, self.quarters_k >= 2), self._compute_part(
            width, _COLUMN, self.quarters_k % 2 == 1
        )

    def _compute_part(self, size: int, draw_id: int, is_second_k: tf.Tensor) -> Part:
        center_b = tf.round(
            size * (_MIN_MARGIN + (1 - 2 * _MIN_MARGIN) * self.rng.uniform(draw_id))
        )
        center_k = tf.gather(center_b, self.owners_k)
        return tf.where(is_second_k, center_k, 0.0), tf.where(
            is_second_k | ~self.is_mosaic_k, float(size), center_k
        )

    def merge_images(self, images_kHWC: tf.Tensor, rows: Window, columns: Window) -> tf.Tensor:
        """Joins the parts to images [b, H, W, C]."""
        is_shown_kHW = rows.is_shown()[:, :, None] & columns.is_shown()[:, None, :]
        parts_kHWC = tf.where(is_shown_kHW[..., None], images_kHWC, tf.zeros([], images_kHWC.dtype))
        merged = tf.math.unsorted_segment_sum(
            parts_kHWC, self.owners_k, tf.size(self.rng.examples_b)
        )
        return tf.ensure_shape(merged, [None, *images_kHWC.shape[1:]])

    def merge_boxes(self, labels: Any) -> Any:
        """Joins the boxes to labels [b, 4 N, ...], with class -1 where there is no box."""

        def scatter(values_kN: tf.Tensor) -> tf.Tensor:
            shape = tf.concat(
                [[tf.size(self.rng.examples_b) * QUARTERS], tf.shape(values_kN)[1:]], 0
            )
            scattered = tf.scatter_nd(
                (self.owners_k * QUARTERS + self.quarters_k)[:, None],
                values_kN,
                tf.cast(shape, tf.int64),
            )
            return tf.reshape(scattered, tf.concat([[-1, QUARTERS * shape[1]], shape[2:]], 0))

        return type(labels)(
            scatter(labels.corners),
            scatter(labels.classes + 1) - 1,
            scatter(tf.cast(labels.is_crowd, tf.int32)) > 0,
        )
