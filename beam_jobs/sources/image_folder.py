"""Raw images in one folder per class: the first folder of a file's key is its label.

    <source>/cat/0001.jpg            label cat
    <source>/cat/outdoors/0002.jpg   label cat
    <source>/readme.txt              in no class folder: kept out, counted, and named in the quarantine

A folder without files is no class: what holds no file is not part of a data set's fingerprint either.
"""

from __future__ import annotations

from beam_jobs.plan import Record
from beam_jobs.sources.collect import Collector, Found
from pipeline_ops.contracts.listing import Listing
from pipeline_ops.contracts.sources import ImageFolderSource


def read_records(_source: ImageFolderSource, listing: Listing) -> Found:
    """The files with their labels, and those that have none."""
    collector = Collector()
    for file in listing.files:
        label, separator, _ = file.key.partition("/")
        if separator:
            collector.add(Record(file, label), file.key)
        else:
            collector.reject(file.key, "no_label", "lies in no class folder")
    return collector.found()
