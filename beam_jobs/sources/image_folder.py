"""Raw images in one folder per class: the first folder of a file's key is its label.

    <source>/cat/0001.jpg            label cat
    <source>/cat/outdoors/0002.jpg   label cat
    <source>/readme.txt              in no class folder: kept out, counted, and named in the quarantine

A folder without files is no class: what holds no file is not part of a data set's fingerprint either.
"""

from __future__ import annotations

from beam_jobs.plan import Record
from beam_jobs.statistics.summary import RejectedRecord
from pipeline_ops.contracts.listing import Listing


def label_records(listing: Listing) -> tuple[list[Record], list[RejectedRecord]]:
    """The files with their labels, and those that have none."""
    records, rejected = [], []
    for file in listing.files:
        label, separator, _ = file.key.partition("/")
        if separator:
            records.append(Record(file, label))
        else:
            rejected.append(RejectedRecord(key=file.key, stage="source", reason="no_label", detail="lies in no class folder"))
    return records, rejected
