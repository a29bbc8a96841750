"""Perceptual hashes of images: a pass over the collection computes them to find near duplicates.

The hash is known as pHash: the signs, about their median, of the lowest 8x8 frequencies of the grey
image at 32x32 pixels. It survives another size, another compression, and small changes of
brightness. It does not survive a crop, a rotation or a mirror image. An image with hardly any
contrast has no hash, because it would be near every other such image.

The pass runs like the building of shards, but in blocks of records. Only hashes are returned. No
image crosses a shuffle.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from beam_jobs.exchange import Exchange, ProgressReporter
from beam_jobs.io.raw import RawReader
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.statistics.summary import PlanSummary
from pipeline_ops.raw_data.listing import RawFolder

if TYPE_CHECKING:
    import numpy as np

NO_HASH = "-"
"""Stands for the hash of a file that is no whole image, or of an image with hardly any contrast."""

_RECORDS_PER_BLOCK = 256
_SIDE_PIXELS, _FREQUENCIES = 32, 8
_MIN_CONTRAST = 2.0  # standard deviation, of 255
_MAX_PIXELS = 100_000_000  # `decode` rejects larger ones or fails on them


class HashedBlock(PlanSummary, frozen=True):
    """The result of the pass for one block: perceptual hashes by content."""

    perceptual_hashes: dict[str, str]


@dataclasses.dataclass(frozen=True)
class ImageHashSpec:
    """Asks for hashes instead of shards. See `ShardBuildSpec`."""

    raw_folder: RawFolder
    summary: ClassVar[type[HashedBlock]] = HashedBlock

    def create_builder(self, exchange: Exchange) -> ImageHasher:
        return ImageHasher(self.raw_folder, exchange)


class ImageHasher:
    """Hashes one block after another, and reports its progress to the exchange."""

    def __init__(self, raw_folder: RawFolder, exchange: Exchange):
        self._raw_folder, self._exchange = raw_folder, exchange

    def build(self, plan: ShardPlan) -> HashedBlock:
        """Hashes the records of a block.

        Raises:
          MachineError: a raw file has changed since it was listed.
          StoppedByDriver: the driver has given up.
        """
        reporter, hashes = ProgressReporter(self._exchange, plan.name), {}
        reader = RawReader((record.file for record in plan.records), self._raw_folder)
        for record in plan.records:
            hashes[record.file.digest] = compute_perceptual_hash(reader.read(record.file))
            reporter.add(is_rejected=False)
        return HashedBlock(num_examples=len(plan.records), perceptual_hashes=hashes)


def plan_blocks(records: Iterable[Record], known: Iterable[str]) -> list[ShardPlan]:
    """Plans blocks of records whose content has no known hash, one record for each content."""
    by_content = {
        record.file.digest: record
        for record in sorted(records, key=lambda record: record.key, reverse=True)
    }
    for content in known:
        by_content.pop(content, None)
    ordered = sorted(by_content.values(), key=lambda record: record.key)
    return [
        ShardPlan(
            "",
            f"hashes-{start // _RECORDS_PER_BLOCK:06d}",
            tuple(ordered[start : start + _RECORDS_PER_BLOCK]),
        )
        for start in range(0, len(ordered), _RECORDS_PER_BLOCK)
    ]


def merge_hashes(blocks: Sequence[HashedBlock]) -> dict[str, str]:
    return dict(item for block in blocks for item in block.perceptual_hashes.items())


def compute_perceptual_hash(data: bytes) -> str:
    """The hash of an image file as 16 hex digits, or NO_HASH."""
    import cv2
    import numpy as np

    image_HW = _decode_grey(data)
    if image_HW is None:
        return NO_HASH
    small = cv2.resize(
        image_HW.astype(np.float32), (_SIDE_PIXELS, _SIDE_PIXELS), interpolation=cv2.INTER_AREA
    )
    if small.std() < _MIN_CONTRAST:
        return NO_HASH
    low = cv2.dct(small)[:_FREQUENCIES, :_FREQUENCIES].ravel()
    low[0] = np.median(low[1:])  # the mean brightness carries no information: its bit is always 0
    bits = low > np.median(low[1:])
    return np.packbits(bits).tobytes().hex()


def _decode_grey(data: bytes) -> np.ndarray | None:
    """The grey image, uint8 [height, width], or None if it cannot be decoded.

    A JPEG is decoded at the smallest size that is sufficient.
    """
    return _decode_jpeg(data) if data.startswith(b"\xff\xd8\xff") else _decode_other(data)


def _decode_jpeg(data: bytes) -> np.ndarray | None:
    import simplejpeg

    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > _MAX_PIXELS:
            return None
        min_side = 2 * _SIDE_PIXELS
        image: np.ndarray = simplejpeg.decode_jpeg(
            data, "GRAY", min_height=min_side, min_width=min_side
        )
    except ValueError:
        return None
    return image[:, :, 0]


def _decode_other(data: bytes) -> np.ndarray | None:
    import cv2
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as header:
            if header.width * header.height > _MAX_PIXELS:
                return None
        mode = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
        image: np.ndarray | None = cv2.imdecode(np.frombuffer(data, np.uint8), mode)
    except (
        cv2.error,
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ):
        return None
    return image
