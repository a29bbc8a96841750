"""A data set that TensorFlow Datasets has prepared.

The builder may be any, by name or class, with an image and a label or objects. TensorFlow Datasets
says where the files are and what is in them. The files are TFRecords, which this module reads
itself, so no worker imports TensorFlow. This module downloads and prepares nothing. Data sets in
another file format, such as array_record, are refused.

    image                                             the image, as the builder has encoded it
    label                                             a ClassLabel: classification
    objects: bbox, label, is_crowd, is_difficult      detection; the last two may be missing
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, Files, Found, make_box
from beam_jobs.sources.packed import Features, add_containers, flags, floats, integers, packed_image
from beam_jobs.stages.given_boxes import FRACTIONS
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import TfdsPart, TfdsSource
from pipeline_ops.config.yaml_source import nearest
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile

_IMAGE, _LABEL, _OBJECTS = "image", "label", "objects"
_FEATURES, _MAX_FEATURES_BYTES = "features.json", 4 << 20
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_OWN_FEATURE = re.compile(r"tensorflow_datasets\.core\.features\.[A-Za-z_.]+")


def read_records(source: TfdsSource, listing: Listing) -> Found:
    """Raises DataError: the data set is not prepared, lacks a split, or is of an unsupported
    kind."""
    check_features(listing, source.builder.partition(".")[0])
    builder = _prepared_builder(source, listing.folder)
    schema = _schema_of(builder)
    collector, files = Collector(source.class_names), Files(listing)
    for part in source.parts:
        make = functools.partial(_make_record, split=part.split, schema=schema)
        add_containers(_containers(builder, part, files, listing), listing.folder, collector, make)
    return collector.found()


def check_features(listing: Listing, own_package: str) -> None:
    """Refuses a prepared data set that names features of other packages.

    TensorFlow Datasets would import these packages.

    Args:
      listing: the files of the data set.
      own_package: the package of the builder, which the config names.

    Raises:
      DataError: names the file and the feature.
    """
    for file in listing.files:
        if file.key.rpartition("/")[2] == _FEATURES:
            for name in _class_names_in(_read_json(file, listing)):
                if not _OWN_FEATURE.fullmatch(name) and not name.startswith(f"{own_package}."):
                    raise DataError(
                        f"{listing.folder / file.key}: the feature {name[:100]!r} "
                        "is not one of TensorFlow Datasets' own; "
                        "prepare the data set again without it"
                    )


def _read_json(file: RawFile, listing: Listing) -> Any:
    if file.num_bytes > _MAX_FEATURES_BYTES:
        raise DataError(
            f"{listing.folder / file.key}: has {file.num_bytes} bytes, "
            f"allowed are {_MAX_FEATURES_BYTES}"
        )
    try:
        return json.loads(read_raw(file, listing.folder))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{listing.folder / file.key}: not JSON: {error}; prepare the data set again"
        ) from None


def _class_names_in(value: Any) -> Iterator[str]:
    """Yields the Python classes in a description of features, in the old or the new file format."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in _CLASS_KEYS and isinstance(inner, str):
                yield inner
            else:
                yield from _class_names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _class_names_in(inner)


def _prepared_builder(source: TfdsSource, folder: Path) -> Any:
    """The builder. `folder` is the data set's folder inside that of TensorFlow Datasets."""
    name, _, version = source.builder.partition(":")
    try:
        builder = _builder_of(name, version or None, str(folder.parent))
        is_prepared = builder.is_prepared()
    except Exception as error:  # a builder is foreign code
        first_line = next(iter(str(error).splitlines()), "")
        raise DataError(
            f"TensorFlow Datasets has no {source.builder} in {folder.parent}: "
            f"{type(error).__name__}: {first_line}; "
            "prepare it, or correct preprocess.source.builder"
        ) from error
    if not is_prepared:
        raise DataError(
            f"{source.builder} is not prepared in {folder.parent}: "
            "call download_and_prepare of the builder once; this job downloads nothing"
        )
    if builder.info.file_format.value != "tfrecord":
        raise DataError(
            f"{builder.data_dir}: prepared as {builder.info.file_format.value}, "
            "and only tfrecord is read; prepare it with file_format='tfrecord'"
        )
    return builder


def _builder_of(name: str, version: str | None, data_dir: str) -> Any:
    import tensorflow_datasets

    plain, _, config = name.partition("/")
    if "." not in plain:
        return tensorflow_datasets.builder(
            f"{name}:{version}" if version else name, data_dir=data_dir, try_gcs=False
        )
    module, _, class_name = plain.rpartition(".")
    builder_class = getattr(importlib.import_module(module), class_name)
    return builder_class(data_dir=data_dir, config=config or None, version=version)


def _containers(builder: Any, part: TfdsPart, files: Files, listing: Listing) -> Iterator[RawFile]:
    """The files of one of the builder's splits."""
    if part.name not in builder.info.splits:
        raise DataError(
            f"{builder.info.full_name} has no split {part.name}; "
            f"{nearest(part.name, builder.info.splits)}"
        )
    for path in builder.info.splits[part.name].filepaths:
        key = files.key(".", str(Path(path).absolute().relative_to(listing.folder)))
        container = files.get(key)
        if container is None:
            raise DataError(
                f"{path}: missing, though {builder.info.full_name} says that it has it; "
                "prepare the data set again"
            )
        yield container


@dataclasses.dataclass(frozen=True)
class _Schema:
    """The classes and the kind of a data set.

    `names` are the names of the classes, by number. `has_objects` means boxes, and no label of the
    whole image.
    """

    names: Sequence[str]
    has_objects: bool


def _schema_of(builder: Any) -> _Schema:
    """Raises DataError: the data set has no image, or neither label nor boxes that can be read."""
    import tensorflow_datasets

    kinds = tensorflow_datasets.features
    features = _by_name(builder.info.features)
    objects = _by_name(getattr(features.get(_OBJECTS), "feature", None))
    has_objects = isinstance(objects.get("bbox"), kinds.BBoxFeature)
    label = objects.get(_LABEL) if has_objects else features.get(_LABEL)
    if not isinstance(features.get(_IMAGE), kinds.Image) or not isinstance(label, kinds.ClassLabel):
        raise DataError(
            f"{builder.info.full_name}: needs the features image (Image), "
            "and label (ClassLabel) or objects with bbox and label; "
            f"it has {', '.join(features)}"
        )
    if has_objects and getattr(objects["bbox"].bbox_format, "value", "REL_YXYX") != "REL_YXYX":
        raise DataError(
            f"{builder.info.full_name}: its boxes are {objects['bbox'].bbox_format.value}; "
            "only REL_YXYX, the default, is read"
        )
    return _Schema(label.names, has_objects)


def _by_name(features: Any) -> dict[str, Any]:
    """The features of a FeaturesDict by name. Anything else, such as a single feature, has none."""
    return dict(features.items()) if hasattr(features, "items") else {}


def _make_record(
    container: RawFile,
    offset: int,
    key: str,
    features: Features,
    split: str | None,
    schema: _Schema,
) -> Record:
    image = packed_image(container, offset, key, _IMAGE, features)
    if not schema.has_objects:
        return Record(image, _name_of(integers(features, _LABEL, 1)[0], schema), split=split)
    labels = features.get(f"{_OBJECTS}/{_LABEL}", [])
    count = len(labels)
    names = [_name_of(label, schema) for label in integers(features, f"{_OBJECTS}/{_LABEL}", count)]
    edges = floats(features, f"{_OBJECTS}/bbox", 4 * count)
    difficult, crowd = (
        flags(features, f"{_OBJECTS}/{name}", count) for name in ("is_difficult", "is_crowd")
    )
    boxes = tuple(
        make_box(edges[4 * index : 4 * index + 4], names[index], difficult[index], crowd[index])
        for index in range(count)
    )
    return Record(image, boxes=boxes, split=split, frame=FRACTIONS)


def _name_of(label: int, schema: _Schema) -> str:
    """Raises Reject: no_label. Splits without labels have -1."""
    if not 0 <= label < len(schema.names):
        raise Reject("no_label", f"the label {label} is none of {len(schema.names)} classes")
    return schema.names[label]
