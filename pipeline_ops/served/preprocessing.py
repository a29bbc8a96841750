"""The preprocessing of a data set as a served model applies it to raw files.

Each stage that changes pixels has a TensorFlow function beside its NumPy function (`Stage.serve`).
In the order of the config they become a part of the SavedModel. If the config leaves one of them to
the client, the same Python stages run there, by `prepare`.

This is the only module outside of `beam_jobs` that runs stages (decision 168).

Legend: H W C one image, T images that a stage such as `tile` made of one.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from beam_jobs.stages import (
    BUILT_IN,
    BoundStage,
    bind_stages,
    digest_code,
    find_stage,
    resize,
    run_stages,
)
from beam_jobs.stages.stage import Example, Rejected
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.contract.dataset import DatasetFigures, StageFigures
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.served.contract import PREPROCESSING
from pipeline_ops.storage.parsing import parse_json_as

if TYPE_CHECKING:
    import tensorflow as tf

Shape = tuple[int, int, int]


class _Asset(BaseModel):
    stages: list[StageFigures]
    has_boxes: bool = False


class ServedImage(NamedTuple):
    """The images that the stages make of one image.

    Attributes:
      images: uint8 [T, H, W, C].
      windows: float32 [T, 4], ymin, xmin, ymax, xmax: the part of the upright image that each of
          them shows, in fractions. With the bars of letterbox, a window is larger than the image.
    """

    images: tf.Tensor
    windows: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The stages of a data set. Without any, files are decoded and stretched.

    `has_boxes`: answers have boxes, so a stage that changes the size of an image must tell where
    its pixels come from.
    """

    stages: tuple[StageFigures, ...] = ()
    has_boxes: bool = False

    @classmethod
    def of_dataset(cls, figures: DatasetFigures) -> Preprocessing:
        """Raises DataError for a data set that was made before its stages were listed."""
        if not figures.stages:
            raise DataError(
                "the data set does not list its stages, so the model could not repeat them. Run "
                "preprocess again, without preprocess.dataset"
            )
        return cls(tuple(figures.stages), figures.task == "detection")

    @classmethod
    def read(cls, folder: Path) -> Preprocessing:
        """Reads the preprocessing of a SavedModel. Raises DataError if it is damaged.

        Versions that were published before it was an asset decode and stretch, or say nothing.
        """
        file = folder / "assets" / PREPROCESSING
        if not file.exists():
            return cls()
        found = parse_json_as(_Asset, file.read_bytes(), file)
        return cls(tuple(found.stages), found.has_boxes)

    @property
    def client_stages(self) -> list[str]:
        """The stages that the config leaves to the client. With one of them, all are the
        client's.
        """
        return [stage.name for stage in self.stages if stage.served == "by_client"]

    @functools.cached_property
    def _bound(self) -> list[BoundStage]:
        used = [stage for stage in self.stages if stage.served != "unchanged"]
        return bind_stages(
            StageConfig(name=stage.name, parameters=stage.parameters) for stage in used
        )

    @property
    def splits(self) -> bool:
        """Returns whether a stage makes several images of one."""
        return any(stage.stage.splits for stage in self._bound)

    def to_json(self) -> str:
        """The content of the asset `contract.PREPROCESSING`."""
        return _Asset(stages=list(self.stages), has_boxes=self.has_boxes).model_dump_json(indent=1)

    def serve_file(self, encoded: tf.Tensor, image_shape: Shape) -> ServedImage:
        """Decodes the bytes of an image file, and applies all other stages, in TensorFlow."""
        channels = image_shape[2]
        default = StageConfig(name="decode", parameters={"channels": channels})
        [decode] = self._bound[:1] or bind_stages([default])
        return self.serve_image(serve_stage(decode, encoded, channels)[0], image_shape)

    def serve_image(self, image_HWC: tf.Tensor, image_shape: Shape) -> ServedImage:
        """Applies all stages after `decode` to an upright image, uint8, in TensorFlow."""
        return _serve(self._bound[1:], image_HWC, image_shape, self.has_boxes)

    def serve_prepared(self, image_HWC: tf.Tensor, image_shape: Shape) -> ServedImage:
        """Takes an image, uint8, after all stages, perhaps of a data set with another size."""
        last = [stage for stage in self._bound if stage.name == "resize"][-1:]
        return _serve(last, image_HWC, image_shape, self.has_boxes)

    def check_code(self) -> None:
        """Raises ConfigError if a stage is not installed, or with other code than in training."""
        for stage in self.stages:
            if stage.served == "unchanged":
                continue
            find_stage(stage.name)  # which explains how to install it
            if stage.code and digest_code(stage.name) != stage.code:
                raise ConfigError(
                    f"the stage {stage.name} is installed with other code than the one that made "
                    "the training data. Install the version of that time, or train again"
                )

    def prepare(self, image_bytes: bytes) -> np.ndarray:
        """Runs the Python stages on a raw file. Returns uint8 [T, H, W, C].

        Raises DataError for a file that a stage rejects.
        """
        example = self._make_example(image_bytes)
        try:
            examples = run_stages(self._bound, example, Counter())
        except Rejected as reject:
            reason = f"{reject.reason}, {reject.detail}" if reject.detail else reject.reason
            raise DataError(f"the stage {reject.stage} rejects the image: {reason}") from None
        if not examples:
            raise DataError("a stage skips the image, so there is nothing to predict from")
        return np.stack([each.image for each in examples])

    def decode(self, image_bytes: bytes) -> np.ndarray:
        """Runs the Python stage `decode` alone. Returns uint8 [height, width, C], upright."""
        return run_stages(self._bound[:1], self._make_example(image_bytes), Counter())[0].image

    def _make_example(self, image_bytes: bytes) -> Example:
        boxes = () if self.has_boxes else None
        return Example("the image", "", image_bytes, boxes=boxes, split="test")

    def find_difference(
        self, image_bytes: bytes, is_equal: Callable[[np.ndarray, np.ndarray], bool]
    ) -> str:
        """Returns the first stage whose two forms make other pixels of the same image, or ""."""
        import tensorflow as tf

        example = self._make_example(image_bytes)
        for number, stage in enumerate(self._bound):
            if stage.stage.serve is None:
                return ""
            given = example.image if number else image_bytes
            [*made] = stage(example)
            found = serve_stage(stage, tf.constant(given), made[0].shape[2])[0].numpy()
            images = found if stage.stage.splits else found[np.newaxis]
            wanted = [each.image for each in made]
            if len(images) != len(wanted) or not all(map(is_equal, images, wanted)):
                return stage.name
            example = made[0]
        return ""


def _serve(
    stages: Sequence[BoundStage], image_HWC: tf.Tensor, image_shape: Shape, has_boxes: bool
) -> ServedImage:
    import tensorflow as tf

    height, width, channels = image_shape
    if not stages:
        [last] = bind_stages(
            [StageConfig(name="resize", parameters={"height": height, "width": width})]
        )
        image, window = resize.serve(image_HWC, last.parameters)
        return ServedImage(tf.ensure_shape(image, image_shape)[tf.newaxis], window[tf.newaxis])
    image, window = serve_stage(stages[0], image_HWC, channels)
    rest = functools.partial(_serve, stages[1:], image_shape=image_shape, has_boxes=has_boxes)
    if window is None:
        window = tf.constant([0.0, 0.0, 1.0, 1.0])
        if has_boxes:
            rule = (
                f"the stage {stages[0].name} changes the size of an image, so its `serve` must "
                "return the image and its window, see docs/add-a-stage.md"
            )
            tf.debugging.assert_equal(tf.shape(image)[:2], tf.shape(image_HWC)[:2], rule)
    window = tf.cast(window, tf.float32)
    if image.shape.rank == 3:
        images, windows = rest(image)
        return ServedImage(images, _compose(window, windows))
    spec = tf.TensorSpec(image_shape, tf.uint8), tf.TensorSpec([4], tf.float32)

    def serve_part(part: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        images, windows = rest(part[0])
        return images[0], _compose(part[1], windows)[0]

    return ServedImage(*tf.map_fn(serve_part, (image, window), fn_output_signature=spec))


def _compose(outer_4: tf.Tensor, inner_T4: tf.Tensor) -> tf.Tensor:
    """Windows in fractions of an image, from windows in fractions of its window `outer_4`."""
    import tensorflow as tf

    low, extent = outer_4[:2], outer_4[2:] - outer_4[:2]
    return tf.concat([low, low], 0) + inner_T4 * tf.concat([extent, extent], 0)


def place_boxes(detections: Mapping[str, tf.Tensor], windows_N4: tf.Tensor) -> tf.Tensor:
    """Returns the boxes of N answers in fractions of the images that these windows are parts of.

    Boxes are cut at the edges of the images.
    """
    import tensorflow as tf

    low_N12, high_N12 = tf.split(windows_N4[:, tf.newaxis], 2, axis=-1)
    extent = tf.concat([high_N12 - low_N12] * 2, axis=-1)
    boxes = tf.concat([low_N12] * 2, axis=-1) + detections["boxes"] * extent
    is_padding = detections["scores"][..., tf.newaxis] <= 0
    return tf.where(is_padding, 0.0, tf.clip_by_value(boxes, 0.0, 1.0))


def serve_stage(
    stage: BoundStage, image: tf.Tensor, channels: int
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The result of a stage's `serve` as uint8, and its window if it returns one."""
    import tensorflow as tf

    serve = stage.stage.serve
    if serve is None:
        raise ConfigError(f"the stage {stage.name} has no `serve`. Run preprocess again")

    def call(image: tf.Tensor) -> Any:
        return serve(image, stage.parameters)

    # A user's function may have Python's `if` and `while` over tensors.
    run: Callable[..., Any] = call if stage.name in BUILT_IN else tf.function(call)
    try:
        result = run(image)
    except ConfigError:
        raise
    except Exception as error:
        place, reason = _explain_failure(serve, error)
        raise ConfigError(
            f"`serve` of the stage {stage.name} failed in {place}: {reason}"
        ) from error
    served, window = result if isinstance(result, tuple) else (result, None)
    shape = getattr(served, "shape", None)
    if shape is None or shape.rank not in (3, 4) or shape[-1] not in (None, channels):
        raise ConfigError(
            f"`serve` of the stage {stage.name} must return an image [H, W, {channels}], "
            f"got {f'the shape {shape}' if shape is not None else type(served).__name__}"
        )
    if served.dtype != tf.uint8:
        limited = tf.clip_by_value(tf.cast(served, tf.float32), 0.0, 255.0)
        served = tf.cast(tf.round(limited), tf.uint8)
    return tf.ensure_shape(served, [*[None] * (shape.rank - 1), channels]), window


def _explain_failure(serve: Callable[..., Any], error: Exception) -> tuple[str, str]:
    """The last line of the file of `serve` at which an error passed, and the error in one line.

    AutoGraph runs a copy of the code. It keeps the places in the original, and puts the original
    error at the end of its own.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if metadata := getattr(error, "ag_error_metadata", None):
        places = [(frame.filename, frame.lineno) for frame in metadata.translated_stack]
        reason = lines[-1]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        places = [(frame.filename, frame.lineno) for frame in reversed(frames)]
        reason = f"{type(error).__name__}: {lines[0]}"
    file = getattr(getattr(inspect.unwrap(serve), "__code__", None), "co_filename", "")
    own = [place for place in places if place[0] == file] or places[:1]
    return ":".join(map(str, own[0])), reason
