"""Decodes the image file and rejects files that are not a whole image.

A served model decodes JPEG and PNG files to the same pixels: `serve` is this stage in TensorFlow.

JPEG and PNG files of 8 bits keep their own bytes, even if grey becomes colour or colour becomes
grey: the reader of the shard decodes to the requested channels itself. Other formats, 16 bits,
CMYK, images that EXIF marks as turned, and images with transparent parts are encoded again. Images
with transparent parts are laid on a background. The first frame of an animation counts. A JPEG
whose middle was overwritten decodes without complaint in every library, so this stage does not
notice it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from beam_jobs.stages.boxes import convert_boxes
from beam_jobs.stages.stage import BoxFrame, Color, Example, Reject, parameters

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf
    from PIL.ImageFile import ImageFile

_MAX_SCANS = 64  # a progressive JPEG has about ten
_MAX_SEGMENTS, _MAX_EXIF_TAGS = 4096, 512
"""Segments of a JPEG or chunks of a PNG, and tags. What comes later counts as absent, so that
nobody can have a server search for long."""
_EXIF = b"Exif\0\0"
_JPEG_SIGNATURE, _PNG_SIGNATURE = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_PNG_WITH_ALPHA = (4, 6)  # grey and alpha, RGB and alpha; a palette has a tRNS chunk instead
_PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_PORTABLE = tuple(b"P%d%c" % (kind, blank) for kind in range(1, 7) for blank in b" \n\r\t")
_OTHER_FILES = (
    *((4, b"ftyp" + brand, "a HEIC file, as iPhones write it") for brand in (b"hei", b"mif1")),
    (4, b"ftypavif", "an AVIF file"),
    (4, b"jP  ", "a JPEG 2000 file"),
    (0, b"8BPS", "a file of Photoshop"),
    (0, b"%PDF", "a PDF file"),
    (0, b"<svg", "an SVG file, which has no pixels"),
    (0, b"PK\3\4", "a zip archive"),
)
"""Files that are taken for images: a position, the bytes there, and the words for them."""
_CONVERT = "Convert it to JPEG or PNG"
_ORIENTATION_TAG = 0x0112
_SHORT, _LONG = 3, 4  # types of a tag's value: 16 and 32 bits
_SIDEWAYS = (5, 6, 7, 8)


@parameters
class Decode:
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for RGB, whatever the files have."""
    max_megapixels: float = Field(50.0, gt=0, le=1000)
    """Maximum size of an image. A larger one is rejected before it is decoded, because a file of
    400 kB may hold a gigabyte of pixels."""
    background: Color = (255, 255, 255)
    """The colour behind the transparent parts of an image, [red, green, blue]."""
    bits: int = Field(16, ge=8, le=16)
    """The bits that the values of 16-bit files use, such as 12 for values up to 4095. 255 stands
    for the largest of them, and all larger ones."""


def decode(example: Example, parameters: Decode) -> Example:
    """Returns the boxes in pixels of the upright image, whatever frame the source gave them in.

    Raises Reject: empty, not_image, too_large, too_costly, truncated, corrupt, size_mismatch,
    box_outside, unclear_orientation.
    """
    data = example.encoded
    if not data:
        raise Reject("empty", "the file has no bytes")
    header = _read_header(data)
    height, width = header.height, header.width
    if height * width > parameters.max_megapixels * 1e6:
        limit = f"at most {parameters.max_megapixels:g} megapixels (decode: max_megapixels)"
        raise Reject("too_large", f"{width}x{height} pixels, {limit}")
    if not height * width:
        raise Reject("corrupt", f"{width}x{height} pixels")
    if not header.is_whole:
        raise Reject("truncated", f"a part of the file is missing; it has {len(data)} bytes")
    pixels, is_kept = _decode(data, header, parameters)
    boxes = example.boxes
    if boxes is not None:
        orientation = header.read_orientation(data)
        boxes = convert_boxes(boxes, example.frame or BoxFrame(), *orientation)
    return example.replace(pixels=pixels, is_original=is_kept, boxes=boxes, frame=None)


def _decode(data: bytes, header: _Header, parameters: Decode) -> tuple[np.ndarray, bool]:
    """The upright image, and whether the shard may hold the file as it is."""
    is_kept = header.is_kept
    if header.is_cmyk:
        image = _decode_cmyk(data, parameters.channels, header.has_adobe_marker)
    elif header.is_jpeg:
        image = _decode_jpeg(data, parameters.channels)
    elif header.has_alpha:
        image, is_opaque = _decode_onto_background(parameters.background, data, parameters.channels)
        is_kept = is_kept and is_opaque
    else:
        image = _decode_other(data, parameters.channels, parameters.bits)
    if image.shape[:2] not in ((header.height, header.width), (header.width, header.height)):
        raise Reject(
            "corrupt",
            f"{header.width}x{header.height} pixels in the header, "
            f"in the data {image.shape[1]}x{image.shape[0]}",
        )
    return _turn(image, header.orientation), is_kept


def _decode_jpeg(data: bytes, channels: int, colors: str = "") -> np.ndarray:
    import simplejpeg

    try:
        image: np.ndarray = simplejpeg.decode_jpeg(
            data, colors or ("GRAY" if channels == 1 else "RGB")
        )
    except ValueError as error:
        raise _make_jpeg_reject(data, error) from None
    return image


def _decode_cmyk(data: bytes, channels: int, has_adobe_marker: bool) -> np.ndarray:
    """Computes RGB as TensorFlow's decoder does. Files with Adobe's marker hold 255 - ink."""
    import numpy as np
    from PIL import Image

    light = _decode_jpeg(data, channels, "CMYK").astype(np.uint16)
    if not has_adobe_marker:
        light = 255 - light
    image = (light[:, :, :3] * light[:, :, 3:] // 255).astype(np.uint8)
    return (
        image if channels == 3 else np.array(Image.fromarray(image).convert("L"))[:, :, np.newaxis]
    )


def _decode_onto_background(
    background: Color, data: bytes, channels: int
) -> tuple[np.ndarray, bool]:
    """Uses Pillow, which knows all kinds of transparency, and tells if there is none."""
    import numpy as np
    from PIL import Image, ImageOps

    with _open_with_pillow(data) as image:
        # The header has the orientation of a PNG, from which `_decode` turns it.
        upright = image if image.format == "PNG" else ImageOps.exif_transpose(image)
        layer = upright.convert("RGBA")
        is_opaque = layer.getchannel("A").getextrema() == (255, 255)
        below = Image.new("RGBA", layer.size, (*background, 255))
        flat = Image.alpha_composite(below, layer).convert("L" if channels == 1 else "RGB")
        return np.array(flat).reshape(flat.height, flat.width, channels), is_opaque


def _turn(image_HWC: np.ndarray, orientation: int) -> np.ndarray:
    """The upright image, from one that is stored with this orientation of EXIF."""
    import numpy as np

    axes, flips = _describe_turn(orientation)
    flipped = tuple(axis for axis, is_flipped in enumerate(flips) if is_flipped)
    return np.ascontiguousarray(np.flip(image_HWC.transpose(axes), flipped))


def _describe_turn(orientation: int) -> tuple[tuple[int, int, int], tuple[bool, bool, bool]]:
    """The order of the axes H, W and C of the upright image, and which of them run backwards."""
    axes = (1, 0, 2) if orientation in _SIDEWAYS else (0, 1, 2)
    return axes, (orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7), False)


def count_bits(data: bytes) -> int:
    """Returns the bits that the largest value of a 16-bit image file needs, or 0 for other files.

    `data` is a file that `decode` accepts.
    """
    if data.startswith(b"\xff\xd8"):  # a JPEG
        return 0
    image = _decode_with_opencv(data, channels=3, keeps_depth=True)
    return int(image.max()).bit_length() if image.itemsize > 1 else 0


def _decode_other(data: bytes, channels: int, bits: int) -> np.ndarray:
    """Decodes with OpenCV, which reduces 16 bits to 8, and turns files other than PNG."""
    import numpy as np

    image = _decode_with_opencv(data, channels, keeps_depth=bits < 16)
    if image.itemsize > 1:
        image = np.minimum(image >> (bits - 8), 255).astype(np.uint8)
    return image.reshape(*image.shape[:2], channels)


def _decode_with_opencv(data: bytes, channels: int, keeps_depth: bool) -> np.ndarray:
    import cv2
    import numpy as np

    mode = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
    mode |= cv2.IMREAD_ANYDEPTH if keeps_depth else 0
    mode |= cv2.IMREAD_IGNORE_ORIENTATION if data.startswith(_PNG_SIGNATURE) else 0
    try:
        image: np.ndarray | None = cv2.imdecode(np.frombuffer(data, np.uint8), mode)
    except cv2.error as error:
        # The machine's fault: the same file can be decoded on the next try.
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError(error.err) from None
        raise Reject("corrupt", error.err) from None
    if image is None:
        raise Reject("corrupt", f"{len(data)} bytes that cannot be decoded to the end")
    return image


class _Header(NamedTuple):
    """The properties of an image file that are known without decoding it.

    `is_kept` means that the shard's reader gets the same pixels from the file as it is, if no pixel
    is transparent. `orientation` is that of EXIF in a JPEG or PNG. Files with another value than 1
    to 8, and files of other formats, have 1.
    """

    height: int
    width: int
    is_kept: bool
    is_jpeg: bool = False
    has_alpha: bool = False
    is_whole: bool = True
    orientation: int = 1
    is_cmyk: bool = False
    has_adobe_marker: bool = False

    def read_orientation(self, data: bytes) -> tuple[tuple[int, int], int]:
        """Height and width of the image as it is stored, and EXIF's orientation, 1 for upright."""
        stored = self.height, self.width
        if data.startswith((_JPEG_SIGNATURE, _PNG_SIGNATURE)):
            return stored, self.orientation
        with _open_with_pillow(data) as image:
            orientation = image.getexif().get(_ORIENTATION_TAG, 1)
            # For TIFF alone, Pillow gives the upright size.
            is_swapped = image.format == "TIFF" and orientation in _SIDEWAYS
        return (stored[::-1] if is_swapped else stored), orientation


def _read_header(data: bytes) -> _Header:
    if data.startswith(_JPEG_SIGNATURE):
        return _read_jpeg_header(data)
    if data.startswith(_PNG_SIGNATURE):
        return _read_png_header(data)
    if data.startswith((b"GIF8", b"BM", b"II*\0", b"MM\0*", *_PORTABLE)) or (
        data.startswith(b"RIFF") and data[8:12] == b"WEBP"
    ):
        with _open_with_pillow(data) as image:
            if image.mode in ("F", "I") and image.format == "TIFF":
                detail = f"a TIFF of 32 bits per value. {_CONVERT} with 8 or 16 bits"
                raise Reject("not_image", detail)
            return _Header(
                image.height, image.width, is_kept=False, has_alpha=image.has_transparency_data
            )
    for place, signature, name in _OTHER_FILES:
        if data.startswith(signature, place):
            raise Reject("not_image", f"{name}. {_CONVERT}")
    raise Reject(
        "not_image", f"begins with {data[:8]!r}, which is no JPEG, PNG, WebP, GIF, BMP, TIFF or PPM"
    )


def _make_jpeg_reject(data: bytes, error: ValueError) -> Reject:
    # A thumbnail inside has an end of its own.
    has_end = b"\xff\xd9" in data and "Premature end" not in str(error)
    return Reject("corrupt" if has_end else "truncated", str(error))


@contextlib.contextmanager
def _open_with_pillow(data: bytes) -> Iterator[ImageFile]:
    """Reads only the header and EXIF. All errors in the block but MemoryError are rejects."""
    from PIL import Image

    # Pillow's limit only warns at first and is too high. Ours is `max_megapixels`.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as image:
            yield image
    except (Reject, MemoryError):
        raise
    except Exception as error:  # on broken files Pillow's parsers raise nearly anything
        raise Reject("corrupt", str(error) or type(error).__name__) from None


def _read_jpeg_header(data: bytes) -> _Header:
    import simplejpeg

    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise _make_jpeg_reject(data, error) from None
    segments = _read_jpeg_segments(data)
    if not segments.has_one_scan and (num_scans := data.count(b"\xff\xda")) > _MAX_SCANS:
        raise Reject(
            "too_costly",
            f"a JPEG of {num_scans} scans, each of which is a pass over all pixels; "
            f"allowed are {_MAX_SCANS}",
        )
    orientation = _parse_orientation(data, segments.exif_at) if segments.exif_at else 1
    is_cmyk = colors not in ("YCbCr", "Gray", "RGB")
    return _Header(
        height,
        width,
        is_kept=orientation == 1 and not is_cmyk,
        is_jpeg=True,
        orientation=orientation,
        is_cmyk=is_cmyk,
        has_adobe_marker=segments.has_adobe_marker,
    )


class _JpegSegments(NamedTuple):
    """The properties of a JPEG that the segments before its pixels tell.

    `exif_at` is the offset of EXIF's data, or 0. With `has_one_scan`, the first scan has all
    components of a file that is not progressive. A decoder refuses another scan after it.
    """

    exif_at: int = 0
    has_adobe_marker: bool = False
    has_one_scan: bool = False


def _read_jpeg_segments(data: bytes) -> _JpegSegments:
    """Follows the segments, because a search could find the pixels of a thumbnail inside one."""
    found, number = _JpegSegments(), 0
    offset, num_components, end = 2, 0, len(data) - 10
    while offset < end and data[offset] == 0xFF:
        number, marker = number + 1, data[offset + 1]
        if marker == 0xDA:
            return found._replace(has_one_scan=data[offset + 4] == num_components)
        if marker == 0xFF:  # padding
            offset += 1
            continue
        if marker in (0xC0, 0xC1):  # a frame that is not progressive
            num_components = data[offset + 9]
        elif marker == 0xEE and data.startswith(b"Adobe", offset + 4):
            found = found._replace(has_adobe_marker=True)
        elif marker == 0xE1 and number <= _MAX_SEGMENTS and not found.exif_at:
            has_exif = data.startswith(_EXIF, offset + 4)
            found = found._replace(exif_at=offset + 4 + len(_EXIF) if has_exif else 0)
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    return found


def _parse_orientation(data: bytes, start: int) -> int:
    """EXIF's orientation in the TIFF structure that begins at `start`, or 1.

    EXIF 2.32, section 4.5: byte order, 42, offset of the first directory; this has a count and
    entries of twelve bytes each: tag, type, number of values, value.
    """
    order: Literal["little", "big"] = "little" if data[start : start + 2] == b"II" else "big"

    def read(offset: int, size: int) -> int:
        return int.from_bytes(data[offset : offset + size].ljust(size, b"\0"), order)

    if data[start : start + 2] not in (b"II", b"MM"):
        return 1
    directory = start + read(start + 4, 4)
    for index in range(min(read(directory, 2), _MAX_EXIF_TAGS)):
        entry = directory + 2 + 12 * index
        if read(entry, 2) == _ORIENTATION_TAG:
            size = {_SHORT: 2, _LONG: 4}.get(read(entry + 2, 2), 0)
            value = read(entry + 8, size)
            return value if value in range(1, 9) else 1
    return 1


def _read_png_header(data: bytes) -> _Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise Reject("truncated", f"a PNG of {len(data)} bytes ends inside its header")
    width, height, bits, color_type = struct.unpack(">IIBB", data[16:26])
    chunks, orientation = set(), 1
    for number, (name, start) in enumerate(_iterate_png_chunks(data)):
        if name == b"eXIf" and name not in chunks and number < _MAX_SEGMENTS:
            prefix = len(_EXIF) if data.startswith(_EXIF, start) else 0
            orientation = _parse_orientation(data, start + prefix)
        chunks.add(name)
    # A turned PNG is rare, so every PNG with EXIF is encoded again. Readers may see different
    # frames of an animation (acTL).
    return _Header(
        height,
        width,
        is_kept=bits <= 8 and not chunks & {b"eXIf", b"acTL"},
        has_alpha=color_type in _PNG_WITH_ALPHA or b"tRNS" in chunks,
        is_whole=b"IEND" in chunks,
        orientation=orientation,
    )


def _iterate_png_chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yields the name of every chunk that is complete in the file, and the start of its data.

    OpenCV trusts the length that a chunk states, and reserves up to 4 GB for it. So the lengths are
    checked here.
    """
    offset, name = 8, b""
    while offset + 12 <= len(data) and name != b"IEND":
        length, name = struct.unpack_from(">I4s", data, offset)
        start, offset = offset + 8, offset + 12 + length
        if offset <= len(data):
            yield name, start


# The stage in TensorFlow


def serve(encoded: tf.Tensor, parameters: Decode) -> tf.Tensor:
    """Returns the upright image, uint8 [H, W, channels], of the bytes of a JPEG or PNG file.

    It has few operations, because each costs the first request of a server.
    """
    import tensorflow as tf

    is_jpeg = tf.strings.substr(encoded, 0, len(_JPEG_SIGNATURE)) == _JPEG_SIGNATURE
    zeros = b"\0" * (14 + 12 * _MAX_EXIF_TAGS)  # what is read behind the end
    bytes_n = tf.io.decode_raw(encoded + zeros, tf.uint8)
    image_HWC = tf.cond(
        is_jpeg,
        lambda: _serve_jpeg(encoded, parameters.channels),
        lambda: _serve_png(encoded, bytes_n, parameters),
    )
    orientation = _serve_orientation(encoded, bytes_n, is_jpeg)
    swaps, flips = zip(*map(_describe_turn, range(9)), strict=True)
    image_HWC = tf.transpose(image_HWC, tf.gather(tf.constant(swaps), orientation))
    image_HWC = tf.raw_ops.Reverse(tensor=image_HWC, dims=tf.gather(flips, orientation))
    return tf.ensure_shape(image_HWC, [None, None, parameters.channels])


def _serve_jpeg(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """The accurate inverse cosine transform is that of simplejpeg. TensorFlow's own is faster."""
    import tensorflow as tf

    def read(num_channels: int) -> tf.Tensor:
        return tf.io.decode_jpeg(encoded, num_channels, dct_method="INTEGER_ACCURATE")

    if channels == 3:
        return read(3)
    is_cmyk = tf.image.extract_jpeg_shape(encoded)[2] == 4  # which libjpeg cannot make grey
    return tf.cond(is_cmyk, lambda: _to_luma(read(3)), lambda: read(1))


def _serve_png(encoded: tf.Tensor, bytes_n: tf.Tensor, parameters: Decode) -> tf.Tensor:
    import tensorflow as tf

    channels = parameters.channels
    bits, color_type = tf.unstack(tf.slice(bytes_n, [24], [2]))
    has_alpha = (color_type == 4) | (color_type == 6) | _contains(encoded, b"tRNS")

    def lay_on_background() -> tf.Tensor:
        # As Pillow's `alpha_composite` rounds. Its four channels have wrong colours for one bit.
        alpha = tf.cast(tf.io.decode_png(encoded, 4)[:, :, 3:], tf.int32)
        colors = tf.cast(tf.io.decode_png(encoded, 3), tf.int32)
        background = tf.constant(parameters.background, tf.int32)
        blend = 128 * (colors * alpha + background * (255 - alpha)) + 0x4000
        flat = tf.cast((blend // 256 + blend) // 256 // 128, tf.uint8)
        return _to_luma(flat) if channels == 1 else flat

    def reduce_bits() -> tf.Tensor:
        deep = tf.cast(tf.io.decode_png(encoded, channels, tf.uint16), tf.int32)
        return tf.cast(tf.minimum(deep // 2 ** (parameters.bits - 8), 255), tf.uint8)

    def decode_opaque() -> tf.Tensor:
        plain = functools.partial(tf.io.decode_png, encoded, channels)
        return plain() if parameters.bits == 16 else tf.cond(bits == 16, reduce_bits, plain)

    return tf.cond(has_alpha, lay_on_background, decode_opaque)


def _to_luma(image_HWC: tf.Tensor) -> tf.Tensor:
    """The luma of ITU-R BT.601, uint8 [H, W, 1], with Pillow's rounding (`Convert.c`, L24)."""
    import tensorflow as tf

    products = tf.cast(image_HWC, tf.int32) * tf.constant((19595, 38470, 7471))
    luma = tf.reduce_sum(products, axis=-1, keepdims=True) + 2**15
    return tf.cast(luma // 2**16, tf.uint8)


def _serve_orientation(encoded: tf.Tensor, bytes_n: tf.Tensor, is_jpeg: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation, int64, as `_read_header` finds it. Zeros follow the file in `bytes_n`."""
    import tensorflow as tf

    length = tf.cast(tf.strings.length(encoded), tf.int64)
    # A large PNG has thousands of chunks, and most files have no such one.
    may_have_exif = is_jpeg | _contains(encoded, b"eXIf")
    start = _find_exif(bytes_n, tf.where(may_have_exif, length, tf.zeros_like(length)), is_jpeg)
    return _parse_tiff(bytes_n, length, start)


def _find_exif(bytes_n: tf.Tensor, length: tf.Tensor, is_jpeg: tf.Tensor) -> tf.Tensor:
    """The offset of EXIF's TIFF structure, int64, or 0, as `_read_jpeg_segments` and
    `_read_png_header` find it.

    A segment of a JPEG has a marker, a size, which counts itself, and data. A chunk of a PNG has a
    size, a name, data and a checksum.
    """
    import tensorflow as tf

    def choose(jpeg: Any, png: Any) -> tf.Tensor:
        return tf.where(is_jpeg, tf.constant(jpeg, tf.int64), tf.constant(png, tf.int64))

    weights = choose(
        [_weigh(14, part) for part in ((2, 4), (0, 2), (4, 10))],
        [_weigh(14, part) for part in ((0, 4), (4, 8), (8, 14))],
    )
    names = [int.from_bytes(name) for name in (b"eXIf", b"IEND")]
    first, margin, rest, data_at, exif, end = tf.unstack(
        choose([2, 11, 2, 4, 0xFFE1, 0xFFDA], [8, 12, 12, 8, *names])
    )

    def step(offset: tf.Tensor, exif_at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        size, name, prefix = _read_numbers(bytes_n, offset, weights)
        is_padding = is_jpeg & (name == 0xFFFF)
        next_offset = offset + tf.where(is_padding, tf.ones_like(size), rest + size)
        has_prefix = prefix == int.from_bytes(_EXIF)
        is_exif = (name == exif) & tf.where(is_jpeg, has_prefix, next_offset <= length)
        is_end = is_exif | (name == end) | (is_jpeg & (name < 0xFF00))
        start = offset + data_at + tf.where(has_prefix, tf.constant(len(_EXIF), tf.int64), 0)
        return tf.where(is_end, length, next_offset), tf.where(is_exif, start, exif_at)

    _, exif_at = tf.while_loop(
        lambda offset, _: offset <= length - margin,
        step,
        (first, tf.constant(0, tf.int64)),
        maximum_iterations=_MAX_SEGMENTS,
    )
    return exif_at


def _parse_tiff(bytes_n: tf.Tensor, length: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """The orientation in the TIFF structure at `start`, as `_parse_orientation` finds it."""
    import tensorflow as tf

    parts = [_weigh(8, (0, 2)), _weigh(8, (4, 8)), _weigh(8, (4, 8), "little")]
    order, big, little = _read_numbers(bytes_n, start, tf.constant(parts, tf.int64))
    is_little = order == int.from_bytes(b"II")
    weights = [
        [_weigh(12, part, order) for part in ((0, 2), (2, 4), (8, 10), (8, 12))]
        for order in ("little", "big")
    ]
    weights_4n = tf.where(is_little, *(tf.constant(each, tf.int64) for each in weights))
    directory = tf.minimum(start + tf.where(is_little, little, big), length)
    [count] = _read_numbers(bytes_n, directory, weights_4n[:1])
    entries = tf.cast(tf.slice(bytes_n, [directory + 2], [12 * _MAX_EXIF_TAGS]), tf.int64)
    numbers = tf.matmul(tf.reshape(entries, [-1, 12]), weights_4n, transpose_b=True)
    is_tag = (tf.range(_MAX_EXIF_TAGS, dtype=tf.int64) < count) & (
        numbers[:, 0] == _ORIENTATION_TAG
    )
    place = tf.argmax(is_tag)
    _, kind, short, long = tf.unstack(numbers[place])
    value = tf.where(kind == _SHORT, short, tf.where(kind == _LONG, long, 1))
    is_tiff = is_little | (order == int.from_bytes(b"MM"))
    return tf.where(is_tiff & is_tag[place] & (value >= 1) & (value <= 8), value, 1)


def _weigh(size: int, part: tuple[int, int], order: str = "big") -> list[int]:
    """The factors of `size` bytes whose sum is the number in a part of them."""
    begin, end = part
    powers = [256**power for power in range(end - begin)]
    return [0] * begin + (powers if order == "little" else powers[::-1]) + [0] * (size - end)


def _read_numbers(bytes_n: tf.Tensor, offset: tf.Tensor, weights_kn: tf.Tensor) -> list[tf.Tensor]:
    """The sums of the bytes from an offset on, each weighted with one of k rows, int64."""
    import tensorflow as tf

    head = tf.cast(tf.slice(bytes_n, [offset], [weights_kn.shape[1]]), tf.int64)
    return tf.unstack(tf.reduce_sum(weights_kn * head, axis=1))


def _contains(encoded: tf.Tensor, text: bytes) -> tf.Tensor:
    import tensorflow as tf

    parts = tf.raw_ops.StringSplitV2(input=encoded[tf.newaxis], sep=text, maxsplit=1)
    return parts.shape[1] > 1
