"""What each job's manifest says in its `figures`, and the names of the files beside it.

One class per job, so that the job that writes and the jobs that read agree by construction. The data set's figures are
in `shards.py`, next to the shard names.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.manifest import Manifest, ManifestFile
from pipeline_ops.config.model_catalogue import Task

SAVED_MODEL = "saved_model"
"""Training: the candidate, a SavedModel with four signatures. `serving_default` takes `image_bytes` (string [N]: files of any size), `images`
takes `images` (float32 [N, H, W, C] in 0..255), `examples` takes `examples` (string [N]: tf.train.Example with `image/encoded`); all three
return `probabilities` (float32 [N, classes]) and `classes` (int64 [N]). `decode` takes `image_bytes` and returns `images`.

A detector returns `boxes` (float32 [N, 100, 4]: ymin, xmin, ymax, xmax as fractions of the image that was sent), `scores` (float32 [N, 100], the
best first), `classes` (int64 [N, 100]: indexes into the class names) and `num_detections` (int32 [N]); what comes after so many is 0. Those whose
head can be made of what TFLite and ONNX have, have a fifth signature for that, `portable`: as `images`."""
LEAST_SCORE = 0.01
"""What scores less is no detection. So low, because average precision also looks at what a detector is unsure of."""
WEIGHTS = "weights.npz"
"""Training: the trained weights by index, `w0000` and so on, in the order of `model.weights`."""
REFERENCE_EXAMPLES = "reference.tfrecord"
"""Training: real test examples, serialised as in the data set."""
REFERENCE_OUTPUTS = "reference.npy"
"""Training: the probabilities (float32 [N, classes]) that the trained model in memory gave for those examples; of a detector its detections,
float32 [N, 100, 6]: box, score and class."""
TENSORBOARD = "tensorboard"
"""Training: a folder of event files."""
TEST_SPLIT = "test split"
"""Evaluation: among the inputs of its fingerprint, the digest of the test split that it was planned with."""
LAST_EVALUATION = "last_evaluation"
"""Evaluation: among its inputs, the one before it, to tell what has changed."""
DIVERGED = "diverged"
"""Training: where steps diverged, `step-000000123.tfrecord` with the examples of each, and a .json beside it that names them."""
REPORT = "report.html"
METRICS = "metrics.json"
"""Evaluation: the page for a person and what a program may want to know. Export has both again, with what was published in them."""
PUBLICATION = "<!-- publication -->"
"""Evaluation: the place in its report where export tells what was published. No text of the page can look like it: all of it is escaped."""


def files_of_saved_model(training: Manifest) -> list[ManifestFile]:
    """The candidate's files in the manifest of a training."""
    return [file for file in training.files if file.path.startswith(f"{SAVED_MODEL}/")]


class Figures(BaseModel):
    """A figure that is not a number is written as the text "NaN" or "Infinity", which reads back."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class Epoch(Figures):
    """Figures over all workers at the end of an epoch. Epochs count from 0; `step` counts optimizer steps since the start.

    `metrics` has `loss` and what else the task measures, over the epoch's training batches, and the same of the validation split
    under names that begin with `validation_`. `learning_rate` is that of the epoch's last step.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    learning_rate: float


class TrainingFigures(Figures):
    """`weights_digest` is over the challenger's weights; `worker_weights_digests` are what each worker ended with. `best_epoch` is
    -1 where the challenger has the weights of the last epoch, because no best one was asked for."""

    strategy: str
    strategy_reason: str = ""
    """Why `auto` chose it; empty where the config names it."""
    workers: int
    steps: int
    restarts: int
    weights_digest: str
    worker_weights_digests: list[str]
    num_parameters: int
    best_epoch: int
    stopped_early: bool
    history: list[Epoch]
    seconds: float
    class_names: list[str]
    image_shape: tuple[int, int, int]
    task: Task = "classification"
    warnings: list[str] = []
    """What a person should hear of, though training went on: a checkpoint that was damaged, a batch that was left out."""


class ClassFigures(Figures):
    """One class of the test split; precision, recall and f1 are 0 where nothing was predicted or there is nothing to find, the areas
    None where they have no meaning: without an example of the class, or (ROC) without any other."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    roc_auc: float | None = None
    average_precision: float | None = None


class CalibrationBin(Figures):
    """Examples whose answer has a probability between `low` and `high`: its mean, and how many of the answers are right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


class RuleVerdict(Figures):
    """One bound of one rule of the gate with its numbers, and as a sentence for a person.

    `subject` is the class or slice that it is about, "" for the whole test split. `champion` is the champion's value, `low` and `high` the
    interval of the difference to it at the rule's confidence; None where there is none.
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


class ModelEvaluation(Figures):
    """One model on the test split. `confusion[i][j]` counts examples of class i taken for class j.

    `intervals` hold 95 % of the bootstrap's draws, for metrics that are made of counts; `measures` are of the model as it is served.
    """

    metrics: dict[str, float]
    classes: list[ClassFigures]
    confusion: list[list[int]]
    intervals: dict[str, tuple[float, float]] = {}
    calibration: list[CalibrationBin] = []
    measures: dict[str, float] = {}


class SliceFigures(Figures):
    """One value of a slice: the metrics of both models, with intervals, on the examples that have it."""

    name: str
    value: str
    num_examples: int
    challenger: dict[str, float]
    champion: dict[str, float] | None
    intervals: dict[str, tuple[float, float]]
    differences: dict[str, tuple[float, float]]


class EvaluationFigures(Figures):
    """`differences` are 95 % intervals of challenger minus champion, from paired draws. `drift` is the data's, None without a reference."""

    num_examples: int
    challenger: ModelEvaluation
    champion: ModelEvaluation | None
    champion_version: int | None
    gate_passed: bool
    rules: list[RuleVerdict]
    differences: dict[str, tuple[float, float]] = {}
    slices: list[SliceFigures] = []
    drift: float | None = None


class FormatFigures(Figures):
    """One format of a published model, as a process that has never built the model found it.

    `path` is below the version's folder, "" for the SavedModel itself. `max_difference` is that of a probability and
    `top1_agreement` the share of equal answers over `num_checked` real test images, both against the model in memory at
    training. Of a detector, `top1_agreement` is the share of images with the same boxes, and `max_difference` that of a score or an
    edge; where not all images have to agree, of those that do. `latency_seconds` is the median for one image (of the SavedModel, from
    encoded bytes), `seconds` what making it cost.
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
    """Of a published version, and of the export that published it. `contents` is a digest over the config of what is in it beside the model.

    `compared_with` is the champion's version at evaluation, `max_difference` the largest difference of a probability
    between the published model and the trained one over `num_checked` real test images.
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
    contents: str = ""
