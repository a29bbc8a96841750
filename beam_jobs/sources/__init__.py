"""The catalogue of sources. A source is a file in this folder and a line here, see `source.py`.

No source keeps the bytes of an image.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from beam_jobs.planning.plan import collect_class_names, infer_task
from beam_jobs.sources import (
    coco,
    csv,
    cvat,
    image_folder,
    jsonl,
    label_studio,
    labelme,
    npz,
    parquet,
    tfds,
    tfrecord,
    via,
    voc,
    webdataset,
    yolo,
)
from beam_jobs.sources.source import SourceFiles, SourceRecords
from beam_jobs.sources.user_source import read_user_records
from beam_jobs.stages import BoundStage, bind_stages, check_data, map_class_names
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.sources import (
    AnySource,
    BeamSource,
    BoxOptions,
    ImageFolderSource,
    UserSource,
)
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing, RawFolder
from pipeline_ops.raw_data.remote import RemoteFolder


class CatalogueSource(NamedTuple):
    """A module with `read_entries`, and what a folder must have for it.

    The module has `recognise`, too, for `trainyard init`, unless `needs` is empty.
    """

    module: Any
    needs: str


CATALOGUE: Mapping[str, CatalogueSource] = {
    # The key is the `type` in the YAML and the name of the file.
    "image_folder": CatalogueSource(
        image_folder, "a folder of images for each class, maybe below train and val"
    ),
    "voc": CatalogueSource(voc, "images, and XML files of Pascal VOC with the same names"),
    "coco": CatalogueSource(
        coco, "a JSON file with images, categories and annotations, and the images"
    ),
    "yolo": CatalogueSource(
        yolo, "a data.yaml, obj.data or classes.txt, and a text file of boxes for each image"
    ),
    "csv": CatalogueSource(
        csv, "a CSV file with a column of images and one of classes, maybe with boxes"
    ),
    "jsonl": CatalogueSource(jsonl, 'a .jsonl file with lines {"path": "1.jpg", "label": "cat"}'),
    "tfrecord": CatalogueSource(tfrecord, "TFRecord files with image/encoded and labels or boxes"),
    "parquet": CatalogueSource(parquet, "Parquet files"),
    "npz": CatalogueSource(npz, "an .npz file, or .npy files, with arrays of images and labels"),
    "webdataset": CatalogueSource(webdataset, "tar files in which a name has an image and a label"),
    "label_studio": CatalogueSource(
        label_studio, "the JSON export of Label Studio, and the images"
    ),
    "cvat": CatalogueSource(cvat, 'the XML export "CVAT for images", and the images'),
    "labelme": CatalogueSource(labelme, "a JSON file of LabelMe for each image"),
    "via": CatalogueSource(via, "JSON or CSV of VGG Image Annotator, and the images"),
    "tfds": CatalogueSource(tfds, ""),
}


@dataclasses.dataclass(frozen=True)
class SourceData:
    """All records of a source, and the stages for it. `class_names` are those after the stages.

    `class_numbers` has the label map's number of each of them. It is empty without a label map.
    """

    listing: Listing
    found: SourceRecords
    task: Task
    stages: Sequence[BoundStage]
    class_names: tuple[str, ...]
    class_numbers: tuple[int, ...]

    @property
    def folder(self) -> RawFolder:
        return self.listing.folder


ReadTransformed = Callable[[BeamSource, Listing, Path], tuple[Listing, SourceRecords]]


def read_source_data(
    config: Preprocess, listing: Listing, config_file: Path, read_transformed: ReadTransformed
) -> SourceData:
    """Reads the source, and checks that the stages can work on it. Reads no image.

    `read_transformed` runs the transform of a source of the type `beam`.
    """
    check_listing(config, listing, config_file)
    if isinstance(config.source, BeamSource):
        listing, found = read_transformed(config.source, listing, config_file)
    else:
        found = read_all_records(config.source, listing, config_file)
    if not found.records and found.rejected:
        raise DataError(
            f"{listing.folder}: {found.describe_rejects()}. "
            "Correct the annotations, or preprocess.source."
        )
    names = getattr(config.source, "class_names", None) or collect_class_names(found.records)
    task = infer_task(found.records)
    check_data(config, task, names, config_file)
    stages = bind_stages(config.stages, config_file)
    names = map_class_names(stages, names)
    numbers = _number_classes(names, found.class_numbers)
    return SourceData(listing, found, task, stages, tuple(names), tuple(numbers))


def _number_classes(class_names: Sequence[str], known: Mapping[str, int]) -> Iterator[int]:
    """Yields the numbers of classes by name. New ones come after the highest in the label map."""
    if known:
        later = itertools.count(max(known.values()) + 1)
        for name in class_names:
            yield known[name] if name in known else next(later)


def check_listing(config: Preprocess, listing: Listing, config_file: Path | str) -> None:
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
    source = config.source
    read = source.input_source if isinstance(source, BeamSource) else source
    if isinstance(read, ImageFolderSource):
        image_folder.check_layout(read, listing, config.split.group_by is not None)


def read_all_records(
    source: AnySource | UserSource, listing: Listing, config_file: Path
) -> SourceRecords:
    """Reads a source of the catalogue, or one of the user's own."""
    if isinstance(source, UserSource):
        return read_user_records(source, listing, config_file)
    return read_records(source, listing)


def read_records(
    source: AnySource, listing: Listing, boxes: BoxOptions | None = None
) -> SourceRecords:
    """Reads a source of the catalogue, with its own reading of boxes unless another is given."""
    class_names = getattr(source, "class_names", None)
    boxes = boxes or getattr(source, "boxes", None) or BoxOptions()
    files = SourceFiles(listing, source.type, class_names, boxes=boxes)
    return files.collect(CATALOGUE[source.type].module.read_entries(files, source))
