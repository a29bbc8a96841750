"""`train` of a pipeline config: shards to trained weights and a candidate SavedModel.

The sections come first, then the keys, and then the rules over several keys, each with its
reason. They are checked before a process starts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from pipeline_ops.config.evaluate import (
    DetectionMetric,
    Mode,
    explain_mode,
    find_mode,
    remove_split,
)
from pipeline_ops.config.fields import (
    FieldError,
    FilePattern,
    JsonSchema,
    Section,
    TaskSection,
    add_forms,
    advanced_field,
    operational_field,
    per_run_field,
)
from pipeline_ops.config.keras_words import find_cure
from pipeline_ops.config.model_catalogue import (
    CATALOGUE,
    FUNCTION_SCHEMA,
    ModelName,
    Task,
    UserFunction,
    check_function,
    find_model,
    is_user_function,
    name_or_function,
)
from pipeline_ops.config.schema import make_case
from pipeline_ops.config.train_rules import UNDIVIDED, Strategy, refuse_values
from pipeline_ops.storage.open_store import check_no_credentials

DebugSwitch = Literal["numerics", "determinism", "eager"]
"""numerics: the first operation that produces an infinite value or NaN reports its name and its
line of code. determinism: operations that are not repeatable to the bit are replaced or refused.
eager: no function is compiled, so a debugger stops inside a step."""


class Divergence(Section):
    """The reaction to an infinite or NaN loss or weight, or to a loss that is too large.

    The training goes back to the last checkpoint, finds the step that caused the divergence, and
    saves its batch. Then it goes on or stops.
    """

    action: Literal["stop", "skip_batch", "lower_learning_rate"] = "stop"
    """`skip_batch` leaves out the batch of that step. `lower_learning_rate` multiplies the rate by
    0.5, from the checkpoint on."""
    max_times: int = per_run_field(3, ge=1, le=1000)
    """Number of divergences that the action may handle. The next one stops the training."""
    max_loss: float | None = per_run_field(None, gt=0)
    """A step with a mean loss above this has diverged. With null, only an infinite or NaN
    value counts."""


_Step = Annotated[int, Field(ge=1)]


class Tensorboard(Section):
    """Records for TensorBoard besides the scalars, at the end of each epoch.

    Turning one on does not repeat the training.
    """

    histograms: bool = operational_field(False)
    """Histograms of all weights."""
    images: int = operational_field(0, ge=0, le=100)
    """Number of validation examples that are shown with the model's predictions: its class, or its
    boxes beside the labelled ones."""
    profile_steps: list[_Step] | None = operational_field(None, min_length=2, max_length=2)
    """The first and the last step, counted from 1, whose calls TensorFlow's profiler records in the
    chief, for TensorBoard's Profile tab (package tensorboard-plugin-profile). Null is none. A call
    has `steps_per_call` steps, and the first one compiles the step."""

    @field_validator("profile_steps")
    @classmethod
    def _validate_profile(cls, steps: list[int] | None) -> list[int] | None:
        if steps and steps[0] > steps[1]:
            raise ValueError(f"must not end before it begins, got {steps}")
        return steps


class Scale(Section):
    """The range of factors by which images are scaled. All values in it are equally likely.

    A random part of a larger image is shown. A smaller image lies at a random position.
    """

    min: float = per_run_field(1.0, ge=0.1, le=1)
    max: float = per_run_field(1.0, ge=1, le=10)


class Crop(Section):
    """A random part of an image, stretched to the size of the whole.

    Parts are drawn until one shows enough of an object, at most 50. If none does, the image stays
    whole.
    """

    min_area: float = Field(0.1, gt=0, le=1)
    """The smallest part of the image's area."""
    max_area: float = Field(1.0, gt=0, le=1)
    min_aspect_ratio: float = Field(0.75, ge=0.01, le=100)
    """Of the part, width by height in pixels."""
    max_aspect_ratio: float = Field(1.33, ge=0.01, le=100)
    min_object_covered: float = Field(0.0, ge=0, le=1)
    """The share of at least one box that the part has to show. Only for detectors."""
    min_overlap: float = Field(0.3, ge=0, le=1)
    """A box of which the part shows less is left out, as if there were no object. Only for
    detectors."""
    keep_whole: float = Field(0.0, ge=0, le=1)
    """The share of images that stay whole."""

    @model_validator(mode="after")
    def _validate_ranges(self) -> Crop:
        for name in ("area", "aspect_ratio"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise ValueError(f"min_{name} ({low:g}) is larger than max_{name} ({high:g})")
        return self


class AugmentOptions(Section):
    """Random changes of training images, drawn from (seed, epoch, example).

    They do not depend on the worker or on restarts. Boxes move with the pixels. The area beyond an
    image repeats its edge. For a detector it is grey, with the value 128.
    """

    flip_left_right: bool = per_run_field(False)
    """Mirrors every second image."""
    flip_top_bottom: bool = per_run_field(False)
    """Turns every second image upside down."""
    shift: float = per_run_field(0.0, ge=0, le=0.5)
    """Moves an image by up to this fraction of its height and width. A mosaic's parts lie at random
    places anyway."""
    scale: Scale | None = None
    """Enlarges or shrinks images."""
    rotation: float = Field(0.0, ge=0, le=180)
    """Turns an image about its centre by up to this many degrees, either way. A box becomes the one
    around its turned corners, which is larger than the object."""
    crops: list[Crop] = advanced_field([])
    """Ways to show a part of an image. One of them is drawn for each example. Not together with
    scale, shift and mosaic."""
    brightness: float = per_run_field(0.0, ge=0, le=1)
    """Adds or subtracts up to this fraction of the range of values."""
    contrast: float = per_run_field(0.0, ge=0, lt=1)
    """Stretches values away from the image's mean, or pulls them to it, by up to this fraction."""
    saturation: float = per_run_field(0.0, ge=0, le=1)
    """Stretches the colours of a pixel away from their mean, or pulls them to it, by up to this
    fraction."""
    mosaic: float = per_run_field(0.0, ge=0, le=1)
    """The share of examples that are made of four images, which meet at a random point. Only for
    detectors."""
    mixup: float | None = Field(None, gt=0, le=10)
    """Mixes each example with another one, pixels and labels alike (Zhang et al. 2018). The shares
    have the distribution Beta(mixup, mixup). Only for classifiers."""
    cutmix: float | None = Field(None, gt=0, le=10)
    """Replaces a rectangle of each example by that of another one, and the label in proportion (Yun
    et al. 2019). The shares have the distribution Beta(cutmix, cutmix). With mixup, each example
    has one of the two. Only for classifiers."""
    own: UserFunction | None = advanced_field(None)
    """`my_package.my_module:function`, a function of an image, float32 [height, width, channels] in
    0..255, and a seed, int32 [2], that returns an image of the same shape. It comes after the other
    changes of an image. Boxes stay where they are (docs/training-options.md)."""
    min_visible: float = per_run_field(0.3, gt=0, le=1, is_advanced=True)
    """The smallest visible part of a box. Boxes with a smaller visible part are ignored. Only
    for detectors, and not for crops."""

    @model_validator(mode="after")
    def _validate_crops(self) -> AugmentOptions:
        if self.crops and (self.scale or self.shift or self.mosaic):
            raise ValueError("crops already vary size and place. Remove scale, shift and mosaic.")
        return self


_SHUFFLE_WINDOW = 8
"""The number of shards whose examples `shuffle: shards` permutes together. Two windows should fit
into the cache (decision 132)."""


class InputOptions(Section):
    """The input pipeline, which brings examples from the shards to the step.

    Evaluation reads without a cache and without augmentation.
    """

    augment: AugmentOptions = AugmentOptions()
    shuffle: Literal["examples", "shards"] = advanced_field("examples")
    """The order of the training examples, in which each of them comes once in an epoch. `examples`
    permutes all of them. `shards` permutes the shards, and then the examples of eight shards at a
    time, which a data set in a store needs if it is larger than `local_limit_gib`."""
    repeat_threshold: float | None = per_run_field(None, gt=0, le=1, is_advanced=True)
    """Repeats the images of rare classes (Gupta et al. 2019). Those of a class in a share f of the
    training images, f below this threshold t, come sqrt(t / f) times as often. 0.001 is the value
    for LVIS."""
    cache: Literal["none", "memory", "disk"] = operational_field("memory")
    """The place where decoded training images are kept from one epoch to the next. `memory` is each
    worker's memory. `disk`, for classification, is a file that a host's workers share."""
    cache_limit_mib: int = operational_field(256, ge=1, is_advanced=True)
    """A split whose decoded images need more than this is not cached, and the log says so."""
    local_copy: Literal["auto", "always"] = operational_field("auto", is_advanced=True)
    """`auto` keeps copies of shards on the host's disk if they lie in an object store. `always`
    also does so for a folder, which pays if that folder is a slow share. Training begins before
    the copies are there."""
    local_folder: str | None = operational_field(None, is_path=True, is_advanced=True)
    """A folder on the host's own disk for copies of shards and for decoded images, which may be
    removed while no training runs. Null is the host's TRAINYARD_LOCAL_FOLDER, or ~/.cache. They lie
    below `trainyard-cache/` in it, and no other file of the folder is ever removed."""
    local_limit_gib: float = operational_field(100, gt=0, is_advanced=True)
    """The limit for this folder. Files that are not in use are removed, the oldest first, until no
    more than this is left. Of a larger data set in a store, the remaining records are read one by
    one."""

    @model_validator(mode="after")
    def _validate_order(self) -> InputOptions:
        if self.repeat_threshold is not None and self.shuffle == "shards":
            raise ValueError(
                "repeat_threshold needs shuffle: examples, because copies come anywhere in an epoch"
            )
        return self

    @field_validator("local_folder")
    @classmethod
    def _validate_local_folder(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("/", "~")):
            raise ValueError(
                f"must begin with / or ~, because it is on the hosts' own disks, got {value}"
            )
        return value

    @property
    def window(self) -> int | None:
        """The number of shards whose examples are permuted together. None is the whole split."""
        return _SHUFFLE_WINDOW if self.shuffle == "shards" else None


class LearningRateSchedule(Section):
    """The common part of all schedules: a warm-up to the whole learning rate."""

    warmup_steps: int = per_run_field(0, ge=0)
    warmup_factor: float | None = per_run_field(None, ge=0, is_advanced=True)
    """The factor of the first step. Null is 1 / (warmup_steps + 1)."""
    warmup_type: Literal["linear", "constant"] = per_run_field("linear", is_advanced=True)
    """`linear` goes from `warmup_factor` to 1. `constant` stays at `warmup_factor`, and then it is
    1."""


class Constant(LearningRateSchedule):
    """The same learning rate after the warm-up."""

    type: Literal["constant"] = "constant"


class Cosine(LearningRateSchedule):
    """Half a cosine wave from the whole learning rate down to `end_factor` of it."""

    type: Literal["cosine"]
    decay_steps: int | None = per_run_field(None, ge=1)
    """Optimizer steps from the beginning to the end of the wave. Null is until the last step of the
    training."""
    end_factor: float = per_run_field(0.0, ge=0, le=1)
    hold_steps: int = per_run_field(0, ge=0, is_advanced=True)
    """Steps at the whole learning rate between the warm-up and the wave."""


class Exponential(LearningRateSchedule):
    """Multiplies the learning rate by `factor` in every `decay_steps` steps after the warm-up."""

    type: Literal["exponential"]
    decay_steps: int = per_run_field(..., ge=1)
    factor: float = per_run_field(..., gt=0, le=1)
    staircase: bool = per_run_field(False, is_advanced=True)
    """Changes the learning rate once in `decay_steps` steps, and not smoothly."""
    min_factor: float = per_run_field(0.0, ge=0, is_advanced=True)
    """The factor is never below this one, also in the warm-up."""


class Piecewise(LearningRateSchedule):
    """Another factor from each boundary on.

    Example: `boundaries_steps: [1000, 2000]` and `factors: [0.1, 0.01]`.
    """

    type: Literal["piecewise"]
    boundaries_steps: list[int] = Field(min_length=1)
    factors: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _validate_combination(self) -> Piecewise:
        if len(self.boundaries_steps) != len(self.factors):
            raise ValueError(
                "there must be as many factors as boundaries_steps "
                f"({len(self.boundaries_steps)}), got {len(self.factors)}"
            )
        steps = self.boundaries_steps
        if steps[0] < 1 or steps != sorted(set(steps)):
            raise ValueError(f"boundaries_steps must be positive and ascending, got {steps}")
        if min(self.factors) < 0:
            raise ValueError(f"factors must not be negative, got {self.factors}")
        return self


class OwnSchedule(LearningRateSchedule):
    """A schedule of Keras, or of the author's own.

    Example: `function: keras.optimizers.schedules:PolynomialDecay`.
    """

    type: Literal["own"]
    function: UserFunction
    """A function of the step and the number of all steps that returns a factor. Or a subclass of
    Keras's `LearningRateSchedule`, which returns the learning rate itself: `learning_rate` is 1."""
    arguments: dict[str, Any] = {}
    """Arguments of the class, or keyword arguments of the function."""


AnySchedule = Annotated[
    Constant | Cosine | Exponential | Piecewise | OwnSchedule, Field(discriminator="type")
]


class Clip(Section):
    """Bounds the gradient of the global batch, after it was summed over all workers.

    Exactly one of the three bounds is given.
    """

    global_norm: float | None = per_run_field(None, gt=0)
    """The largest norm of all gradients together. Their direction stays."""
    norm: float | None = per_run_field(None, gt=0, is_advanced=True)
    """The largest norm of each variable's gradient."""
    value: float | None = per_run_field(None, gt=0, is_advanced=True)
    """The largest absolute value of each element."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Clip:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(
                "exactly one of global_norm, norm and value must be given, "
                f"got {' and '.join(given) or 'none'}"
            )
        return self


_OPTIMIZERS_WITH = {
    "rho": ("rmsprop",),
    "nesterov": ("sgd",),
    "epsilon": ("adam", "adamw", "rmsprop"),
}
"""The optimizers that have a key."""


OPTIMIZERS = ("adam", "adamw", "rmsprop", "sgd")


def _check_optimizer(name: str) -> str:
    if name in OPTIMIZERS:
        return name
    if not is_user_function(name):
        raise ValueError(
            f"must be one of {', '.join(OPTIMIZERS)}, or a class such as keras.optimizers:Lion, "
            f"got {name!r}"
        )
    return check_function(name)


class Optimizer(Section):
    """A Keras optimizer on the gradient of the global batch."""

    name: Annotated[str, AfterValidator(_check_optimizer), name_or_function(OPTIMIZERS)] = (
        per_run_field(
            "adam",
            run_pattern="|".join(OPTIMIZERS),
            run_pattern_description=f"one of {', '.join(OPTIMIZERS)}",
        )
    )
    """adam, adamw, rmsprop or sgd. Or any optimizer of Keras, `keras.optimizers:Lion`, and a class
    or a function of your own that makes one. `class` is another word for this key."""
    arguments: dict[str, Any] = advanced_field({})
    """Arguments for an optimizer by class or function, besides `learning_rate`."""
    learning_rate: float = per_run_field(1e-3, rank=2, gt=0, le=10)
    """Size of the optimizer's steps, which the schedule may change during the training."""
    momentum: float = per_run_field(0.0, ge=0, lt=1)
    """The momentum. Only for sgd and rmsprop."""
    rho: float = per_run_field(0.9, ge=0, lt=1, is_advanced=True)
    """The decay of the mean of squared gradients. Only for rmsprop."""
    nesterov: bool = advanced_field(False)
    """Nesterov's form of the momentum. Only for sgd."""
    epsilon: float = per_run_field(1e-7, gt=0, le=10, is_advanced=True)
    """Added to the root of the mean of squared gradients, or with rmsprop to the mean below the
    root. Not for sgd."""
    weight_decay: float = per_run_field(0.0, ge=0, lt=1)
    """The part of each weight that it loses in each step, times the learning rate. Not for
    adam. With sgd and a momentum of 0.9, a penalty of w * |weights|**2 / 2 in the loss, the form
    in papers, is about a weight_decay of 10 * w."""
    schedule: AnySchedule = Constant()
    """The change of the learning rate with the steps. `reduce_learning_rate` multiplies the
    result."""
    clip: Clip | None = None
    average_weights: float | None = per_run_field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights (0.999, say). The average is evaluated
    and becomes the challenger. Training goes on from the weights themselves. The decay is warmed
    up: in step t it is at most (1 + t) / (10 + t), so that the average of a short training does not
    consist of initial weights."""

    @model_validator(mode="before")
    @classmethod
    def _read_class(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "class" not in value:
            return value
        others, path = {**value}, str(value["class"])
        del others["class"]
        if "name" in others:
            raise ValueError(f"name ({others['name']}) and class ({path}) say the same. Use one.")
        module, _, name = path.rpartition("." if ":" not in path else ":")
        return others | {"name": f"{module}:{name}"}

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        schema["properties"]["class"] = {"type": "string", "description": "Another word for name."}

    @property
    def is_own(self) -> bool:
        """Whether `name` is the path of a class or a function."""
        return is_user_function(self.name)

    def _validate_own(self) -> None:
        """Checks which keys an optimizer by class may have."""
        for argument in self.arguments:
            if (cure := find_cure(argument)) and argument not in cure:
                raise FieldError(f"arguments.{argument}", f"has a key of its own: {cure}")
        if not self.is_own:
            if self.arguments:
                raise ValueError(
                    f"arguments are for an optimizer by class, got them with {self.name}. Write "
                    f"name: keras.optimizers:{self.name.upper() if self.name == 'sgd' else 'Adam'}"
                )
            return
        for name in ("momentum", "rho", "nesterov", "epsilon", "weight_decay"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise FieldError(name, f"belongs into arguments, because {self.name} is a class")

    @model_validator(mode="after")
    def _validate_combination(self) -> Optimizer:
        self._validate_own()
        function = self.schedule.function if isinstance(self.schedule, OwnSchedule) else ""
        if function.startswith("keras.") and self.learning_rate != 1:
            raise FieldError(
                "learning_rate",
                f"must be 1, because {function} gives the learning rate itself, "
                f"got {self.learning_rate:g}",
            )
        if self.momentum and self.name not in ("sgd", "rmsprop"):
            raise ValueError(
                f"momentum is for the optimizers sgd and rmsprop, got it with {self.name}"
            )
        for name, kinds in _OPTIMIZERS_WITH.items():
            is_changed = getattr(self, name) != type(self).model_fields[name].default
            if is_changed and self.name not in kinds:
                raise ValueError(f"{name} is for {', '.join(kinds)}, got it with {self.name}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.weight_decay and self.name == "adam":
            raise ValueError(
                "weight_decay is for the optimizers adamw, rmsprop and sgd, got it with adam"
            )
        return self


Monitor = Annotated[str, Field(pattern=r"^validation_[a-z][a-z0-9_]*$")]
"""A figure of the validation split: `validation_loss`, or `validation_` and the name of a metric. A
metric of one's own needs a `mode` in `train.metrics`. A figure that is not finite is the worst."""


_GATE_METRICS: dict[Task, tuple[str, ...]] = {
    "classification": ("macro_precision", "macro_recall", "macro_f1", "worst_class_recall"),
    "detection": get_args(DetectionMetric),
}
"""The metrics of the gate that a training computes on the validation split if one is monitored.
`_TOP_K` matches another one of a classifier: `top_3_accuracy` is the gate's `top_k_accuracy` with
`evaluate.top_k: 3`."""
_TOP_K = re.compile(r"top_[1-9][0-9]{0,4}_accuracy")


MAX_EPOCHS = 100_000
MAX_STEPS = 999_999_999
_DEFAULT_EPOCHS = 10
HOSTS_NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""A plain name, so that the path stays in the folder `hosts/`."""
_PUBLISHED_WEIGHTS_PATTERN = "champion|version [1-9][0-9]{0,8}"
"""The weights that a run may begin with: a published model of this pipeline, never a path."""
_BUNDLE_PATTERN = "weights [a-z0-9][a-z0-9_.-]{0,62}"
"""Weights in the store, as earlier versions had them."""


class InitialWeights(Section):
    """Weights to begin with that are not a published model."""

    path: str = operational_field(..., is_path=True)
    """A SavedModel's folder, a file of weights (.npz, .h5 or .keras) or a checkpoint of the
    TensorFlow Object Detection API. A file may be in a bucket: s3://bucket/weights.h5."""
    sha256: str | None = operational_field(None, pattern="^[0-9a-f]{64}$")
    """The SHA-256 that the file must have, compared when the training is planned, and by each
    worker. Required for a file in a bucket."""


class EarlyStopping(Section):
    """Stops after `patience_epochs` epochs without an improvement of the monitored figure."""

    monitor: Monitor = "validation_loss"
    patience_epochs: int = per_run_field(5, ge=1)
    min_delta: float = per_run_field(0.0, ge=0, is_advanced=True)


class ReduceLearningRate(Section):
    """Multiplies the learning rate by `factor` when the monitored figure does not improve.

    That is after `patience_epochs` epochs without an improvement.
    """

    monitor: Monitor = "validation_loss"
    factor: float = per_run_field(0.5, gt=0, lt=1)
    patience_epochs: int = per_run_field(2, ge=1)
    min_learning_rate: float = per_run_field(1e-6, ge=0, is_advanced=True)


class BestCheckpoint(Section):
    """Selects the weights of the best epoch as the challenger, not those of the last epoch.

    Of epochs with an equal figure, the one with the lowest validation loss is the best.
    """

    monitor: Monitor | None = None
    """The figure. Null is `validation_accuracy`, or `validation_map_50` for a detector. It may be a
    metric of the gate (docs/training-options.md)."""


_BATCH_SIZE = 64


def _to_callback(value: Any) -> Any:
    """Returns an entry of `callbacks` as path and arguments. Raises ValueError with the form."""
    entry = {value: {}} if isinstance(value, str) else value
    if not isinstance(entry, dict) or not all(isinstance(each, dict) for each in entry.values()):
        raise ValueError(
            "a callback is `my_module:MyCallback`, or with arguments "
            f"`keras.callbacks:CSVLogger: {{filename: log.csv}}`, got {value!r:.200}"
        )
    for path in entry:
        if "." not in str(path) and ":" not in str(path):
            raise ValueError(f"write keras.callbacks:{path}, if it is Keras's, or module:{path}")
        check_function(str(path))
    return entry


def _get_name(path: str) -> str:
    """Returns the name of the figure of a function `module:function`."""
    return path.partition(":")[2]


def _to_metric(value: Any) -> Any:
    """Returns an entry of `metrics`: a path, or modes by path. Raises ValueError with the form."""
    entry = {value: {}} if isinstance(value, str) else value
    if not isinstance(entry, dict) or any(
        not isinstance(each, dict) or each.get("mode", "min") not in ("min", "max")
        for each in entry.values()
    ):
        raise ValueError(
            "a metric is `my_module:metric`, or with its better direction "
            f"`my_module:metric: {{mode: min}}` (min or max), got {value!r:.200}"
        )
    for path in entry:
        check_function(str(path))
    return entry if any(entry.values()) or len(entry) != 1 else next(iter(entry))


def _with_arguments(**arguments: JsonSchema) -> JsonSchema:
    """Returns the JSON schema of paths of functions, each with its arguments."""
    return {
        "type": "object",
        "propertyNames": FUNCTION_SCHEMA,
        "additionalProperties": {"type": "object", "properties": arguments},
    }


def _take_only(names: Iterable[str]) -> JsonSchema:
    """Returns the JSON schema of a mapping that has no other keys."""
    return {"properties": {name: {} for name in names}, "additionalProperties": False}


_CALLBACK_SCHEMA = {"anyOf": [FUNCTION_SCHEMA, _with_arguments()]}
_METRIC_SCHEMA = {
    "anyOf": [FUNCTION_SCHEMA, _with_arguments(mode={"enum": [*get_args(Mode)]})],
}


class Train(TaskSection):
    """Shards to trained weights and a candidate SavedModel."""

    model: ModelName
    """A name from the model catalogue (`config/model_catalogue.py`), or
    `my_package.my_module:build`, a function or a subclass of `keras.Model` of your own."""
    model_parameters: dict[str, Any] = {}
    """Arguments for the function that builds the model."""
    loss: UserFunction | None = advanced_field(None)
    """`my_package.my_module:loss`, a function of labels and the model's outputs that returns a loss
    for each example, or one of Keras, `keras.losses:CategoricalFocalCrossentropy`, with arguments
    as `keras.losses:CategoricalFocalCrossentropy: {gamma: 3}`. Null is cross-entropy."""
    loss_arguments: dict[str, Any] = advanced_field({})
    """The arguments of `loss`, which may also stand behind its path."""
    metrics: list[
        Annotated[str | dict[str, Any], AfterValidator(_to_metric), WithJsonSchema(_METRIC_SCHEMA)]
    ] = advanced_field([])
    """Functions `my_package.my_module:metric`, each like `loss`. They are reported under the
    function's name, next to accuracy. What is monitored, searched for or compared needs its better
    direction: `my_package.my_module:metric: {mode: min}`, or max. Arguments stand beside it,
    `keras.metrics:SparseTopKCategoricalAccuracy: {k: 3}`."""
    step: UserFunction | None = advanced_field(None)
    """`my_package.my_module:step`, a function that takes a training step: of the model, its
    optimizer, a batch of images and labels, and `tf.distribute.ReplicaContext`. It returns its
    figures by name (docs/own-model.md). Null is the step of the model, if it has one."""
    dataset: UserFunction | None = advanced_field(None)
    """`my_package.my_module:dataset`, a function of a split (`train`), the index and the number of
    equal parts that returns a `tf.data.Dataset` with this part of the training examples, (image,
    label). Null is the data set's train split (docs/training-options.md)."""
    strategy: Strategy = "multi_worker_mirrored"
    workers: int = Field(1, ge=1, le=1024)
    min_workers: int | None = operational_field(None, ge=1, le=1024, is_advanced=True)
    """The smallest number of workers with which a gang that has lost hosts goes on, at the same
    global batch. With null it needs all of `workers`."""
    max_workers: int | None = operational_field(None, ge=1, le=1024, is_advanced=True)
    """The largest number of workers, if the hosts can take them. Null is `workers`."""
    hosts: str | None = operational_field(None, pattern=HOSTS_NAME_PATTERN)
    """The hosts to train on, as the name of a file in `hosts/` next to this one. Null is this
    machine."""
    devices_per_worker: int = Field(1, ge=1, le=64)
    """Number of GPUs of each worker, or of logical devices if it has none."""
    communication: Literal["auto", "ring"] = operational_field("auto", is_advanced=True)
    """The exchange of gradients between workers. `auto` is NCCL on GPUs and otherwise TensorFlow's
    ring over gRPC. `ring` is always the ring, which two workers on one GPU need. Only for
    `multi_worker_mirrored`."""
    parameter_servers: int = advanced_field(0, ge=0, le=1024)
    """Number of processes that hold the variables, besides the chief and the workers. Only for
    `parameter_server`."""
    placement: dict[str, str] = advanced_field({})
    """The device of the layers whose names match a pattern,
    `{"conv2d*": "GPU:0", "dense*": "GPU:1"}`. The first match counts. Only for
    `device_placement`."""
    sharding: dict[str, int] = advanced_field({})
    """The axis along which the weights that match a pattern are divided, `{"*dense/kernel": 1}`.
    Other weights are on each device. Only for `dtensor`."""
    tpu: str | None = operational_field(None, min_length=1, is_advanced=True)
    """The name or address of the TPU. Null is the one that the environment names. Only for
    `tpu`."""
    global_batch_size: int | None = per_run_field(None, rank=3, ge=1, le=1_000_000)
    """Examples per optimizer step over all workers. Null is 64, unless `batch_size_per_replica` is
    given. It never follows the number of workers."""
    batch_size_per_replica: int | None = Field(None, ge=1, le=1_000_000)
    """Examples per optimizer step of each replica, instead of `global_batch_size`. The global batch
    is this times `workers` times `devices_per_worker`, also while a gang has fewer or more workers
    than `workers`."""
    scale_learning_rate: Literal["linear", "sqrt"] | None = None
    """Multiplies the learning rate by the number of replicas or by its square root. For
    `batch_size_per_replica`, with a warm-up in `optimizer.schedule.warmup_steps`."""
    micro_batches: int = per_run_field(1, ge=1, le=1024, is_advanced=True)
    """Number of parts into which each replica divides its share of a batch, one after the other, to
    save memory. The gradients are added up."""
    epochs: int | None = per_run_field(None, rank=1, ge=1, le=MAX_EPOCHS)
    """Passes over the training data. Null is 10, or as many as `steps` take."""
    steps: int | None = per_run_field(None, ge=1, le=MAX_STEPS)
    """Optimizer steps after which the training ends, also in the middle of an epoch. That part of
    an epoch is validated like a whole one. With `epochs`, the limit that comes first counts."""
    seed: int = per_run_field(1, ge=0, le=2**32 - 1)
    """Seed of initial weights, the order of examples, augmentation and dropout."""
    input: InputOptions = InputOptions()
    optimizer: Optimizer = Optimizer()
    precision: Literal["float32", "bfloat16", "float16"] = per_run_field("float32")
    """The type in which layers compute. Weights are always float32. float16 scales the loss, so
    that small gradients do not vanish."""
    synchronized_batch_normalization: bool = per_run_field(False, is_advanced=True)
    """Normalises over the global batch instead of each replica's share of it."""
    xla: Literal["none", "gradients", "step"] = advanced_field("none")
    """The part that XLA compiles: nothing, the forward and backward pass, or the whole step with
    the optimizer. For GPUs. On CPUs, convolutions get slower."""
    class_weights: bool = per_run_field(False, is_advanced=True)
    """Weighs each example's loss by its class, as in `preprocess.balance: by_class`. A detector's
    classification loss is weighed where a box of the class is. The validation loss is not
    weighed. Weights of your own, `class_weights: {cat: 2.0}`, are `weights_by_class`."""
    weights_by_class: dict[str, Annotated[float, Field(ge=0)]] = advanced_field({})
    """The factor of the loss of each class in training, by the name of the class. Others have 1."""
    label_smoothing: float = per_run_field(0.0, ge=0, lt=1, is_advanced=True)
    """The part of each label that is spread over all classes, in training only."""
    warm_start: str | InitialWeights | None = per_run_field(
        None,
        rank=5,
        is_operational=True,
        is_path=True,
        run_pattern=_PUBLISHED_WEIGHTS_PATTERN,
        run_pattern_description="champion, or a published version such as `version 3`",
    )
    """The weights to begin with: champion (the model in service, if there is one yet), `version 3`
    of the published ones, a path, or `{path: FILE, sha256: HEX}`. The head is left out if it has
    another number of classes."""
    freeze_epochs: int = per_run_field(0, ge=0, le=MAX_EPOCHS, is_advanced=True)
    """The number of first epochs in which the weights that `warm_start` has set do not change. Only
    the others, such as a head for other classes, learn."""
    freeze: dict[str, Annotated[int, Field(ge=1, le=MAX_EPOCHS)] | None] = advanced_field({})
    """The number of first epochs in which the weights that match a pattern do not change,
    `{"*conv1*": 5, "*bn*": null}`. Null is all epochs. The first match counts."""
    early_stopping: EarlyStopping | None = None
    reduce_learning_rate: ReduceLearningRate | None = None
    best_checkpoint: BestCheckpoint | None = BestCheckpoint()
    on_divergence: Divergence = advanced_field(Divergence())
    callbacks: list[
        Annotated[
            str | dict[str, Any], AfterValidator(_to_callback), WithJsonSchema(_CALLBACK_SCHEMA)
        ]
    ] = advanced_field([])
    """Callbacks of Keras: classes, objects, or functions that return them, such as
    `my_package.my_module:MyCallback`, or with arguments, `keras.callbacks:CSVLogger: {filename:
    log.csv}` (docs/training-options.md)."""
    files: list[FilePattern] = operational_field([], is_advanced=True)
    """Files that functions of your own open or import by a computed name, as paths or patterns
    relative to this file: `labels.txt`, `tables/*.npy`, `nets/**/*.py`. Their contents are part of
    the fingerprint, and they travel with the job (docs/own-model.md)."""
    tensorboard: Tensorboard = advanced_field(Tensorboard())
    debug: list[DebugSwitch] = advanced_field([])
    """TensorFlow's debugging switches. Training gets slower with each."""
    steps_per_call: int = operational_field(10, ge=1, le=10_000, is_advanced=True)
    """Optimizer steps in one call of the compiled function."""
    checkpoint_every_steps: int = operational_field(200, ge=1)
    """Steps between checkpoints. Checkpoints are written during training. A lost worker costs the
    steps since the last one. Two are kept, in case the last one is damaged."""
    max_restarts: int = operational_field(3, ge=0, le=1000, is_advanced=True)
    """Number of restarts of the whole gang from its last checkpoint before the task fails."""
    start_timeout_seconds: int = operational_field(300, ge=1)
    """Time until all workers must have met. Otherwise the gang is restarted."""
    step_timeout_seconds: int = operational_field(120, ge=1)
    """Time of a training step after which it counts as hung, and the gang is restarted. Nothing is
    reported during a call of `steps_per_call` steps, so their usual time is added."""
    phase_timeout_seconds: int = operational_field(1800, ge=1, is_advanced=True)
    """Time without progress after which a worker counts as hung in any other phase than a training
    step: reading labels, building a cache, tracing, compiling, validating, in a callback, saving,
    storing the result, writing the candidate. A phase that makes progress may last as long as it
    needs."""
    heartbeat_timeout_seconds: int = operational_field(15, ge=2, is_advanced=True)
    """Time without a sign of life from a host or a process after which it counts as lost, even in
    the middle of a long step."""

    @model_validator(mode="before")
    @classmethod
    def _read_mappings(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        loss, weights = value.get("loss"), value.get("class_weights")
        if isinstance(loss, dict) and len(loss) == 1:
            [(path, arguments)] = loss.items()
            value = {**value, "loss": path, "loss_arguments": arguments}
        if isinstance(weights, dict):
            value = {**value, "class_weights": False, "weights_by_class": weights}
        return value

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        properties = schema["properties"]
        add_forms(properties["loss"], _with_arguments() | {"minProperties": 1, "maxProperties": 1})
        weight = {"type": "number", "minimum": 0}
        add_forms(properties["class_weights"], {"type": "object", "additionalProperties": weight})
        models: dict[tuple[str, ...], list[str]] = {}
        for name, model in CATALOGUE.items():
            models.setdefault(model.parameters, []).append(name)
        schema["allOf"] = [
            make_case(
                "model",
                {"enum": names},
                {"properties": {"model_parameters": _take_only(parameters)}},
            )
            for parameters, names in models.items()
        ]

    @field_validator("warm_start")
    @classmethod
    def _validate_warm_start(cls, value: str | InitialWeights | None) -> Any:
        if isinstance(value, str) and re.fullmatch(_BUNDLE_PATTERN, value):
            raise ValueError(
                f"weights in the store have no names any longer, got {value!r}. Write {{path: "
                f"FILE, sha256: HEX}}; the file is in {value.replace(' ', '/')}/ of storage.root."
            )
        path = value.path if isinstance(value, InitialWeights) else value
        check_no_credentials(path or "")
        return value

    @property
    def initial_weights(self) -> InitialWeights | None:
        """The file or the folder of `warm_start`. None for a published model."""
        source = self.warm_start
        if not isinstance(source, str):
            return source
        is_published = re.fullmatch(_PUBLISHED_WEIGHTS_PATTERN, source)
        return None if is_published else InitialWeights(path=source)

    @property
    def max_epochs(self) -> int | None:
        """The limit of epochs. None if only `steps` limits the training."""
        return self.epochs or (None if self.steps else _DEFAULT_EPOCHS)

    @property
    def dataset_remark(self) -> str:
        """Says what does not hold for the examples of `dataset`."""
        return (
            f"The training images came from train.dataset ({self.dataset}), and not from the train "
            "split of the data set, of which the figures of the data tell. Changes of the data "
            "behind it are not noticed. What it draws at random, a restart draws anew within the "
            "epoch, and a batch that diverges is not saved"
        )

    def count_epochs(self, num_examples: int) -> int:
        """Returns the number of epochs of a training split, with the one that `steps` cuts off."""
        limits = [self.max_epochs] if self.max_epochs else []
        if self.steps:
            limits.append((self.steps - 1) * self.batch_size // max(1, num_examples) + 1)
        return min(limits)

    @property
    def length(self) -> str:
        """The limits of the training in words: `20 epochs or 5000 steps`."""
        limits = {"epoch": self.max_epochs, "step": self.steps}
        return " or ".join(
            f"{limit} {unit}{'s' * (limit > 1)}" for unit, limit in limits.items() if limit
        )

    @property
    def step_metric_names(self) -> list[str]:
        """The names of the figures that a step has besides the loss."""
        return [*find_model(self.model).metrics, *map(_get_name, self.own_metrics)]

    @property
    def own_metrics(self) -> dict[str, Mode | None]:
        """The better direction of each function of `metrics` by its path, None if not given."""
        return {path: given.get("mode") for path, given in self._metric_entries.items()}

    @property
    def metric_arguments(self) -> dict[str, dict[str, Any]]:
        """The arguments of each function of `metrics` by its path."""
        return {
            path: {name: value for name, value in given.items() if name != "mode"}
            for path, given in self._metric_entries.items()
        }

    @property
    def _metric_entries(self) -> dict[str, dict[str, Any]]:
        entries = (each if isinstance(each, dict) else {each: {}} for each in self.metrics)
        return {path: given for entry in entries for path, given in entry.items()}

    def find_mode(self, figure: str) -> Mode | None:
        """Returns the better direction of a metric, or None for the author's own without a mode."""
        own = {_get_name(path): mode for path, mode in self.own_metrics.items()}
        return find_mode(figure, own)

    def explain_mode(self, figure: str) -> str:
        """Says how to give the mode of a figure that has none."""
        paths = {_get_name(path): path for path in self.own_metrics}
        return explain_mode(paths.get(remove_split(figure), figure))

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics of the validation split besides the loss."""
        return self.step_metric_names + self.gate_metrics

    @property
    def gate_metrics(self) -> list[str]:
        """The metrics of the gate that are computed on the validation split, besides accuracy."""
        names = ["map_50"] if self.task == "detection" else []
        for monitor in self._monitors.values():
            name = monitor.removeprefix("validation_")
            if name not in (*names, *self.step_metric_names) and self._is_gate_metric(name):
                names.append(name)
        return names

    @property
    def _monitors(self) -> dict[str, str]:
        """The figure that each section monitors."""
        sections = {
            name: getattr(self, name)
            for name in ("early_stopping", "reduce_learning_rate", "best_checkpoint")
        }
        return {
            name: section.monitor
            for name, section in sections.items()
            if section and section.monitor
        }

    def _is_gate_metric(self, name: str) -> bool:
        is_top_k = self.task == "classification" and _TOP_K.fullmatch(name)
        return bool(is_top_k) or name in _GATE_METRICS[self.task]

    @property
    def callback_arguments(self) -> list[tuple[str, dict[str, Any]]]:
        """Path and arguments of each callback."""
        entries = (entry for entry in self.callbacks if isinstance(entry, dict))  # as are all
        return [pair for entry in entries for pair in entry.items()]

    @property
    def task(self) -> Task:
        return find_model(self.model).task

    @property
    def best_monitor(self) -> str | None:
        """The figure that selects the best epoch. None if the last epoch counts."""
        if self.best_checkpoint is None:
            return None
        default = "map_50" if self.task == "detection" else "accuracy"
        return self.best_checkpoint.monitor or f"validation_{default}"

    @property
    def replicas(self) -> int:
        """The parts of a batch, in a gang of the size that `workers` asks for."""
        is_divided = self.strategy not in UNDIVIDED
        return self.workers * self.devices_per_worker if is_divided else 1

    @property
    def batch_size(self) -> int:
        """The examples per optimizer step over all workers."""
        if self.batch_size_per_replica is not None:
            return self.batch_size_per_replica * self.replicas
        return _BATCH_SIZE if self.global_batch_size is None else self.global_batch_size

    @property
    def batch_key(self) -> str:
        """The key that determines `batch_size`."""
        is_by_replica = self.batch_size_per_replica is not None
        return "batch_size_per_replica" if is_by_replica else "global_batch_size"

    @property
    def learning_rate(self) -> float:
        """The learning rate before schedule and callbacks, for `batch_size`.

        The linear rule is that of Goyal et al. (2017), the square root that of Krizhevsky (2014).
        """
        rate = self.optimizer.learning_rate
        match self.scale_learning_rate:
            case "linear":
                return rate * self.replicas
            case "sqrt":
                return rate * math.sqrt(self.replicas)
        return rate

    @property
    def batch_description(self) -> str:
        """Describes batch and rate of `batch_size_per_replica` in words. Returns "" without it."""
        if self.batch_size_per_replica is None:
            return ""
        replicas, rule = self.replicas, self.scale_learning_rate
        rate, changes = f"a learning rate of {self.learning_rate:g}", "the batch"
        if rule:
            factor = replicas if rule == "linear" else f"the square root of {replicas}"
            rate += f" ({self.optimizer.learning_rate:g} x {factor})"
            changes = "both"
        return (
            f"{replicas} replica{'s' * (replicas != 1)} x {self.batch_size_per_replica} = a global "
            f"batch of {self.batch_size}, at {rate}. Another number of workers or "
            f"devices_per_worker changes {changes}, and so the model"
        )

    @property
    def effective_min_workers(self) -> int:
        return self.min_workers or self.workers

    @property
    def effective_max_workers(self) -> int:
        return self.max_workers or self.workers

    @model_validator(mode="after")
    def _validate_combination(self) -> Train:
        """Raises ValueError if one option makes another impossible or void."""
        model = "detector" if self.task == "detection" else "classifier"
        strategy, task = f"strategy {self.strategy}", f"{model} {self.model}"
        refuse_values(self, {self.strategy: strategy, self.task: task})
        self._validate_workers()
        self._validate_batch()
        self._validate_model()
        self._validate_xla()
        self._validate_weights()
        self._validate_labels()
        for name, monitor in self._monitors.items():
            known = ["loss", *self.step_metric_names, *_GATE_METRICS[self.task]]
            figure = monitor.removeprefix("validation_")
            if figure not in known and not self._is_gate_metric(figure):
                others = "" if self.task == "detection" else ", validation_top_3_accuracy"
                raise ValueError(
                    f"{name}.monitor must be one of "
                    f"{', '.join(f'validation_{figure}' for figure in known)}{others}, "
                    f"got {monitor}. A metric of your own must be in train.metrics."
                )
        self._validate_modes()
        return self

    def _validate_modes(self) -> None:
        """Requires the better direction of what is monitored."""
        monitored = [(f"{key}.monitor", monitor) for key, monitor in self._monitors.items()]
        for path, arguments in self.callback_arguments:
            monitor = str(arguments.get("monitor"))
            is_own = remove_split(monitor) in map(_get_name, self.own_metrics)
            if path.startswith("keras.") and arguments.get("mode", "auto") == "auto" and is_own:
                monitored.append(("callbacks", monitor))
        for key, monitor in monitored:
            if self.find_mode(monitor) is None:
                raise FieldError(key, f"is {monitor}. {self.explain_mode(monitor)}.")

    def _validate_workers(self) -> None:
        if not self.effective_min_workers <= self.workers <= self.effective_max_workers:
            raise ValueError(
                "need min_workers <= workers <= max_workers, got "
                f"{self.effective_min_workers}, {self.workers}, {self.effective_max_workers}"
            )

    def _validate_batch(self) -> None:
        self._validate_replica_batch()
        is_divided = self.strategy not in UNDIVIDED
        replicas = self.effective_max_workers * self.devices_per_worker if is_divided else 1
        parts = replicas * self.micro_batches
        if self.batch_size < parts:
            key = "max_workers" if self.max_workers else "workers"
            is_by_replica = self.batch_size_per_replica is not None
            subject = "the global batch" if is_by_replica else "global_batch_size"
            raise ValueError(
                f"{subject} must be at least {key} x devices_per_worker x micro_batches "
                f"({parts}), got {self.batch_size}"
            )
        if self.strategy == "tpu" and self.batch_size % parts:
            raise ValueError(
                f"global_batch_size must be a multiple of devices_per_worker x micro_batches "
                f"({parts}) for tpu, whose shapes are fixed when a step is compiled, "
                f"got {self.batch_size}"
            )
        if self.xla == "none" or self.micro_batches == 1:
            return
        for workers in range(self.effective_min_workers, self.effective_max_workers + 1):
            parts = workers * self.devices_per_worker * self.micro_batches
            if self.batch_size % parts:
                raise ValueError(
                    f"xla: {self.xla} needs micro_batches of one size, and global_batch_size "
                    f"{self.batch_size} is no multiple of workers x devices_per_worker x "
                    f"micro_batches ({parts})"
                )

    def _validate_replica_batch(self) -> None:
        if self.batch_size_per_replica is None:
            if self.scale_learning_rate:
                raise ValueError(
                    f"scale_learning_rate: {self.scale_learning_rate} needs "
                    "batch_size_per_replica. A global_batch_size, and so its learning rate, does "
                    "not follow the replicas."
                )
            return
        if self.global_batch_size is not None:
            raise ValueError(
                "exactly one of global_batch_size and batch_size_per_replica may be given, "
                f"got {self.global_batch_size} and {self.batch_size_per_replica}"
            )
        if self.strategy == "auto" and self.workers == 1:
            raise ValueError(
                "batch_size_per_replica: with one worker, auto takes as many replicas as its host "
                "has GPUs, which is not known before. Use mirrored with devices_per_worker."
            )

    def _validate_model(self) -> None:
        entry = find_model(self.model)
        unknown = sorted(set(self.model_parameters) - set(entry.parameters))
        if unknown and not is_user_function(self.model):
            raise ValueError(
                f"the model {self.model} has no parameter {', '.join(unknown)}. "
                f"It has {', '.join(entry.parameters) or 'none'}."
            )
        if not self.synchronized_batch_normalization:
            return
        if not entry.has_batch_normalization:
            raise ValueError(
                f"synchronized_batch_normalization: the model {self.model} has no batch "
                "normalisation"
            )
        if self.model_parameters.get("frozen_batch_normalization"):
            raise ValueError(
                "synchronized_batch_normalization: with "
                "model_parameters.frozen_batch_normalization there are no statistics to "
                "synchronise. Use one of the two."
            )

    def _validate_xla(self) -> None:
        if self.xla == "none":
            return
        for switch in ("numerics", "eager"):
            if switch in self.debug:
                raise ValueError(
                    f"debug: {switch} looks at single operations, and xla: {self.xla} compiles "
                    "them into one. Use one of the two."
                )
        is_alone = self.strategy in ("one_device", "tpu")
        if self.synchronized_batch_normalization and not is_alone:
            raise ValueError(
                f"xla: {self.xla} cannot compile the exchange between replicas that "
                "synchronized_batch_normalization makes in the forward pass. Use one of the two."
            )

    def _validate_weights(self) -> None:
        limit = self.max_epochs or MAX_EPOCHS
        if late := [pattern for pattern, end in self.freeze.items() if end and end >= limit]:
            raise ValueError(
                f"freeze: {late[0]} must thaw before the end of the training (epochs: "
                f"{limit}), got {self.freeze[late[0]]}. Use null to freeze them for good."
            )
        if not self.freeze_epochs:
            return
        if self.warm_start is None:
            raise ValueError(
                f"freeze_epochs: {self.freeze_epochs} keeps the weights that warm_start sets, and "
                "there are none. Set warm_start, or freeze_epochs: 0."
            )
        if self.max_epochs and self.freeze_epochs >= self.max_epochs:
            raise ValueError(
                f"freeze_epochs must be smaller than epochs ({self.max_epochs}), got "
                f"{self.freeze_epochs}. All weights learn in the epochs after it."
            )

    def _validate_dataset(self) -> None:
        """Rejects options for the examples of the data set beside those of `dataset`."""
        if not self.dataset:
            return
        for name in ("augment", "shuffle", "repeat_threshold", "cache", "cache_limit_mib"):
            if getattr(self.input, name) != getattr(InputOptions(), name):
                raise ValueError(
                    f"input.{name} is for the data set's train split, and dataset: {self.dataset} "
                    "makes the training examples itself. Do it there, or leave one of them out."
                )
        if self.class_weights:
            raise ValueError(
                "class_weights are counted on the data set's train split, and the training "
                f"examples come from dataset: {self.dataset}. Leave class_weights out."
            )

    def _validate_labels(self) -> None:
        """Rejects options that contradict the loss, the data set or one another."""
        self._validate_dataset()
        if self.loss and self.label_smoothing:
            raise ValueError(
                f"label_smoothing belongs to the cross-entropy. Apply it inside {self.loss}, or "
                "give it to a loss of Keras: {label_smoothing: 0.1}."
            )
        if self.class_weights and self.weights_by_class:
            raise ValueError(
                "class_weights: true computes the weights, and weights_by_class gives them. Use one"
            )
        if self.loss_arguments and not self.loss:
            raise ValueError("loss_arguments are for a loss. Name it in loss.")
