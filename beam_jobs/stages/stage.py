"""The interface of stages: examples, parameters, and the exceptions that keep an example out.

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
    frozen=True,
    config=pydantic.ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True),
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


class Undecoded:
    """Pixels that are decoded once, on the first access. Their shape is known before.

    Args:
      shape: height, width and channels.
      decode: returns the image. It may raise Reject, which counts as a reject of `decode`,
        whichever stage accesses the pixels.
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

    `encoded` is the image file as it was read. `image` is uint8 [height, width, channels], RGB if
    there are three channels. It exists once `decode` has run, which is always the first stage. As
    long as `is_original` holds, the file's own bytes go into the shard. Otherwise `image` does,
    encoded once, after the last stage. If `decode` reads headers only, the first stage that
    accesses `image` decodes it. A stage that needs only `shape` leaves it undecoded.

    An example for classification has a `label` and no boxes. An example for detection has `boxes`,
    which may be empty, and the empty label. Until `decode` has run, the boxes have the form that
    their source gives them, for an image of the height and width in `frame`: (1, 1) for fractions,
    None for the pixels of the file. See `given_boxes.py`.

    `split` is the split of the example: train, validation or test.
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
        """True if access to `image` costs nothing."""
        return not isinstance(self.pixels, Undecoded) or self.pixels.is_decoded

    def with_image(self, image: np.ndarray) -> Example:
        """This example with other pixels."""
        return dataclasses.replace(self, pixels=image, is_original=False)

    def with_boxes(self, boxes: Sequence[Box]) -> Example:
        """This example with other boxes."""
        return dataclasses.replace(self, boxes=tuple(boxes))


class Reject(Exception):
    """An example that can't be used.

    It is kept out of the shards, named in the quarantine, and counted.

    Args:
      reason: one word to count by, `too_large`.
      detail: the facts that a person needs to find the fault, `12000x12000 pixels, at most 50
        megapixels`.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class Skip(Exception):
    """An example that is sound but not wanted.

    It is kept out of the shards and counted, and counts towards no budget.

    Args:
      reason: one word to count by, `class`.
    """

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def unknown_classes(names: Iterable[str], class_names: Sequence[str]) -> str | None:
    """The problem with the classes that a parameter names, or None. For the `check` of a stage."""
    for name in names:
        if name not in class_names:
            return f"there is no class {name!r} before this stage; {nearest(name, class_names)}"
    return None


class StageFailed(TrainyardError):
    """A bug in a stage: it raised an unexpected exception, or returned no example."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One line of the catalogue.

    Args:
      parameters: the class of the parameters.
      function: takes an example and the parameters. Returns an example, or a list of examples with
        keys of their own.
      class_after: for a stage that renames or drops classes. It takes the name of a class and the
        parameters, and returns the name that the class has afterwards, or None. The driver derives
        the class names from it.
      check: for a stage that can't work on all data. It takes the parameters, "classification" or
        "detection", and the names of the classes before the stage. It returns the problem, or None.
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
        """Runs the stage on one example and returns its results, most often one example.

        Raises:
          Reject, Skip: raised by the stage.
          StageFailed: the stage has a bug.
          ConfigError, MemoryError: the cause is outside the stage.
        """
        try:
            result = self.function(example, self.parameters)
        except (Reject, Rejected, Skip, ConfigError, MemoryError):
            raise
        except Exception as error:
            raise StageFailed(
                f"stage {self.name} failed on {example.key}: {type(error).__name__}: {error}"
            ) from error
        examples = result if isinstance(result, list) else [result]
        if (fault := _fault_of(examples)) is not None:
            raise StageFailed(
                f"stage {self.name} returned {fault} for {example.key}; "
                "it must return an Example whose image is uint8 [height, width, 1 or 3]"
            )
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
        if (
            getattr(image, "ndim", 0) != 3
            or image.dtype != "uint8"
            or image.shape[2] not in (1, 3)
            or not image.size
        ):
            return (
                f"an image of {getattr(image, 'dtype', type(image).__name__)} "
                f"{list(getattr(image, 'shape', ()))}"
            )
    if len(examples) > 1 and len({example.key for example in examples}) < len(examples):
        return "two examples with one key"
    return None


def run_stages(
    stages: Sequence[BoundStage],
    example: Example,
    nanoseconds: Counter[str],
    skipped: Counter[str] | None = None,
) -> list[Example]:
    """Runs one record through all stages.

    If a stage makes several examples of one, each passes all later stages before the next one
    starts: only finished examples are held.

    Args:
      stages: the stages, in order.
      example: the example as it was read.
      nanoseconds: the counter to which the time of each stage is added.
      skipped: the counter of examples that were not wanted, by `<stage>: <reason>`.

    Returns:
      The finished examples. The list is empty if all of them were skipped.

    Raises:
      Rejected: the stage that it names has rejected an example. This rejects the record, and so all
        examples that were made of it.
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
    return [
        finished for each in examples for finished in run_stages(rest, each, nanoseconds, skipped)
    ]


def class_names_after(stages: Iterable[BoundStage], class_names: Iterable[str]) -> list[str]:
    """The class names after all stages, in the order in which they first come.

    Dropped classes are left out, and renamed classes have their new names.
    """
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
