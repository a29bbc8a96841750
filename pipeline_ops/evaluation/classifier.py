"""Evaluation of a classifier: its answers, metrics with intervals, slices, and examples to show.

Champion and challenger are called as they are served, in one pass over the shards. Only a few
numbers of each example stay in memory. The probabilities of all classes go to an unnamed temporary
file, so memory does not limit the size of the test split. Only the images for the report are kept.

Legend: N examples, C classes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from pipeline_ops.config.evaluate import Evaluate, Slice
from pipeline_ops.contract.results import AsServed, NotFinite
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.evaluation.as_served import compare_classes, find_raw_tests
from pipeline_ops.evaluation.inputs import Inputs, measure_models
from pipeline_ops.evaluation.metrics import (
    SEED,
    Curves,
    ExampleGroup,
    ModelPredictions,
    build_group,
    build_slice_groups,
    compare_answers,
    evaluate_model,
    find_in_top_k,
)
from pipeline_ops.evaluation.slices import SliceValues, list_features
from pipeline_ops.job.runner import Job
from pipeline_ops.served.client import (
    EncodedBatch,
    SavedModelClient,
    read_encoded_batches,
)
from pipeline_ops.storage.local_files import translate_write_errors

NUM_SHOWN = 24
"""Mistakes, and surprises, that a report shows as pictures."""
NUM_PREDICTIONS = 3
"""The number of test images in `predictions.png`."""
OwnMetric = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""A user's metric of each example, from the labels and the probabilities of a batch."""
Output = tuple[np.ndarray, np.ndarray]
"""The answers of a model to a batch: probabilities float32 [N, C] and classes int64 [N]."""


class ShownExample(NamedTuple):
    """A test example that the report shows: its image file, and its entry in `metrics.json`.

    The entry has the example's key, its label, and the prediction and its probability. Names
    without `champion` are about the challenger.
    """

    image: bytes
    entry: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The labels (int64 [N]) and the answers of each model, in the order of the shards."""

    labels: np.ndarray
    models: list[ModelPredictions]
    slices: Mapping[str, np.ndarray]
    """The value (text, [N]) of every example, by slice."""
    mistakes: list[ShownExample]
    """The worst mistakes of the first model, the most confident first."""
    surprises: list[ShownExample]
    """The examples whose label gets the most different probabilities from the two models.

    Without a champion, they are the right answers with the lowest confidence.
    """
    samples: list[ShownExample]
    """A few random examples. The choice depends on their keys alone."""
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The positions of the examples with a raw test file, by key."""
    keys: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class ClassifierFindings:
    """The figures of the models, before the verdict. `curves` has an entry for each model."""

    predictions: Predictions
    whole: ExampleGroup
    slices: list[ExampleGroup]
    curves: list[Curves]
    comparison: dict[str, int] | None
    top_k: int
    as_served: AsServed = AsServed()
    seeds: dict[str, int] = dataclasses.field(default_factory=lambda: {"bootstrap": SEED})

    def build_metrics(self) -> dict[str, Any]:
        """Returns the part of `metrics.json` that only a classifier has."""
        return {
            "comparison": self.comparison,
            "worst_mistakes": [shown.entry for shown in self.predictions.mistakes],
            "surprises": [shown.entry for shown in self.predictions.surprises],
        }


def evaluate_classifier(job: Job, config: Evaluate, inputs: Inputs) -> ClassifierFindings:
    names, total = inputs.class_names, inputs.num_test_examples
    clients = [
        SavedModelClient(model.saved_model, model.name, len(names)) for model in inputs.models
    ]

    def report(done: int) -> None:
        job.progress.report("evaluate", done, total, "images")

    report(0)
    job.attempt.folder.mkdir(parents=True, exist_ok=True)
    batches = read_encoded_batches(
        inputs.test_shards,
        config.batch_size,
        inputs.removed_test_positions,
        list_features(config.slices),
    )
    tests = find_raw_tests(inputs, clients[0])
    answers = Answers(
        len(clients),
        total,
        names,
        config.top_k,
        job.attempt.folder,
        config.slices,
        _load_own_metrics(config, job.code_folder),
        tests.keys,
    )
    for batch in batches:
        answers.add(batch, [client.classify(batch) for client in clients])
        report(answers.num_added)
    predictions = answers.join()
    if not tests.reason:
        job.progress.report("as served", message="sending raw test files to the challenger")
    rows, labels, classes = predictions.rows, predictions.labels, predictions.models[0].classes
    as_served = compare_classes(clients[0], tests, rows, labels, classes)
    measures = measure_models(config, inputs, clients)
    findings = compute_findings(predictions, names, config.top_k, measures)
    return dataclasses.replace(findings, as_served=as_served)


def compute_findings(
    predictions: Predictions, names: Sequence[str], top_k: int, measures: Sequence[dict[str, float]]
) -> ClassifierFindings:
    """Computes all figures. `measures` are the size and the latency of each served model."""
    labels, models = predictions.labels, predictions.models
    evaluations, curves = [], []
    for model, measured in zip(models, measures, strict=True):
        evaluation, model_curves = evaluate_model(labels, model, names)
        changes = {"measures": measured, "not_finite": model.not_finite}
        evaluations.append(evaluation.model_copy(update=changes))
        curves.append(model_curves)
    shares = answer_class_shares(labels, len(names), top_k)
    baseline = evaluate_model(labels, shares, names)[0].metrics
    answers = [each.classes for each in models]
    return ClassifierFindings(
        predictions,
        whole=build_group(labels, models, evaluations, baseline=baseline),
        slices=build_slice_groups(labels, models, predictions.slices, names),
        curves=curves,
        comparison=compare_answers(labels, *answers) if models[1:] else None,
        top_k=top_k,
    )


def answer_class_shares(labels: np.ndarray, num_classes: int, top_k: int) -> ModelPredictions:
    """Returns the baseline's answers: the shares of the classes as probabilities of every image.

    Every answer is the most frequent class. A model that is no better has learned nothing from the
    images. `labels` is int64 [N].
    """
    counts = np.bincount(labels, minlength=num_classes)
    answer, shares = int(counts.argmax()), counts / len(labels)
    # Among equal shares, the class with the higher index comes first.
    best = np.argsort(counts, kind="stable")[-top_k:]
    return ModelPredictions(
        classes=np.full(len(labels), answer),
        is_in_top_k=np.isin(labels, best),
        confidences=np.full(len(labels), shares[answer]),
        scores=np.broadcast_to(shares[:, None], (num_classes, len(labels))),
    )


class Answers:
    """Collects the answers of every model to the test examples, batch by batch.

    Args:
      num_examples: the number of examples that must be added.
      folder: where the file of the probabilities lies.
      own_metrics: functions of labels int64 [b] and probabilities float32 [b, C] that return float
        [b], by name.
      located_keys: the keys in `Predictions.rows`, where the examples have them.
    """

    def __init__(
        self,
        num_models: int,
        num_examples: int,
        names: Sequence[str],
        top_k: int,
        folder: Path,
        slices: Sequence[Slice] = (),
        own_metrics: Mapping[str, OwnMetric] | None = None,
        located_keys: Collection[str] = (),
    ):
        self._names, self._top_k, self._own_metrics = names, top_k, own_metrics or {}
        self._models = [
            _allocate(num_examples, len(names), folder, self._own_metrics)
            for _ in range(num_models)
        ]
        self._not_finite = [NotFinite()] * num_models
        self._labels, self._values = np.empty(num_examples, np.int64), SliceValues(slices)
        self._located_keys, self._rows = located_keys, dict[str, int]()
        self._keys = list[str]()
        self._mistakes, self._surprises, self._samples = (
            _TopExamples(count, names) for count in (NUM_SHOWN, NUM_SHOWN, NUM_PREDICTIONS)
        )
        self.num_added = 0

    def add(self, batch: EncodedBatch, outputs: Sequence[Output]) -> None:
        """Adds the answers of each model to a batch.

        Raises DataError if a label has no class, or if there are too many examples.
        """
        _check_labels(batch, len(self._names))
        start = self.num_added
        self.num_added += len(batch.keys)
        if self.num_added > len(self._labels):
            self._refuse_number("more")
        place = slice(start, self.num_added)
        self._labels[place] = batch.labels
        finite = [self._add_output(n, place, batch, *each) for n, each in enumerate(outputs)]
        self._choose_shown(batch, finite)
        self._values.add(batch)
        self._keys += batch.keys
        located = enumerate(batch.keys, start)
        self._rows |= {key: row for row, key in located if key in self._located_keys}

    def _add_output(
        self,
        number: int,
        place: slice,
        batch: EncodedBatch,
        probabilities: np.ndarray,
        classes: np.ndarray,
    ) -> Output:
        """Returns the answers of a model, with 0 and a wrong class where they are not finite."""
        model, labels = self._models[number], batch.labels
        is_finite = np.isfinite(probabilities).all(axis=1)
        self._not_finite[number] = self._not_finite[number].add(batch.keys, is_finite)
        finite = np.where(is_finite[:, None], probabilities, np.float32(0))
        classes = np.where(is_finite, classes, find_wrong_classes(labels, len(self._names)))
        model.scores[:, place] = finite.T
        model.classes[place] = classes
        model.is_in_top_k[place] = is_finite & find_in_top_k(finite, labels, self._top_k)
        model.confidences[place] = np.clip(finite[np.arange(len(labels)), classes], 0.0, 1.0)
        for name, compute in self._own_metrics.items():
            model.own[name][place] = compute(labels, finite)
        return finite, classes

    def _choose_shown(self, batch: EncodedBatch, outputs: Sequence[Output]) -> None:
        labels, rows, (finite, classes) = batch.labels, np.arange(len(batch.keys)), outputs[0]
        is_right = classes == labels
        first, *others = (each[rows, labels].astype(float) for each, _ in outputs)
        doubt = np.abs(first - others[0]) if others else np.where(is_right, 1 - first, -1.0)
        self._mistakes.add(batch, outputs, np.where(is_right, -1.0, finite[rows, classes]))
        self._surprises.add(batch, outputs, doubt)
        self._samples.add(batch, outputs, np.array([rank_key(key) for key in batch.keys]))

    def join(self) -> Predictions:
        """Returns the answers to all examples. Raises DataError if there are too few."""
        if self.num_added < len(self._labels):
            self._refuse_number("fewer")
        pairs = zip(self._models, self._not_finite, strict=True)
        return Predictions(
            self._labels,
            [dataclasses.replace(model, not_finite=found) for model, found in pairs],
            self._values.join(),
            self._mistakes.examples,
            self._surprises.examples,
            self._samples.examples,
            self._rows,
            self._keys,
        )

    def _refuse_number(self, which: str) -> NoReturn:
        raise DataError(
            f"the test shards hold {which} examples than the {len(self._labels)} of the manifest. "
            "Run preprocess again."
        )


def find_wrong_classes(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns a class other than the label of each example, int64 [N], if there are several."""
    return (labels + 1) % num_classes


def _load_own_metrics(config: Evaluate, folder: Path) -> dict[str, OwnMetric]:
    """Returns the user's metrics by name, as functions of labels and probabilities.

    They get the logarithms of the probabilities as logits. These differ from the model's logits by
    a constant for each example, which a softmax ignores.
    """
    if not config.own_metrics:
        return {}
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.models import load_per_example
    from pipeline_ops.models.classification import compute_per_example

    def compute(path: str, function: Any, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
        logits = tf.math.log(tf.maximum(tf.constant(scores), np.finfo(np.float32).tiny))
        name = f"evaluate.gate: {path}"
        values: np.ndarray = compute_per_example(
            name, function, tf.constant(labels), logits
        ).numpy()
        if not np.isfinite(values).all():
            value = values[~np.isfinite(values)][0]
            raise ConfigError(f"{name} must return a finite number for each example, got {value}")
        return values

    return {
        name: functools.partial(compute, path, load_per_example(path, "evaluate.gate", folder))
        for name, path in config.own_metrics.items()
    }


def _allocate(
    num_examples: int, num_classes: int, folder: Path, own_metrics: Iterable[str]
) -> ModelPredictions:
    """Allocates a model's arrays. The file of the scores disappears when it is closed."""
    with translate_write_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        # Without this, a full disk would later kill the process by a signal.
        os.posix_fallocate(file.fileno(), 0, 4 * num_classes * num_examples)
        scores = np.memmap(file, np.float32, "w+", shape=(num_classes, num_examples))
    return ModelPredictions(
        np.empty(num_examples, np.int64),
        np.empty(num_examples, bool),
        np.empty(num_examples),
        scores,
        {name: np.empty(num_examples) for name in own_metrics},
    )


def _check_labels(batch: EncodedBatch, num_classes: int) -> None:
    unknown = np.flatnonzero((batch.labels < 0) | (batch.labels >= num_classes))
    if unknown.size:
        raise DataError(
            f"test example {batch.keys[unknown[0]]} has the label {batch.labels[unknown[0]]}, "
            f"but there are {num_classes} classes. Run preprocess again."
        )


class _TopExamples:
    """The examples with the largest values. Ties are ordered by key, not by position."""

    def __init__(self, count: int, names: Sequence[str]):
        self._count, self._names = count, names
        self._ranked: list[tuple[float, str, ShownExample]] = []

    @property
    def examples(self) -> list[ShownExample]:
        return [shown for *_, shown in self._ranked]

    def add(self, batch: EncodedBatch, outputs: Sequence[Output], values: np.ndarray) -> None:
        """Adds the examples of a batch that have no negative value."""
        best = np.lexsort((np.array(batch.keys), -values))[: self._count]
        self._ranked += [
            (-values[i], batch.keys[i], _to_shown_example(batch, outputs, i, self._names))
            for i in best
            if values[i] >= 0
        ]
        self._ranked = sorted(self._ranked, key=lambda each: each[:2])[: self._count]


def rank_key(key: str) -> float:
    """Returns a pseudorandom number from 0 to 1. It depends on the key alone."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest()) / 2**48


def _to_shown_example(
    batch: EncodedBatch, outputs: Sequence[Output], i: int, names: Sequence[str]
) -> ShownExample:
    label = batch.labels[i]
    (probabilities, classes), *champions = outputs
    entry = {
        "key": batch.keys[i],
        "label": names[label],
        "prediction": names[classes[i]],
        "confidence": float(probabilities[i, classes[i]]),
        "label_probability": float(probabilities[i, label]),
    }
    for probabilities, classes in champions:
        entry["champion_prediction"] = names[classes[i]]
        entry["champion_label_probability"] = float(probabilities[i, label])
    return ShownExample(batch.images[i], entry)
