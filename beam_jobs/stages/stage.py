"""The interface of stages: examples, parameters, and the exceptions that remove an example.

    @parameters
    class Invert:
        strength: float = Field(1.0, gt=0, le=1)

    def invert(example: Example, parameters: Invert) -> Example:
        return example.with_image(...)

A function may return a list instead, if one example becomes several. A stage knows nothing of Beam,
shards or files. The Airflow side imports this module to check parameters, so numpy and OpenCV are
imported inside the functions that need them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pydantic.dataclasses

from pipeline_ops.config.reading import suggest_name

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

parameters = pydantic.dataclasses.dataclass(
    frozen=True, config=pydantic.ConfigDict(strict=True, extra="forbid")
)
"""Makes a class of fields the parameters of a stage: a frozen dataclass that checks its values when
it is created."""

Names = Annotated[tuple[str, ...], pydantic.Field(strict=False, min_length=1)]
"""The type of a parameter that is a list of names in the YAML."""

_Byte = Annotated[int, pydantic.Field(ge=0, le=255)]
Color = Annotated[tuple[_Byte, _Byte, _Byte], pydantic.Field(strict=False)]
"""The type of a parameter that is a colour, `[red, green, blue]` in the YAML, each 0 to 255."""


@dataclasses.dataclass(frozen=True)
class Box:
    """One object in an image, in pixels of the current image: 0 <= ymin < ymax <= height, as for x.

    Fractions of pixels are kept. `is_crowd` and `is_difficult` are COCO's and Pascal VOC's marks.
    """

    ymin: float
    xmin: float
    ymax: float
    xmax: float
    label: str
    is_difficult: bool = False
    is_crowd: bool = False

    @property
    def area(self) -> float:
        return (self.ymax - self.ymin) * (self.xmax - self.xmin)

    @property
    def shorter_side(self) -> float:
        return min(self.ymax - self.ymin, self.xmax - self.xmin)

    @property
    def is_empty(self) -> bool:
        return self.xmin == self.xmax or self.ymin == self.ymax

    def __str__(self) -> str:
        return f"{self.label}: x {self.xmin:g} to {self.xmax:g}, y {self.ymin:g} to {self.ymax:g}"

    def transform(
        self, y_factor: float = 1, x_factor: float = 1, down: float = 0, right: float = 0
    ) -> Box:
        """The box after its image was stretched, then moved. A factor of -1 is a reflection."""
        ymin, ymax = sorted((self.ymin * y_factor + down, self.ymax * y_factor + down))
        xmin, xmax = sorted((self.xmin * x_factor + right, self.xmax * x_factor + right))
        return dataclasses.replace(self, ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax)

    def clip(self, height: float, width: float) -> Box | None:
        """The part of the box inside an image of this size, or None if there is none."""
        ymin, xmin = max(self.ymin, 0.0), max(self.xmin, 0.0)
        ymax, xmax = min(self.ymax, float(height)), min(self.xmax, float(width))
        if ymin >= ymax or xmin >= xmax:
            return None
        if (ymin, xmin, ymax, xmax) == (self.ymin, self.xmin, self.ymax, self.xmax):
            return self
        return dataclasses.replace(self, ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax)


@dataclasses.dataclass(frozen=True, slots=True)
class BoxFrame:
    """The image that boxes of a source refer to, and the treatment of boxes that leave it.

    Attributes:
      size: height and width in pixels of the image that the boxes are for, (1, 1) for boxes in
        fractions, and None if it is not known.
      drawn_on: the picture that the tool shows of an image that EXIF turns, if that is known.
      outside, max_outside: see `BoxOptions`.
    """

    size: tuple[float, float] | None = None
    drawn_on: Literal["upright", "stored"] | None = None
    outside: Literal["clip", "reject", "drop"] = "clip"
    max_outside: float = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One record on its way through the stages.

    `encoded` is the image file as it was read. `image` is uint8 [height, width, channels], RGB if
    there are three channels, and read-only. It exists once `decode` has run, which is always the
    first stage. As long as `is_original` holds, the file's own bytes go into the shard. Otherwise
    `image` does, encoded once, after the last stage.

    An example for classification has a `label` and no boxes. An example for detection has `boxes`,
    which may be empty, and the empty label. Until `decode` has run, the boxes have the form that
    their source gives them, as `frame` describes it. See `boxes.py`.

    `split` is the split of the example: train, validation or test.
    """

    key: str
    label: str
    encoded: bytes
    pixels: np.ndarray | None = None
    is_original: bool = True
    boxes: tuple[Box, ...] | None = None
    frame: BoxFrame | None = None
    split: str = "train"

    @property
    def image(self) -> np.ndarray:
        if self.pixels is None:
            raise ValueError("the image has not been decoded: decode must be the first stage")
        return self.pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the image."""
        height, width, channels = self.image.shape
        return height, width, channels

    @property
    def labels(self) -> list[str]:
        """The label of the image, or the labels of its boxes without crowds, where nothing is
        learned.
        """
        if self.boxes is None:
            return [self.label]
        return [box.label for box in self.boxes if not box.is_crowd]

    def with_image(
        self, image: np.ndarray, boxes: tuple[Box, ...] | None | EllipsisType = ...
    ) -> Example:
        """This example with other pixels, and with other boxes if a stage has moved them."""
        boxes = self.boxes if isinstance(boxes, EllipsisType) else boxes
        return self.replace(pixels=image, boxes=boxes, is_original=False)

    def with_boxes(self, boxes: Sequence[Box]) -> Example:
        """This example with other boxes."""
        return self.replace(boxes=tuple(boxes))

    def replace(self, **changes: Any) -> Example:
        """This example with other fields. Takes a fifth of the time of `dataclasses.replace`."""
        example = object.__new__(Example)
        example.__dict__.update(self.__dict__, **changes)
        return example


class Reject(Exception):
    """An example that cannot be used.

    It is not in the shards. The quarantine names it, and it is counted by `reason`, one word such
    as `too_large`. `detail` has the facts that a person needs to find the fault, such as
    `12000x12000 pixels, at most 50 megapixels`.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class Rejected(Exception):
    """A Reject with the name of the stage that it counts for."""

    def __init__(self, stage: str, reason: str, detail: str):
        super().__init__(stage, reason, detail)
        self.stage, self.reason, self.detail = stage, reason, detail


class Skip(Exception):
    """A valid example that is not needed.

    It is not in the shards. It is counted by `reason`, one word such as `class`, but has no budget.
    """

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def find_unknown_class(names: Iterable[str], class_names: Sequence[str]) -> str | None:
    """The problem with the classes that a parameter names, or None. For the `check` of a stage."""
    for name in names:
        if name not in class_names:
            cure = suggest_name(name, class_names)
            return f"there is no class {name!r} before this stage; {cure}"
    return None


@dataclasses.dataclass(frozen=True)
class Stage:
    """One line of the catalogue: the class of the parameters, and the function."""

    parameters: Callable[..., Any]
    function: Callable[[Example, Any], Example | list[Example]]
    """Returns an example, or a list of examples with keys of their own."""
    map_class: Callable[[str, Any], str | None] | None = None
    """For a stage that renames or drops classes: the name that a class has afterwards, or None. The
    driver derives the class names from it."""
    check: Callable[[Any, str, Sequence[str]], str | None] | None = None
    """For a stage that cannot work on all data. It takes the parameters, "classification" or
    "detection", and the names of the classes before the stage. It returns the problem, or None."""
    serve: Callable[[tf.Tensor, Any], tf.Tensor | tuple[tf.Tensor, tf.Tensor]] | None = None
    """The stage as a part of the SavedModel: a TensorFlow function of an image, uint8 [H, W, C],
    and the parameters, with the result of `function`. A stage that moves pixels also returns its
    window, float32 [4]: ymin, xmin, ymax, xmax of the part of the image that the result shows, in
    fractions of the image. A stage without it may not change pixels of validation and test
    examples, unless the config leaves it to the client (`served: by_client`)."""
    splits: bool = False
    """For a stage that makes several examples of one: `serve` returns all of their images, uint8
    [T, H, W, C], and their windows, float32 [T, 4]."""
