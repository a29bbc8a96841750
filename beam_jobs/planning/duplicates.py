"""Decides which of several equal or nearly equal images stays.

Of equal images, the one in the test split stays, before the one in validation and the one in train.
Within a split, the first by key stays. So no image that a model is tested on is in its training
data. Equal images that the source labels differently are all rejected, because the right label is
unknown.

Images are nearly equal if their perceptual hashes differ in few bits. They are visited in the same
order, and an image is removed if it is near one that stays. So no two images that stay are near
each other, and each removed image is near one that stays. Near images with different labels both
stay: a hash of 64 bits does not prove that either label is wrong.

The hash is known as pHash: the signs, about their median, of the lowest 8x8 frequencies of the grey
image at 32x32 pixels. It survives another size, another compression, and small changes of
brightness. It does not survive a crop, a rotation or a mirror image. An image with hardly any
contrast has no hash, because it would be near every other such image. The hashes are computed like
shards, by the same Beam graph, in blocks of records.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from beam_jobs.exchange import Exchange, ProgressReporter
from beam_jobs.io.raw import RawReader
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.planning.splits import split_records
from beam_jobs.statistics.summary import CONFLICTING, DUPLICATE, PlanSummary
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.contract.dataset import SPLITS, RejectedRecord
from pipeline_ops.contract.manifest import ManifestFile
from pipeline_ops.raw_data.limits import MAX_DECODED_PIXELS
from pipeline_ops.raw_data.listing import RawFolder

_STAGE = "duplicates"
_HASH_BITS = 64
MAX_HASH_DISTANCE = 4
"""Bits in which the perceptual hashes of near images may differ."""


@dataclasses.dataclass(frozen=True)
class CollectionDecision:
    """The records that stay, by split, the rejected records, and the reasons."""

    by_split: Mapping[str, list[Record]]
    quarantined: tuple[Record, ...] = ()
    rejected: tuple[RejectedRecord, ...] = ()
    """One entry for each record in `quarantined`, in the same order."""


def decide_collection(
    config: Preprocess, records: Sequence[Record], perceptual_hashes: Mapping[int, str]
) -> CollectionDecision:
    """Decides the split of each record, and which records are rejected because of others."""
    by_split = split_records(records, config.split)
    if config.duplicates == "keep":
        return CollectionDecision(by_split)
    return remove_duplicates(by_split, perceptual_hashes)


def remove_duplicates(
    by_split: Mapping[str, Sequence[Record]],
    perceptual_hashes: Mapping[int, str],
    max_bits: int = MAX_HASH_DISTANCE,
) -> CollectionDecision:
    """Perceptual hashes are 16 hex digits by content. Near ones differ in `max_bits` or less."""
    records = [record for records in by_split.values() for record in records]
    repeated = find_repeated_digests(records)
    reasons = _find_conflicts(record for record in records if record.file.digest in repeated)
    kept: dict[str, list[Record]] = {split: [] for split in by_split}
    first_by_digest: dict[int, str] = {}
    near_duplicates = _NearDuplicateIndex(max_bits)
    for split in sorted(by_split, key=SPLITS.index, reverse=True):
        for record in sorted(by_split[split], key=attrgetter("key")):
            if record.key in reasons:
                continue
            digest = record.file.digest
            if equal := first_by_digest.get(digest):
                reasons[record.key] = _reject(record, DUPLICATE, f"equal to {equal}")
            elif near := near_duplicates.find_or_add(perceptual_hashes.get(digest), record):
                reasons[record.key] = _reject(record, DUPLICATE, f"near {near}")
            else:
                kept[split].append(record)
                if digest in repeated:
                    first_by_digest[digest] = record.key
    quarantined = sorted((one for one in records if one.key in reasons), key=attrgetter("key"))
    rejected = tuple(reasons[record.key] for record in quarantined)
    return CollectionDecision(kept, tuple(quarantined), rejected)


def find_repeated_digests(records: Sequence[Record]) -> set[int]:
    """The digests that several records share, and perhaps a few others, found in little memory."""
    hashes = np.fromiter((hash(record.file.digest) for record in records), np.int64, len(records))
    hashes.sort()
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    return {record.file.digest for record in records if hash(record.file.digest) in repeated}


def _reject(record: Record, reason: str, detail: str) -> RejectedRecord:
    return RejectedRecord(key=record.key, stage=_STAGE, reason=reason, detail=detail)


def is_removed_copy(record: RejectedRecord) -> bool:
    """Returns whether it is a removed copy, which is not bad, and no reason to fail."""
    return (record.stage, record.reason) == (_STAGE, DUPLICATE)


def _find_conflicts(copies: Iterable[Record]) -> dict[str, RejectedRecord]:
    equal: dict[int, list[Record]] = defaultdict(list)
    for record in copies:
        equal[record.file.digest].append(record)
    reasons = {}
    for members in equal.values():
        if len({_sort_labels(record) for record in members}) > 1:
            members.sort(key=attrgetter("key"))
            for record in members:
                labels = _sort_labels(record)
                other = next(member for member in members if _sort_labels(member) != labels)
                ours, theirs = _describe_annotation(record), _describe_annotation(other)
                detail = f"equal to {other.key}, which is {theirs}, while this is {ours}"
                reasons[record.key] = _reject(record, CONFLICTING, detail)
    return reasons


def _sort_labels(record: Record) -> tuple[str, ...]:
    return tuple(sorted(record.labels))


def _describe_annotation(record: Record) -> str:
    if record.boxes is None:
        return record.label
    return f"{len(record.boxes)} boxes of {', '.join(sorted(set(record.labels))) or 'nothing'}"


class _NearDuplicateIndex:
    """The hashes of the images that stay.

    Two hashes that differ in at most n bits are equal in at least one of n + 1 bands. So only
    hashes with an equal band are compared.
    """

    def __init__(self, max_bits: int):
        self._max_bits = max_bits
        edges = [index * _HASH_BITS // (max_bits + 1) for index in range(max_bits + 2)]
        self._bands = [(start, (1 << end - start) - 1) for start, end in itertools.pairwise(edges)]
        self._kept = defaultdict[tuple[Any, ...], list[tuple[int, str]]](list)

    def find_or_add(self, perceptual_hash: str | None, record: Record) -> str | None:
        """The key of an image that is near and has the same annotation. Without one, this stays."""
        if perceptual_hash is None or perceptual_hash == NO_HASH:
            return None
        bits, labels = int(perceptual_hash, 16), _sort_labels(record)
        keys = [(labels, n, bits >> start & mask) for n, (start, mask) in enumerate(self._bands)]
        for band_key in keys:
            for other, key in self._kept.get(band_key, ()):
                if (bits ^ other).bit_count() <= self._max_bits:
                    return key
        for band_key in keys:
            self._kept[band_key].append((bits, record.key))
        return None


NO_HASH = "-"
"""Stands for the hash of a file that is no whole image, or of an image with hardly any contrast."""

_RECORDS_PER_BLOCK = 256
_SIDE_PIXELS, _FREQUENCIES = 32, 8
_MIN_CONTRAST = 2.0  # standard deviation, of 255


class HashedBlock(PlanSummary, frozen=True):
    """The result of the pass for one block: perceptual hashes by content."""

    perceptual_hashes: dict[int, str]


@dataclasses.dataclass(frozen=True)
class ImageHashSpec:
    """Asks for hashes instead of shards. See `ShardBuildSpec`."""

    raw_folder: RawFolder
    summary: ClassVar[type[HashedBlock]] = HashedBlock

    def create_builder(self, exchange: Exchange) -> Callable[[ShardPlan], HashedBlock]:
        return functools.partial(self._hash_block, exchange)

    def is_stored(self, file: ManifestFile) -> bool:
        return True  # a block stores no files

    def _hash_block(self, exchange: Exchange, plan: ShardPlan) -> HashedBlock:
        reporter, hashes = ProgressReporter(exchange, plan.name), {}
        reader = RawReader((record.file for record in plan.records), self.raw_folder)
        for record in plan.records:
            hashes[record.file.digest] = compute_perceptual_hash(reader.read(record.file))
            reporter.add(is_rejected=False)
        return HashedBlock(num_examples=len(plan.records), perceptual_hashes=hashes)


def plan_blocks(records: Iterable[Record], known: Iterable[int]) -> list[ShardPlan]:
    """Plans blocks of records whose content has no known hash, one record for each content."""
    by_content: dict[int, Record | None] = dict.fromkeys(known)
    for record in sorted(records, key=attrgetter("key")):
        by_content.setdefault(record.file.digest, record)
    ordered = [record for record in by_content.values() if record]
    starts = range(0, len(ordered), _RECORDS_PER_BLOCK)
    blocks = (tuple(ordered[start : start + _RECORDS_PER_BLOCK]) for start in starts)
    return [ShardPlan("", f"hashes-{index:06d}", block) for index, block in enumerate(blocks)]


def compute_perceptual_hash(data: bytes) -> str:
    """The hash of an image file as 16 hex digits, or NO_HASH."""
    import cv2

    image_HW = _decode_grey(data)
    if image_HW is None:
        return NO_HASH
    pixels, size = image_HW.astype(np.float32), (_SIDE_PIXELS, _SIDE_PIXELS)
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    if small.std() < _MIN_CONTRAST:
        return NO_HASH
    low = cv2.dct(small)[:_FREQUENCIES, :_FREQUENCIES].ravel()
    low[0] = np.median(low[1:])  # the mean brightness carries no information: its bit is always 0
    bits = low > np.median(low[1:])
    return np.packbits(bits).tobytes().hex()


def _decode_grey(data: bytes) -> np.ndarray | None:
    """The grey image, uint8 [height, width], or None. A JPEG is decoded at a small size."""
    import cv2
    import simplejpeg
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # its limit only warns at first, and ours is below
    try:
        if data.startswith(b"\xff\xd8\xff"):
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            if height * width > MAX_DECODED_PIXELS:
                return None
            side = 2 * _SIDE_PIXELS
            return simplejpeg.decode_jpeg(data, "GRAY", min_height=side, min_width=side)[:, :, 0]
        with Image.open(io.BytesIO(data)) as header:
            if header.width * header.height > MAX_DECODED_PIXELS:
                return None
        mode = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
        return cv2.imdecode(np.frombuffer(data, np.uint8), mode)
    except (cv2.error, OSError, ValueError, SyntaxError):
        return None
