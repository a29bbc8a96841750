"""What a stage is made of: the example it sees, the way to refuse one, and its parameters.

    @parameters
    class Invert:
        strength: float = Field(1.0, gt=0, le=1)

    def invert(example: Example, parameters: Invert) -> Example:
        return example.with_image(...)

A stage knows nothing of Beam, shards or files. The Airflow side imports this module to check parameters, so numpy and
OpenCV are imported inside the functions that need them.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pydantic
import pydantic.dataclasses

from pipeline_ops.contracts.errors import TrainyardError

if TYPE_CHECKING:
    import numpy as np

parameters = pydantic.dataclasses.dataclass(
    frozen=True, config=pydantic.ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True))
"""Makes a class of fields the parameters of a stage: a frozen dataclass whose values are checked where it is born."""


@dataclasses.dataclass(frozen=True)
class Box:
    """One object in an image, in pixels of the image as it is now: 0 <= ymin < ymax <= height, likewise x.

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


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One record on its way through the stages.

    `encoded` is the image file as it was read. `image` is uint8 [height, width, channels], RGB where there are three
    channels; it is there once `decode` has run, which is always the first stage. As long as `is_original` holds, the
    file's own bytes go into the shard; otherwise `image` does, encoded once, after the last stage.

    An example for classification has a `label` and no boxes; one for detection has `boxes`, maybe none of them, and the
    empty label. Until `decode` has run, the boxes are as their source gives them, for an image of the height and width
    in `frame`: (1, 1) for fractions, None for the pixels of the file; see `given_boxes.py`.
    """

    key: str
    label: str
    encoded: bytes
    image: np.ndarray | None = None
    is_original: bool = True
    boxes: tuple[Box, ...] | None = None
    frame: tuple[float, float] | None = None

    def with_image(self, image: np.ndarray) -> Example:
        """This example with other pixels."""
        return dataclasses.replace(self, image=image, is_original=False)

    def with_boxes(self, boxes: Sequence[Box]) -> Example:
        """This example with other boxes."""
        return dataclasses.replace(self, boxes=tuple(boxes))


class Reject(Exception):
    """This example can't be used: it is kept out of the shards, named in the quarantine, and counted.

    Args:
      reason: one word to count by, `too_large`.
      detail: what a person needs to find the fault, `12000x12000 pixels, at most 50 megapixels`.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class StageFailed(TrainyardError):
    """A stage raised something that is not a Reject, or returned something that is no example: a bug in the stage."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One line of the catalogue: the class of the parameters, and the function that is called with an example and them."""

    parameters: Callable[..., Any]
    function: Callable[[Example, Any], Example]


@dataclasses.dataclass(frozen=True)
class BoundStage:
    """A stage with its parameters, ready to run."""

    name: str
    function: Callable[[Example, Any], Example]
    parameters: Any

    def __call__(self, example: Example) -> Example:
        """Raises Reject as the stage does, MemoryError, and StageFailed for anything else."""
        try:
            result = self.function(example, self.parameters)
        except (Reject, MemoryError):
            raise
        except Exception as error:
            raise StageFailed(f"stage {self.name} failed on {example.key}: {type(error).__name__}: {error}") from error
        if (fault := _fault_of(result)) is not None:
            raise StageFailed(f"stage {self.name} returned {fault} for {example.key}; "
                              "it must return an Example whose image is uint8 [height, width, 1 or 3]")
        return result


def _fault_of(result: Any) -> str | None:
    if not isinstance(result, Example):
        return f"a {type(result).__name__}"
    image = result.image
    if getattr(image, "ndim", 0) != 3 or image.dtype != "uint8" or image.shape[2] not in (1, 3) or not image.size:
        return f"an image of {getattr(image, 'dtype', type(image).__name__)} {list(getattr(image, 'shape', ()))}"
    return None


def run_stages(stages: Sequence[BoundStage], example: Example, nanoseconds: Counter[str]) -> Example:
    """Runs an example through all stages and adds to the time that each has taken.

    Raises:
      Rejected: by the stage that it names.
      StageFailed: a stage has a bug.
    """
    for stage in stages:
        start = time.perf_counter_ns()
        try:
            example = stage(example)
        except Reject as reject:
            raise Rejected(stage.name, reject.reason, reject.detail) from reject
        finally:
            nanoseconds[stage.name] += time.perf_counter_ns() - start
    return example


class Rejected(Exception):
    """A Reject with the name of the stage that raised it."""

    def __init__(self, stage: str, reason: str, detail: str):
        super().__init__(stage, reason, detail)
        self.stage, self.reason, self.detail = stage, reason, detail
