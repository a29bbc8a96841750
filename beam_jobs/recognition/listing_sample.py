"""A part of a listing, for sources whose annotations are too many to read them all."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence
from fnmatch import fnmatchcase

from beam_jobs.recognition.source_match import count
from beam_jobs.sources.parsing import is_image_name
from pipeline_ops.config.packed_sources import PackedSource
from pipeline_ops.config.sources import AnySource
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile

MAX_ANNOTATION_FILES = 20_000
MAX_CONTAINER_BYTES = 1 << 29
_FILE_PER_IMAGE = {"voc": "Annotations", "yolo": "labels"}
"""The folder of the annotations, for sources with one annotation file for each image."""


def sample_listing(
    source: AnySource,
    listing: Listing,
    max_files: int = MAX_ANNOTATION_FILES,
    max_bytes: int = MAX_CONTAINER_BYTES,
) -> tuple[Listing, float, Sequence[str]]:
    """A part of the files that the reader of a source can read in a short time.

    Args:
      source: the source.
      listing: all of its files.
      max_files: the approximate number of annotation files to keep.
      max_bytes: the number of bytes to keep of each part, if its files hold many images each.

    Returns:
      The part, the number of times that it is contained in the whole, and remarks.
    """
    if isinstance(source, PackedSource):
        return _sample_containers(source, listing, max_bytes)
    folder = _FILE_PER_IMAGE.get(source.type, "")
    annotations = [file for file in listing.files if _is_in(folder, file)]
    if not folder or len(annotations) <= max_files:
        return listing, 1.0, ()
    share = max_files / len(annotations)
    files = tuple(
        file
        for file in listing.files
        if not _is_in("ImageSets", file)
        and (not (_is_in(folder, file) or is_image_name(file.key)) or _hash_stem(file) < share)
    )
    number = sum(_is_in(folder, file) for file in files)
    remark = (
        f"{number:,} of {count(len(annotations), 'annotation file')} were read, and no lists of "
        "splits in ImageSets"
    )
    return Listing(listing.folder, files, listing.rejected), len(annotations) / number, (remark,)


def _sample_containers(
    source: PackedSource, listing: Listing, max_bytes: int
) -> tuple[Listing, float, Sequence[str]]:
    """Keeps the first files of each part, up to a number of bytes, and at least one."""
    left_out: set[str] = set()
    used = total = 0
    for part in source.parts:
        matching = [file for file in listing.files if fnmatchcase(file.key, part.files)]
        num_bytes = 0
        for index, file in enumerate(matching):
            if index and num_bytes + file.num_bytes > max_bytes:
                left_out.add(file.key)
            else:
                num_bytes += file.num_bytes
        used, total = used + num_bytes, total + sum(file.num_bytes for file in matching)
    if not left_out:
        return listing, 1.0, ()
    files = tuple(file for file in listing.files if file.key not in left_out)
    remark = f"{used / total:.0%} of the bytes were read, so a rare class may be missing"
    return Listing(listing.folder, files, listing.rejected), total / used, (remark,)


def _is_in(folder: str, file: RawFile) -> bool:
    return bool(folder) and folder in file.key.split("/")[:-1]


def _hash_stem(file: RawFile) -> float:
    """A hash from 0 to 1 of the name that an image and its annotation share."""
    stem = posixpath.splitext(posixpath.basename(file.key))[0]
    return int.from_bytes(hashlib.blake2b(stem.encode(), digest_size=8).digest(), "big") / 2**64
