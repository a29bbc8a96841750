"""Limits on the images that a served model decodes, as TensorFlow operations in the SavedModel.

A file of 250 kB can hold a gigabyte of pixels. The size of each image is read from its header, and
a request with an image that is too large is rejected before anything is decoded. The limits are
part of the model, so TensorFlow Serving has them, too. Formats are recognized as in
`tf.io.decode_image`. JPEG XL is rejected, because only its decoder can read its header. Animated
WebP is rejected, because it has four channels.

Legend: N images, G of them GIF, K formats, B bits of a header.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

MAX_IMAGE_PIXELS = 64_000_000
"""Limit of pixels of one image. The model shrinks images, so a smaller one serves as well."""
MAX_REQUEST_PIXELS = 1_000_000_000
"""Limit of pixels of all images of a request together, which bounds the time of a request."""
MAX_PARALLEL_PIXELS = 64_000_000
"""Limit of pixels in parallel. Images of larger requests are decoded one by one to save memory."""
MAX_JPEG_SCANS = 64
"""Limit of scans of a JPEG. Each is a pass over all pixels. Encoders write a dozen at most."""
MAX_PNG_TEXTS = 16
"""Limit of compressed texts in a PNG. Each can take 8 MB of memory without being visible."""
MAX_GIF_BYTES = 8 << 20
"""Limit of bytes of a GIF up to the end of its first frame."""
MAX_GIF_BLOCKS = 1 << 15
"""Limit of blocks, of 255 bytes at most, up to the end of the first frame."""

_HEADER_BYTES = 32
_UNKNOWN = -1
_JPEG, _GIF, _PNG = 0, 1, 2
_GIF_EXTENSION, _GIF_IMAGE = b"!"[0], b","[0]
_GIF_COLOR_TABLE = np.array(
    [6 << (flags & 7) if flags & 0x80 else 0 for flags in range(256)], np.int32
)
"""Bytes of the color table, by the flags before it."""


@dataclasses.dataclass(frozen=True)
class _Format:
    """The first bytes of a format, by position, and the positions of its width and height.

    A number is given by its first bit, its size in bits and its byte order. `offset` is added to
    each.
    """

    magic: dict[int, bytes]
    width: tuple[int, int, str] | None = None
    height: tuple[int, int, str] | None = None
    offset: int = 0
    zero_bit: int | None = None

    def build_pattern(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the bits of the signature, and a mask of the bits that count."""
        signature, mask_bytes = np.zeros(_HEADER_BYTES, np.uint8), np.zeros(_HEADER_BYTES, np.uint8)
        for at, part in self.magic.items():
            signature[at : at + len(part)], mask_bytes[at : at + len(part)] = list(part), 255
        bits, mask = (
            np.unpackbits(each, bitorder="little").astype(bool) for each in (signature, mask_bytes)
        )
        if self.zero_bit is not None:
            mask[self.zero_bit] = True
        return bits, mask

    def build_weights(self) -> np.ndarray:
        """Returns the contribution of each bit of the header to width and height: [B, 2]."""
        weights = np.zeros((8 * _HEADER_BYTES, 2), np.int64)
        for side, number in enumerate((self.width, self.height)):
            if number is not None:
                first, size, order = number
                exponents = np.arange(size)
                if order == "big":
                    exponents = exponents.reshape(-1, 8)[::-1].ravel()
                weights[first : first + size, side] = 1 << exponents
        return weights


def _little_endian(byte: int, bits: int, bit: int = 0) -> tuple[int, int, str]:
    return 8 * byte + bit, bits, "little"


_WEBP = {0: b"RIFF", 8: b"WEBP"}
_FORMATS = [
    _Format({0: b"\xff\xd8\xff"}),  # JPEG: the size may be anywhere
    _Format({0: b"GIF8"}),  # its first frame has the size
    _Format({0: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"}, (8 * 16, 32, "big"), (8 * 20, 32, "big")),
    _Format({0: b"BM"}, _little_endian(18, 32), _little_endian(22, 32)),
    _Format(_WEBP | {12: b"VP8 "}, _little_endian(26, 14), _little_endian(28, 14)),
    _Format(
        _WEBP | {12: b"VP8L"}, _little_endian(21, 14), _little_endian(21, 14, bit=14), offset=1
    ),
    _Format(
        _WEBP | {12: b"VP8X"},
        _little_endian(24, 24),
        _little_endian(27, 24),
        offset=1,
        zero_bit=8 * 20 + 1,
    ),  # not animated
]


def validate_images(encoded_N: tf.Tensor, model_pixels: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the images that may be decoded, and their pixels, int64 [N].

    Only the first frame of a GIF remains, because its decoder would hold all frames in memory.
    `model_pixels` is the size of the model's input. That number of pixels of each image does not
    count towards the limit of a request.

    Raises (when the graph runs):
      InvalidArgumentError: One image or all images together are too large, or a format is unknown.
    """
    matches_NK, pixels_N = _read_headers(encoded_N)
    indexes_by_format = [tf.where(matches_NK[:, index]) for index in (_JPEG, _GIF, _PNG)]
    jpegs, gifs, pngs = (tf.gather_nd(encoded_N, indexes) for indexes in indexes_by_format)
    areas = tf.map_fn(_count_jpeg_pixels, jpegs, fn_output_signature=tf.TensorSpec([], tf.int64))
    pixels_N = tf.tensor_scatter_nd_update(pixels_N, indexes_by_format[_JPEG], areas)
    frames, areas = _cut_first_frames(gifs)
    pixels_N = tf.tensor_scatter_nd_update(pixels_N, indexes_by_format[_GIF], areas)
    decodable_N = tf.tensor_scatter_nd_update(encoded_N, indexes_by_format[_GIF], frames)
    with tf.control_dependencies(_check_sizes(pixels_N, model_pixels) + _check_parts(jpegs, pngs)):
        return tf.identity(decodable_N), tf.identity(pixels_N)


def _read_headers(encoded_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the format of each image, and its pixels if the header has them: int64 [N]."""
    header = tf.reshape(
        tf.io.decode_raw(encoded_N, tf.uint8, fixed_length=_HEADER_BYTES), [-1, _HEADER_BYTES, 1]
    )
    bits_NB = tf.reshape(
        tf.bitwise.right_shift(header, np.arange(8, dtype=np.uint8)) & 1, [-1, 8 * _HEADER_BYTES]
    )
    bits_KB, mask_KB = (
        np.stack(each)
        for each in zip(*(format_.build_pattern() for format_ in _FORMATS), strict=True)
    )
    matches_NK = tf.reduce_all(
        (tf.cast(bits_NB, tf.bool)[:, tf.newaxis] == bits_KB) | ~mask_KB, axis=2
    )
    weights = np.concatenate([format_.build_weights() for format_ in _FORMATS], axis=1)
    sides = tf.reshape(tf.cast(bits_NB, tf.int64) @ weights, [-1, len(_FORMATS), 2])
    sides += np.array([format_.offset for format_ in _FORMATS])[:, np.newaxis]
    # The height of a BMP is negative if the image is upside down.
    areas_NK = tf.reduce_prod(tf.where(sides < 1 << 31, sides, (1 << 32) - sides), axis=2)
    pixels_N = tf.reduce_sum(tf.where(matches_NK, areas_NK, 0), axis=1)
    return matches_NK, tf.where(tf.reduce_any(matches_NK, axis=1), pixels_N, _UNKNOWN)


def _count_jpeg_pixels(encoded: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(tf.image.extract_jpeg_shape(encoded, tf.int64)[:2])


def _cut_first_frames(gifs_G: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts each file after its first frame. Returns files and pixels, int64 [G].

    The pixels are `_UNKNOWN` if there is no frame.
    """
    files = _GifFiles(tf.strings.substr(gifs_G, 0, MAX_GIF_BYTES))
    zeros_G = tf.zeros_like(files.ends_G)
    at_G = 13 + tf.gather(_GIF_COLOR_TABLE, files.read(zeros_G, 10)[0])
    end_G, is_active_G, _, image_G = tf.while_loop(
        lambda at_G, is_active_G, *_: tf.reduce_any(is_active_G),
        files.skip,
        (at_G, files.is_part(at_G), zeros_G > 0, zeros_G + _UNKNOWN),
        maximum_iterations=MAX_GIF_BLOCKS,
        parallel_iterations=1,
    )
    is_too_large = tf.reduce_any(is_active_G | (end_G >= MAX_GIF_BYTES))
    with tf.control_dependencies(
        [_require(~is_too_large, "The first frame of a GIF is too large. Send it as PNG.")]
    ):
        frames_G = tf.strings.substr(gifs_G, zeros_G, tf.minimum(end_G, files.ends_G)) + b";"
    sides_G = [tf.cast(byte, tf.int64) for byte in files.read(image_G, 5, 6, 7, 8)]
    pixels_G = (sides_G[0] + 256 * sides_G[1]) * (sides_G[2] + 256 * sides_G[3])
    return frames_G, tf.where(image_G == _UNKNOWN, tf.constant(_UNKNOWN, tf.int64), pixels_G)


class _GifFiles:
    """GIF files that are read in parallel, one block of each at a time.

    A loop for each file would make the graph slower to prepare.
    """

    def __init__(self, heads_G: tf.Tensor):
        self.ends_G = tf.strings.length(heads_G)  # a zero follows, which ends all reading
        self._content = tf.io.decode_raw(tf.strings.reduce_join(heads_G + b"\0"), tf.uint8)
        self._begins_G = tf.cumsum(self.ends_G + 1, exclusive=True)

    def read(self, at_G: tf.Tensor, *offsets: int) -> Sequence[tf.Tensor]:
        """Reads a byte of each file at each of the offsets from `at_G`."""
        shifts = np.array(offsets)[:, np.newaxis].astype(np.int32)
        indexes = self._begins_G + tf.minimum(at_G + shifts, self.ends_G)
        read: Sequence[tf.Tensor] = tf.unstack(
            tf.cast(tf.gather(self._content, indexes), tf.int32), num=len(offsets)
        )
        return read

    def is_part(self, at_G: tf.Tensor) -> tf.Tensor:
        (first_G,) = self.read(at_G, 0)
        return (first_G == _GIF_EXTENSION) | (first_G == _GIF_IMAGE)

    def skip(
        self, at_G: tf.Tensor, is_active_G: tf.Tensor, is_block_G: tf.Tensor, image_G: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Moves past a block of a part, or past the head of a part.

        The last block of a part is empty.
        """
        first_G, flags_G = self.read(at_G, 0, 9)
        is_image_G = is_active_G & ~is_block_G & (first_G == _GIF_IMAGE)
        head_G = tf.where(is_image_G, 11 + tf.gather(_GIF_COLOR_TABLE, flags_G), 2)
        image_G = tf.where(is_image_G, at_G, image_G)
        at_G += tf.where(is_active_G, tf.where(is_block_G, first_G + 1, head_G), 0)
        is_block_G = ~is_block_G | (first_G > 0)
        is_active_G &= is_block_G | self.is_part(at_G) & (image_G == _UNKNOWN)
        return at_G, is_active_G, is_block_G, image_G


def _check_sizes(pixels_N: tf.Tensor, model_pixels: int) -> list[tf.Operation]:
    smallest, largest = (
        reduce(tf.pad(pixels_N, [[0, 1]])) for reduce in (tf.reduce_min, tf.reduce_max)
    )
    total = tf.reduce_sum(tf.maximum(pixels_N - model_pixels, 0))
    return [
        _require(
            smallest != _UNKNOWN,
            "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP (not animated) "
            "required, with a whole header.",
        ),
        _require(
            largest <= MAX_IMAGE_PIXELS,
            f"An image has {{}} pixels, at most {MAX_IMAGE_PIXELS} are allowed. "
            "Send a smaller one.",
            largest,
        ),
        _require(
            total <= MAX_REQUEST_PIXELS,
            "The images of the request have {} pixels, at most "
            f"{MAX_REQUEST_PIXELS} are allowed. Send fewer at once.",
            total,
        ),
    ]


def _check_parts(jpegs: tf.Tensor, pngs: tf.Tensor) -> list[tf.Operation]:
    scans = _count_marker(jpegs, b"\xff\xda", MAX_JPEG_SCANS)
    texts = tf.maximum(
        _count_marker(pngs, b"zTXt", MAX_PNG_TEXTS), _count_marker(pngs, b"iTXt", MAX_PNG_TEXTS)
    )
    return [
        _require(
            scans <= MAX_JPEG_SCANS,
            f"A JPEG has more than {MAX_JPEG_SCANS} scans. Save it as a baseline JPEG.",
        ),
        _require(
            texts <= MAX_PNG_TEXTS, f"A PNG has more than {MAX_PNG_TEXTS} texts. Save it without."
        ),
    ]


def _count_marker(encoded_N: tf.Tensor, marker: bytes, limit: int) -> tf.Tensor:
    """Returns the largest number of markers in an image, at most `limit` + 1."""
    # The raw operation, because a ragged tensor would take many more operations.
    parts = tf.raw_ops.StringSplitV2(input=encoded_N, sep=marker, maxsplit=limit + 1)
    return tf.maximum(parts.shape[1] - 1, 0)


def _require(condition: tf.Tensor, message: str, *values: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(
        condition, [tf.strings.format(message, values) if values else message]
    )
