"""Sources that read the files of labelling tools as the tools export them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_ops.config.base import Section, advanced_field
from pipeline_ops.config.source_base import AnnotatedSource


class YoloSource(AnnotatedSource):
    """The layout of Ultralytics YOLO: `data.yaml`, `images` and `labels`."""

    type: Literal["yolo"]
    data: str = advanced_field("data.yaml")
    """The file below `source.path` that names the splits and the classes of a YOLO data set."""

    @property
    def required_files(self) -> dict[str, str]:
        return {"data": self.data}


class ImagePrefix(Section):
    """A folder below `source.path`, for image references with a common beginning."""

    prefix: str = Field(min_length=1)
    """The beginning of an image reference, such as `s3://bucket/photos/`."""
    folder: str = "."


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
    prefixes: list[ImagePrefix] = advanced_field([])
    """Folders for image references. Without an entry that fits, the file with the longest part of
    the reference as its path is taken."""

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
