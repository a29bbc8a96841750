"""Brings out detail in dark or flat images, such as X-rays, by spreading brightness locally.

CLAHE, contrast-limited adaptive histogram equalisation (Zuiderveld, Graphics Gems IV, 1994),
spreads brightness in each part of the image by itself. Colours keep their hue.

`equalize` is OpenCV's CLAHE. `serve` computes the same integers with TensorFlow, so that a served
model sees the pixels that it was trained on. Legend of shapes: H, W and C of an image, P parts
along each side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from beam_jobs.stages.stage import Example, parameters

if TYPE_CHECKING:
    import tensorflow as tf

# From linear sRGB to X, Y and Z relative to the white point D65, and back, in 1/4096. As these, the
# constants below are those of OpenCV's 8-bit CIELAB (imgproc/src/color_lab.cpp).
_RGB_TO_XYZ = ((1777, 1541, 778), (871, 2929, 296), (73, 448, 3575))
_XYZ_TO_RGB = ((12615, -6296, -2223), (-3773, 7684, 185), (217, -836, 4715))


@parameters
class Equalize:
    limit: float = Field(2.0, ge=1, le=40)
    """Maximum growth of contrast, above which noise would grow: 1 changes little, 4 much."""
    parts: int = Field(8, ge=1, le=64)
    """Number of parts along each side that are equalised separately. 1 is the whole image at
    once."""


def equalize(example: Example, parameters: Equalize) -> Example:
    """Equalises the grey of a grey image, and the lightness L of CIELAB of an RGB image."""
    import cv2

    clahe = cv2.createCLAHE(parameters.limit, (parameters.parts, parameters.parts))
    if example.shape[2] == 1:
        return example.with_image(clahe.apply(example.image).reshape(example.shape))
    lab = cv2.cvtColor(example.image, cv2.COLOR_RGB2LAB)
    lab[:, :, 0] = clahe.apply(lab[:, :, 0])
    return example.with_image(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB))


def serve(image_HWC: tf.Tensor, parameters: Equalize) -> tf.Tensor:
    """Does in a graph what `equalize` does, from uint8 [H, W, C] to uint8 [H, W, C].

    C is static, 1 or 3. The pixels are equal to those of OpenCV on x86. On ARM, OpenCV may use
    fused multiplications in CLAHE, which changes a level here and there.
    """
    import tensorflow as tf

    if image_HWC.shape[2] == 1:
        return _apply_clahe(image_HWC[:, :, 0], parameters)[:, :, None]
    lightness_HW, a_HW, b_HW = tf.unstack(_convert_to_lab(image_HWC), axis=-1)
    return _convert_to_rgb(_apply_clahe(lightness_HW, parameters), a_HW, b_HW)


def _apply_clahe(values_HW: tf.Tensor, parameters: Equalize) -> tf.Tensor:
    """Equalises uint8 [H, W] as OpenCV does (imgproc/src/clahe.cpp).

    Each part has a table from old values to new ones. A pixel gets the mean of the new values in
    the four parts whose centres are nearest, weighted by distance.
    """
    import tensorflow as tf

    def mirror(axis: int) -> tf.Tensor:
        """The pixels of a side, and their mirror image until `whole_size` is reached, at the last
        pixel. `tf.pad` refuses to add more than one mirror image."""
        period = 2 * size[axis] - 2
        pixels = tf.range(whole_size[axis]) % tf.maximum(period, 1)
        return tf.minimum(pixels, period - pixels)

    def find_parts(axis: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The two parts along a side nearest to each pixel, and the weight of the second one."""
        scale = 1 / tf.cast(part_size[axis], tf.float32)
        position = tf.cast(tf.range(size[axis]), tf.float32) * scale - 0.5
        before = tf.floor(position)
        part = tf.cast(before, tf.int32)
        return tf.maximum(part, 0), tf.minimum(part + 1, parts - 1), position - before

    parts, size = parameters.parts, tf.shape(values_HW)
    # If one side is not divisible, OpenCV extends both, a divisible one by `parts` pixels.
    whole_size = tf.where(tf.reduce_all(size % parts == 0), size, size + parts - size % parts)
    part_size = whole_size // parts
    values_HW = tf.cast(values_HW, tf.int32)
    whole = tf.gather(tf.gather(values_HW, mirror(0)), mirror(1), axis=1)
    tables = tf.reshape(_make_tables(whole, part_size, parameters), [-1])

    top, bottom, downward = find_parts(0)
    left, right, rightward = find_parts(1)
    downward = downward[:, None]

    def look_up(row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
        return tf.gather(tables, (row[:, None] * parts + column) * 256 + values_HW)

    above = look_up(top, left) * (1 - rightward) + look_up(top, right) * rightward
    below = look_up(bottom, left) * (1 - rightward) + look_up(bottom, right) * rightward
    return tf.cast(tf.round(above * (1 - downward) + below * downward), tf.uint8)


def _make_tables(values: tf.Tensor, part_size: tf.Tensor, parameters: Equalize) -> tf.Tensor:
    """The new values of the old values 0..255 in each part, float32 [P * P, 256].

    `values` is int32 [P * height, P * width] for parts of the size [height, width]. The counts
    above the limit are spread over all values.
    """
    import tensorflow as tf

    height, width = tf.unstack(part_size)
    parts, area = parameters.parts, height * width
    part = (tf.range(parts * height) // height)[:, None] * parts + tf.range(parts * width) // width
    bins = part * 256 + values
    counts = tf.math.unsorted_segment_sum(tf.ones_like(values), bins, parts * parts * 256)
    counts = tf.reshape(counts, [parts * parts, 256])
    limit = tf.cast(parameters.limit * tf.cast(area, tf.float64) / 256, tf.int32)
    limit = tf.maximum(limit, 1)
    excess = tf.reduce_sum(tf.maximum(counts - limit, 0), axis=1, keepdims=True)
    rest = excess % 256  # One more for so many values, at equal steps from 0.
    step = 256 // tf.maximum(rest, 1)
    has_more = (tf.range(256) % step == 0) & (tf.range(256) // step < rest)
    counts = tf.minimum(counts, limit) + excess // 256 + tf.cast(has_more, tf.int32)
    scale = 255 / tf.cast(area, tf.float32)
    return tf.round(tf.cast(tf.cumsum(counts, axis=1), tf.float32) * scale)


def _convert_to_lab(image_HWC: tf.Tensor) -> tf.Tensor:
    """From RGB to CIELAB, uint8 [H, W, 3]: L * 255 / 100, a + 128 and b + 128.

    These are the integers of OpenCV's `RGB2Lab_b`: linear sRGB, X, Y and Z are in 1/2040, the cube
    roots in 1/32768.
    """
    import numpy as np
    import tensorflow as tf

    values = np.arange(256) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    ratios = np.arange(2041) / 2040
    roots = np.where(ratios > (6 / 29) ** 3, np.cbrt(ratios), ratios * 841 / 108 + 16 / 116)
    roots = np.rint(32768 * roots).astype(np.int32)
    roots[[49, 628]] += (-1, 1)  # near a half, where OpenCV's float32 is on the other side
    # L = 116 y - 16 times 255 / 100, a = 500 (x - y), b = 200 (y - z) of the roots x, y and z.
    to_lab = ((0, 296, 0), (500, -500, 0), (0, 200, -200))
    offsets = (-1336934, 128 * 32768, 128 * 32768)

    linear_HWC = tf.gather(np.rint(2040 * linear).astype(np.int32), tf.cast(image_HWC, tf.int32))
    xyz_HWC = _divide(tf.matmul(linear_HWC, _RGB_TO_XYZ, transpose_b=True), 12)
    roots_HWC = tf.gather(roots, xyz_HWC)
    lab_HWC = _divide(tf.matmul(roots_HWC, to_lab, transpose_b=True) + offsets, 15)
    return tf.cast(lab_HWC, tf.uint8)


def _convert_to_rgb(lightness_HW: tf.Tensor, a_HW: tf.Tensor, b_HW: tf.Tensor) -> tf.Tensor:
    """From CIELAB as `_convert_to_lab` returns it to RGB, uint8 [H, W, 3].

    These are the integers of OpenCV's `Lab2RGBinteger`: X, Y, Z and their cube roots are in
    1/16384, linear sRGB in 1/4096.
    """
    import numpy as np
    import tensorflow as tf

    values = np.arange(256, dtype=np.int32)
    lightness = values * 100 / 255
    y_roots = (lightness + 16) / 116
    y = np.where(lightness <= 8, lightness * 27 / 29**3, y_roots**3)
    a = (values * 5 * 53687 + 128 >> 13) - 4194  # of a / 500, rounded as OpenCV does
    b = (values * 41943 + 16 >> 9) - 10484  # of b / 200
    roots = np.arange(-8145, 26869)  # all that occur
    line = np.trunc(roots * 108 / 841) - 290
    cubes = np.where(roots <= 3390, line, (roots**2 >> 14) * roots >> 14)
    linear = np.arange(4096) / 4096
    rgb = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)

    def look_up(table: np.ndarray, indices: tf.Tensor) -> tf.Tensor:
        return tf.gather(np.rint(table).astype(np.int32), tf.cast(indices, tf.int32))

    y_roots_HW = look_up(16384 * y_roots, lightness_HW)
    x_HW = look_up(cubes, y_roots_HW + look_up(a, a_HW) + 8145)
    z_HW = look_up(cubes, y_roots_HW - look_up(b, b_HW) + 8145)
    xyz_HWC = tf.stack([x_HW, look_up(16384 * y, lightness_HW), z_HW], axis=-1)
    linear_HWC = _divide(tf.matmul(xyz_HWC, _XYZ_TO_RGB, transpose_b=True), 14)
    return tf.cast(look_up(255 * rgb, tf.clip_by_value(linear_HWC, 0, 4095)), tf.uint8)


def _divide(numbers: tf.Tensor, bits: int) -> tf.Tensor:
    """Divides int32 by 2**bits and rounds to the nearest integer, halves up."""
    return (numbers + (1 << bits - 1)) // (1 << bits)
