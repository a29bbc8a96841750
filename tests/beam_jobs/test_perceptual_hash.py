"""Perceptual hashes: what they survive, and what has none."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from beam_jobs.planning.duplicates import NO_HASH, compute_perceptual_hash, plan_blocks
from beam_jobs.planning.plan import Record
from pipeline_ops.raw_data.raw_file import RawFile


def photograph(seed: int) -> np.ndarray:
    """240x320, with the falling spectrum that real images have."""
    image = np.zeros((240, 320, 3), np.float32)
    generator = np.random.default_rng(seed)
    for side in (3, 6, 12, 24, 48):
        noise = generator.standard_normal((side, side, 3)).astype(np.float32)
        image += cv2.resize(noise, (320, 240), interpolation=cv2.INTER_CUBIC) * (60 / side**0.7)
    return np.clip(128 + image, 0, 255).astype(np.uint8)


def encoded(image, kind=".jpg", *options) -> bytes:
    return cv2.imencode(kind, image, options)[1].tobytes()


def distance(one: bytes, other: bytes) -> int:
    return (
        int(compute_perceptual_hash(one), 16) ^ int(compute_perceptual_hash(other), 16)
    ).bit_count()


@pytest.mark.parametrize(
    "name, change",
    [
        ("compressed more", lambda image: encoded(image, ".jpg", cv2.IMWRITE_JPEG_QUALITY, 40)),
        ("another format", lambda image: encoded(image, ".png")),
        (
            "half the size",
            lambda image: encoded(cv2.resize(image, (160, 120), interpolation=cv2.INTER_AREA)),
        ),
        ("larger", lambda image: encoded(cv2.resize(image, (640, 480)))),
        (
            "brighter",
            lambda image: encoded(np.clip(image.astype(int) + 12, 0, 255).astype(np.uint8)),
        ),
        ("grey", lambda image: encoded(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))),
    ],
)
def test_an_image_stays_near_to_itself(name, change):
    distances = [
        distance(encoded(photograph(seed)), change(photograph(seed))) for seed in range(20)
    ]
    assert max(distances) <= 4, name


def test_different_images_are_far_from_each_other():
    images = [encoded(photograph(seed)) for seed in range(40)]
    assert (
        min(distance(one, other) for index, one in enumerate(images) for other in images[:index])
        > 8
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        encoded(photograph(1))[:500],
        encoded(photograph(1), ".png")[:100],
        encoded(np.full((50, 50), 200, np.uint8), ".png"),
        b"\xff\xd8\xff\xe0 broken",
    ],
)
def test_what_is_no_image_or_has_no_contrast_has_no_hash(data):
    assert compute_perceptual_hash(data) == NO_HASH


def test_a_header_of_a_gigapixel_is_not_decoded():
    data = bytearray(encoded(photograph(1), ".png"))
    data[16:24] = (40_000).to_bytes(4, "big") * 2
    assert compute_perceptual_hash(bytes(data)) == NO_HASH


def test_only_contents_without_a_hash_are_looked_at_and_each_once():
    records = [Record(RawFile(f"{index:04d}", 1, index % 600)) for index in range(1200)]
    blocks = plan_blocks(reversed(records), range(100))
    assert [len(block.records) for block in blocks] == [256, 244]
    assert [record.key for block in blocks for record in block.records] == [
        f"{index:04d}" for index in range(100, 600)
    ]
