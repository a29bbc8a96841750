"""Image files of all kinds that raw data has, made of photographs."""

from __future__ import annotations

import functools
import io

import cv2
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

SIZES = [
    *[(1, 1), (1, 200), (200, 1), (7, 5), (31, 31), (32, 48), (33, 47), (48, 32), (64, 96)],
    *[(65, 95), (100, 30), (30, 100), (20, 300), (300, 20), (97, 131), (131, 97), (320, 480)],
    *[(321, 479), (240, 241), (427, 640)],
]
"""Twenty sizes, height and width: odd, tiny, long, and both sides of those of a model, 32 x 48."""


@functools.cache
def photograph(height: int, width: int, name: str = "flower.jpg") -> np.ndarray:
    """uint8 [height, width, 3]. Its corner is red on the left and green above, to find any turn."""
    image = load_sample_image(name)
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).copy()
    image[: max(1, height // 4), :] = image[: max(1, height // 4), :] // 2 + (0, 100, 0)
    image[:, : max(1, width // 5)] = image[:, : max(1, width // 5)] // 2 + (120, 0, 0)
    return image.astype(np.uint8)


def save(image: np.ndarray | Image.Image, kind: str, **options) -> bytes:
    content = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.save(content, kind, **options)
    return content.getvalue()


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def tiff(orientation: int, order: str = "big", kind: int = 3, before: int = 0) -> bytes:
    """The data of EXIF by hand: a directory with a few other tags before the orientation."""
    mark = b"MM" if order == "big" else b"II"

    def pack(number: int, size: int) -> bytes:
        return number.to_bytes(size, order)

    value = pack(orientation, 4) if kind == 4 else pack(orientation, 2) + b"\0\0"
    entries = [pack(0x0100 + i, 2) + pack(4, 2) + pack(1, 4) + pack(7, 4) for i in range(before)]
    entries.append(pack(0x0112, 2) + pack(kind, 2) + pack(1, 4) + value)
    head = mark + pack(42, 2) + pack(8, 4)
    return head + pack(len(entries), 2) + b"".join(entries) + pack(0, 4)


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def make_files(height: int = 97, width: int = 131) -> dict[str, bytes]:
    """One file of each kind, by name."""
    image = photograph(height, width)
    picture, grey = Image.fromarray(image), Image.fromarray(image).convert("L")
    rows = np.linspace(0, 255, height).astype(np.uint8)
    alpha = np.broadcast_to(rows[:, None], (height, width))
    see_through = np.dstack([image, alpha])
    deep = np.asarray(image, np.uint16) * 16 + 7  # values of twelve bits
    plain = save(picture, "JPEG", quality=90)
    cmyk = save(picture.convert("CMYK"), "JPEG", quality=95)
    adobe = cmyk.index(b"\xff\xee")
    bare = cmyk[:adobe] + cmyk[adobe + 2 + int.from_bytes(cmyk[adobe + 2 : adobe + 4], "big") :]
    xmp = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation='3'/>")
    turned = segment(0xE1, b"Exif\0\0" + tiff(6))
    palette = picture.quantize(64)
    files = {
        "jpeg 4:2:0": plain,
        "jpeg 4:4:4 of quality 98": save(picture, "JPEG", quality=98, subsampling=0),
        "progressive jpeg": save(picture, "JPEG", quality=85, progressive=True),
        "grey jpeg": save(grey, "JPEG", quality=90),
        "cmyk jpeg": cmyk,
        "cmyk jpeg without Adobe's marker": bare,
        "png": save(picture, "PNG"),
        "grey png": save(grey, "PNG"),
        "palette png": save(palette, "PNG"),
        "palette png with a transparent colour": save(palette, "PNG", transparency=3),
        "1-bit png": save(picture.convert("1"), "PNG"),
        "rgba png": save(see_through, "PNG"),
        "opaque rgba png": save(picture.convert("RGBA"), "PNG"),
        "grey and alpha png": save(Image.fromarray(see_through).convert("LA"), "PNG"),
        "12 of 16 bits png": cv2.imencode(".png", deep[..., ::-1])[1].tobytes(),
        "12 of 16 bits grey png": cv2.imencode(".png", deep[..., 1])[1].tobytes(),
        "png turned by exif 6": save(picture, "PNG", exif=exif(6)),
        "exif of intel's byte order": with_segments(
            plain, segment(0xE1, b"Exif\0\0" + tiff(8, "little"))
        ),
        "exif behind xmp": with_segments(plain, xmp, turned),
        "xmp alone": with_segments(plain, xmp),
        "exif in a thumbnail alone": with_segments(
            plain, segment(0xE2, b"thumbnail" + with_segments(plain, turned)[:3000])
        ),
        "exif with an orientation of 32 bits": with_segments(
            plain, segment(0xE1, b"Exif\0\0" + tiff(3, kind=4))
        ),
        "exif behind other tags": with_segments(
            plain, segment(0xE1, b"Exif\0\0" + tiff(5, before=40))
        ),
        "exif that is cut off": with_segments(plain, segment(0xE1, b"Exif\0\0" + tiff(6)[:20])),
        "exif with 0": with_segments(plain, segment(0xE1, b"Exif\0\0" + tiff(0))),
        "exif with 9": with_segments(plain, segment(0xE1, b"Exif\0\0" + tiff(9))),
    }
    files |= {
        f"jpeg turned by exif {number}": save(picture, "JPEG", quality=90, exif=exif(number))
        for number in range(1, 9)
    }
    return files
