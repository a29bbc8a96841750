"""Transforms that the workers of an engine import: one makes images, one filters entries."""

from __future__ import annotations

import apache_beam as beam
import cv2
import numpy as np

from beam_jobs.sources.source import SourceEntry


class MadeImages(beam.PTransform):
    """Yields the bytes of 90 images in three classes."""

    def __init__(self, folder: str):
        super().__init__()

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        return pipeline | beam.Create(range(90)) | beam.Map(make_entry)


def make_entry(number: int) -> SourceEntry:
    pixels = np.random.default_rng(number).integers(0, 256, (28, 28), np.uint8)
    encoded = cv2.imencode(".png", pixels)[1].tobytes()
    return SourceEntry(f"{number}.png", np.int64(number % 3), encoded=encoded)


class FewDigits(beam.PTransform):
    """Keeps the images of three classes."""

    def __init__(self, folder: str):
        super().__init__()

    def expand(self, entries: beam.PCollection) -> beam.PCollection:
        return entries | beam.Filter(is_small)


def is_small(entry: SourceEntry) -> bool:
    return entry.label in ("0", "1", "2")
