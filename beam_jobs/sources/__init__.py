"""The catalogue of sources: a source is a file in this folder, and a line here.

A reader gets its section of the config and the listing of the source's folder, and returns records and what can't be
one, both by key. Records say where an image is and what is known of it; no reader keeps the bytes of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from beam_jobs.sources import coco, csv, image_folder, jsonl, tfds, tfrecord, voc
from beam_jobs.sources.collect import Found
from pipeline_ops.contracts.listing import Listing
from pipeline_ops.contracts.sources import AnySource

CATALOGUE: Mapping[str, Callable[[Any, Listing], Found]] = {
    # the `type` in the YAML, which is the name of the file; then its reader
    "image_folder": image_folder.read_records,
    "voc": voc.read_records,
    "coco": coco.read_records,
    "csv": csv.read_records,
    "jsonl": jsonl.read_records,
    "tfds": tfds.read_records,
    "tfrecord": tfrecord.read_records,
}


def read_records(source: AnySource, listing: Listing) -> Found:
    """Reads a source.

    Raises:
      DataError: the source as a whole can't be read: no such manifest, not JSON, not prepared.
      MachineError: a file has changed since it was listed.
    """
    return CATALOGUE[source.type](source, listing)
