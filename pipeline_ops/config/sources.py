"""`preprocess.source` of a pipeline config: the location and the description of the raw data.

The file of the same name in `beam_jobs/sources/` reads each of them. All paths in a source except
`path` itself are relative to `path`, so that one folder holds everything that the fingerprint must
cover.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, advanced_field, operational_field
from pipeline_ops.config.labelling_sources import CvatSource, LabelStudioSource, YoloSource
from pipeline_ops.config.packed_sources import ParquetSource, TfrecordSource, WebdatasetSource
from pipeline_ops.config.source_base import AnnotatedSource, Source, SplitName


class ImageFolderSource(Source):
    """Raw images in one folder per class. The folder's name is the label.

    Folders train, val and test around the class folders are the splits.
    """

    type: Literal["image_folder"]
    class_folder: Literal["outer", "inner"] | None = advanced_field(None)
    """The folder whose name is the label: the outermost one below `path` (or below the folder of a
    split), or the one that directly contains the file. Null is the outermost one, and folders that
    can be meant in both ways are refused. With `outer`, folders named train and val are classes."""


class ImageSets(Section):
    """Names of the lists below `ImageSets/Main` that are our splits, without `.txt`.

    A list that does not exist is empty.
    """

    train: str = "train"
    validation: str = "val"
    test: str = "test"


class VocSource(AnnotatedSource):
    """Pascal VOC: an XML file for each image, and optionally lists in `ImageSets/Main`.

    Without lists, folders train, val and test are the splits: `images/train` or `train/images`.
    """

    type: Literal["voc"]
    images: str = advanced_field("JPEGImages")
    """The folder of the images, maybe the one with the annotations, too. `.` is `path` itself."""
    annotations: str = advanced_field("Annotations")
    """The folder of the XML files."""
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


class ManifestPart(Section):
    """One file of several, and its images. Both are paths below `source.path`."""

    manifest: str
    images: str = advanced_field(".")
    split: SplitName | None = None
    """The split of entries without one. With null, `preprocess.split` decides."""


ColumnName = Literal[
    "path", "label", "xmin", "ymin", "xmax", "ymax", "split", "group", "width", "height"
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
    """The names in the file where they are not ours, such as `{path: filename, label: class}`."""
    task: Literal["classification", "detection"]
    units: Literal["pixels", "fractions"] = advanced_field("pixels")
    """Unit of the boxes' coordinates."""

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
    """A data set that TensorFlow Datasets has prepared already. This source does not download."""

    type: Literal["tfds"]
    path: str = operational_field("~/tensorflow_datasets", is_path=True)
    """TensorFlow Datasets' own data folder, its `data_dir`."""
    builder: str = Field(pattern=r"^[A-Za-z_][\w.]*(/[\w.-]+)?(:\d+\.\d+\.\d+)?$")
    """`name`, `name/config`, `name:1.0.0`, or the module path of a builder class,
    `my_package.my_set.MySet`."""
    parts: list[TfdsPart] = Field(min_length=1)

    @property
    def folder(self) -> str:
        """The folder of all versions and configs of this one data set."""
        name = re.split("[/:]", self.builder)[0].rpartition(".")[2]
        return f"{self.path}/{_to_snake_case(name)}"


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
    | WebdatasetSource
    | ParquetSource
    | YoloSource
    | LabelStudioSource
    | CvatSource
)
