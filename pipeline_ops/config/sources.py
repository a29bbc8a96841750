"""`preprocess.source` of a pipeline config: the location and the description of the raw data.

The file of the same name in `beam_jobs/sources/` reads each of them. All paths in a source except
`path` itself are relative to `path`, so that one folder holds everything that the fingerprint must
cover.

A source with a type of the user's own is a function, or an entry point of an installed package,
whose code is not imported here:

    source: {type: "patients:patients", path: ../data, min_age: 18}    a file next to the YAML
    source: {type: my_package.my_module:patients, path: ../data}       an installed package
    source: {type: patients, path: ../data}                            an entry point

All its keys besides `type`, `path` and `class_names` are parameters, which the source itself checks
(`beam_jobs/sources/user_source.py`).
"""

from __future__ import annotations

import glob
import importlib.metadata
import re
import string
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self, TypeGuard, get_args

from pydantic import Field, Tag, TypeAdapter, ValidationError, field_validator, model_validator

from pipeline_ops.config.fields import (
    JsonSchema,
    Section,
    add_forms,
    advanced_field,
    operational_field,
)
from pipeline_ops.config.schema import make_case
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.open_store import check_no_credentials, is_remote
from pipeline_ops.storage.store_options import READ_SCHEMES


def find_module_path(group: str, name: str) -> str | None:
    """Returns `module:attribute` for a module path or a published name, or None for another name.

    `group` is one of entry points, `trainyard.stages` or `trainyard.sources`. Raises ConfigError if
    two installed packages publish the name.
    """
    if ":" in name:
        return name
    found = {
        entry.value: entry.dist.name if entry.dist else "?"
        for entry in importlib.metadata.entry_points(group=group, name=name)
    }
    if len(found) > 1:
        kind = group.rpartition(".")[2].removesuffix("s")
        raise ConfigError(
            f"several installed packages have a {kind} {name} "
            f"({', '.join(sorted(found.values()))}). Name one by its module path: "
            f"{' or '.join(sorted(found))}."
        )
    return next(iter(found), None)


def list_published_names(group: str) -> list[str]:
    """Returns the names that all installed packages publish in a group."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def find_publishers(group: str, name: str) -> set[str]:
    """Returns the installed distributions that publish a name."""
    found = importlib.metadata.entry_points(group=group, name=name)
    return {entry.dist.name for entry in found if entry.dist}


SplitName = Literal["train", "validation", "test"]


class Source(Section):
    """The common fields of every source.

    The location of the raw data is not fingerprinted. The digest of their contents is.
    """

    path: str = operational_field(..., is_path=True)
    """The folder that holds all of the raw data, or a URI such as s3://bucket/folder. All files
    below it are in the fingerprint, for `tfrecord`, `webdataset`, `parquet` and `npz` those that
    the config names. For data by day or by hour, `raw/{start:%Y-%m-%d}` contains the start of the
    run's data interval (`{end}` its end), which backfills need."""

    @property
    def folder(self) -> str:
        """The folder whose files are listed: a path, relative like `path`, or a URI."""
        return self.path

    @property
    def interval_key(self) -> str:
        """The key that depends on the run's data interval, "" for none."""
        return "path" if _find_fields(self.path) else ""

    @property
    def has_interval(self) -> bool:
        """Returns whether the data depend on the run's data interval."""
        return self.interval_key != ""

    @property
    def required_files(self) -> dict[str, str]:
        """Files that the source requires, as paths below `path`, by the key that names each."""
        return {}

    @property
    def file_patterns(self) -> tuple[str, ...] | None:
        """Globs of the files below `path` that are read, as fnmatch takes them. None is all."""
        return None

    def format_interval(self, start: datetime, end: datetime) -> dict[str, Any]:
        """Returns the values of keys for one data interval."""
        return {"path": self.path.format(start=start, end=end)}

    @field_validator("path")
    @classmethod
    def _validate_path(cls, value: str) -> str:
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
        check_no_credentials(value)
        scheme, separator, _ = value.partition("://")
        if separator and scheme not in ("file", *READ_SCHEMES):
            raise ValueError(
                f"must be a local folder, or a URI with {', '.join(READ_SCHEMES)}, "
                f"such as s3://bucket/folder, got {value}"
            )
        return value


_INTERVAL_FORMAT = re.compile(r"(%[A-Za-z%]|[^%{}])*")


def _find_fields(path: str) -> set[str]:
    """Returns the fields in brackets. Raises ValueError if a bracket is not closed."""
    return {field for _, field, _, _ in string.Formatter().parse(path) if field is not None}


BoxFormat = Literal["xyxy", "yxyx", "xywh", "center_xywh"]


class BoxOptions(Section):
    """The reading of boxes that tools write differently. Equal boxes of one image count once."""

    outside: Literal["clip", "reject", "drop"] = "clip"
    """The treatment of a box that leaves its image by more than a pixel. `clip` cuts it off, or
    rejects the image if the box leaves it by more than `max_outside`. `reject` rejects the image.
    `drop` drops the box, so that its object becomes background."""
    max_outside: float = Field(0.1, ge=0, le=1)
    """For `clip`, the largest part of the image's height or width by which a box may leave it. The
    default is that of the TensorFlow Object Detection API."""
    drawn_on: Literal["upright", "stored"] | None = None
    """The picture that boxes refer to if EXIF turns an image and the annotated size does not tell:
    `upright` as browsers show it, or `stored`. Null is what is known of the format: upright for
    `yolo`, `cvat`, `label_studio`, `labelme` and `via`, stored for `tfds` and `tfrecord`. For other
    sources, such images are rejected then."""


class AnnotatedSource(Source):
    """A source that names the classes in its annotations."""

    class_names: list[str] | None = Field(None, min_length=1)
    """The classes, in the order of their indices. Records with another class are left out. Null is
    all classes that occur, sorted."""
    boxes: BoxOptions = advanced_field(BoxOptions())

    @field_validator("class_names")
    @classmethod
    def _validate_unique(cls, value: list[str] | None) -> list[str] | None:
        value = value and [unicodedata.normalize("NFC", name) for name in value]  # as labels
        if value and (duplicates := sorted({name for name in value if value.count(name) > 1})):
            raise ValueError(
                f"must name each class once, got {', '.join(duplicates)} more than once"
            )
        return value


class FilesPart(Section):
    """Files, given by a pattern such as `train-*`, below `source.path`."""

    files: str
    split: SplitName | None = None
    """Our split. With null, `preprocess.split` decides."""


class PackedSource(AnnotatedSource):
    """Files with many images each. Only the files that `parts` names are read."""

    task: Literal["classification", "detection"]
    parts: list[FilesPart] = Field(min_length=1)

    @property
    def file_patterns(self) -> tuple[str, ...] | None:
        return tuple(part.files for part in self.parts)


class TfrecordSource(PackedSource):
    """TFRecords of tf.train.Example.

    They are ours, or come from the scripts of the TensorFlow Object Detection API.
    """

    type: Literal["tfrecord"]
    label_map: str | None = advanced_field(None)
    """A `.pbtxt` file below `source.path` with names for the class numbers of the records."""

    @property
    def required_files(self) -> dict[str, str]:
        return {"label_map": self.label_map} if self.label_map else {}

    @property
    def file_patterns(self) -> tuple[str, ...]:
        """The records, the label map, and the manifest of shards of ours."""
        label_map = (glob.escape(self.label_map),) if self.label_map else ()
        return (*(part.files for part in self.parts), *label_map, "manifest.json")


class FieldBoxOptions(BoxOptions):
    """The name of a field alone is short for `{field: ...}`."""

    field: str = "boxes"
    """The field with the boxes of an image, each with four numbers in `box_format`, or an object
    with xmin, ymin, xmax, ymax and label."""

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: Any) -> Any:
        return {"field": value} if isinstance(value, str) else value

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        add_forms(schema, {"type": "string"})


class FieldsSource(PackedSource):
    """Annotations in named fields: the columns of Parquet files, or the keys of a sample's JSON.

    `objects.bbox` is the field `bbox` inside `objects`.
    """

    label: str = "label"
    """The field with the class of an image, or with the classes of its boxes. A number is an index
    into `class_names`. Without `class_names`, or if they are numbers, it is the name itself."""
    boxes: FieldBoxOptions = advanced_field(FieldBoxOptions())
    corners: list[str] | None = advanced_field(None, min_length=4, max_length=4)
    """Four fields in the order of `box_format`, each with one number per box, instead of
    `boxes`."""
    box_format: BoxFormat = "xyxy"
    """The numbers of a box: the corners, or a corner or the center with width and height. COCO has
    `xywh`, and Keras uses the same names."""
    units: Literal["pixels", "fractions"] = advanced_field("pixels")
    """Unit of the boxes' coordinates."""
    split: str | None = advanced_field(None)
    """The field with the split of an image. It takes precedence over the split of the part."""
    group: str | None = advanced_field(None)
    """The field with the group of an image, for `preprocess.split.group_by`."""


class WebdatasetSource(FieldsSource):
    """Tar shards of WebDataset.

    The members of a sample have one name up to its first dot: `000017.jpg`, `000017.cls`.
    """

    type: Literal["webdataset"]
    parts: list[FilesPart] = Field([FilesPart(files="*.tar")], min_length=1)
    annotation: Literal["cls", "txt", "json"] | None = None
    """For `webdataset`, the member of a sample with its annotation: a number or a name in `cls`, a
    name in `txt`, or fields in `json`. Null is `cls`, and `json` for detection."""
    image: str | None = advanced_field(None)
    """For `webdataset`, the part of the image's name after the first dot, such as `jpg`. Null is
    the only image of a sample."""

    @property
    def annotation_suffix(self) -> str:
        return self.annotation or ("json" if self.task == "detection" else "cls")

    @model_validator(mode="after")
    def _validate_annotation(self) -> WebdatasetSource:
        needs = {"task: detection": self.task == "detection", "split": self.split is not None}
        needs["group"] = self.group is not None
        if self.annotation_suffix != "json" and (keys := [key for key in needs if needs[key]]):
            raise ValueError(
                f"{keys[0]} needs annotation: json, got annotation: {self.annotation_suffix}"
            )
        return self


class ParquetSource(FieldsSource):
    """Parquet files with a column of images, one row per image."""

    type: Literal["parquet"]
    parts: list[FilesPart] = Field([FilesPart(files="*.parquet")], min_length=1)
    image: str = "image"
    """For `parquet`, the column with the bytes of the images, with `{bytes, path}` as Hugging Face
    writes it, or with paths."""
    images: str | None = advanced_field(None)
    """For `parquet`, the folder below `source.path` at which the paths in the column `image` start.
    With null, the column holds bytes."""

    @property
    def file_patterns(self) -> tuple[str, ...] | None:
        return super().file_patterns if self.images is None else None


class ArraysPart(FilesPart):
    """Arrays of images and of their labels in files of NumPy, by their names in them."""

    images: str | None = None
    """For `npz`, the array of the images, in an `.npz` file with a single array and in an `.npy`
    file its name without suffix. Null finds pairs by their names, such as `x_train` and `y_train`,
    or `val_images` and `val_labels`."""
    labels: str | None = None
    """For `npz`, the array of the labels."""

    @model_validator(mode="after")
    def _validate_pair(self) -> Self:
        if (self.images is None) != (self.labels is None):
            raise ValueError("needs images and labels, or none of them")
        return self


class NpzSource(AnnotatedSource):
    """Arrays of NumPy, as Keras's data sets and medMNIST have them.

    Images are [N, H, W] or [N, H, W, C]. Labels are numbers, one-hot rows or text. The split of a
    part, or else the names of its arrays, tell the splits.
    """

    type: Literal["npz"]
    parts: list[ArraysPart] = Field([ArraysPart(files="*.np[yz]")], min_length=1)

    @property
    def file_patterns(self) -> tuple[str, ...]:
        return tuple(part.files for part in self.parts)


class YoloSource(AnnotatedSource):
    """The layouts of Ultralytics YOLO, Darknet, labelImg and keras-yolo3."""

    type: Literal["yolo"]
    data: str = advanced_field("data.yaml")
    """The file below `source.path` that names the classes of a YOLO data set: Ultralytics'
    `data.yaml` or Darknet's `obj.data`, with the splits, or one class a line, as in `classes.txt`
    or `obj.names`. In the last case, lists beside it or folders are the splits."""

    @property
    def required_files(self) -> dict[str, str]:
        return {"data": self.data}


class LabelStudioSource(AnnotatedSource):
    """Label Studio's export as JSON or JSON-MIN."""

    type: Literal["label_studio"]
    export: str
    """The path of Label Studio's export below `source.path`."""
    task: Literal["classification", "detection"] = "detection"
    """For `label_studio`, `detection` is the default. Rectangles and polygons count for it, and
    choices for `classification`."""
    image_key: str = advanced_field("image")
    """The key of a task's data that holds the image."""
    control: str | None = advanced_field(None)
    """The name of the tag in the labelling interface whose results count, their `from_name`. Null
    is all of them. The choices of a JSON-MIN export need a name, and null is `choice`."""
    annotation: Literal["only", "first", "last"] = advanced_field("only")
    """The annotation that counts if an image has several, by the time of creation. With `only`, the
    image is rejected. Cancelled and skipped annotations never count."""
    unannotated: Literal["reject", "ignore"] = advanced_field("reject")
    """The treatment of a task whose annotations are all missing, cancelled or skipped."""
    prefixes: dict[Annotated[str, Field(min_length=1)], str] = advanced_field({})
    """Folders below `source.path` by the beginning of an image reference, such as
    `s3://bucket/photos/`. Without an entry that fits, the file with the longest part of the
    reference as its path is taken."""

    @property
    def required_files(self) -> dict[str, str]:
        return {"export": self.export}


class CvatSource(AnnotatedSource):
    """CVAT's export in the format "CVAT for images 1.1"."""

    type: Literal["cvat"]
    annotations: str = "annotations.xml"
    """The path of CVAT's XML file below `source.path`."""
    images: str = advanced_field("images")
    """For `cvat`, the folder below `source.path` at which the images' names start, and `images` by
    default."""
    task: Literal["classification", "detection"] = "detection"
    """For `cvat`, `detection` is the default. Boxes, polygons and masks count for it, and tags for
    `classification`."""

    @property
    def required_files(self) -> dict[str, str]:
        return {"annotations": self.annotations}


class LabelmeSource(AnnotatedSource):
    """LabelMe's JSON files, one for each image, anywhere below `path`.

    Folders train, val and test at one depth are the splits.
    """

    type: Literal["labelme"]


class ImageFolderSource(Source):
    """Raw images in one folder per class. The folder's name is the label.

    Folders such as train, val and test_set around the class folders, or in them, are the splits.
    """

    type: Literal["image_folder"]
    class_folder: Literal["outer", "inner"] | None = advanced_field(None)
    """The folder whose name is the label: the outermost one below `path` (or below the folder of a
    split), or the one that directly contains the file. Null is the outermost one, and folders that
    can be meant in both ways are refused. With `outer`, folders named train and val are classes."""


class VocSource(AnnotatedSource):
    """Pascal VOC: an XML file for each image, and optionally lists in `ImageSets/Main`.

    Without lists, folders train, val and test are the splits: `images/train` or `train/images`.
    """

    type: Literal["voc"]
    images: str = advanced_field("JPEGImages")
    """The folder of the images, maybe the one with the annotations, too. `.` is `path` itself."""
    annotations: str = advanced_field("Annotations")
    """The folder of the XML files."""
    image_sets: dict[SplitName, str] | None = advanced_field({})
    """The lists in `ImageSets/Main` that define the splits, without `.txt`, where they are not
    `{train: train, validation: val, test: test}`. A list that does not exist is empty. With null
    the lists are ignored, and `split` decides."""
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
    box_format: BoxFormat = advanced_field("xywh")
    """The numbers of a `bbox`. COCO has the upper left corner, width and height, and some files
    have two corners, `xyxy`."""

    @property
    def required_files(self) -> dict[str, str]:
        return {f"parts.{i}.annotations": part.annotations for i, part in enumerate(self.parts)}


class ManifestPart(Section):
    """One file of several, and its images. Both are paths below `source.path`."""

    manifest: str
    images: str = advanced_field(".")
    split: SplitName | None = None
    """The split of entries without one. With null, `preprocess.split` decides."""


class ViaSource(AnnotatedSource):
    """VGG Image Annotator's project or annotations, as JSON or CSV."""

    type: Literal["via"]
    parts: list[ManifestPart] = Field(min_length=1)
    attribute: str | None = None
    """The attribute of the regions that holds the class. Null is the only one."""
    single_class: str | None = advanced_field(None)
    """The class of all regions, if they have no attribute with classes."""

    @property
    def required_files(self) -> dict[str, str]:
        return {f"parts.{i}.manifest": part.manifest for i, part in enumerate(self.parts)}


ColumnName = Literal[
    "path", "label", "boxes", "xmin", "ymin", "xmax", "ymax", "split", "group", "width", "height"
]


class ManifestSource(AnnotatedSource):
    """A file, or several, that name every image with its class or its boxes."""

    manifest: str | None = None
    """The file's path below `source.path`."""
    images: str = advanced_field(".")
    """The folder below `source.path` at which the paths in the manifest start."""
    parts: list[ManifestPart] = advanced_field([])
    """Several files, instead of `manifest` and `images`."""
    find_by: Literal["path", "name"] = advanced_field("path")
    """name: the image with the same file name, with or without its suffix, anywhere below `images`.
    For paths of another machine, and names without their folders."""
    columns: dict[ColumnName, str] = advanced_field({})
    """The names in the file where they are not ours, such as `{path: filename, label: class}`. In
    `jsonl`, `objects.bbox` is the key `bbox` inside `objects`."""
    task: Literal["classification", "detection"]
    corners: list[str] | None = advanced_field(None, min_length=4, max_length=4)
    """Four columns with the numbers of a box in the order of `box_format`, such as
    `[x, y, width, height]`, instead of xmin, ymin, xmax and ymax."""
    box_format: BoxFormat = advanced_field("xyxy")
    """The numbers of a box in `corners`, or in the column `boxes`. A corner or the center with
    width and height are `xywh` and `center_xywh`."""
    units: Literal["pixels", "fractions"] = advanced_field("pixels")
    """Unit of the boxes' coordinates."""
    one_hot: list[str] | None = advanced_field(None, min_length=2)
    """Columns with the names of the classes, of which each row has 1 in one and 0 in the others,
    instead of the column `label`."""
    single_class: str | None = advanced_field(None)
    """The class of all boxes, if the file has no column with classes."""

    @property
    def required_files(self) -> dict[str, str]:
        return {key: part.manifest for key, part in self.list_parts().items()}

    def list_parts(self) -> dict[str, ManifestPart]:
        """The parts by the key that names the file of each."""
        if self.manifest is not None:
            return {"manifest": ManifestPart(manifest=self.manifest, images=self.images)}
        return {f"parts.{index}.manifest": part for index, part in enumerate(self.parts)}

    @model_validator(mode="after")
    def _validate_manifest(self) -> Self:
        if (self.manifest is None) == (not self.parts):
            raise ValueError("needs either manifest or parts")
        if self.one_hot and self.task == "detection":
            raise ValueError("one_hot: needs task: classification")
        return self


class CsvSource(ManifestSource):
    """A CSV file with a header: `path,label`, or one row per box.

    The header for boxes is `path,xmin,ymin,xmax,ymax,label`. `columns` gives other names.
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
    """A data set of TensorFlow Datasets, prepared already or by the first run."""

    type: Literal["tfds"]
    path: str = operational_field("~/tensorflow_datasets", is_path=True)
    """TensorFlow Datasets' own data folder, its `data_dir`."""
    builder: str = Field(pattern=r"^[A-Za-z_][\w.]*(/[\w.-]+)?(:\d+\.\d+\.\d+)?$")
    """`name`, `name/config`, `name:1.0.0`, or the module path of a builder class,
    `my_package.my_set.MySet`."""
    parts: list[TfdsPart] = Field(min_length=1)
    download: bool = operational_field(False)
    """Has TensorFlow Datasets download and prepare the data set in `path`, on Airflow's host, if it
    is not there yet."""

    @model_validator(mode="after")
    def _validate_download(self) -> Self:
        if self.download and (is_remote(self.path) or self.has_interval):
            raise ValueError(
                f"download: true needs a folder of Airflow's host as path, got {self.path}. "
                "Prepare the data set there once, and leave download out."
            )
        return self

    @property
    def folder(self) -> str:
        """The folder of all versions and configs of this one data set: `my_cells` for `MyCells`."""
        name = re.split("[/:]", self.builder)[0].rpartition(".")[2]
        words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
        words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words)
        return f"{self.path}/{words.lower()}"


AnySource = (
    ImageFolderSource
    | VocSource
    | CocoSource
    | CsvSource
    | JsonlSource
    | TfdsSource
    | TfrecordSource
    | WebdatasetSource
    | ParquetSource
    | NpzSource
    | YoloSource
    | LabelStudioSource
    | CvatSource
    | LabelmeSource
    | ViaSource
)


ENTRY_POINT_GROUP = "trainyard.sources"
"""The group of entry points in which sources are published."""
CATALOGUE_TAG, _USER_TAG, BEAM_TAG = "catalogue", "user", "beam"
CATALOGUE_TYPES = frozenset(
    name
    for member in get_args(AnySource)
    for name in get_args(member.model_fields["type"].annotation)
)


_MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:"
_CATALOGUE_SOURCE: TypeAdapter[AnySource] = TypeAdapter(
    Annotated[AnySource, Field(discriminator="type")]
)


class OwnCodeSource(AnnotatedSource):
    """Code of the user's own that finds images and their annotations. `code_key` names it."""

    code_key: ClassVar[str]
    parameters: dict[str, Any] = {}
    """Parameters of a source or a transform of your own. They may also stand next to `type`. In
    those of a transform, `{end:%Y-%m-%d}` is replaced as in `path`."""

    @model_validator(mode="before")
    @classmethod
    def _collect_parameters(cls, value: Any) -> Any:
        """Reads the short form of YAML, with the parameters next to `type`."""
        if not isinstance(value, dict) or "parameters" in value:
            return value
        own = {name: value[name] for name in value if name not in cls.model_fields}
        return {name: value[name] for name in value if name not in own} | {"parameters": own}

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        schema["additionalProperties"] = True
        names = {"propertyNames": {"enum": [*schema["properties"]]}}
        schema |= {"if": {"required": ["parameters"]}, "then": names}

    @property
    def code_name(self) -> str:
        """`module:name` of the code, or the name of an entry point."""
        return str(getattr(self, self.code_key))


class BeamSource(OwnCodeSource):
    """A transform of Apache Beam of the user's own that yields the entries."""

    code_key = "transform"
    type: Literal["beam"]
    transform: str = Field(pattern=rf"^{_MODULE}[A-Za-z_]\w*$")
    """For `beam`, `module:Class` of the transform, with the module next to the YAML or in an
    installed package."""
    input: dict[str, Any] | None = advanced_field(None)
    """For `beam`, another source whose entries the transform gets, by its keys besides `path`. With
    null, the transform reads the data itself."""

    @property
    def interval_key(self) -> str:
        texts = filter(_is_text, self.parameters.values())
        own = "parameters" if any(map(_INTERVAL_FIELD.search, texts)) else ""
        return super().interval_key or own

    @property
    def required_files(self) -> dict[str, str]:
        return self.input_source.required_files if self.input_source else {}

    @property
    def file_patterns(self) -> tuple[str, ...] | None:
        return self.input_source.file_patterns if self.input_source else None

    @property
    def input_source(self) -> AnySource | None:
        """The source whose entries the transform gets."""
        if self.input is None:
            return None
        return _CATALOGUE_SOURCE.validate_python({**self.input, "path": self.path})

    def format_interval(self, start: datetime, end: datetime) -> dict[str, Any]:
        moments = {"start": start, "end": end}

        def format_field(match: re.Match[str]) -> str:
            return moments[match[1]].strftime(match[2])

        found = {
            name: _INTERVAL_FIELD.sub(format_field, value) if _is_text(value) else value
            for name, value in self.parameters.items()
        }
        return super().format_interval(start, end) | {"parameters": found}

    @model_validator(mode="after")
    def _validate_input(self) -> Self:
        try:
            if isinstance(self.input_source, TfdsSource):
                raise ValueError("input: must not be of the type tfds")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, ("input", *first["loc"][1:])))
            raise ValueError(f"{place}: {first['msg']}") from None
        return self


_INTERVAL_FIELD = re.compile(r"\{(start|end):([A-Za-z%-]*)\}")


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)


class UserSource(OwnCodeSource):
    """A function of the user's own that finds images and their annotations."""

    code_key = "type"
    type: str = Field(pattern=rf"^({_MODULE})?[A-Za-z_]\w*$")
    """For a source of your own: `module:function`, with the module next to the YAML or in an
    installed package, or the name of an entry point in the group `trainyard.sources`."""


def select_source_tag(value: Any) -> str:
    """Returns which of the sections reads a source."""
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if name == BEAM_TAG:
        return BEAM_TAG
    if not isinstance(name, str) or name in CATALOGUE_TYPES:
        return CATALOGUE_TAG
    return _USER_TAG if find_module_path(ENTRY_POINT_GROUP, name) else CATALOGUE_TAG


CatalogueOrUserSource = (
    Annotated[Annotated[AnySource, Field(discriminator="type")], Tag(CATALOGUE_TAG)]
    | Annotated[BeamSource, Tag(BEAM_TAG)]
    | Annotated[UserSource, Tag(_USER_TAG)]
)


def extend_source_schema(union: JsonSchema) -> None:
    """Makes one schema of those of the catalogue, of `BeamSource` and of `UserSource`, in place."""
    schema, beam, user = union.pop("oneOf")
    own = sorted({*list_published_names(ENTRY_POINT_GROUP)} - CATALOGUE_TYPES - {BEAM_TAG})
    is_own = {"type": "string", "anyOf": [{"pattern": ":"}, *([{"enum": own}] if own else [])]}
    names = schema["properties"]["type"]
    names["enum"].append(BEAM_TAG)
    names["enumDescriptions"].append(BeamSource.__doc__)
    schema["properties"]["type"] = {"anyOf": [names, is_own]}
    schema["allOf"] += [make_case("type", {"const": BEAM_TAG}, beam)]
    schema["allOf"] += [make_case("type", is_own, user)]
    union |= schema
