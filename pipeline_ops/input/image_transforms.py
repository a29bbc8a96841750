"""The placement of images on canvases of the same size: mirrored, scaled and moved along each axis.

The same few numbers move pixels and boxes, so both stay together. Nothing here is random.

Legend: k images, n pixels along an axis, H W C canvas.
"""

from __future__ import annotations

import dataclasses

from pipeline_ops.input.tensorflow_start import tf

Part = tuple[tf.Tensor, tf.Tensor]
"""The first and the last edge of the shown part along an axis, in pixels: float32 [k] each."""


@dataclasses.dataclass(frozen=True)
class Window:
    """One axis of k images on their canvases.

    Coordinates are in pixels of the canvas. The first pixel goes from 0 to 1.

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

    @classmethod
    def from_position(
        cls,
        size: int,
        position_k: tf.Tensor,
        shift_k: tf.Tensor,
        scale_k: tf.Tensor | None,
        is_mirrored_k: tf.Tensor | None,
        part_k: Part,
    ) -> Window:
        """Returns an image at one of the positions where it covers its part.

        A smaller image lies within its part instead. `position_k`, 0 to 1, selects the position.
        Then the image is moved by `shift_k`, a fraction of the canvas.
        """
        low_k, high_k = part_k
        slack_k = high_k - low_k - size * (1.0 if scale_k is None else scale_k)
        origin_k = low_k + position_k * slack_k + shift_k * size
        return cls(
            size,
            tf.round(origin_k) if scale_k is None else origin_k,
            scale_k,
            is_mirrored_k,
            part_k,
        )

    def compute_source_coordinates(self) -> tf.Tensor:
        """Returns float32 [k, n]: the centre of each pixel of the canvas, in pixels of the image.
        It is -0.5 to n - 0.5 inside the image.
        """
        sources_kn = tf.range(self.size, dtype=tf.float32)[None, :] + 0.5 - self.origin_k[:, None]
        sources_kn = (
            sources_kn if self.scale_k is None else sources_kn / self.scale_k[:, None]
        ) - 0.5
        return (
            sources_kn
            if self.is_mirrored_k is None
            else tf.where(self.is_mirrored_k[:, None], self.size - 1 - sources_kn, sources_kn)
        )

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
        """Converts the two edges of boxes, float32 [k, N], from fractions of the image to pixels.

        The pixels are those of the canvas. The edges may lie outside of it.
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


def render(images_kHWC: tf.Tensor, rows: Window, columns: Window) -> tf.Tensor:
    """Returns the canvases. The image's edge is repeated where there is no image.

    The result is uint8 if no pixel was scaled, otherwise float32 with bilinear interpolation.
    """
    return _resample(_resample(images_kHWC, rows, axis=1), columns, axis=2)


def _resample(images_kHWC: tf.Tensor, window: Window, axis: int) -> tf.Tensor:
    sources_kn, last = window.compute_source_coordinates(), window.size - 1
    low_kn = tf.floor(sources_kn)

    def gather_pixels(indices_kn: tf.Tensor) -> tf.Tensor:
        within = tf.clip_by_value(tf.cast(indices_kn, tf.int32), 0, last)
        return tf.ensure_shape(
            tf.gather(images_kHWC, within, axis=axis, batch_dims=1), [None, *images_kHWC.shape[1:]]
        )

    if window.scale_k is None:
        return gather_pixels(low_kn)
    part_kn = tf.reshape(
        sources_kn - low_kn, [-1, window.size, 1, 1] if axis == 1 else [-1, 1, window.size, 1]
    )
    first, second = (
        tf.cast(gather_pixels(low_kn), tf.float32),
        tf.cast(gather_pixels(low_kn + 1), tf.float32),
    )
    return first + part_kn * (second - first)
