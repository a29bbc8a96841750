"""The catalogue of sources. A source is a file in this folder and a line here.

A reader gets its section of the config and the listing of the source's folder. It returns the
records and the entries that cannot be a record, both by key. A record has the location of an image
and its annotation. No reader keeps the bytes of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from beam_jobs.sources import (
    coco,
    csv,
    cvat,
    image_folder,
    jsonl,
    label_studio,
    parquet,
    tfds,
    tfrecord,
    voc,
    webdataset,
    yolo,
)
from beam_jobs.sources.collect import SourceRecords
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.sources import AnySource, ImageFolderSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.remote import RemoteFolder

CATALOGUE: Mapping[str, Callable[[Any, Listing], SourceRecords]] = {
    # The key is the `type` in the YAML and the name of the file. The value is the reader.
    "image_folder": image_folder.read_records,
    "voc": voc.read_records,
    "coco": coco.read_records,
    "csv": csv.read_records,
    "jsonl": jsonl.read_records,
    "tfds": tfds.read_records,
    "tfrecord": tfrecord.read_records,
    "webdataset": webdataset.read_records,
    "parquet": parquet.read_records,
    "yolo": yolo.read_records,
    "label_studio": label_studio.read_records,
    "cvat": cvat.read_records,
}


def validate_listing(config: Preprocess, listing: Listing, config_file: Path | str) -> None:
    """Checks that there are files, and that their folders have only one meaning.

    Raises:
      DataError: names the cause and the remedy.
    """
    if not listing.files:
        is_image_folder = config.source.type == "image_folder"
        content = "a folder with the images of each class" if is_image_folder else "the data set"
        similar = isinstance(listing.folder, RemoteFolder) and listing.folder.find_similar_uri()
        raise DataError(
            f"{listing.folder}: there are no files. Put {content} there, or correct "
            f"preprocess.source.path in {config_file}."
            + (f" The most similar URI is {similar}." if similar else "")
        )
    if isinstance(config.source, ImageFolderSource):
        has_groups = config.split.group_by is not None
        image_folder.validate_layout(config.source, listing, has_groups)


def read_records(source: AnySource, listing: Listing) -> SourceRecords:
    """Reads a source.

    Raises:
      DataError: the source as a whole cannot be read: no such manifest, not JSON, not prepared.
      MachineError: a file has changed since it was listed.
    """
    return CATALOGUE[source.type](source, listing)
