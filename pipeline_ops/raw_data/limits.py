"""The limits of what a file from outside may cost, for all readers of raw data and of weights.

A file of a few kilobytes can declare billions of rows, or unpack to gigabytes. Every reader checks
what a file declares before it allocates or loops. The limits are far above what data sets need,
such as COCO, Open Images and ImageNet, and suit a job with a few gigabytes of memory.
"""

from __future__ import annotations

from pipeline_ops.errors import DataError

# Files and folders
MAX_FILE_BYTES = 16 << 30
MAX_DEPTH = 100
"""The maximum depth of nested folders."""
MIN_SPARSE_BYTES, MIN_STORED_SHARE = 1 << 20, 0.1
"""A larger file must have at least this share of its size on the disk: reading a hole costs as much
as reading data."""

# Entries
MAX_ENTRIES = 20_000_000
"""Images of a source, usable or not. Open Images has 9 million."""
MAX_REJECTS = 1_000_000
"""Rejected entries of a source. Each takes about a kilobyte of memory until the job has ended."""

# Contents that are in memory as a whole
MAX_IMAGE_BYTES = 512 << 20
MAX_DECODED_PIXELS = 100_000_000
"""Height times width of an image that is decoded to compare it with others."""
MAX_ANNOTATION_BYTES = 2 << 30
"""A file that is parsed as a whole. The one of COCO 2017 has 450 MB."""
MAX_SAMPLE_ANNOTATION_BYTES = 16 << 20
"""The annotation of one image: a file of XML or of YOLO, a line of JSON, or a member of a tar."""
MAX_LABELME_BYTES = 64 << 20
"""The annotation of one image that may hold the image itself."""
MAX_CVAT_BYTES = 512 << 20
MAX_XML_ELEMENT_BYTES = 32 << 20
"""One element below the root. In memory, elements take up to 30 times their text."""
MAX_DESCRIPTION_BYTES = 4 << 20
"""A file that describes a data set, such as `data.yaml` or `features.json`."""
MAX_RECORD_BYTES = 1 << 30
"""A record of a TFRecord file."""
MAX_ROW_GROUP_BYTES = 1 << 30
"""A row group of Parquet: all of its columns, and those that are read as they are in memory."""
MAX_BATCH_VALUES, MAX_VALUES_PER_BYTE, MIN_VALUES = 4_000_000, 10, 1_000_000
"""Numbers and texts in lists of Parquet, which take 60 bytes each in Python: those of the rows that
are in memory together, and those of a file for each of its bytes. A small file may have more."""
MAX_ARRAY_ROW_BYTES, MAX_PACKED_ARRAY_BYTES = 512 << 20, 8 << 30
"""A row of an array of NumPy, and an array that is compressed."""

# Texts
MAX_TEXT_CHARACTERS = 1000
"""The name of a class or of a group."""
MAX_CLASSES = 100_000
"""Classes without names, of which a file has only the number."""
MAX_PATH_CHARACTERS, MAX_PATH_PARTS = 4096, 64
MAX_NESTED_LISTS = 10
"""Lists of JSON around the objects in which a field is looked up."""

# Tar archives
MAX_TAR_HEADER_BYTES, MAX_TAR_HEADER_DIGITS = 64 << 10, 100
"""An extended header of a member: its size, and the digits in a row. A number of N digits takes
Python's `tarfile` time of the order N**2 before 3.11.10 and 3.12.6 (CVE-2024-6232)."""
MAX_TAR_GLOBAL_FIELDS = 1000
"""The fields of global headers, which `tarfile` copies for each member."""
MAX_SAMPLE_MEMBERS = 1000

# Files of weights
MAX_EXPANSION, MIN_EXPANDED_BYTES = 100, 64 << 20
"""What the arrays of a file may take in memory: this many times the size of the file. A small file
may take more. Keras has the same factor for a member of a zip archive."""


class TooLarge(DataError):
    """A file would cost more than a limit. The message names the file, the place and the limit."""


def check_limit(file: object, place: str, number: int, limit: int, unit: str, cure: str) -> None:
    """Raises TooLarge if `place`, a part of `file`, has a number of `unit` beyond a limit."""
    if number > limit:
        raise TooLarge(f"{file}: {place} {number} {unit}, allowed are {limit}", cure)


def check_expansion(file: object, num_bytes: int, expanded_bytes: int) -> None:
    """Raises TooLarge if arrays of `expanded_bytes` cannot come from a file of `num_bytes`."""
    limit = max(MAX_EXPANSION * num_bytes, MIN_EXPANDED_BYTES)
    cure = f"The file has only {num_bytes} bytes. Write it again without compression."
    check_limit(file, "its arrays have", expanded_bytes, limit, "bytes", cure)
