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
import re
import struct
from collections.abc import Callable, Iterator
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
_PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_OTHER_FORMATS = re.compile(
    rb"(?P<GIF>GIF8)|(?P<BMP>BM)|(?P<TIFF>II\*\0|MM\0\*)|(?P<PPM>P[1-6][ \n\r\t])"
    rb"|(?P<WebP>RIFF.{4}WEBP)",
    re.DOTALL,
)
_OTHER_FILES = {
    rb".{4}ftyp(hei|mif1)": "a HEIC file, as iPhones write it",
    rb".{4}ftypavif": "an AVIF file",
    rb".{4}jP  ": "a JPEG 2000 file",
    rb"8BPS": "a file of Photoshop",
    rb"%PDF": "a PDF file",
    rb"<svg": "an SVG file, which has no pixels",
    rb"PK\x03\x04": "a zip archive",
}
"""The beginnings of files that are taken for images, and the words for them."""
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
    image, is_opaque = header.decode(data, parameters)
    if image.shape[:2] not in ((height, width), (width, height)):
        found = f"in the data {image.shape[1]}x{image.shape[0]}"
        raise Reject("corrupt", f"{width}x{height} pixels in the header, {found}")
    boxes = example.boxes
    if boxes is not None:
        boxes = convert_boxes(boxes, example.frame or BoxFrame(), *header.read_orientation(data))
    pixels = image if header.orientation == 1 else _turn(image, header.orientation)
    is_kept = header.is_kept and is_opaque
    return example.replace(pixels=pixels, is_original=is_kept, boxes=boxes, frame=None)


def count_bits(data: bytes) -> int:
    """Returns the bits that the largest value of a 16-bit image file needs, or 0 for other files.

    `data` is a file that `decode` accepts.
    """
    if data.startswith(_JPEG_SIGNATURE):
        return 0
    image = _decode_with_opencv(data, channels=3, keeps_depth=True)
    return int(image.max()).bit_length() if image.itemsize > 1 else 0


def _turn(image_HWC: np.ndarray, orientation: int) -> np.ndarray:
    """The upright image, from one that is stored with this orientation of EXIF."""
    import numpy as np

    axes, flips = _describe_turn(orientation)
    backwards = tuple(axis for axis in range(3) if flips[axis])
    return np.ascontiguousarray(np.flip(image_HWC.transpose(axes), backwards))


def _describe_turn(orientation: int) -> tuple[tuple[int, int, int], tuple[bool, bool, bool]]:
    """The order of the axes H, W and C of the upright image, and which of them run backwards."""
    axes = (1, 0, 2) if orientation in _SIDEWAYS else (0, 1, 2)
    return axes, (orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7), False)


# Decoders. They return uint8 [H, W, channels], and whether no pixel of the file is transparent.


def _decode_jpeg(data: bytes, parameters: Decode, colors: str = "") -> tuple[np.ndarray, bool]:
    import simplejpeg

    colors = colors or ("GRAY" if parameters.channels == 1 else "RGB")
    return _call_simplejpeg(simplejpeg.decode_jpeg, data, colors), True


def _decode_cmyk(data: bytes, parameters: Decode) -> tuple[np.ndarray, bool]:
    """Computes RGB as TensorFlow's decoder does. Files with Adobe's marker hold 255 - ink."""
    import numpy as np
    from PIL import Image

    stored, _ = _decode_jpeg(data, parameters, "CMYK")
    _, has_adobe_marker, _ = _read_jpeg_segments(data)
    light = (stored if has_adobe_marker else 255 - stored).astype(np.uint16)
    image = (light[:, :, :3] * light[:, :, 3:] // 255).astype(np.uint8)
    if parameters.channels == 1:
        image = np.array(Image.fromarray(image).convert("L"))[:, :, np.newaxis]
    return image, True


def _decode_onto_background(data: bytes, parameters: Decode) -> tuple[np.ndarray, bool]:
    """Uses Pillow, which knows all kinds of transparency."""
    import numpy as np
    from PIL import Image, ImageOps

    with _open_with_pillow(data) as image:
        # The header has the orientation of a PNG, from which `decode` turns it.
        upright = image if image.format == "PNG" else ImageOps.exif_transpose(image)
        layer = upright.convert("RGBA")
        is_opaque = layer.getchannel("A").getextrema() == (255, 255)
        below = Image.new("RGBA", layer.size, (*parameters.background, 255))
        mode = "L" if parameters.channels == 1 else "RGB"
        flat = np.array(Image.alpha_composite(below, layer).convert(mode))
        return flat.reshape(*flat.shape[:2], parameters.channels), is_opaque


def _decode_other(data: bytes, parameters: Decode) -> tuple[np.ndarray, bool]:
    """Decodes with OpenCV, which reduces 16 bits to 8, and turns files other than PNG."""
    import numpy as np

    image = _decode_with_opencv(data, parameters.channels, keeps_depth=parameters.bits < 16)
    if image.itemsize > 1:
        image = np.minimum(image >> (parameters.bits - 8), 255).astype(np.uint8)
    return image.reshape(*image.shape[:2], parameters.channels), True


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
    decode: Callable[[bytes, Decode], tuple[np.ndarray, bool]]
    is_kept: bool = False
    orientation: int = 1
    is_whole: bool = True

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
    if _OTHER_FORMATS.match(data):
        with _open_with_pillow(data) as image:
            if image.mode in ("F", "I") and image.format == "TIFF":
                detail = f"a TIFF of 32 bits per value. {_CONVERT} with 8 or 16 bits"
                raise Reject("not_image", detail)
            decoder = _decode_onto_background if image.has_transparency_data else _decode_other
            return _Header(image.height, image.width, decoder)
    for beginning, name in _OTHER_FILES.items():
        if re.match(beginning, data, re.DOTALL):
            raise Reject("not_image", f"{name}. {_CONVERT}")
    formats = "JPEG, PNG, WebP, GIF, BMP, TIFF or PPM"
    raise Reject("not_image", f"begins with {data[:8]!r}, which is no {formats}")


@contextlib.contextmanager
def _open_with_pillow(data: bytes) -> Iterator[ImageFile]:
    """Reads only the header and EXIF. All errors in the block but MemoryError are rejects."""
    from PIL import Image, UnidentifiedImageError

    # Pillow's limit only warns at first and is too high. Ours is `max_megapixels`.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as image:
            yield image
    except (Reject, MemoryError):
        raise
    except UnidentifiedImageError:  # its text has an address in memory, another one on each retry
        found = _OTHER_FORMATS.match(data)
        raise Reject("corrupt", f"not a readable {found.lastgroup if found else 'PNG'}") from None
    except Exception as error:  # on broken files Pillow's parsers raise nearly anything
        raise Reject("corrupt", str(error) or type(error).__name__) from None


def _call_simplejpeg(function: Callable[..., Any], data: bytes, *arguments: str) -> Any:
    """Calls a function of simplejpeg, whose errors are rejects."""
    try:
        return function(data, *arguments)
    except ValueError as error:
        # A thumbnail inside has an end of its own.
        has_end = b"\xff\xd9" in data and "Premature end" not in str(error)
        raise Reject("corrupt" if has_end else "truncated", str(error)) from None


def _read_jpeg_header(data: bytes) -> _Header:
    import simplejpeg

    height, width, colors, _ = _call_simplejpeg(simplejpeg.decode_jpeg_header, data)
    orientation, _, has_one_scan = _read_jpeg_segments(data)
    if not has_one_scan and (num_scans := data.count(b"\xff\xda")) > _MAX_SCANS:
        fault = f"a JPEG of {num_scans} scans, each of which is a pass over all pixels"
        raise Reject("too_costly", f"{fault}; allowed are {_MAX_SCANS}")
    if colors not in ("YCbCr", "Gray", "RGB"):
        return _Header(height, width, _decode_cmyk, orientation=orientation)
    return _Header(height, width, _decode_jpeg, orientation == 1, orientation)


def _read_jpeg_segments(data: bytes) -> tuple[int, bool, bool]:
    """EXIF's orientation, whether Adobe's marker is there, and whether the first scan has all
    components of a file that is not progressive. A decoder refuses another scan after such a one.

    Follows the segments, because a search could find the pixels of a thumbnail inside one.
    """
    exif_at, has_adobe_marker, has_one_scan = 0, False, False
    offset, number, num_components, end = 2, 0, 0, len(data) - 10
    while offset < end and data[offset] == 0xFF:
        number, marker = number + 1, data[offset + 1]
        if marker == 0xDA:
            has_one_scan = data[offset + 4] == num_components
            break
        if marker == 0xFF:  # padding
            offset += 1
            continue
        if marker in (0xC0, 0xC1):  # a frame that is not progressive
            num_components = data[offset + 9]
        elif marker == 0xEE:
            has_adobe_marker |= data.startswith(b"Adobe", offset + 4)
        elif marker == 0xE1 and number <= _MAX_SEGMENTS and not exif_at:
            exif_at = offset + 4 + len(_EXIF) if data.startswith(_EXIF, offset + 4) else 0
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    return _parse_orientation(data, exif_at), has_adobe_marker, has_one_scan


def _parse_orientation(data: bytes, start: int) -> int:
    """EXIF's orientation in the TIFF structure that begins at `start`, or 1.

    EXIF 2.32, section 4.5: byte order, 42, offset of the first directory; this has a count and
    entries of twelve bytes each: tag, type, number of values, value.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[start : start + 2])
    if order is None:
        return 1

    def read(layout: str, offset: int) -> tuple[int, ...]:  # zeros follow the file
        return struct.unpack_from(order + layout, data[offset : offset + 12].ljust(12, b"\0"))

    directory = start + read("4xI", start)[0]
    count = min(read("H", directory)[0], _MAX_EXIF_TAGS)
    for entry in range(directory + 2, directory + 2 + 12 * count, 12):
        tag, kind, short = read("HH4xH", entry)
        if tag == _ORIENTATION_TAG:
            value = {_SHORT: short, _LONG: read("8xI", entry)[0]}.get(kind, 0)
            return value if value in range(1, 9) else 1
    return 1


def _read_png_header(data: bytes) -> _Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise Reject("truncated", f"a PNG of {len(data)} bytes ends inside its header")
    width, height, bits, color_type = struct.unpack(">IIBB", data[16:26])
    chunks, orientation, number, offset = set[bytes](), 1, 0, len(_PNG_SIGNATURE)
    while b"IEND" not in chunks and offset + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, offset)
        start, offset, number = offset + 8, offset + 12 + length, number + 1
        if offset > len(data):  # OpenCV would trust the length, and reserve up to 4 GB for it
            break
        if name == b"eXIf" and name not in chunks and number <= _MAX_SEGMENTS:
            prefix = len(_EXIF) if data.startswith(_EXIF, start) else 0
            orientation = _parse_orientation(data, start + prefix)
        chunks.add(name)
    # Grey and alpha, RGB and alpha. A palette has a tRNS chunk instead.
    has_alpha = color_type in (4, 6) or b"tRNS" in chunks
    decoder = _decode_onto_background if has_alpha else _decode_other
    # A turned PNG is rare, so every PNG with EXIF is encoded again. Readers may see different
    # frames of an animation (acTL).
    is_kept = bits <= 8 and not chunks & {b"eXIf", b"acTL"}
    return _Header(height, width, decoder, is_kept, orientation, is_whole=b"IEND" in chunks)


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
    length = tf.cast(tf.strings.length(encoded), tf.int64)
    # A large PNG has thousands of chunks, and most files have none with EXIF.
    may_have_exif = is_jpeg | _contains(encoded, b"eXIf")
    searched = tf.where(may_have_exif, length, tf.zeros_like(length))
    orientation = _parse_tiff(bytes_n, length, _find_exif(bytes_n, searched, is_jpeg))
    swaps, flips = zip(*map(_describe_turn, range(9)), strict=True)
    image_HWC = tf.transpose(image_HWC, tf.gather(tf.constant(swaps), orientation))
    image_HWC = tf.raw_ops.Reverse(tensor=image_HWC, dims=tf.gather(flips, orientation))
    return tf.ensure_shape(image_HWC, [None, None, parameters.channels])


def _serve_jpeg(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """The accurate inverse cosine transform is that of simplejpeg. TensorFlow's own is faster."""
    import tensorflow as tf

    read = functools.partial(tf.io.decode_jpeg, encoded, dct_method="INTEGER_ACCURATE")
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


def _find_exif(bytes_n: tf.Tensor, length: tf.Tensor, is_jpeg: tf.Tensor) -> tf.Tensor:
    """The offset of EXIF's TIFF structure, int64, or 0, as `_read_jpeg_segments` and
    `_read_png_header` find it.

    A segment of a JPEG has a marker, a size, which counts itself, and data. A chunk of a PNG has a
    size, a name, data and a checksum.
    """
    import tensorflow as tf

    def choose(jpeg: Any, png: Any) -> tf.Tensor:
        return tf.where(is_jpeg, tf.constant(jpeg, tf.int64), tf.constant(png, tf.int64))

    weights = choose(_weigh(14, (2, 4), (0, 2), (4, 10)), _weigh(14, (0, 4), (4, 8), (8, 14)))
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

    parts = _weigh(8, (0, 2), (4, 8)) + _weigh(8, (4, 8), order="little")
    order, big, little = _read_numbers(bytes_n, start, tf.constant(parts, tf.int64))
    is_little = order == int.from_bytes(b"II")
    fields = (0, 2), (2, 4), (8, 10), (8, 12)
    weights = [_weigh(12, *fields, order=each) for each in ("little", "big")]
    weights_4n = tf.where(is_little, *(tf.constant(each, tf.int64) for each in weights))
    directory = tf.minimum(start + tf.where(is_little, little, big), length)
    [count] = _read_numbers(bytes_n, directory, weights_4n[:1])
    entries = tf.cast(tf.slice(bytes_n, [directory + 2], [12 * _MAX_EXIF_TAGS]), tf.int64)
    numbers = tf.matmul(tf.reshape(entries, [-1, 12]), weights_4n, transpose_b=True)
    is_listed = tf.range(_MAX_EXIF_TAGS, dtype=tf.int64) < count
    is_tag = is_listed & (numbers[:, 0] == _ORIENTATION_TAG)
    place = tf.argmax(is_tag)
    _, kind, short, long = tf.unstack(numbers[place])
    value = tf.where(kind == _SHORT, short, tf.where(kind == _LONG, long, 1))
    is_tiff = is_little | (order == int.from_bytes(b"MM"))
    return tf.where(is_tiff & is_tag[place] & (value >= 1) & (value <= 8), value, 1)


def _weigh(size: int, *parts: tuple[int, int], order: str = "big") -> list[list[int]]:
    """The factors of `size` bytes, for each part of them, whose sum is the number in the part."""
    rows = []
    for begin, end in parts:
        powers = [256**power for power in range(end - begin)]
        number = powers if order == "little" else powers[::-1]
        rows.append([0] * begin + number + [0] * (size - end))
    return rows


def _read_numbers(bytes_n: tf.Tensor, offset: tf.Tensor, weights_kn: tf.Tensor) -> list[tf.Tensor]:
    """The sums of the bytes from an offset on, each weighted with one of k rows, int64."""
    import tensorflow as tf

    head = tf.cast(tf.slice(bytes_n, [offset], [weights_kn.shape[1]]), tf.int64)
    return tf.unstack(tf.reduce_sum(weights_kn * head, axis=1))


def _contains(encoded: tf.Tensor, text: bytes) -> tf.Tensor:
    import tensorflow as tf

    parts = tf.raw_ops.StringSplitV2(input=encoded[tf.newaxis], sep=text, maxsplit=1)
    return parts.shape[1] > 1
