"""Limits of the images that a SavedModel decodes, tested as a client of the SavedModel."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline_ops.storage.read_errors import summarize_error

SIDE = 16
MEGABYTE = 1 << 20
SIGNATURE = b"\x89PNG\r\n\x1a\n"
CLIENT = """
import json, resource, sys
import tensorflow as tf
decode = tf.saved_model.load(sys.argv[1]).signatures["decode"]
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number, request in enumerate(sys.argv[2:]):
    reason = ""
    try:
        decode(image_bytes=tf.constant([open(path, "rb").read() for path in request.split(",")]))
    except tf.errors.InvalidArgumentError as error:
        reason = str(error)
    before = peak() if number == 0 else before
    print(json.dumps([reason, peak() - before]))
"""


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png_header(width: int, height: int, depth: int = 8, color: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))


def png(
    width: int,
    height: int,
    *,
    depth: int = 8,
    color: int = 0,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """Makes a black PNG row by row, so that a bomb does not take its own size in memory."""
    packer, row = zlib.compressobj(9), b"\0" * (width * depth // 8 * (3 if color == 2 else 1) + 1)
    content = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return (
        SIGNATURE
        + before
        + png_header(width, height, depth, color)
        + after
        + chunk(b"IDAT", content)
        + chunk(b"IEND", b"")
    )


def picture(seed: int, width: int = 37, height: int = 29) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def saved(form: str, image: Image.Image | None = None, **options) -> bytes:
    file = io.BytesIO()
    (image or picture(1)).save(file, form, **options)
    return file.getvalue()


GOOD = {
    "baseline_jpeg": saved("JPEG"),
    "progressive_jpeg": saved("JPEG", progressive=True),
    "png": saved("PNG"),
    "png_16_bits": png(20, 10, depth=16),
    "png_with_text": png(20, 10, after=chunk(b"zTXt", b"k\0\0" + zlib.compress(b"x"))),
}
TEXT = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"x" * 7_900_000, 9))
TOO_LARGE, UNKNOWN = (
    r"An image has \d+ pixels, at most 64000000 are allowed",
    "Unknown image file format",
)
BAD = {
    "png": (SIGNATURE + png_header(16_384, 16_384), TOO_LARGE),
    "png_of_16_bits": (SIGNATURE + png_header(8_192, 8_192, depth=16, color=2), TOO_LARGE),
    "png_whose_header_comes_late": (png(8, 8, before=chunk(b"abCd", b"\0\0\0\1" * 4)), UNKNOWN),
    "png_with_large_texts": (png(8, 8, after=TEXT * 40), "A PNG has more than 16 texts"),
    "jpeg_of_many_scans": (saved("JPEG")[:-2] + b"\xff\xda" * 70, "A JPEG has more than 64 scans"),
    "png_of_a_negative_width": (SIGNATURE + png_header(2**32 - 9, 9), TOO_LARGE),
    "png_without_a_size": (SIGNATURE + b"\0\0\0\rIHDR", "DecodeImage|decode"),
    "gif": (saved("GIF"), UNKNOWN),
    "bmp": (saved("BMP"), UNKNOWN),
    "webp": (saved("WEBP"), UNKNOWN),
    "jpeg_xl": (b"\xff\x0a" + b"0" * 40, UNKNOWN),
    "text": (b"no image", UNKNOWN),
    "nothing": (b"", UNKNOWN),
    "damaged_jpeg": (saved("JPEG")[:30], "Invalid JPEG data"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A SavedModel that returns the mean of an image of three channels."""
    import tensorflow as tf

    from pipeline_ops.served.model import ServedImages

    class Mean(ServedImages):
        def _predict(self, images):
            return {"mean": tf.reduce_mean(images, axis=[1, 2, 3])}

    served = Mean(tf.Module(), (SIDE, SIDE, 3))
    folder = tmp_path_factory.mktemp("limits") / "model"
    tf.saved_model.save(served, str(folder), signatures=served.signatures)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    import tensorflow as tf

    return tf.saved_model.load(str(folder))


def decode(model, *images: bytes) -> np.ndarray:
    import tensorflow as tf

    return model.signatures["decode"](image_bytes=tf.constant(list(images), tf.string))[
        "images"
    ].numpy()


def test_an_image_within_the_limits_is_decoded_as_without_them(model):
    """F13: both formats in one batch."""
    from beam_jobs.stages.decode import Decode
    from beam_jobs.stages.decode import decode as decode_stage
    from beam_jobs.stages.resize import Resize, resize
    from beam_jobs.stages.stage import Example

    found = decode(model, *GOOD.values())
    for name, encoded, image in zip(GOOD, GOOD.values(), found, strict=True):
        plain = decode_stage(Example(name, "", encoded), Decode())
        expected = resize(plain, Resize(height=SIDE, width=SIDE)).image
        assert np.abs(image - expected).max() <= 1, name
    assert decode(model).shape == (0, SIDE, SIDE, 3)


@pytest.mark.parametrize("name", BAD)
def test_an_image_beyond_a_limit_is_refused_with_the_reason(model, name):
    """F13."""
    import tensorflow as tf

    encoded, reason = BAD[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=reason) as caught:
        decode(model, GOOD["png"], encoded, GOOD["baseline_jpeg"])
    assert summarize_error(caught.value) in str(
        caught.value
    ) and "assertion" not in summarize_error(caught.value)


def test_all_images_of_a_request_together_have_a_limit(model):
    """F13: the headers alone decide. Images of the model's own size are never too many."""
    import tensorflow as tf

    header = SIGNATURE + png_header(7_900, 8_000)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="The images of the request have 10.* pixels, at most 10",
    ):
        decode(model, *[header] * 16)
    assert len(decode(model, *[png(SIDE, SIDE)] * 300)) == 300


@pytest.mark.models
def test_a_request_takes_a_bounded_amount_of_memory(folder, tmp_path):
    """F13: the bomb is a file of 260 kB that needed 1.3 GB, four of them 3.9 GB. The last request
    has the largest images."""
    bomb, texts = png(16_384, 16_384), png(8, 8, after=TEXT * 40)
    requests = [
        ([GOOD["png"]], ""),
        ([bomb], TOO_LARGE),
        ([bomb] * 4, TOO_LARGE),
        ([texts] * 4, "more than 16 texts"),
        ([png(7_900, 8_000)] * 4, ""),
    ]
    names = []
    for number, (images, _) in enumerate(requests):
        for index, image in enumerate(images):
            (tmp_path / f"{number}-{index}").write_bytes(image)
        names.append(",".join(str(tmp_path / f"{number}-{index}") for index in range(len(images))))
    ended = subprocess.run(
        [sys.executable, "-c", CLIENT, str(folder), *names],
        check=True,
        capture_output=True,
        text=True,
    )
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    for (_, expected), (reason, _) in zip(requests, answers, strict=True):
        assert re.search(expected, reason) if expected else not reason
    grown = [bytes_grown // MEGABYTE for _, bytes_grown in answers]
    assert grown[3] < 100 and grown[4] < 600, grown
