"""Limits on the images that a served model decodes, as TensorFlow operations: they are part of the SavedModel.

A file of 250 kB can hold a gigabyte of pixels. The size of each image is read from its header, and a request with an
image that is too large is refused before anything is decoded. TensorFlow Serving has these limits, too, because they
are in the model. Formats are told apart as `tf.io.decode_image` does it. JPEG XL is refused, because only its decoder
can read its header, and so is animated WebP, which has four channels.

Legend: N images, K formats, B bits of a header.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

MAX_IMAGE_PIXELS = 64_000_000
"""Pixels of one image. The model shrinks an image to its own size, so a smaller one serves as well."""
MAX_REQUEST_PIXELS = 1_000_000_000
"""Pixels of all images of a request together, which bounds the time that it takes."""
MAX_PIXELS_AT_ONCE = 64_000_000
"""The images of a request with more pixels are decoded one after another, which bounds the memory."""
MAX_JPEG_SCANS = 64
"""Scans of a JPEG. Each costs a pass over all pixels, and encoders write a dozen at most."""
MAX_PNG_TEXTS = 16
"""Compressed texts in a PNG. Each can take 8 MB of memory, and none is part of the image."""
MAX_GIF_BYTES = 8 << 20
"""Bytes of a GIF up to the end of its first frame."""
MAX_GIF_BLOCKS = 1 << 15
"""Blocks, of 255 bytes at most, up to the end of the first frame."""

_HEADER_BYTES = 32
_UNKNOWN = -1
_JPEG, _GIF, _PNG = 0, 1, 2
_GIF_EXTENSION, _GIF_IMAGE = b"!"[0], b","[0]


@dataclasses.dataclass(frozen=True)
class _Format:
    """What the first bytes of a format are, by position, and where its width and height are.

    A number is the place of its first bit, its bits and its bytes' order; `plus` is added to each.
    """

    begins: dict[int, bytes]
    width: tuple[int, int, str] | None = None
    height: tuple[int, int, str] | None = None
    plus: int = 0
    zero_bit: int | None = None

    def pattern(self) -> tuple[np.ndarray, np.ndarray]:
        """The bits that must be there, and which bits count."""
        wanted, counts = np.zeros(_HEADER_BYTES, np.uint8), np.zeros(_HEADER_BYTES, np.uint8)
        for at, magic in self.begins.items():
            wanted[at:at + len(magic)], counts[at:at + len(magic)] = list(magic), 255
        bits, mask = (np.unpackbits(each, bitorder="little").astype(bool) for each in (wanted, counts))
        if self.zero_bit is not None:
            mask[self.zero_bit] = True
        return bits, mask

    def weights(self) -> np.ndarray:
        """[B, 2]: what each bit of the header adds to width and height."""
        weights = np.zeros((8 * _HEADER_BYTES, 2), np.int64)
        for side, number in enumerate((self.width, self.height)):
            if number is not None:
                first, size, order = number
                places = np.arange(size) if order == "little" else np.arange(size).reshape(-1, 8)[::-1].ravel()
                weights[first:first + size, side] = 1 << places
        return weights


def _little(byte: int, bits: int, bit: int = 0) -> tuple[int, int, str]:
    return 8 * byte + bit, bits, "little"


_WEBP = {0: b"RIFF", 8: b"WEBP"}
_FORMATS = [
    _Format({0: b"\xff\xd8\xff"}),  # JPEG: the size may be anywhere
    _Format({0: b"GIF8"}),  # its first frame says how large it is
    _Format({0: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"}, (8 * 16, 32, "big"), (8 * 20, 32, "big")),
    _Format({0: b"BM"}, _little(18, 32), _little(22, 32)),
    _Format(_WEBP | {12: b"VP8 "}, _little(26, 14), _little(28, 14)),
    _Format(_WEBP | {12: b"VP8L"}, _little(21, 14), _little(21, 14, bit=14), plus=1),
    _Format(_WEBP | {12: b"VP8X"}, _little(24, 24), _little(27, 24), plus=1, zero_bit=8 * 20 + 1),  # not animated
]


def checked(encoded_N: tf.Tensor, model_pixels: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The images as they may be decoded, and their pixels, int64 [N].

    Of a GIF only the first frame is left, because its decoder would hold all of them in memory. `model_pixels` is the
    size that the model takes: that many pixels of each image do not count towards the limit of a request.

    Raises (when the graph runs):
      InvalidArgumentError: an image, or all of them together, are too large, or a format is unknown.
    """
    matches_NK, pixels_N = _read_headers(encoded_N)
    of_format = [tf.where(matches_NK[:, index]) for index in (_JPEG, _GIF, _PNG)]
    jpegs, gifs, pngs = (tf.gather_nd(encoded_N, indexes) for indexes in of_format)
    areas = tf.map_fn(_jpeg_pixels, jpegs, fn_output_signature=tf.TensorSpec([], tf.int64))
    pixels_N = tf.tensor_scatter_nd_update(pixels_N, of_format[_JPEG], areas)
    frames, areas = tf.map_fn(
        _first_frame, gifs, fn_output_signature=(tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)))
    pixels_N = tf.tensor_scatter_nd_update(pixels_N, of_format[_GIF], areas)
    decodable_N = tf.tensor_scatter_nd_update(encoded_N, of_format[_GIF], frames)
    with tf.control_dependencies(_check_sizes(pixels_N, model_pixels) + _check_parts(jpegs, pngs)):
        return tf.identity(decodable_N), tf.identity(pixels_N)


def _read_headers(encoded_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Which format each image has, and its pixels where the header says them: int64 [N]."""
    header = tf.reshape(tf.io.decode_raw(encoded_N, tf.uint8, fixed_length=_HEADER_BYTES), [-1, _HEADER_BYTES, 1])
    bits_NB = tf.reshape(tf.bitwise.right_shift(header, np.arange(8, dtype=np.uint8)) & 1, [-1, 8 * _HEADER_BYTES])
    bits_KB, mask_KB = (np.stack(each) for each in zip(*(form.pattern() for form in _FORMATS), strict=True))
    matches_NK = tf.reduce_all((tf.cast(bits_NB, tf.bool)[:, tf.newaxis] == bits_KB) | ~mask_KB, axis=2)
    weights = np.concatenate([form.weights() for form in _FORMATS], axis=1)
    sides = tf.reshape(tf.cast(bits_NB, tf.int64) @ weights, [-1, len(_FORMATS), 2])
    sides += np.array([form.plus for form in _FORMATS])[:, np.newaxis]
    areas_NK = tf.reduce_prod(tf.where(sides < 1 << 31, sides, (1 << 32) - sides), axis=2)  # BMP: upside down
    pixels_N = tf.reduce_sum(tf.where(matches_NK, areas_NK, 0), axis=1)
    return matches_NK, tf.where(tf.reduce_any(matches_NK, axis=1), pixels_N, _UNKNOWN)


def _jpeg_pixels(encoded: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(tf.image.extract_jpeg_shape(encoded, tf.int64)[:2])


def _first_frame(gif: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The file up to the end of its first frame, and the pixels of this frame; `_UNKNOWN` if there is none."""
    content = tf.cast(tf.io.decode_raw(tf.strings.substr(gif, 0, MAX_GIF_BYTES), tf.uint8), tf.int32)
    last = tf.size(content)
    content = tf.pad(content, [[0, 1]])
    byte = lambda at: tf.gather(content, tf.minimum(at, last))  # noqa: E731
    color_table = lambda flags: tf.where(flags & 0x80 != 0, tf.bitwise.left_shift(6, flags & 7), 0)  # noqa: E731

    def skip(at, is_block, image, steps):
        """Moves past a block of a part, or past the head of a part. Of the blocks of a part, an empty one is the last."""
        is_image = ~is_block & (byte(at) == _GIF_IMAGE)
        head = tf.where(is_image, 11 + color_table(byte(at + 9)), 2)
        return (at + tf.where(is_block, byte(at) + 1, head), ~is_block | (byte(at) > 0),
                tf.where(is_image, at, image), steps + 1)

    is_part = lambda at: (byte(at) == _GIF_EXTENSION) | (byte(at) == _GIF_IMAGE)  # noqa: E731
    end, _, image, steps = tf.while_loop(
        lambda at, is_block, image, steps: (is_block | (image == _UNKNOWN) & is_part(at)) & (steps < MAX_GIF_BLOCKS),
        skip, (13 + color_table(byte(10)), False, _UNKNOWN, 0), parallel_iterations=1)
    is_short = (steps < MAX_GIF_BLOCKS) & (end < MAX_GIF_BYTES)
    with tf.control_dependencies([_require(is_short, "The first frame of a GIF is too large. Send it as PNG.")]):
        frame = tf.strings.join([tf.strings.substr(gif, 0, tf.minimum(end, last)), b";"])
    width, height = (tf.cast(byte(image + at) + 256 * byte(image + at + 1), tf.int64) for at in (5, 7))
    return frame, tf.where(image == _UNKNOWN, tf.constant(_UNKNOWN, tf.int64), width * height)


def _check_sizes(pixels_N: tf.Tensor, model_pixels: int) -> list[tf.Operation]:
    least, most = (reduce(tf.pad(pixels_N, [[0, 1]])) for reduce in (tf.reduce_min, tf.reduce_max))
    total = tf.reduce_sum(tf.maximum(pixels_N - model_pixels, 0))
    return [
        _require(least != _UNKNOWN, "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP (not animated) "
                 "required, with a whole header."),
        _require(most <= MAX_IMAGE_PIXELS, f"An image has {{}} pixels, at most {MAX_IMAGE_PIXELS} are allowed. "
                 "Send a smaller one.", most),
        _require(total <= MAX_REQUEST_PIXELS, "The images of the request have {} pixels, at most "
                 f"{MAX_REQUEST_PIXELS} are allowed. Send fewer at once.", total),
    ]


def _check_parts(jpegs: tf.Tensor, pngs: tf.Tensor) -> list[tf.Operation]:
    scans = _count(jpegs, b"\xff\xda", MAX_JPEG_SCANS)
    texts = tf.maximum(_count(pngs, b"zTXt", MAX_PNG_TEXTS), _count(pngs, b"iTXt", MAX_PNG_TEXTS))
    return [
        _require(scans <= MAX_JPEG_SCANS, f"A JPEG has more than {MAX_JPEG_SCANS} scans. Save it as a baseline JPEG."),
        _require(texts <= MAX_PNG_TEXTS, f"A PNG has more than {MAX_PNG_TEXTS} texts. Save it without."),
    ]


def _count(encoded_N: tf.Tensor, mark: bytes, limit: int) -> tf.Tensor:
    """How often the mark is in the image that has it most often; at most `limit` + 1."""
    parts = tf.raw_ops.StringSplitV2(input=encoded_N, sep=mark, maxsplit=limit + 1)  # a ragged tensor would be many operations more
    return tf.maximum(parts.shape[1] - 1, 0)


def _require(condition: tf.Tensor, message: str, *values: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(condition, [tf.strings.format(message, values) if values else message])
