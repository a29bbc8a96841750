"""The `figures` of each job's manifest, and the names of the files next to it.

There is one class per job, so that the job that writes and the jobs that read always agree. The
data set's figures are in `dataset.py`, next to the shard names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from pipeline_ops.config.evaluate import Mode
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.contract.layout import format_trial_name
from pipeline_ops.contract.manifest import Manifest, ManifestFile
from pipeline_ops.storage.parsing import JsonModel

Share = Annotated[float, Field(ge=0, le=1)]
SAVED_MODEL = "saved_model"
"""Training: the candidate, a SavedModel with the signatures of `served/contract.py`."""
MIN_SCORE = 0.01
"""The minimum score of a detection.

It is low, because average precision also covers uncertain detections.
"""
COCO_DETECTIONS = 100
"""The number of detections of a class in an image, the best ones, that COCO's figures count."""
_DETECTIONS_STEP = 100
_MAX_NAMED = 5
"""The number of examples that a sentence names."""


def format_figure(value: float) -> str:
    """Returns a figure with four decimals, or says that it is not finite."""
    return f"{value:.4f}" if math.isfinite(value) else f"not finite ({value})"


def choose_max_detections(most_boxes: int) -> int:
    """Returns the largest number of detections of an image for a data set with up to `most_boxes`
    boxes in an image: COCO's 100, or the next hundred.
    """
    return max(COCO_DETECTIONS, math.ceil(most_boxes / _DETECTIONS_STEP) * _DETECTIONS_STEP)


def choose_num_counted(most_boxes: int, limits: Iterable[int]) -> int:
    """Returns how many detections of a class in an image count: COCO's 100, or the models' own
    limit if an image has more boxes than 100.

    `limits` has the largest number of detections that each model can answer.
    """
    return max(COCO_DETECTIONS, *limits) if most_boxes > COCO_DETECTIONS else COCO_DETECTIONS


WEIGHTS = "weights.npz"
"""Training: the trained weights by index, `w0000` and so on, in the order of `model.weights`."""
REFERENCE_EXAMPLES = "reference.tfrecord"
"""Training: raw records of the test split with their pixels, serialised as in the data set."""
REFERENCE_OUTPUTS = "reference.npy"
"""Training: the outputs of the trained model in memory for the pixels of the reference examples.

A classifier has probabilities (float32 [N, classes]), a detector has detections (float32 [N, 100,
6]: box, score and class).
"""
SEEN_PICTURES = "seen.png"
"""Training: the first pictures as the model saw them, after augmentation, with labels or boxes."""
CALLBACKS = "callbacks"
"""Training: a folder of the files that callbacks have written."""
TENSORBOARD = "tensorboard"
"""Training: a folder of event files."""
TEST_SPLIT = "test split"
"""Evaluation: the input of its fingerprint that holds the digest of the planned test split."""
SERVING_STATISTICS = "serving statistics"
"""Evaluation: the input of its fingerprint that holds the digest of the counted requests."""
LAST_EVALUATION = "last_evaluation"
"""Evaluation: the input that names the previous evaluation, to show the changes since."""
DIVERGED = "diverged"
"""Training: the examples of each step that diverged.

`step-000000123.tfrecord` holds the examples, and a .json file next to it names them.
"""
REPORT = "report.html"
METRICS = "metrics.json"
"""Evaluation: REPORT is the page for people, METRICS holds the results for programs.

Export writes both again and adds the published models.
"""
PREDICTIONS = "predictions.png"
"""Evaluation: three test images with their truth on the left and the prediction on the right."""
ANSWERS = "predictions.npz"
"""Evaluation of a classifier: its answer to each test example (`predictions.py`)."""
ANSWERS_BY_THRESHOLD = "thresholds.json"
"""Evaluation: the counts of right and wrong answers by threshold (`thresholds.py`)."""
PUBLICATION = "<!-- publication -->"
"""Evaluation: the marker in its report where export inserts the publication.

No text of the page can look like it, because all text is escaped.
"""


def list_saved_model_files(training: Manifest) -> list[ManifestFile]:
    """The candidate's files in the manifest of a training."""
    return [file for file in training.files if is_saved_model_file(file.path)]


def is_saved_model_file(path: str) -> bool:
    """Returns whether a file of a training belongs to the candidate."""
    return path.startswith(f"{SAVED_MODEL}/")


class Figures(JsonModel):
    """A part of a job's figures.

    A float that is not a number is written as the text "NaN" or "Infinity", which reads back.
    """

    model_config = ConfigDict(frozen=True)


class Trial(Figures):
    """One combination of parameters, by dotted key."""

    number: int
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its record and of the folder of its attempts."""
        return format_trial_name(self.number)

    def __str__(self) -> str:
        return ", ".join(
            f"{key.removeprefix('train.')} "
            f"{format(value, 'g') if isinstance(value, float) else value}"
            for key, value in self.parameters.items()
        )


class SearchFigures(Figures):
    """The trials that a search has drawn, by number."""

    trials: list[Trial]


class Epoch(Figures):
    """Figures over all workers at the end of an epoch.

    Epochs count from 0. `step` counts optimizer steps since the start. `metrics` has `loss` and the
    other metrics of the task over the epoch's training batches, and `validation_loss` and so on
    over the validation split. `learning_rate` is the one of the last step.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    learning_rate: float


class StepShares(Figures):
    """The shares of a worker's time, which add up to 1."""

    input: Share
    """Waiting for the next batch."""
    computing: Share
    communication: Share
    """From a worker's own gradients to the sums of all replicas, so waiting for others counts."""
    saving: Share
    """Of checkpoints, as far as the training waits for it."""


class GpuUsage(Figures):
    """How busy a GPU is. A driver or a part of a GPU may not know the utilization or the power."""

    name: str = Field(max_length=100)
    """As CUDA_VISIBLE_DEVICES names it."""
    utilization: Share | None = None
    """The share of the last second or less in which it computed."""
    memory_bytes: int = Field(ge=0, le=2**53)
    """Of all processes."""
    memory_limit_bytes: int = Field(ge=0, le=2**53)
    watts: float | None = Field(None, ge=0, allow_inf_nan=False)


class TrainingFigures(Figures):
    """The figures of a training.

    `weights_digest` covers the challenger's weights, and `worker_weights_digests` each worker's
    final ones. The challenger is from `best_epoch`, which is -1 if no epoch was completed.
    """

    strategy: str
    strategy_reason: str = ""
    """The reason for the choice of `auto`. Empty if the config names the strategy."""
    workers: int
    batch: str = ""
    """What `train.batch_size_per_replica` makes of the number of replicas. Empty without it."""
    steps: int
    restarts: int
    weights_digest: str
    worker_weights_digests: list[str]
    step_shares: dict[str, StepShares] = {}
    """By worker, since it was started last. Empty if it was not timed (docs/strategies.md)."""
    gpus: dict[str, list[GpuUsage]] = {}
    """By worker, at the end."""
    num_parameters: int
    model_summary: str = ""
    """Keras's summary, with its middle left out if it is long."""
    best_epoch: int
    best_monitor: str | None = None
    """The metric by which `best_epoch` is the best. None if it is the last one."""
    stopped_early: bool
    early_stop: str = ""
    """Where and why it has stopped early: `stopped early at epoch 20 of 40: ...`. Or empty."""
    history: list[Epoch]
    seconds: float
    class_names: list[str]
    image_shape: tuple[int, int, int]
    task: Task = "classification"
    warnings: list[str] = []
    """Problems that did not stop the training: a damaged checkpoint, a batch that was left out."""


class ClassFigures(Figures):
    """One class of the test split.

    Precision, recall and f1 are 0 if the class has no predictions or no examples. The areas are
    None if they are undefined: without an example of the class, or (ROC) without one of another
    class.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    roc_auc: float | None = None
    average_precision: float | None = None


class CalibrationBin(Figures):
    """Examples whose answer has a probability between `low` and `high`.

    `confidence` is the mean probability, `accuracy` the share of right answers.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


class RuleVerdict(Figures):
    """One bound of one rule of the gate with its numbers, and as a sentence for people.

    `subject` is the class or slice that it covers, "" for the whole test split. `champion` is the
    champion's value. `low` and `high` are the interval of the difference to it at the rule's
    confidence. Each is None if there is none.
    """

    metric: str
    passed: bool
    text: str
    subject: str = ""
    value: float | None = None
    bound: float | None = None
    champion: float | None = None
    low: float | None = None
    high: float | None = None
    is_within_noise: bool = False
    is_compared: bool = True
    """False if there is no champion to compare with, so that the rule is not tested."""


class NotFinite(Figures):
    """The answers of a model that are not finite: their number, and the keys of the first ones."""

    count: int = 0
    keys: list[str] = []

    def add(self, keys: Iterable[str], is_finite: Iterable[bool]) -> NotFinite:
        """Returns this with the answers to more examples, of which some may be finite."""
        more = [key for key, is_number in zip(keys, is_finite, strict=True) if not is_number]
        named = (self.keys + more)[:_MAX_NAMED]
        return NotFinite(count=self.count + len(more), keys=named) if more else self

    def describe(self, total: int) -> str:
        """Returns `3 of 100 test images are not finite (a.png, b.png, ...)`."""
        more = ", ..." * (self.count > len(self.keys))
        return f"{self.count} of {total} test images are not finite ({', '.join(self.keys)}{more})"


class ModelEvaluation(Figures):
    """One model on the test split.

    `confusion[i][j]` counts examples of class i predicted as class j. `intervals` hold 95 % of the
    bootstrap's draws, for metrics that are computed from counts. `measures` describe the served
    model. Answers that are not finite count as wrong, and are counted in `not_finite`.
    """

    metrics: dict[str, float]
    classes: list[ClassFigures]
    confusion: list[list[int]]
    intervals: dict[str, tuple[float, float]] = {}
    calibration: list[CalibrationBin] = []
    measures: dict[str, float] = {}
    not_finite: NotFinite = NotFinite()


class SliceFigures(Figures):
    """One value of a slice: the metrics of both models, with intervals, on its examples."""

    name: str
    value: str
    num_examples: int
    challenger: dict[str, float]
    champion: dict[str, float] | None
    intervals: dict[str, tuple[float, float]]
    differences: dict[str, tuple[float, float]]


class AsServed(Figures):
    """The answers to the raw files of test records beside those to the images made of them.

    `agreement` is the share of equal answers: the class, or all certain boxes. `metric` is the
    figure that was computed from both, on these records alone. `low` and `high` are the 95 %
    interval of the one from files. Without files, `reason` says why, and the rest is None.
    """

    num_files: int = 0
    reason: str = ""
    agreement: Share | None = None
    metric: str = ""
    from_files: float | None = None
    from_images: float | None = None
    low: float | None = None
    high: float | None = None
    passed: bool = True
    not_finite: NotFinite = NotFinite()

    @property
    def text(self) -> str:
        """The comparison as a sentence, without a full stop."""
        if not self.num_files:
            return f"not measured as served: {self.reason}"
        return (
            f"as served, from {self.num_files} raw test files, {self.metric} is "
            f"{self.from_files:.4f}, from the images made of them {self.from_images:.4f}. "
            f"{self.agreement:.1%} of the answers are equal"
            + f". The answers to {self.not_finite.describe(self.num_files)}"
            * bool(self.not_finite.count)
            + (
                ""
                if self.passed
                else ", so the gate does not measure what is served. Correct `serve` of your own "
                "stages; trainyard validate --deep compares it with the stage"
            )
        )


class SkewDistance(Figures):
    """The distance of one feature of requests, or of the classes (`labels`)."""

    feature: str
    jensen_shannon: float
    l_infinity: float
    is_above: bool
    """True if it is above the smallest bound of a rule."""


class ServingFigures(Figures):
    """The requests to the model in service, compared with the training split.

    `start` and `end` are seconds since 1970, `versions` counts images by version. `distances` have
    the largest one first, and only features with enough images. `problem` is the reason why there
    are none, as the end of a sentence.
    """

    num_images: int
    start: int = 0
    end: int = 0
    versions: dict[int, int] = {}
    distances: list[SkewDistance] = []
    problem: str = ""


class EvaluationFigures(Figures):
    """The figures of an evaluation.

    `differences` are 95 % intervals of challenger minus champion, from paired draws. `drift` is the
    drift of the data, None without a reference. `serving` is the comparison with requests, None if
    nobody asks for it. `baseline` has the metrics of a model that has not
    looked at the images. `overfitting` is a sentence about the training, or "". `own_modes` are the
    better directions of the author's own metrics, as far as the gate has them.
    """

    num_examples: int
    challenger: ModelEvaluation
    champion: ModelEvaluation | None
    champion_version: int | None
    gate_passed: bool
    rules: list[RuleVerdict]
    differences: dict[str, tuple[float, float]] = {}
    slices: list[SliceFigures] = []
    drift: float | None = None
    serving: ServingFigures | None = None
    baseline: dict[str, float] = {}
    overfitting: str = ""
    own_modes: dict[str, Mode] = {}
    as_served: AsServed = AsServed()
    warnings: list[str] = []
    """Reasons to doubt the figures, as sentences without a full stop."""


_BASELINE_METRICS = ("accuracy", "map_50")
_CLEAR_SKILL = 0.5


def compare_with_baseline(metrics: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    """Compares the first metric that both have, in a sentence. Returns "" without any."""
    for name in _BASELINE_METRICS:
        if name in metrics and name in baseline:
            return (
                f"{'Better' if metrics[name] > baseline[name] else 'Not better'} than a model that "
                f"has not looked at the images: {name} {format_figure(metrics[name])} against "
                f"{format_figure(baseline[name])}"
            )
    return ""


def has_clear_skill(metrics: Mapping[str, float], baseline: Mapping[str, float]) -> bool:
    """Returns whether a metric is at least half of the way from the baseline to a perfect score."""
    return any(
        metrics[name] - baseline[name] >= _CLEAR_SKILL * (1 - baseline[name]) > 0
        for name in _BASELINE_METRICS
        if name in metrics and name in baseline
    )


class FileFigures(Figures):
    """The pixels that a published model makes of raw test files, beside those of the data set.

    The differences are the largest of all files, in levels of 0..255: of an image's mean, of its
    99.9th percentile, and of any pixel. `unserved_kinds` are the kinds of raw files that a served
    model does not take. With `client_stages`, it takes none, and the pixels are those of
    `pipeline_ops.served.prepare`.
    """

    num_checked: int
    unserved_kinds: list[str] = []
    mean_difference: float = 0.0
    tail_difference: float = 0.0
    max_difference: float = 0.0
    client_stages: list[str] = []


class FormatFigures(Figures):
    """One format of a published model, as measured by a process that has never built the model.

    `path` is below the version's folder, "" for the SavedModel itself. `max_difference` is the
    largest difference of a probability, and `top1_agreement` the share of equal answers, over
    `num_checked` real test images. Both compare with the model in memory at training. For a
    detector, they are about scores and edges, and about images with the same boxes. If not all
    images have to agree, `max_difference` covers only those that do. `latency_seconds` is the
    median for one image (of the SavedModel, from encoded bytes), `seconds` the time of the
    conversion.
    """

    name: str
    path: str
    num_bytes: int
    num_checked: int
    max_difference: float
    tolerance: float
    top1_agreement: float
    min_top1_agreement: float
    latency_seconds: float
    seconds: float


class ModelFigures(Figures):
    """The figures of a published version, and of the export that published it.

    `contents` is a digest over the config of the version's contents besides the model.
    `compared_with` is the champion's version at evaluation. `max_difference` is the largest
    difference of a probability between published and trained model over `num_checked` test images.
    """

    name: str
    version: int
    compared_with: int | None
    metrics: dict[str, float]
    num_checked: int
    max_difference: float
    top1_agreement: float
    class_names: list[str]
    formats: list[FormatFigures] = []
    files: FileFigures | None = None
    """Versions that were published before this check have none."""
    contents: str = ""
    not_in_service: str = ""
    """In the export's artifact: why the version was not put in service, or ""."""
