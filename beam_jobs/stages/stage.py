"""What a stage is made of: the example it sees, the way to refuse one, and its parameters.

    @parameters
    class Invert:
        strength: float = Field(1.0, gt=0, le=1)

    def invert(example: Example, parameters: Invert) -> Example:
        return example.with_image(...)

A function may return a list instead, where one example becomes several. A stage knows nothing of Beam, shards or files.
The Airflow side imports this module to check parameters, so numpy and OpenCV are imported inside the functions that
need them.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import pydantic.dataclasses

from pipeline_ops.config.yaml_source import nearest
from pipeline_ops.errors import ConfigError, TrainyardError

if TYPE_CHECKING:
    import numpy as np

parameters = pydantic.dataclasses.dataclass(
    frozen=True, config=pydantic.ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True))
"""Makes a class of fields the parameters of a stage: a frozen dataclass whose values are checked where it is born."""

Names = Annotated[tuple[str, ...], pydantic.Field(strict=False, min_length=1)]
"""The type of a parameter that is a list of names in the YAML."""

_Byte = Annotated[int, pydantic.Field(ge=0, le=255)]
Color = Annotated[tuple[_Byte, _Byte, _Byte], pydantic.Field(strict=False)]
"""The type of a parameter that is a colour, `[red, green, blue]` in the YAML, each 0 to 255."""


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


class Undecoded:
    """Pixels that nobody has asked for yet: their shape, and how to get them. They are decoded once, by the first who asks.

    Args:
      shape: height, width and channels.
      decode: returns the image; it may raise Reject, which counts as `decode`'s, whichever stage was the one to ask.
    """

    def __init__(self, shape: tuple[int, int, int], decode: Callable[[], np.ndarray]):
        self.shape, self._decode = shape, decode
        self._image: np.ndarray | None = None

    @property
    def is_decoded(self) -> bool:
        return self._image is not None

    @property
    def image(self) -> np.ndarray:
        if self._image is None:
            try:
                self._image = self._decode()
            except Reject as reject:
                raise Rejected("decode", reject.reason, reject.detail) from reject
        return self._image


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One record on its way through the stages.

    `encoded` is the image file as it was read. `image` is uint8 [height, width, channels], RGB where there are three
    channels; it is there once `decode` has run, which is always the first stage. As long as `is_original` holds, the
    file's own bytes go into the shard; otherwise `image` does, encoded once, after the last stage. Where `decode` looks at
    headers only, `image` is decoded by the first stage that asks for it; one that needs no more than `shape` leaves it alone.

    An example for classification has a `label` and no boxes; one for detection has `boxes`, maybe none of them, and the
    empty label. Until `decode` has run, the boxes are as their source gives them, for an image of the height and width
    in `frame`: (1, 1) for fractions, None for the pixels of the file; see `given_boxes.py`.

    `split` is the one that the example will be in: train, validation or test.
    """

    key: str
    label: str
    encoded: bytes
    pixels: np.ndarray | Undecoded | None = None
    is_original: bool = True
    boxes: tuple[Box, ...] | None = None
    frame: tuple[float, float] | None = None
    split: str = "train"

    @property
    def image(self) -> np.ndarray | None:
        return self.pixels.image if isinstance(self.pixels, Undecoded) else self.pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the image, without decoding it."""
        return self.pixels.shape

    @property
    def is_decoded(self) -> bool:
        """Whether `image` costs nothing."""
        return not isinstance(self.pixels, Undecoded) or self.pixels.is_decoded

    def with_image(self, image: np.ndarray) -> Example:
        """This example with other pixels."""
        return dataclasses.replace(self, pixels=image, is_original=False)

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


class Skip(Exception):
    """This example is sound but not wanted: it is kept out of the shards and counted, and is held to no budget.

    Args:
      reason: one word to count by, `class`.
    """

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def unknown_classes(names: Iterable[str], class_names: Sequence[str]) -> str | None:
    """What is wrong with the classes that a parameter names; for the `check` of a stage."""
    for name in names:
        if name not in class_names:
            return f"there is no class {name!r} before this stage; {nearest(name, class_names)}"
    return None


class StageFailed(TrainyardError):
    """A stage raised something that is not a Reject, or returned something that is no example: a bug in the stage."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One line of the catalogue.

    Args:
      parameters: the class of the parameters.
      function: called with an example and the parameters; returns an example, or a list of them with keys of their own.
      class_after: for a stage that renames or drops classes. It is called with the name of a class and the parameters,
        and returns the name that the class has afterwards, or None. The driver learns the class names by it.
      check: for a stage that can't work on everything. It is called with the parameters, "classification" or
        "detection", and the names of the classes as they are before the stage, and returns what is wrong.
    """

    parameters: Callable[..., Any]
    function: Callable[[Example, Any], Example | list[Example]]
    class_after: Callable[[str, Any], str | None] | None = None
    check: Callable[[Any, str, Sequence[str]], str | None] | None = None


@dataclasses.dataclass(frozen=True)
class BoundStage:
    """A stage with its parameters, ready to run."""

    name: str
    function: Callable[[Example, Any], Example | list[Example]]
    parameters: Any
    class_after: Callable[[str, Any], str | None] | None = None
    check: Callable[[Any, str, Sequence[str]], str | None] | None = None

    def __call__(self, example: Example) -> list[Example]:
        """What the stage makes of one example: one, most often.

        Raises:
          Reject, Skip: as the stage does.
          StageFailed: the stage has a bug.
          ConfigError, MemoryError: not the stage's fault.
        """
        try:
            result = self.function(example, self.parameters)
        except (Reject, Rejected, Skip, ConfigError, MemoryError):
            raise
        except Exception as error:
            raise StageFailed(f"stage {self.name} failed on {example.key}: {type(error).__name__}: {error}") from error
        examples = result if isinstance(result, list) else [result]
        if (fault := _fault_of(examples)) is not None:
            raise StageFailed(f"stage {self.name} returned {fault} for {example.key}; "
                              "it must return an Example whose image is uint8 [height, width, 1 or 3]")
        return examples


def _fault_of(examples: list[Any]) -> str | None:
    if not examples:
        return "an empty list (to leave an example out, raise Skip)"
    for example in examples:
        if not isinstance(example, Example):
            return f"a {type(example).__name__}"
        if isinstance(example.pixels, Undecoded):
            continue
        image = example.pixels
        if getattr(image, "ndim", 0) != 3 or image.dtype != "uint8" or image.shape[2] not in (1, 3) or not image.size:
            return f"an image of {getattr(image, 'dtype', type(image).__name__)} {list(getattr(image, 'shape', ()))}"
    if len(examples) > 1 and len({example.key for example in examples}) < len(examples):
        return "two examples with one key"
    return None


def run_stages(stages: Sequence[BoundStage], example: Example, nanoseconds: Counter[str], skipped: Counter[str] | None = None) -> list[Example]:
    """Runs what one record holds through all stages.

    Where a stage makes several examples of one, each goes to the end before the next: only the finished are held.

    Args:
      stages: the stages, in order.
      example: as it was read.
      nanoseconds: the time that each stage has taken is added here.
      skipped: examples that were not wanted are counted here, by `<stage>: <reason>`.

    Returns:
      The finished examples; none, if all of them were skipped.

    Raises:
      Rejected: by the stage that it names. It goes for the record, and so for all that was made of it.
      StageFailed: a stage has a bug.
    """
    if not stages:
        return [example]
    stage, *rest = stages
    start = time.perf_counter_ns()
    try:
        examples = stage(example)
    except Reject as reject:
        raise Rejected(stage.name, reject.reason, reject.detail) from reject
    except Skip as skip:
        if skipped is not None:
            skipped[f"{stage.name}: {skip.reason}"] += 1
        return []
    finally:
        nanoseconds[stage.name] += time.perf_counter_ns() - start
    return [finished for each in examples for finished in run_stages(rest, each, nanoseconds, skipped)]


def class_names_after(stages: Iterable[BoundStage], class_names: Iterable[str]) -> list[str]:
    """The classes that are left of these when all stages have run, under their new names, in the order in which they first come."""
    names = list(class_names)
    for stage in stages:
        if stage.class_after:
            renamed = [stage.class_after(name, stage.parameters) for name in names]
            names = list(dict.fromkeys(name for name in renamed if name is not None))
    return names


class Rejected(Exception):
    """A Reject with the name of the stage that it counts for."""

    def __init__(self, stage: str, reason: str, detail: str):
        super().__init__(stage, reason, detail)
        self.stage, self.reason, self.detail = stage, reason, detail
