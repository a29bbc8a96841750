"""Decodes the image file and rejects files that are not a whole image.

JPEG and PNG files of 8 bits keep their own bytes, even if grey becomes colour or colour becomes
grey: the reader of the shard decodes to the requested channels itself. Other formats, 16 bits,
CMYK, images that EXIF marks as turned, and images with transparent parts are encoded again. Images
with transparent parts are laid on a background. The first frame of an animation counts. A JPEG
whose middle was overwritten decodes without complaint in every library, so this stage does not
notice it.

With `check: header`, files that keep their bytes are not decoded until a later stage needs their
pixels. The size is that of the header. A JPEG must have its end mark after the start of its pixels,
and every chunk of a PNG must match its checksum, so no truncated file gets into a shard. Damage
that only a decoder would notice does get into a shard. Examples are a JPEG whose compressed data is
damaged but continues to its end mark, a JPEG with fewer rows than in its header, and a PNG whose
pixels were packed wrongly by the program that wrote it.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from beam_jobs.stages.boxes import convert_boxes
from beam_jobs.stages.stage import Color, Example, LazyImage, Reject, parameters

if TYPE_CHECKING:
    import numpy as np
    from PIL.ImageFile import ImageFile

_MAX_SCANS = 64  # a progressive JPEG has about ten
_MAX_EXIF_OFFSET = 1 << 17  # bytes: it has to be in one of the first segments, of 64 kB at most
_PNG_WITH_ALPHA = (4, 6)  # grey and alpha, RGB and alpha; a palette has a tRNS chunk instead
_PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_ORIENTATION_TAG = 0x0112
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
    check: Literal["pixels", "header"] = "pixels"
    """pixels: decodes every image to its end. header: decodes an image only if its pixels are
    needed. Some damage then goes unnoticed, see `decode.py`."""


def decode(example: Example, parameters: Decode) -> Example:
    """Returns the boxes in pixels of the upright image, whatever frame the source gave them in.

    Raises Reject: empty, not_image, too_large, too_costly, truncated, corrupt, size_mismatch,
    box_outside.
    """
    data = example.encoded
    if not data:
        raise Reject("empty", "the file has no bytes")
    header = _read_header(data)
    height, width = header.height, header.width
    if height * width > parameters.max_megapixels * 1e6:
        limit = f"at most {parameters.max_megapixels:g} megapixels"
        raise Reject("too_large", f"{width}x{height} pixels, {limit}")
    if not height * width:
        raise Reject("corrupt", f"{width}x{height} pixels")
    if not header.is_whole:
        raise Reject("truncated", f"a part of the file is missing; it has {len(data)} bytes")
    pixels: np.ndarray | LazyImage
    if parameters.check == "header" and header.keeps_bytes:
        _check_end(data, header)
        shape = height, width, parameters.channels
        pixels, is_kept = LazyImage(shape, lambda: _decode(data, header, parameters)[0]), True
    else:
        pixels, is_kept = _decode(data, header, parameters)
    boxes = example.boxes
    if boxes is not None:
        boxes = convert_boxes(boxes, example.frame, *header.read_orientation(data))
    return example.replace(pixels=pixels, is_original=is_kept, boxes=boxes, frame=None)


def _decode(data: bytes, header: _Header, parameters: Decode) -> tuple[np.ndarray, bool]:
    """The image, and whether the shard may hold the file as it is."""
    is_kept = header.is_kept
    if header.is_plain_jpeg:
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
    return image, is_kept


def _decode_jpeg(data: bytes, channels: int) -> np.ndarray:
    import simplejpeg

    try:
        image: np.ndarray = simplejpeg.decode_jpeg(data, "GRAY" if channels == 1 else "RGB")
    except ValueError as error:
        raise _make_jpeg_reject(data, error) from None
    return image


def _decode_onto_background(
    background: Color, data: bytes, channels: int
) -> tuple[np.ndarray, bool]:
    """Uses Pillow, which knows all kinds of transparency, and tells if there is none."""
    import numpy as np
    from PIL import Image, ImageOps

    with _open_with_pillow(data) as image:
        layer = ImageOps.exif_transpose(image).convert("RGBA")
        is_opaque = layer.getchannel("A").getextrema() == (255, 255)
        below = Image.new("RGBA", layer.size, (*background, 255))
        flat = Image.alpha_composite(below, layer).convert("L" if channels == 1 else "RGB")
        return np.array(flat).reshape(flat.height, flat.width, channels), is_opaque


def count_bits(data: bytes) -> int:
    """Returns the bits that the largest value of a 16-bit image file needs, or 0 for other files.

    `data` is a file that `decode` accepts.
    """
    if data.startswith(b"\xff\xd8"):  # a JPEG
        return 0
    image = _decode_with_opencv(data, channels=3, keeps_depth=True)
    return int(image.max()).bit_length() if image.itemsize > 1 else 0


def _decode_other(data: bytes, channels: int, bits: int) -> np.ndarray:
    """Decodes with OpenCV, which applies EXIF's orientation and reduces 16 bits to 8."""
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
    is transparent. `pixels_at` is the offset at which the pixels of a JPEG begin, or 0 if that is
    not clear.
    """

    height: int
    width: int
    is_kept: bool
    is_plain_jpeg: bool = False
    has_alpha: bool = False
    is_whole: bool = True
    pixels_at: int = 0

    @property
    def keeps_bytes(self) -> bool:
        """True if the file is certain to keep its bytes, judged without its pixels."""
        return (
            self.is_kept and not self.has_alpha and (self.pixels_at > 0 or not self.is_plain_jpeg)
        )

    def read_orientation(self, data: bytes) -> tuple[tuple[int, int], int]:
        """Height and width of the image as it is stored, and EXIF's orientation, 1 for upright.

        Call it after decoding, because Pillow may have to decode a PNG to find its EXIF.
        """
        stored = self.height, self.width
        if self.is_kept or self.is_plain_jpeg:
            return stored, 1
        with _open_with_pillow(data) as image:
            orientation = image.getexif().get(_ORIENTATION_TAG, 1)
            # For TIFF alone, Pillow gives the upright size.
            is_swapped = image.format == "TIFF" and orientation in _SIDEWAYS
        return (stored[::-1] if is_swapped else stored), orientation


def _read_header(data: bytes) -> _Header:
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg_header(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _read_png_header(data)
    if data.startswith((b"GIF8", b"BM", b"II*\0", b"MM\0*")) or (
        data.startswith(b"RIFF") and data[8:12] == b"WEBP"
    ):
        with _open_with_pillow(data) as image:
            return _Header(
                image.height, image.width, is_kept=False, has_alpha=image.has_transparency_data
            )
    raise Reject(
        "not_image", f"begins with {data[:8]!r}, which is no JPEG, PNG, WebP, GIF, BMP or TIFF"
    )


def _check_end(data: bytes, header: _Header) -> None:
    """Checks that a file is complete and its chunks are intact, without decoding it."""
    if header.is_plain_jpeg:
        if data.rfind(b"\xff\xd9", header.pixels_at) < 0:
            raise Reject("truncated", f"a JPEG without its end; it has {len(data)} bytes")
        return
    for name, start, end in _iterate_png_chunks(data):
        if zlib.crc32(data[start - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise Reject(
                "corrupt",
                f"the chunk {name.decode('latin-1')} of the PNG has another checksum than its data",
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
    is_upright = not segments.has_exif
    if not is_upright:
        with _open_with_pillow(data) as image:
            is_upright = image.getexif().get(_ORIENTATION_TAG, 1) == 1
    is_kept = is_upright and colors in ("YCbCr", "Gray", "RGB")
    return _Header(height, width, is_kept, is_plain_jpeg=is_upright, pixels_at=segments.pixels_at)


class _JpegSegments(NamedTuple):
    """The properties of a JPEG that the segments before its pixels tell.

    `pixels_at` is the offset at which the pixels begin, or 0 if the segments cannot be followed.
    With `has_one_scan`, the first scan has all components of a file that is not progressive. A
    decoder refuses another scan after it.
    """

    pixels_at: int
    has_exif: bool
    has_one_scan: bool = False


def _read_jpeg_segments(data: bytes) -> _JpegSegments:
    """Follows the segments, because a search could find the pixels of a thumbnail inside one."""
    offset, has_exif, num_components, end = 2, False, 0, len(data) - 10
    while offset < end and data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker == 0xDA:
            return _JpegSegments(offset, has_exif, data[offset + 4] == num_components)
        if marker == 0xFF:  # padding
            offset += 1
            continue
        if marker in (0xC0, 0xC1):  # a frame that is not progressive
            num_components = data[offset + 9]
        elif marker == 0xE1 and data.startswith(b"Exif\0\0", offset + 4):
            has_exif = True
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    return _JpegSegments(0, b"Exif\0\0" in data[:_MAX_EXIF_OFFSET])


def _read_png_header(data: bytes) -> _Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise Reject("truncated", f"a PNG of {len(data)} bytes ends inside its header")
    width, height, bits, color_type = struct.unpack(">IIBB", data[16:26])
    chunks = {name for name, _, _ in _iterate_png_chunks(data)}
    # A turned PNG is rare, so every PNG with EXIF is encoded again. Readers may see different
    # frames of an animation (acTL).
    return _Header(
        height,
        width,
        is_kept=bits <= 8 and not chunks & {b"eXIf", b"acTL"},
        has_alpha=color_type in _PNG_WITH_ALPHA or b"tRNS" in chunks,
        is_whole=b"IEND" in chunks,
    )


def _iterate_png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, start and end of the data of every chunk that is complete in the file.

    OpenCV trusts the length that a chunk states, and reserves up to 4 GB for it. So the lengths are
    checked here.
    """
    offset, name = 8, b""
    while offset + 12 <= len(data) and name != b"IEND":
        length, name = struct.unpack_from(">I4s", data, offset)
        start, offset = offset + 8, offset + 12 + length
        if offset <= len(data):
            yield name, start, offset - 4
