"""Makes JPEG files that cost as much to read, decode and store as real photographs: 25 to 60 KB,
never twice the same.

Image `i` follows from `i` alone: a crop of one of the two photographs that come with scikit-learn,
with some objects drawn over it and noise, without which JPEG would compress it too well and
decoding would look cheap.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from pathlib import Path

import cv2
import numpy as np

SIZES = ((375, 500), (375, 500), (500, 375), (333, 500), (360, 480))  # height, width
NUM_CLASSES = 20


def make_photographs(folder: Path, count: int, processes: int = 2) -> Path:
    """Writes `<folder>/class_XX/img_NNNNNN.jpg`, those that are not there yet, and returns the
    folder."""
    for label in range(NUM_CLASSES):
        (folder / f"class_{label:02d}").mkdir(parents=True, exist_ok=True)
    missing = [index for index in range(count) if not build_photograph_path(folder, index).exists()]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(functools.partial(_write, folder), missing, chunksize=50)
    return folder


def build_photograph_path(folder: Path, index: int) -> Path:
    return folder / f"class_{index % NUM_CLASSES:02d}" / f"img_{index:06d}.jpg"


def compute_photograph_size(index: int) -> tuple[int, int]:
    """Height and width of an image."""
    return SIZES[int(np.random.default_rng(index).integers(len(SIZES)))]


def _write(folder: Path, index: int) -> None:
    path = build_photograph_path(folder, index)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(photograph(index))
    os.replace(temporary, path)


def photograph(index: int) -> bytes:
    """A JPEG file."""
    random = np.random.default_rng(index)
    height, width = SIZES[int(random.integers(len(SIZES)))]
    image = _background(random, height, width)
    for number in range(int(random.integers(1, 8))):
        _draw_object(image, random, (index + number) % NUM_CLASSES)
    noisy = image + random.normal(0, random.uniform(2, 9), image.shape)
    return cv2.imencode(
        ".jpg",
        np.clip(noisy, 0, 255).astype(np.uint8),
        [cv2.IMWRITE_JPEG_QUALITY, int(random.integers(72, 88))],
    )[1].tobytes()


@functools.cache
def _photographs() -> list[np.ndarray]:
    from sklearn.datasets import load_sample_images

    return [image[:, :, ::-1] for image in load_sample_images().images]


def _background(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    scale = random.uniform(0.9, 1.4)
    photo = cv2.resize(_photographs()[int(random.integers(2))], None, fx=scale, fy=scale)
    top, left = (
        int(random.integers(photo.shape[0] - min(height, photo.shape[0]) + 1)),
        int(random.integers(photo.shape[1] - width + 1)),
    )
    crop = cv2.resize(photo[top : top + height, left : left + width], (width, height))
    if random.random() < 0.5:
        crop = crop[:, ::-1]
    return np.clip(
        (crop.astype(np.float32) - 128) * random.uniform(0.7, 1.3) + 128 + random.uniform(-30, 30),
        0,
        255,
    ).astype(np.uint8)


def _draw_object(image: np.ndarray, random: np.random.Generator, label: int) -> None:
    side = int(random.integers(25, min(image.shape[:2]) // 2))
    left, top = (
        int(random.integers(image.shape[1] - side)),
        int(random.integers(image.shape[0] - side)),
    )
    color, thickness = (
        tuple(int(value) for value in random.integers(0, 256, 3)),
        -1 if label % 2 else 5,
    )
    if label % 3 == 0:
        cv2.rectangle(image, (left, top), (left + side, top + side), color, thickness)
    elif label % 3 == 1:
        cv2.ellipse(
            image,
            (left + side // 2, top + side // 2),
            (side // 2, side // 3),
            0,
            0,
            360,
            color,
            thickness,
        )
    else:
        corners = (np.random.default_rng(label).random((7, 2)) * side + (left, top)).astype(
            np.int32
        )
        cv2.polylines(image, [corners], True, color, 5)
    cv2.putText(
        image, f"{label}", (left, top + 20), cv2.FONT_HERSHEY_SIMPLEX, 0.7, (255, 255, 255), 2
    )
