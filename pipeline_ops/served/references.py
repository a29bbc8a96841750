"""Reference examples: what a published model must answer, and to which files.

Training leaves raw files of real test examples, the pixels that the stages made of them, and the
answers of the model in memory to these pixels. Whatever is published must make the same pixels of
the raw files, and give the same answers.

Legend: N images, H W C one image, K classes, D detections.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.contract.dataset import ENCODED
from pipeline_ops.contract.results import (
    MIN_SCORE,
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    FileFigures,
)
from pipeline_ops.errors import DataError
from pipeline_ops.served import contract
from pipeline_ops.served.client import (
    RawRecord,
    SavedModelClient,
    decode_pixels,
    pack_detections,
    read_raw_records,
    skip_graph_optimizer,
)
from pipeline_ops.storage.read_errors import make_read_error

_BATCH = 64
_OUTPUTS: dict[Task, Sequence[str]] = {
    "classification": contract.CLASSIFIER_OUTPUTS,
    "detection": contract.DETECTOR_OUTPUTS,
}
_SCORE, _CLASS = 4, 5  # the indexes in box, score and class
_ID = re.compile(r"^  id: (\d+)$", re.MULTILINE)
MAX_MEAN, MAX_TAIL, TAIL_PERCENT = 1.0, 4.0, 99.9
"""Limits of the difference between the pixels of a served file and those of the data set, in levels
of 0..255 per image: of the mean, and of the 99.9th percentile. Other rounding stays far below: 0.15
and 1 were measured for all stages of ours. A wrong filter has a mean of 4."""


MAX_ANSWER_DIFFERENCE, MIN_MARGIN, MAX_OTHER_ANSWERS = 0.03, 0.05, 0.02
"""Limits of the difference between answers to raw files and to the pixels of the data set, see
`compare_file_answers`. The share of files that may be beyond them, because rounding decides which
of two nearly equal boxes stays, is `MAX_OTHER_ANSWERS`."""
_NUM_API = 8


@dataclasses.dataclass(frozen=True)
class AgreementRule:
    """The allowed difference from the trained model, and the keys that allow it."""

    tolerance: float
    top1_agreement: float
    keys: tuple[str, str]


class Agreement(NamedTuple):
    """The number of compared images, the largest difference, and the share of equal answers."""

    num_checked: int
    max_difference: float
    top1_agreement: float


class PixelDifference(NamedTuple):
    """The difference of two images, in levels of 0..255."""

    mean: float
    tail: float
    maximum: float

    @property
    def is_allowed(self) -> bool:
        return self.mean <= MAX_MEAN and self.tail <= MAX_TAIL


def compare_pixels(first_HWC: np.ndarray, second_HWC: np.ndarray) -> PixelDifference:
    """Compares two images. Those of different shapes differ by 255."""
    if first_HWC.shape != second_HWC.shape:
        return PixelDifference(255.0, 255.0, 255.0)
    difference = np.abs(first_HWC.astype(np.float32) - second_HWC.astype(np.float32))
    tail = np.percentile(difference, TAIL_PERCENT)
    return PixelDifference(float(difference.mean()), float(tail), float(difference.max()))


class References:
    """The inputs and answers of the trained model, and a SavedModel that must repeat them.

    `training` is the folder of a training's artifact, `folder` the SavedModel. Raises DataError if
    a file cannot be read or loaded.

    Attributes:
      outputs: the answers of the model in memory to `images`: probabilities float32 [N, K] or
        detections float32 [N, D, 6].
      images: float32 [N, H, W, C], the pixels that the stages made.
      encoded: the same as image files.
      files: the raw files that a served model takes, each with the index of its first image.
    """

    def __init__(
        self, training: Path, folder: Path, num_classes: int, task: Task = "classification"
    ):
        self.task, self._folder = task, folder
        try:
            self.outputs = np.load(training / REFERENCE_OUTPUTS, allow_pickle=False)
        except (OSError, ValueError) as error:
            problem = f"cannot read {training / REFERENCE_OUTPUTS}"
            raise make_read_error(problem, error, ". Train again.") from error
        self.model = SavedModelClient(folder, "the candidate", num_classes, _OUTPUTS[task])
        self.preprocessing = self.model.preprocessing
        records = list(read_raw_records([str(training / REFERENCE_EXAMPLES)]))
        self.encoded = [image for record in records for image in record.pixels]
        keys = (key for record in records for key in record.examples)
        self._names = [f"{key} of {REFERENCE_EXAMPLES}" for key in keys]
        self.images = decode_pixels(self.encoded, self.model.image_shape, self._names)
        starts = np.cumsum([0, *(len(record.pixels) for record in records)]).tolist()
        self.files = [
            (record, start)
            for record, start in zip(records, starts, strict=False)
            if record.is_servable
        ]
        self.unserved_kinds = sorted(
            {record.kind or "unknown" for record in records if not record.is_servable}
        )

    def pack(self, prediction: Mapping[str, np.ndarray]) -> np.ndarray:
        """Packs an answer in the form of the reference outputs."""
        if self.task == "detection":
            return pack_detections(prediction)
        return np.asarray(prediction["probabilities"], np.float32)

    def check_prepared(self, rule: AgreementRule) -> Agreement:
        """Checks the signature for what the stages have made."""
        with skip_graph_optimizer():
            found = self.pack(self.model.call_signature(contract.IMAGES, images=self.images))
        if self.task == "classification":
            self.model.check_shape(found, len(self.images))
        return check_agreement(self.outputs, found, rule, "the signature images of the SavedModel")

    def check_files(self) -> FileFigures:
        """Checks what the model makes of raw files, and answers to them.

        Raises DataError if pixels differ from those that the stages made, with the first stage
        after which they do, or if answers differ by more than `FROM_FILES` allows.
        """
        made = self._make_pixels([record for record, _ in self.files])
        differences = [
            self._check_pixels(record, start, found)
            for (record, start), found in zip(self.files, made, strict=True)
        ]
        figures = FileFigures(
            num_checked=len(self.files),
            unserved_kinds=self.unserved_kinds,
            mean_difference=max((each.mean for each in differences), default=0.0),
            tail_difference=max((each.tail for each in differences), default=0.0),
            max_difference=max((each.maximum for each in differences), default=0.0),
            client_stages=self.preprocessing.client_stages,
        )
        if self.model.takes_files and not self.preprocessing.splits:
            self._check_answers()
        return figures

    def _make_pixels(self, records: Sequence[RawRecord]) -> list[np.ndarray]:
        """Returns the images, [T, H, W, C], that the model or its client makes of each file."""
        if not self.model.takes_files:
            return [self.preprocessing.prepare(record.file) for record in records]
        batches = (records[start : start + _BATCH] for start in range(0, len(records), _BATCH))
        with skip_graph_optimizer():
            return [images for batch in batches for images in self._decode(batch)]

    def _decode(self, records: Sequence[RawRecord]) -> list[np.ndarray]:
        files = np.array([record.file for record in records], object)
        try:
            found = self.model.call_signature(contract.DECODE, image_bytes=files)
        except DataError as error:
            if len(records) > 1:  # one by one, to name the file
                return [images for record in records for images in self._decode([record])]
            [record] = records
            raise DataError(f"{error} (the raw test file {record.key}, {record.kind})") from error
        counts = found.get("num_images", np.ones(len(records), int))
        return np.split(found["images"], np.cumsum(counts)[:-1])

    def _check_pixels(self, record: RawRecord, start: int, found: np.ndarray) -> PixelDifference:
        """Returns the largest difference of the images of one file, of which `found` was made."""
        wanted = self.images[start : start + len(record.pixels)]
        differences = [PixelDifference(255.0, 255.0, 255.0)]
        if len(found) == len(wanted):
            differences = list(map(compare_pixels, found, wanted))
        worst = max(differences)
        if not worst.is_allowed:
            stage = self.preprocessing.find_difference(
                record.file, lambda *pair: compare_pixels(*pair).is_allowed
            )
            after = f"after the stage {stage}" if stage else "after all stages together"
            is_served = self.model.takes_files
            maker = "the SavedModel" if is_served else "pipeline_ops.served.prepare"
            raise DataError(
                f"{maker} makes other pixels of the raw test file {record.key} ({record.kind}) "
                f"than the data set has, first {after}: they differ by {worst.mean:.2f} of 255 in "
                f"the mean, at most {MAX_MEAN:g} are allowed, and by {worst.tail:.0f} in the "
                f"{TAIL_PERCENT}th percentile, at most {MAX_TAIL:g}. Correct `serve` of that "
                "stage, or leave it to the client (served: by_client). Nothing was published."
            )
        return worst

    def _check_answers(self) -> None:
        if not self.files:
            return
        files = [record.file for record, _ in self.files]
        wanted = self.outputs[[start for _, start in self.files]]
        found = self.answer_files(files)
        compare_file_answers(wanted, found, [record.key for record, _ in self.files])
        rule = AgreementRule(1e-3, 1.0, ("the check of signatures", "it"))
        examples = np.array([pack_example(file) for file in files], object)
        with skip_graph_optimizer():
            packed = self.pack(self.model.call_signature(contract.EXAMPLES, examples=examples))
        check_agreement(found, packed, rule, "the signature examples of the SavedModel")
        if self.task == "detection":
            name = "the signature detection_api of the SavedModel"
            wanted = self._number_classes(found[:_NUM_API])
            check_agreement(wanted, self._detect_as_api(files[:_NUM_API]), rule, name)

    def answer_files(self, files: Sequence[bytes]) -> np.ndarray:
        """Returns the packed answers to raw files, which are prepared if the client has to."""
        if self.model.takes_files:
            inputs = {contract.IMAGE_BYTES: np.array(files, object)}
            return self.pack(self.model.call_signature(contract.SERVING_DEFAULT, **inputs))
        images = np.concatenate([self.preprocessing.prepare(file) for file in files])
        return self.pack(
            self.model.call_signature(contract.IMAGES, images=images.astype(np.float32))
        )

    def _detect_as_api(self, files: Sequence[bytes]) -> np.ndarray:
        """Answers to decoded images, one by one, because their sizes differ."""
        answers = []
        for file in files:
            image = self.preprocessing.decode(file)
            pixels = np.broadcast_to(image, (*image.shape[:2], 3))[np.newaxis]
            found = self.model.call_signature(contract.DETECTION_API, input_tensor=pixels)
            boxes, scores = found["detection_boxes"], found["detection_scores"]
            classes = np.where(scores > 0, found["detection_classes"], 0)
            answers.append(pack_detections({"boxes": boxes, "scores": scores, "classes": classes}))
        return np.concatenate(answers)

    def _number_classes(self, found_ND6: np.ndarray) -> np.ndarray:
        """Packed answers with the numbers of the model's label map in place of the classes."""
        text = (self._folder / "assets" / contract.LABEL_MAP).read_text("utf-8")
        numbers = np.array(_ID.findall(text), np.float32)[found_ND6[..., _CLASS].astype(int)]
        numbered = found_ND6.copy()
        numbered[..., _CLASS] = np.where(found_ND6[..., _SCORE] > 0, numbers, 0)
        return numbered


def pack_example(file: bytes) -> bytes:
    """A tf.train.Example with a raw file, for the signature `examples`."""
    from pipeline_ops.input.tensorflow_start import tf

    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[file]))
    features = tf.train.Features(feature={ENCODED: value})
    packed: bytes = tf.train.Example(features=features).SerializeToString()
    return packed


def compare_file_answers(wanted: np.ndarray, found: np.ndarray, keys: Sequence[str]) -> None:
    """Compares answers to raw files with those to the pixels of the data set.

    Raises DataError for the file with the largest difference: a probability that differs by more
    than 0.03; another best class, unless two were nearly equal; a box with a score from 0.3 without
    an equal one, by an intersection over union of 0.9 and a score within 0.03.
    """
    measure = describe_other_detections if wanted.ndim == 3 else describe_other_probabilities
    problems = [
        (measure(one, other), key) for one, other, key in zip(wanted, found, keys, strict=True)
    ]
    wrong = [(problem, key) for problem, key in problems if problem]
    if len(wrong) > MAX_OTHER_ANSWERS * len(keys):
        problem, key = wrong[0]
        raise DataError(
            f"the SavedModel answers {len(wrong)} of {len(keys)} raw test files otherwise than the "
            f"trained model answers the pixels of the data set, such as {key}: {problem}. Nothing "
            "was published."
        )


def describe_other_probabilities(wanted_K: np.ndarray, found_K: np.ndarray) -> str:
    difference = float(np.abs(wanted_K - found_K).max())
    if not difference <= MAX_ANSWER_DIFFERENCE:
        return f"a probability differs by {difference:.3f}"
    *_, second, best = np.sort(wanted_K)
    if wanted_K.argmax() != found_K.argmax() and best - second > MIN_MARGIN:
        return f"its best class is {found_K.argmax()} instead of {wanted_K.argmax()}"
    return ""


@dataclasses.dataclass(frozen=True)
class EqualBoxes:
    """When two boxes of a class count as equal, and the score from which a box has to have one."""

    min_score: float = 0.3
    min_overlap: float = 0.9
    max_score_difference: float = MAX_ANSWER_DIFFERENCE


def describe_other_detections(
    wanted_D6: np.ndarray, found_D6: np.ndarray, rule: EqualBoxes = EqualBoxes()
) -> str:
    """Describes a box that has no equal one in the other answer. "" without any."""
    limits = [rule.max_score_difference, 0.5]
    for first, second in ((wanted_D6, found_D6), (found_D6, wanted_D6)):
        for box in first[first[:, _SCORE] > rule.min_score + rule.max_score_difference]:
            overlaps = _compute_overlaps(box, second)
            is_equal = np.abs(second[:, _SCORE:] - box[_SCORE:]) <= limits
            if not (is_equal.all(axis=-1) & (overlaps >= rule.min_overlap)).any():
                return f"a box with the score {box[_SCORE]:.2f} has no equal one"
    return ""


def _compute_overlaps(box_6: np.ndarray, others_D6: np.ndarray) -> np.ndarray:
    low = np.maximum(box_6[:2], others_D6[:, :2])
    high = np.minimum(box_6[2:4], others_D6[:, 2:4])
    shared = np.prod(np.maximum(high - low, 0), axis=-1)
    areas = np.prod(others_D6[:, 2:4] - others_D6[:, :2], axis=-1)
    total = np.prod(box_6[2:4] - box_6[:2]) + areas - shared
    return np.asarray(shared / np.maximum(total, 1e-12))


def check_agreement(
    references: np.ndarray, predictions: np.ndarray, rule: AgreementRule, name: str
) -> Agreement:
    """Compares probabilities (float32 [N, K]) or detections (float32 [N, D, 6]).

    Raises DataError if a number differs by more than the rule allows, or if too many answers do.
    """
    if references.shape != predictions.shape or not len(references):
        raise DataError(
            f"{name}: {REFERENCE_OUTPUTS} has the shape {references.shape}, "
            f"{REFERENCE_EXAMPLES} gives {predictions.shape}. Train again."
        )
    if references.ndim == 3:
        agreement = _compare_detections(references, predictions, rule)
    else:
        agreement = Agreement(
            len(references),
            float(np.abs(references - predictions).max()),
            float(np.mean(references.argmax(axis=-1) == predictions.argmax(axis=-1))),
        )
    if not (  # refuses NaN as well
        agreement.max_difference <= rule.tolerance
        and agreement.top1_agreement >= rule.top1_agreement
    ):
        raise DataError(
            f"{name} is not the model that was trained: "
            f"on {agreement.num_checked} test images a number differs "
            f"by {agreement.max_difference:.3g}, {rule.keys[0]} allows {rule.tolerance:g}, "
            f"and {agreement.top1_agreement:.1%} of the answers are the same, "
            f"{rule.keys[1]} requires {rule.top1_agreement:.1%}. Nothing was published."
        )
    return agreement


def _compare_detections(
    references: np.ndarray, predictions: np.ndarray, rule: AgreementRule
) -> Agreement:
    """Compares sets of detections.

    Each detection of one set must be in the other set. Its position does not count, because
    rounding swaps detections with nearly equal scores. A detection may be missing if its score is
    barely sufficient.

    Rounding also decides which of two almost equal boxes survives non-maximum suppression. A format
    may therefore differ in some images (`rule.top1_agreement`). The largest difference is measured
    on the others.
    """
    differences = np.array(
        [
            max(
                _find_largest_distance(first, second, rule.tolerance),
                _find_largest_distance(second, first, rule.tolerance),
            )
            for first, second in zip(references, predictions, strict=True)
        ]
    )
    agrees = differences <= rule.tolerance
    compared = differences[agrees] if rule.top1_agreement < 1 and agrees.any() else differences
    return Agreement(len(references), float(compared.max()), float(agrees.mean()))


def _find_largest_distance(
    detections_D6: np.ndarray, other_D6: np.ndarray, tolerance: float
) -> float:
    """Returns the largest distance between a detection and its nearest one in the other set.

    A detection of another class is at least 1 away.
    """
    found = detections_D6[detections_D6[:, _SCORE] > 0]
    # The last score of a full list, or the minimum that counts.
    min_score = found[:, _SCORE].min() if len(found) == len(detections_D6) else MIN_SCORE
    certain = found[found[:, _SCORE] > min_score + tolerance]
    if not len(certain):
        return 0.0
    if not (other_D6[:, _SCORE] > 0).any():
        return 1.0
    return float(np.abs(certain[:, None] - other_D6[None]).max(axis=-1).min(axis=-1).max())
