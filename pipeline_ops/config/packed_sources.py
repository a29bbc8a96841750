"""Sources whose files hold many images each: TFRecord, tar shards of WebDataset, Parquet."""

from __future__ import annotations

import glob
from typing import Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, advanced_field
from pipeline_ops.config.source_base import AnnotatedSource, SplitName


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


class FieldsSource(PackedSource):
    """Annotations in named fields: the columns of Parquet files, or the keys of a sample's JSON.

    `objects.bbox` is the field `bbox` inside `objects`.
    """

    label: str = "label"
    """The field with the class of an image, or with the classes of its boxes. A number is an index
    into `class_names`. Without `class_names`, or if they are numbers, it is the name itself."""
    boxes: str = "boxes"
    """The field with the boxes of an image, each with four numbers in `box_format`, or an object
    with xmin, ymin, xmax, ymax and label."""
    corners: list[str] | None = advanced_field(None, min_length=4, max_length=4)
    """Four fields in the order of `box_format`, each with one number per box, instead of
    `boxes`."""
    box_format: Literal["xyxy", "yxyx", "xywh", "center_xywh"] = "xyxy"
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
        if self.annotation_suffix != "json":
            needs = {"task: detection": self.task == "detection", "split": self.split is not None}
            needs["group"] = self.group is not None
            for key in (key for key, is_set in needs.items() if is_set):
                raise ValueError(
                    f"{key} needs annotation: json, got annotation: {self.annotation_suffix}"
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
