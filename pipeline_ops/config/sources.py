"""`preprocess.source` of a pipeline config: the location and the description of the raw data.

The file of the same name in `beam_jobs/sources/` reads each of them. All paths in a source except
`path` itself are relative to `path`, so that one folder holds everything that the fingerprint must
cover.
"""

from __future__ import annotations

import re
import string
from datetime import datetime
from typing import Literal

from pydantic import Field, field_validator

from pipeline_ops.config.base import Section, advanced_field, operational_field
from pipeline_ops.storage.open_store import validate_no_credentials

SplitName = Literal["train", "validation", "test"]


class Source(Section):
    """The common fields of every source.

    The location of the raw data is not fingerprinted. The digest of their contents is.
    """

    path: str = operational_field(..., is_path=True)
    """The folder that holds all of the raw data, or a URI such as s3://bucket/folder. All files
    below it are in the fingerprint. For data by day or by hour, `raw/{start:%Y-%m-%d}` contains the
    start of the run's data interval (`{end}` its end), which backfills need."""

    @property
    def folder(self) -> str:
        """The folder whose files are listed: a path, relative like `path`, or a URI."""
        return self.path

    @property
    def has_interval(self) -> bool:
        """Returns whether the location of the raw data depends on the run's data interval."""
        return bool(_find_fields(self.path))

    @property
    def required_files(self) -> dict[str, str]:
        """Files that the source requires, as paths below `path`, by the key that names each."""
        return {}

    def format_path(self, start: datetime, end: datetime) -> str:
        """Returns the path for one data interval."""
        return self.path.format(start=start, end=end)

    @field_validator("path")
    @classmethod
    def _validate_interval(cls, value: str) -> str:
        for _, field, spec, conversion in string.Formatter().parse(value):
            if field is not None and (conversion or not _INTERVAL_FORMAT.fullmatch(spec or "")):
                raise ValueError(
                    f"{{{field}}} takes a format of strftime such as %Y-%m-%d, "
                    f"got {spec or conversion!r}"
                )
        if unknown := _find_fields(value) - {"start", "end"}:
            raise ValueError(
                "only the start and the end of a run's data interval can stand in brackets, "
                f"such as {{start:%Y-%m-%d}}, got {min(unknown)!r}"
            )
        return value

    @field_validator("path")
    @classmethod
    def _validate_scheme(cls, value: str) -> str:
        validate_no_credentials(value)
        if "://" in value and not _is_known_scheme(value):
            raise ValueError(
                "must be a local folder, or a URI of an object store "
                f"such as s3://bucket/folder, got {value}"
            )
        return value


_INTERVAL_FORMAT = re.compile(r"(%[A-Za-z%]|[^%{}])*")


def _is_known_scheme(uri: str) -> bool:
    """Returns whether fsspec knows the scheme of a URI. Its driver need not be installed."""
    from fsspec.registry import known_implementations  # here: few configs name a store

    return uri.partition("://")[0] in known_implementations


def _find_fields(path: str) -> set[str]:
    """Returns the fields in brackets. Raises ValueError if a bracket is not closed."""
    return {field for _, field, _, _ in string.Formatter().parse(path) if field is not None}


def _validate_local(value: str) -> str:
    if "://" in validate_no_credentials(value):
        raise ValueError(
            f"TFRecords are read from local folders only, got {value}. Copy or mount them."
        )
    return value


class ImageFolderSource(Source):
    """Raw images in one folder per class. The folder's name is the label.

    Folders train, val and test around the class folders are the splits.
    """

    type: Literal["image_folder"]
    class_folder: Literal["outer", "inner"] | None = advanced_field(None)
    """The folder whose name is the label: the outermost one below `path` (or below the folder of a
    split), or the one that directly contains the file. Null is the outermost one, and folders that
    can be meant in both ways are refused. With `outer`, folders named train and val are classes."""


class AnnotatedSource(Source):
    """A source that names the classes in its annotations."""

    class_names: list[str] | None = Field(None, min_length=1)
    """The classes, in the order of their indices. Records with another class are left out. Null is
    all classes that occur, sorted."""

    @field_validator("class_names")
    @classmethod
    def _validate_unique(cls, value: list[str] | None) -> list[str] | None:
        if value and (duplicates := sorted({name for name in value if value.count(name) > 1})):
            raise ValueError(
                f"must name each class once, got {', '.join(duplicates)} more than once"
            )
        return value


class ImageSets(Section):
    """Names of the lists below `ImageSets/Main` that are our splits, without `.txt`.

    A list that does not exist is empty.
    """

    train: str = "train"
    validation: str = "val"
    test: str = "test"


class VocSource(AnnotatedSource):
    """Pascal VOC: `JPEGImages`, `Annotations`, and optionally `ImageSets/Main`."""

    type: Literal["voc"]
    image_sets: ImageSets | None = advanced_field(ImageSets())
    """The lists that define the splits. With null the lists are ignored, and `split` decides."""
    unlisted: Literal["reject", "ignore"] = advanced_field("reject")
    """The treatment of an image in none of the lists, if there are lists. VOC 2012 has thousands
    that are for other tasks."""


class CocoPart(Section):
    """One COCO file and its images. Both are paths below `source.path`."""

    annotations: str
    images: str = advanced_field(".")
    split: SplitName | None = None
    """The split of the part. With null, `preprocess.split` decides."""


class CocoSource(AnnotatedSource):
    """COCO's JSON for object detection."""

    type: Literal["coco"]
    parts: list[CocoPart] = Field(min_length=1)

    @property
    def required_files(self) -> dict[str, str]:
        return {
            f"parts.{index}.annotations": part.annotations for index, part in enumerate(self.parts)
        }


class ManifestSource(AnnotatedSource):
    """A file that names every image with its class or its boxes."""

    manifest: str
    """The file's path below `source.path`."""
    images: str = advanced_field(".")
    """The folder below `source.path` at which the paths in the manifest start."""
    task: Literal["classification", "detection"]
    units: Literal["pixels", "fractions"] = advanced_field("pixels")
    """Unit of the boxes' coordinates."""

    @property
    def required_files(self) -> dict[str, str]:
        return {"manifest": self.manifest}


class CsvSource(ManifestSource):
    """A CSV file with a header: `path,label`, or one row per box.

    The header for boxes is `path,xmin,ymin,xmax,ymax,label`.
    """

    type: Literal["csv"]


class JsonlSource(ManifestSource):
    """A file of JSON lines.

    Each line is `{"path", "label"}`, or
    `{"path", "boxes": [{"xmin", "ymin", "xmax", "ymax", "label"}]}`.
    """

    type: Literal["jsonl"]


class TfdsPart(Section):
    """One split of a TensorFlow Datasets builder, with the split of ours that it is."""

    name: str
    split: SplitName | None = None
    """Our split. With null, `preprocess.split` decides."""


class TfdsSource(AnnotatedSource):
    """A data set that TensorFlow Datasets has prepared already. This source does not download."""

    type: Literal["tfds"]
    path: str = operational_field("~/tensorflow_datasets", is_path=True)
    """TensorFlow Datasets' own data folder, its `data_dir`."""
    builder: str = Field(pattern=r"^[A-Za-z_][\w.]*(/[\w.-]+)?(:\d+\.\d+\.\d+)?$")
    """`name`, `name/config`, `name:1.0.0`, or the module path of a builder class,
    `my_package.my_set.MySet`."""
    parts: list[TfdsPart] = Field(min_length=1)

    _is_local = field_validator("path")(_validate_local)

    @property
    def folder(self) -> str:
        """The folder of all versions and configs of this one data set."""
        name = re.split("[/:]", self.builder)[0].rpartition(".")[2]
        return f"{self.path}/{_to_snake_case(name)}"


class TfrecordPart(Section):
    """TFRecord files, given by a pattern such as `train-*`, below `source.path`."""

    files: str
    split: SplitName | None = None
    """Our split. With null, `preprocess.split` decides."""


class TfrecordSource(AnnotatedSource):
    """TFRecords of tf.train.Example.

    They are ours, or come from the scripts of the TensorFlow Object Detection API.
    """

    type: Literal["tfrecord"]
    task: Literal["classification", "detection"]
    parts: list[TfrecordPart] = Field(min_length=1)
    label_map: str | None = advanced_field(None)
    """A `.pbtxt` file below `source.path` with names for the class numbers of the records."""

    @property
    def required_files(self) -> dict[str, str]:
        return {"label_map": self.label_map} if self.label_map else {}

    _is_local = field_validator("path")(_validate_local)


def _to_snake_case(name: str) -> str:
    """The folder's name in TensorFlow Datasets: `my_cells` for `MyCells`."""
    return re.sub(
        r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    ).lower()


AnySource = (
    ImageFolderSource
    | VocSource
    | CocoSource
    | CsvSource
    | JsonlSource
    | TfdsSource
    | TfrecordSource
)
