"""A data set that TensorFlow Datasets has prepared as TFRecords.

TensorFlow Datasets lists the files and describes their content. This module reads the records
itself, so no worker imports TensorFlow, and the files may be in a store. The features are `image`,
and `label` or `objects` with bbox, label and maybe is_crowd and is_difficult.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from beam_jobs.io.raw import read_raw, translate_read_errors
from beam_jobs.sources.packed import PackedExample, read_examples
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.config.sources import TfdsPart, TfdsSource
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.raw_data.limits import MAX_CLASSES, MAX_DESCRIPTION_BYTES, check_limit
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile

_IMAGE, _LABEL, _OBJECTS = "image", "label", "objects"
_FEATURES = "features.json"
_AGAIN = "Prepare the data set again"
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_TFDS_FEATURE = r"tensorflow_datasets\.core\.features\.[A-Za-z_.]+\Z"


def read_entries(files: SourceFiles, source: TfdsSource) -> Iterator[SourceEntry]:
    listing = files.listing
    for file in listing.files:
        if file.key.rpartition("/")[2] == _FEATURES:
            _check_features(file, listing, source.builder.partition(".")[0])
    with _open_metadata(listing) as folder:
        with _translate_builder_errors(source, listing):
            builder = _open_prepared_builder(source, listing, folder)
            schema = _read_schema(builder)
            containers = [
                (container, part.split)
                for part in source.parts
                for container in _find_containers(builder, part, files, folder)
            ]
        for container, split in containers:
            make_entry = functools.partial(_make_entry, split=split, schema=schema)
            yield from read_examples(files, container, make_entry)


def _check_features(file: RawFile, listing: Listing, builder_package: str) -> None:
    """Refuses raw data that names a foreign package, which TensorFlow Datasets would import."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        for name in (value for key, value in pairs if key in _CLASS_KEYS):
            if isinstance(name, str) and not re.match(known, name):
                fault = f"the feature {name[:100]!r} is not one of TensorFlow Datasets"
                raise DataError(f"{place}: {fault}. {_AGAIN} without it.")

    place = listing.folder / file.key
    known = rf"{_TFDS_FEATURE}|{re.escape(builder_package)}\."
    try:
        json.loads(_read_metadata(file, listing), object_pairs_hook=check)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}. {_AGAIN}.") from None


def _read_metadata(file: RawFile, listing: Listing) -> bytes:
    place = listing.folder / file.key
    check_limit(place, "has", file.num_bytes, MAX_DESCRIPTION_BYTES, "bytes", f"{_AGAIN}.")
    return read_raw(file, listing.folder)


@contextlib.contextmanager
def _open_metadata(listing: Listing) -> Iterator[Path]:
    """A local folder that describes the data set. For a store, it is a copy of the small files."""
    if isinstance(listing.folder, Path):
        yield listing.folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, listing.folder.uri.rpartition("/")[2])
        for file in listing.files:
            if file.key.endswith((".json", ".txt")):
                path = Path(f"{folder}/{file.key}")  # below it, even if the key begins with a slash
                with translate_read_errors(file.key):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(_read_metadata(file, listing))
        yield folder


@contextlib.contextmanager
def _translate_builder_errors(source: TfdsSource, listing: Listing) -> Iterator[None]:
    """A builder is user code. TensorFlow Datasets checks no field of the files that describe it."""
    try:
        yield
    except (TrainyardError, MemoryError):
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        name = f"{source.builder} in {listing.folder}"
        cure = "Prepare it, or correct preprocess.source.builder."
        raise DataError(f"TensorFlow Datasets has no {name}: {problem}. {cure}") from error


def _open_prepared_builder(source: TfdsSource, listing: Listing, folder: Path) -> Any:
    builder = make_builder(source.builder, folder.parent)
    if not builder.is_prepared():
        cure = "Set preprocess.source.download: true, or call download_and_prepare of the builder."
        raise DataError(f"{source.builder} is not prepared in {listing.folder}. {cure}")
    if builder.info.file_format.value != "tfrecord":
        fault = f"prepared as {builder.info.file_format.value}, need tfrecord"
        cure = "Prepare the data set with file_format='tfrecord'."
        raise DataError(f"{listing.folder}: {fault}. {cure}")
    return builder


def make_builder(builder: str, data_dir: Path) -> Any:
    """Makes the builder of this name or module path. Raises whatever its code raises."""
    import tensorflow_datasets

    name, _, version = builder.partition(":")
    path, _, config = name.partition("/")
    module, _, class_name = path.rpartition(".")
    if not module:
        return tensorflow_datasets.builder(builder, data_dir=str(data_dir), try_gcs=False)
    make = getattr(importlib.import_module(module), class_name)
    return make(data_dir=str(data_dir), config=config or None, version=version or None)


def _find_containers(
    builder: Any, part: TfdsPart, files: SourceFiles, folder: Path
) -> Iterator[RawFile]:
    if part.name not in builder.info.splits:
        known = suggest_name(part.name, builder.info.splits)
        raise DataError(f"{builder.info.full_name} has no split {part.name}; {known}")
    for path in builder.info.splits[part.name].filepaths:
        key = files.to_key(str(Path(path).absolute().relative_to(folder)))
        container = files.by_key.get(key)
        if container is None:
            fault = f"there is no such file, and {builder.info.full_name} lists it"
            raise DataError(f"{files.listing.folder / key}: {fault}. {_AGAIN}.")
        yield container


class _Schema(NamedTuple):
    """The names of the classes by number, and whether there are boxes instead of a label."""

    names: Sequence[str]
    has_objects: bool


def _read_schema(builder: Any) -> _Schema:
    import tensorflow_datasets

    kinds = tensorflow_datasets.features
    features = _index_by_name(builder.info.features)
    objects = _index_by_name(getattr(features.get(_OBJECTS), "feature", None))
    box = objects.get("bbox")
    has_objects = isinstance(box, kinds.BBoxFeature)
    label = objects.get(_LABEL) if has_objects else features.get(_LABEL)
    if not isinstance(features.get(_IMAGE), kinds.Image) or not isinstance(label, kinds.ClassLabel):
        need = "image (Image), and label (ClassLabel) or objects with bbox and label"
        found = ", ".join(features)
        raise DataError(f"{builder.info.full_name}: needs the features {need}, got {found}")
    box_format = getattr(getattr(box, "bbox_format", None), "value", "REL_YXYX")
    if has_objects and box_format != "REL_YXYX":
        fault = f"its boxes are {box_format}, need REL_YXYX, the default"
        raise DataError(f"{builder.info.full_name}: {fault}")
    name, number = builder.info.full_name, label.num_classes or 0
    check_limit(name, "has", number, MAX_CLASSES, "classes", f"{_AGAIN}.")
    return _Schema(label.names, has_objects)


def _index_by_name(features: Any) -> dict[str, Any]:
    """Anything but a FeaturesDict, such as a single feature, has no names."""
    return dict(features.items()) if hasattr(features, "items") else {}


def _make_entry(example: PackedExample, split: str | None, schema: _Schema) -> SourceEntry:
    image = example.make_image(_IMAGE, example.where)
    if not schema.has_objects:
        [label] = example.read_values(_LABEL, 1)
        return SourceEntry(image, _find_class_name(label, schema), split=split)
    labels_name = f"{_OBJECTS}/{_LABEL}"
    labels = example.read_values(labels_name, len(example.features.get(labels_name, [])))
    names = [_find_class_name(label, schema) for label in labels]
    edges = iter(example.read_values(f"{_OBJECTS}/bbox", 4 * len(labels), float, int))
    corners = zip(edges, edges, edges, edges, strict=True)
    flags = f"{_OBJECTS}/is_difficult", f"{_OBJECTS}/is_crowd"
    boxes = example.read_boxes(corners, names, *flags)
    return SourceEntry(image, boxes=boxes, split=split, frame=FRACTIONS, drawn_on="stored")


def _find_class_name(label: int, schema: _Schema) -> str:
    """Splits without labels have -1."""
    if not 0 <= label < len(schema.names):
        raise Reject("no_label", f"the label {label} is not one of {len(schema.names)} classes")
    return schema.names[label]
