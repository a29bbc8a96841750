"""Perceptual hashes of images: what a pass over the collection looks at, to find those that are nearly equal.

The hash is the one that is known as pHash: the signs, about their median, of the lowest 8x8 frequencies of the image in
grey at 32x32 pixels. It survives another size, another compression, and small changes of brightness; not a crop, a turn
or a mirror image. An image with hardly any contrast has no hash, because it would be like every other such image.

The pass runs as shards are built, but in blocks of records: only hashes come back, no image crosses a shuffle.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel

from beam_jobs.output.shard import Order, ShardBuilder
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.progress_counter import Notes

if TYPE_CHECKING:
    import numpy as np

NO_PICTURE = "-"
"""In place of a hash: the file is no whole image, or one of hardly any contrast."""

_RECORDS_PER_BLOCK = 256
_SIDE_PIXELS, _FREQUENCIES = 32, 8
_MIN_CONTRAST = 2.0  # standard deviation, of 255
_MAX_PIXELS = 100_000_000  # `decode` keeps larger ones out, or they fail there: here they must only do no harm


class HashedBlock(BaseModel, frozen=True):
    """What the pass says of one block: perceptual hashes by content."""

    num_examples: int
    pictures: dict[str, str]
    rejected: list[str] = []


@dataclasses.dataclass(frozen=True)
class PictureOrder:
    """Asks for hashes in place of shards; see `Order`."""

    order: Order
    summary: ClassVar[type[BaseModel]] = HashedBlock

    def builder(self, tally: Path, fragments: Path) -> PictureHasher:
        return PictureHasher(ShardBuilder(self.order, tally, fragments), tally)


class PictureHasher:
    """Hashes one block after another, and notes in the file `tally` how far it is."""

    def __init__(self, shards: ShardBuilder, tally: Path):
        self._shards, self._tally = shards, tally

    def build(self, plan: ShardPlan) -> HashedBlock:
        """Raises MachineError where a raw file has changed since it was listed, and Stopped."""
        notes, pictures, reader = Notes(self._tally), {}, self._shards.reader(plan)
        for record in plan.records:
            pictures[record.file.digest] = picture_hash(reader.read(record.file))
            notes.add(is_rejected=False)
        notes.flush()
        return HashedBlock(num_examples=len(plan.records), pictures=pictures)


def plan_blocks(records: Iterable[Record], known: Iterable[str]) -> list[ShardPlan]:
    """Blocks of records that have a content of which no hash is known; one for each content."""
    wanted = {record.file.digest: record for record in sorted(records, key=lambda record: record.key, reverse=True)}
    for content in known:
        wanted.pop(content, None)
    ordered = sorted(wanted.values(), key=lambda record: record.key)
    return [ShardPlan("", f"pictures-{start // _RECORDS_PER_BLOCK:06d}", tuple(ordered[start : start + _RECORDS_PER_BLOCK]))
            for start in range(0, len(ordered), _RECORDS_PER_BLOCK)]


def pictures_of(blocks: Sequence[HashedBlock]) -> dict[str, str]:
    return {content: picture for block in blocks for content, picture in block.pictures.items()}


def picture_hash(data: bytes) -> str:
    """16 hex digits, or NO_PICTURE."""
    import cv2
    import numpy as np

    image_HW = _decode_grey(data)
    if image_HW is None:
        return NO_PICTURE
    small = cv2.resize(image_HW.astype(np.float32), (_SIDE_PIXELS, _SIDE_PIXELS), interpolation=cv2.INTER_AREA)
    if small.std() < _MIN_CONTRAST:
        return NO_PICTURE
    low = cv2.dct(small)[:_FREQUENCIES, :_FREQUENCIES].ravel()
    low[0] = np.median(low[1:])  # the mean brightness says nothing: its bit is always 0
    bits = low > np.median(low[1:])
    return np.packbits(bits).tobytes().hex()


def _decode_grey(data: bytes) -> np.ndarray | None:
    """uint8 [height, width] at no more than the size that it takes, or None."""
    return _decode_jpeg(data) if data.startswith(b"\xff\xd8\xff") else _decode_other(data)


def _decode_jpeg(data: bytes) -> np.ndarray | None:
    import simplejpeg

    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > _MAX_PIXELS:
            return None
        return simplejpeg.decode_jpeg(data, "GRAY", min_height=2 * _SIDE_PIXELS, min_width=2 * _SIDE_PIXELS)[:, :, 0]
    except ValueError:
        return None


def _decode_other(data: bytes) -> np.ndarray | None:
    import cv2
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as header:
            if header.width * header.height > _MAX_PIXELS:
                return None
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION)
    except (cv2.error, OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
