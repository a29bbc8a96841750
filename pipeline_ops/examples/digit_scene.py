"""Draws a scene of digits, which depends only on its split and its number."""

from __future__ import annotations

import functools

import numpy as np

SIDE_PIXELS = 128
_WHITE = 16.0  # the brightest value in the raw 8x8 images
_MAX_OVERLAP = 0.05  # the share of a new box that earlier ones may cover
_TRIES = 10
NUM_SCENES = {"train": 3000, "validation": 200, "test": 300}
_FIRST_SEED = {"train": 0, "validation": 1_000_000, "test": 2_000_000}

Box = tuple[int, int, int, int]
"""ymin, xmin, ymax, xmax in pixels."""


def draw_scene(split: str, number: int) -> tuple[np.ndarray, list[tuple[Box, int]]]:
    """The uint8 image [128, 128] of a scene, and its boxes with their digits."""
    rng = np.random.default_rng(_FIRST_SEED[split] + number)
    image_HW = _draw_background(rng)
    boxes: list[tuple[Box, int]] = []
    for _ in range(rng.integers(1, 7)):
        digit_hw, label = _select_digits(split)[rng.integers(len(_select_digits(split)))]
        height = int(rng.integers(12, 41))
        width = max(8, int(height * rng.uniform(0.7, 1.1)))
        intensity = rng.uniform(150, 255)
        if (box := _find_free_box(rng, height, width, [other for other, _ in boxes])) is not None:
            _paste(image_HW, digit_hw, box, intensity)
            boxes.append((box, label))
    return np.clip(np.rint(image_HW), 0, 255).astype(np.uint8), boxes


@functools.cache
def _select_digits(split: str) -> list[tuple[np.ndarray, int]]:
    """The digits that a split may show.

    The fifth of every ten digits is for validation, the tenth is for test.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    held_out = {4: "validation", 9: "test"}
    return [
        (image, int(label))
        for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True))
        if held_out.get(index % 10, "train") == split
    ]


def _draw_background(rng: np.random.Generator) -> np.ndarray:
    ramp_W = np.linspace(0, rng.uniform(-30, 30), SIDE_PIXELS)
    return rng.uniform(0, 60) + ramp_W[None, :] + rng.normal(0, 8, (SIDE_PIXELS, SIDE_PIXELS))


def _find_free_box(
    rng: np.random.Generator, height: int, width: int, occupied: list[Box]
) -> Box | None:
    """A box that hardly touches another digit, or None if ten tries find none."""
    for _ in range(_TRIES):
        top, left = (
            int(rng.integers(0, SIDE_PIXELS - height + 1)),
            int(rng.integers(0, SIDE_PIXELS - width + 1)),
        )
        box = (top, left, top + height, left + width)
        if all(_compute_overlap(box, other) < _MAX_OVERLAP * height * width for other in occupied):
            return box
    return None


def _compute_overlap(one: Box, other: Box) -> int:
    height, width = (
        min(one[axis + 2], other[axis + 2]) - max(one[axis], other[axis]) for axis in (0, 1)
    )
    return max(0, height) * max(0, width)


def _paste(image_HW: np.ndarray, digit_hw: np.ndarray, box: Box, intensity: float) -> None:
    """Blends a digit over the image: its strokes cover, its background is transparent."""
    import cv2

    top, left, bottom, right = box
    cover = np.clip(
        cv2.resize(digit_hw / _WHITE, (right - left, bottom - top), interpolation=cv2.INTER_LINEAR),
        0,
        1,
    )
    part = image_HW[top:bottom, left:right]
    part[:] = part * (1 - cover) + intensity * cover
