"""The facts about a data set from which its first config is made.

The reader of the source reads the annotations, as the preprocess job does. A sample of the images
is decoded. Of a data set with very many annotation files, or of large TFRecord files, only a part
is read, and `remarks` says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
import time
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from beam_jobs.io.raw import RawReader, open_raw
from beam_jobs.planning.plan import (
    Record,
    check_labels,
    collect_class_names,
    count_planned_crowds,
    count_planned_labels,
    hash_key,
    infer_task,
    shuffle,
)
from beam_jobs.planning.splits import split_records
from beam_jobs.sources import check_listing, read_all_records
from beam_jobs.sources.folder_view import read_orientation
from beam_jobs.sources.parsing import is_image_name
from beam_jobs.sources.source import SourceRecords
from beam_jobs.sources.wording import count, join_names
from beam_jobs.stages.boxes import is_unclear
from beam_jobs.stages.decode import Decode, count_bits, decode
from beam_jobs.stages.stage import Reject
from beam_jobs.statistics.summary import RejectedRecord
from pipeline_ops.cli.record_remarks import describe_records
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.preprocess import Preprocess, Split
from pipeline_ops.config.sources import BeamSource, CatalogueOrUserSource, PackedSource
from pipeline_ops.contract.remarks import describe_unlearned
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing, RawFolder
from pipeline_ops.raw_data.raw_file import RawFile

_FILE_PER_IMAGE = {"voc": "Annotations", "yolo": "labels"}
"""The folder of the annotations, for sources with one annotation file for each image."""
_MISREAD = ("box_outside", "box_inverted", "box_fraction", "unknown_class")
_MAX_MISREAD = 0.4
"""Share of records with a wrong box or class, of those that are right."""
_MAX_ORIENTED = 50_000
"""Number of images whose orientation is read."""
_MAX_DECODED = 100
"""Number of images that are decoded, and of files that do not look like images."""
_STRATIFIED_BELOW, _MAX_CLASSES_SHOWN = 1000, 20
_MIN_BOXES, _CORNER = 20, 0.6
"""From this number of boxes on, it is no chance that all lie in this part of their images."""
_CURE = "Add training images of it, or take it out of the data."
_SPLITS = (Split(train=0.8, validation=0.1, test=0.1), Split(train=0.6, validation=0.2, test=0.2))


@dataclasses.dataclass
class DecodedSample:
    """Some images after `decode`.

    `sizes` are heights and widths in pixels. `box_sides` are the shorter sides of the boxes, as
    fractions of the longer side of their image, and `box_ends` are their different lower right
    corners, as fractions of the height and the width. `num_rejected` is the expected number in the
    whole data set. `decode_seconds` is the mean time of an image. `bits` is the number of bits that
    files of 16 bits use, or 0 if there are none.
    """

    sizes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    box_sides: list[float] = dataclasses.field(default_factory=list)
    is_grey: bool = True
    rejected: list[RejectedRecord] = dataclasses.field(default_factory=list)
    num_rejected: int = 0
    decode_seconds: float = 0.0
    bits: int = 0
    box_ends: set[tuple[float, float]] = dataclasses.field(default_factory=set)

    @property
    def num_decoded(self) -> int:
        return len(self.sizes) + len(self.rejected)

    def add(self, record: Record, encoded: bytes) -> None:
        """Decodes an image."""
        try:
            example = decode(record.to_example(encoded), Decode())
        except Reject as reject:
            self.rejected.append(RejectedRecord(key=record.key, stage="decode", **vars(reject)))
            return
        height, width, _ = example.shape
        self.sizes.append((height, width))
        for box in example.boxes or ():
            self.box_sides.append(box.shorter_side / max(height, width))
            self.box_ends.add((box.ymax / height, box.xmax / width))
        self.is_grey = self.is_grey and bool((example.image == example.image[:, :, :1]).all())
        self.bits = max(self.bits, count_bits(encoded))

    def describe_sizes(self) -> str:
        heights, widths = zip(*self.sizes, strict=True)
        low, high = f"{min(widths)}x{min(heights)}", f"{max(widths)}x{max(heights)}"
        sizes = low if low == high else f"{low} to {high}"
        return f"{len(heights):,} decoded images have {sizes} pixels (width x height)"

    def describe_corner(self) -> str:
        """Says that all boxes lie near the upper left corner of their images, else ""."""
        if len(self.box_ends) < _MIN_BOXES or max(map(max, self.box_ends)) > _CORNER:
            return ""
        down, right = map(max, zip(*self.box_ends, strict=True))
        return (
            f"all {len(self.box_sides):,} boxes tried lie in the upper left {down:.0%} (height) by "
            f"{right:.0%} (width) of their images, as boxes in percent or for smaller pictures do. "
            "Convert such boxes to pixels of the images that are here"
        )


@dataclasses.dataclass(frozen=True)
class DataSummary:
    """A data set in figures.

    `labels` counts images, or boxes for detection, by class, among the records in `found`. Crowds
    do not count. `notes` are sentences about annotations that may not be what their owner means.
    `given_splits` are the splits that the source gives, if it gives every record one. `factor` is
    the size of the data set, divided by the size of the part that was read. `untested` are the
    classes without a test image, if all was read. `num_unclear` is the number of images that EXIF
    turns while nothing tells which picture their boxes are for.
    """

    task: Task
    labels: Counter[str]
    split: Split
    given_splits: Sequence[str]
    num_images: dict[str, int]
    found: SourceRecords
    sample: DecodedSample
    factor: float
    remarks: Sequence[str]
    untested: Sequence[str] = ()
    num_unclear: int = 0
    notes: Sequence[str] = ()

    @property
    def total(self) -> int:
        return sum(self.num_images.values())

    @property
    def num_rejects(self) -> int:
        return round(len(self.found.rejected) * self.factor) + self.sample.num_rejected

    @property
    def allowed_rejects(self) -> int:
        """The expected rejects, and a hundredth of the images if only a part was decoded."""
        is_part = self.sample.num_decoded < len(self.found.records)
        return self.num_rejects + (self.total // 100 if is_part else 0)

    def describe_splits(self) -> str:
        return ", ".join(f"{number:,} {name}" for name, number in self.num_images.items())

    def describe_classes(self, with_counts: bool = False) -> str:
        counts = sorted(self.labels.items())
        names = [f"{name} ({number:,})" if with_counts else name for name, number in counts]
        return join_names(names, _MAX_CLASSES_SHOWN)


def summarise(source: dict[str, object], listing: Listing, config_file: Path) -> DataSummary:
    """Reads the annotations and a sample of the images.

    `source` is a valid section `preprocess.source`, and `listing` has its files. `config_file` will
    hold it. Raises DataError if the data set cannot be used, or is too small.
    """
    values = {"source": source, "stages": ["decode"], "split": _SPLITS[0]}
    config = Preprocess.model_validate(values)
    part, factor, remarks = sample_listing(config.source, listing)
    check_listing(config, part, "the config")
    if isinstance(config.source, BeamSource):
        raise TypeError("no recogniser finds a transform")
    found = read_all_records(config.source, part, config_file)
    if not found.records:
        raise DataError(f"{listing.folder}: no entry can be used. {found.describe_rejects()}")
    try:
        sample = _decode_sample(found.records, listing.folder, factor)
        split, by_split = _choose_split(found.records, str(listing.folder), factor)
    except DataError as error:
        if not found.rejected:
            raise
        raise DataError(f"{error} {found.describe_rejects()}") from None
    num_misread = sum(entry.reason in _MISREAD for entry in found.rejected)
    if num_misread > _MAX_MISREAD * len(found.records):
        raise DataError(
            f"{listing.folder}: {found.describe_rejects()}. So many say that the data are read "
            "wrongly. Correct them, or write preprocess.source by hand (docs/data-sources.md)."
        )
    given = {record.split for record in found.records}
    by_class = count_planned_labels(by_split)
    unlearned = describe_unlearned(by_class, collect_class_names(found.records))
    untested = sorted({*itertools.chain(*by_class.values())} - by_class["test"].keys())
    return DataSummary(
        infer_task(found.records),
        Counter(label for record in found.records for label in record.learned_labels),
        split,
        sorted(name for name in given if name) if None not in given else (),
        {name: round(len(members) * factor) for name, members in by_split.items()},
        found,
        sample,
        factor,
        remarks,
        untested if factor == 1 else (),
        _count_unclear(found.records, listing.folder, sample),
        unlearned + describe_records(by_split),
    )


def _count_unclear(records: Sequence[Record], folder: RawFolder, sample: DecodedSample) -> int:
    """The number of images, among many, whose boxes are for an unknown one of two pictures.

    Of images inside other files, those of the sample are looked at.
    """
    if not isinstance(records[0].file, RawFile):
        return sum(each.reason == "unclear_orientation" for each in sample.rejected)
    number = 0
    for record in shuffle(records, b"init", 0)[:_MAX_ORIENTED]:
        frame = record.frame
        if record.boxes and frame and not frame.drawn_on and isinstance(record.file, RawFile):
            with open_raw(record.file, folder) as opened:
                number += is_unclear(frame, *read_orientation(opened))
    return number


def _choose_split(
    records: Sequence[Record], source: str, factor: float
) -> tuple[Split, dict[str, list[Record]]]:
    """Returns the shares of the splits, and the records in each."""
    is_small = len(records) * factor < _STRATIFIED_BELOW and any(not r.split for r in records)
    names, task = collect_class_names(records), infer_task(records)
    found: tuple[Split, dict[str, list[Record]]] | None = None
    too_few = f"{count(len(records), 'image')} cannot be divided into three splits. Add images."
    for shares, stratify in itertools.product(_SPLITS, (True,) if is_small else (False, True)):
        split = shares.model_copy(update={"stratify": stratify})
        by_split = split_records(records, split)
        try:
            labels, crowds = count_planned_labels(by_split), count_planned_crowds(by_split)
            check_labels(labels, names, source, task, lambda _: too_few, _CURE, crowds)
            if not describe_unlearned(labels, names):
                return split, by_split
            found = found or (split, by_split)
        except DataError as error:
            last = error
    if found:
        return found
    raise last


def _decode_sample(records: Sequence[Record], folder: RawFolder, factor: float) -> DecodedSample:
    """Decodes some images. Files that do not look like images are tried by themselves."""
    sample, num_rejected, started = DecodedSample(), 0.0, time.perf_counter()
    for is_usual in (True, False):
        group = [each for each in records if is_image_name(each.file.key) == is_usual]
        tried, before = shuffle(group, b"init", 0)[:_MAX_DECODED], len(sample.rejected)
        reader = RawReader((record.file for record in tried), folder)
        for record in tried:
            sample.add(record, reader.read(record.file))
        num_rejected += (len(sample.rejected) - before) * len(group) / max(1, len(tried))
    if not sample.sizes:
        first = sample.rejected[0]
        fault = f"none of {count(len(sample.rejected), 'image')} tried can be used"
        raise DataError(f"{folder}: {fault}, such as {first.key}: {first.reason}, {first.detail}.")
    sample.num_rejected = round(num_rejected * factor)
    sample.decode_seconds = (time.perf_counter() - started) / sample.num_decoded
    return sample


def sample_listing(
    source: CatalogueOrUserSource,
    listing: Listing,
    max_files: int = 20_000,
    max_bytes: int = 1 << 29,
) -> tuple[Listing, float, Sequence[str]]:
    """Selects files that the reader of a source can read in a short time.

    About `max_files` annotation files are kept. If files hold many images each, `max_bytes` of each
    part of the source are kept. Returns the part, the factor from it to the whole, and remarks.
    """
    if isinstance(source, PackedSource):
        return _sample_containers(source, listing, max_bytes)
    folder = _FILE_PER_IMAGE.get(source.type, "")
    annotations = {file.key for file in listing.files if folder in file.key.split("/")[:-1]}
    total = len(annotations)
    if total <= max_files:
        return listing, 1.0, ()

    def is_kept(file: RawFile) -> bool:
        stem = posixpath.splitext(posixpath.basename(file.key))[0]  # of image and annotation
        is_sampled = file.key in annotations or is_image_name(file.key)
        share = hash_key(b"init", 0, stem.casefold()) / 2**64 if is_sampled else 0.0
        return share < max_files / total and "ImageSets" not in file.key.split("/")[:-1]

    files = tuple(filter(is_kept, listing.files))
    number = sum(file.key in annotations for file in files)
    read = f"{number:,} of {count(total, 'annotation file')} were read"
    remarks = [f"{read}, and no lists of splits in ImageSets"]
    return Listing(listing.folder, files, listing.rejected), total / number, remarks


def _sample_containers(
    source: PackedSource, listing: Listing, max_bytes: int
) -> tuple[Listing, float, Sequence[str]]:
    """Keeps the first files of each part, up to a number of bytes, and at least one."""
    left_out: set[str] = set()
    used = total = 0
    for part in source.parts:
        num_bytes = 0
        for file in [each for each in listing.files if fnmatchcase(each.key, part.files)]:
            total += file.num_bytes
            if num_bytes and num_bytes + file.num_bytes > max_bytes:
                left_out.add(file.key)
            else:
                num_bytes += file.num_bytes
        used += num_bytes
    if not left_out:
        return listing, 1.0, ()
    files = tuple(file for file in listing.files if file.key not in left_out)
    remark = f"{used / total:.0%} of the bytes were read, so a rare class may be missing"
    return Listing(listing.folder, files, listing.rejected), total / used, (remark,)
