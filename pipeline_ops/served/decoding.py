"""Limits on the image files that a served model decodes, as a part of its graph.

A file of 250 kB can hold a gigabyte of pixels. The size of each image is read from its header, and
a request with an image that is too large is rejected before anything is decoded. TensorFlow Serving
therefore has the limits, too. The formats are JPEG and PNG.

Legend: N images, J of them JPEG, P of them PNG.
"""

from __future__ import annotations

import tensorflow as tf

from pipeline_ops.served.contract import (
    MAX_IMAGE_PIXELS,
    MAX_JPEG_SCANS,
    MAX_PNG_TEXTS,
    MAX_REQUEST_PIXELS,
)

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_HEADER_BYTES = len(_PNG) + 8
"""Width and height follow as integers of four bytes each."""


def check_images(encoded_N: tf.Tensor, model_pixels: int) -> tf.Tensor:
    """Returns the number of pixels of each image, int64 [N], once all may be decoded.

    `model_pixels` is the size of the model's input. That number of pixels of each image does not
    count towards the limit of a request. Raises InvalidArgumentError at run time if one image or
    all images together are too large, or a format is unknown.
    """
    heads_N = tf.strings.substr(encoded_N + b"\0" * _PNG_HEADER_BYTES, 0, _PNG_HEADER_BYTES)
    is_jpeg_N = tf.strings.substr(heads_N, 0, len(_JPEG)) == _JPEG
    is_png_N = tf.strings.substr(heads_N, 0, len(_PNG)) == _PNG
    jpegs_J, pngs_P = tf.boolean_mask(encoded_N, is_jpeg_N), tf.boolean_mask(encoded_N, is_png_N)
    sides_N2 = tf.io.decode_raw(
        tf.strings.substr(heads_N, len(_PNG), 8), tf.int32, little_endian=False
    )
    # A side from 2**31 on is negative here.
    sides_N2 = tf.where(sides_N2 < 0, tf.int32.max, sides_N2)
    png_pixels_N = tf.where(is_png_N, tf.reduce_prod(tf.cast(sides_N2, tf.int64), axis=1), 0)
    jpeg_pixels_J = tf.map_fn(
        lambda jpeg: tf.reduce_prod(tf.image.extract_jpeg_shape(jpeg, tf.int64)[:2]),
        jpegs_J,
        fn_output_signature=tf.TensorSpec([], tf.int64),
    )
    pixels_N = tf.tensor_scatter_nd_update(png_pixels_N, tf.where(is_jpeg_N), jpeg_pixels_J)
    largest = tf.reduce_max(tf.pad(pixels_N, [[0, 1]]))
    total = tf.reduce_sum(tf.maximum(pixels_N - model_pixels, 0))
    has_few_scans = _has_at_most(MAX_JPEG_SCANS, b"\xff\xda", jpegs_J)
    has_few_texts = [_has_at_most(MAX_PNG_TEXTS, kind, pngs_P) for kind in (b"zTXt", b"iTXt")]
    checks = [
        _assert(
            tf.reduce_all(is_jpeg_N | is_png_N),
            "Unknown image file format. JPEG or PNG required, with a whole header.",
        ),
        _assert(
            largest <= MAX_IMAGE_PIXELS,
            f"An image has {{}} pixels, at most {MAX_IMAGE_PIXELS} are allowed. "
            "Send a smaller one.",
            largest,
        ),
        _assert(
            total <= MAX_REQUEST_PIXELS,
            "The images of the request have {} pixels, at most "
            f"{MAX_REQUEST_PIXELS} are allowed. Send fewer at once.",
            total,
        ),
        _assert(
            has_few_scans,
            f"A JPEG has more than {MAX_JPEG_SCANS} scans. Save it as a baseline JPEG.",
        ),
        _assert(
            tf.reduce_all(has_few_texts),
            f"A PNG has more than {MAX_PNG_TEXTS} texts. Save it without.",
        ),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(pixels_N)


def _has_at_most(limit: int, marker: bytes, encoded_N: tf.Tensor) -> tf.Tensor:
    # The raw operation, because a ragged tensor would take many more operations.
    parts = tf.raw_ops.StringSplitV2(input=encoded_N, sep=marker, maxsplit=limit + 1)
    return parts.shape[1] - 1 <= limit


def _assert(condition: tf.Tensor, message: str, *values: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(
        condition, [tf.strings.format(message, values) if values else message]
    )
