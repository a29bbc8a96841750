"""The catalogue of sources. A source is a file in this folder and a line here, see `source.py`.

No source keeps the bytes of an image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_jobs.planning.plan import collect_class_names, infer_task
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
from beam_jobs.sources.source import SourceEntry, SourceFiles, SourceRecords
from beam_jobs.sources.user_source import read_user_records
from beam_jobs.stages import BoundStage, bind_stages, check_data, map_class_names
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.sources import AnySource, BoxOptions, ImageFolderSource, UserSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing, RawFolder
from pipeline_ops.raw_data.remote import RemoteFolder

CATALOGUE: Mapping[str, Callable[[SourceFiles, Any], Iterable[SourceEntry]]] = {
    # The key is the `type` in the YAML and the name of the file. The value is the source.
    "image_folder": image_folder.read_entries,
    "voc": voc.read_entries,
    "coco": coco.read_entries,
    "csv": csv.read_entries,
    "jsonl": jsonl.read_entries,
    "tfds": tfds.read_entries,
    "tfrecord": tfrecord.read_entries,
    "webdataset": webdataset.read_entries,
    "parquet": parquet.read_entries,
    "yolo": yolo.read_entries,
    "label_studio": label_studio.read_entries,
    "cvat": cvat.read_entries,
}


@dataclasses.dataclass(frozen=True)
class SourceData:
    """All records of a source, and the stages for it. `class_names` are those after the stages."""

    listing: Listing
    found: SourceRecords
    task: Task
    stages: Sequence[BoundStage]
    class_names: tuple[str, ...]

    @property
    def folder(self) -> RawFolder:
        return self.listing.folder


def read_source_data(config: Preprocess, listing: Listing, config_file: Path) -> SourceData:
    """Reads the source, and checks that the stages can work on it. Reads no image."""
    validate_listing(config, listing, config_file)
    found = (
        read_user_records(config.source, listing, config_file)
        if isinstance(config.source, UserSource)
        else read_records(config.source, listing)
    )
    if not found.records and found.rejected:
        raise DataError(
            f"{listing.folder}: {found.describe_rejects()}. "
            "Correct the annotations, or preprocess.source."
        )
    names = getattr(config.source, "class_names", None) or collect_class_names(found.records)
    task = infer_task(found.records)
    check_data(config, task, names, config_file)
    stages = bind_stages(config.stages, config_file)
    return SourceData(listing, found, task, stages, tuple(map_class_names(stages, names)))


def validate_listing(config: Preprocess, listing: Listing, config_file: Path | str) -> None:
    """Checks that there are files, and that their folders have only one meaning."""
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
    """Reads a source of the catalogue."""
    class_names, boxes = getattr(source, "class_names", None), getattr(source, "boxes", None)
    files = SourceFiles(listing, source.type, class_names, boxes=boxes or BoxOptions())
    return files.collect(CATALOGUE[source.type](files, source))
