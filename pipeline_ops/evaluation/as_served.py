"""Compares the challenger's answers to raw files with its answers to images of the data set.

The gate judges a model on preprocessed images. Clients send raw files, which the model preprocesses
itself. This module sends the raw files of up to `preprocess.raw_test_files` test records to
`serving_default`. A difference beyond noise fails the gate, because the other figures then do not
describe the served model.

Legend: N examples of the test split, M of them with a raw file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.contract.dataset import RAW_TEST_PREFIX
from pipeline_ops.contract.results import AsServed, NotFinite, RuleVerdict
from pipeline_ops.evaluation.inputs import Inputs, find_index, iterate_split
from pipeline_ops.evaluation.metrics import compare_answers, compute_wilson_interval_95
from pipeline_ops.served.client import RawRecord, SavedModelClient, read_raw_records
from pipeline_ops.served.contract import IMAGE_BYTES, SERVING_DEFAULT
from pipeline_ops.served.preprocessing import Preprocessing

_BATCH_FILES = 16
_MIN_P_VALUE = 0.01
MIN_AGREEMENT, MIN_BOX_AGREEMENT = 0.95, 0.7
"""The gate fails below this share of equal answers, whatever the metric. The answers of a detector
to an image are equal if all boxes are. Models often choose either of two nearly equal boxes, so
detectors need a smaller share."""


@dataclasses.dataclass(frozen=True)
class RawTests:
    """The raw test files that the challenger gets.

    Attributes:
      paths: the files that hold them.
      keys: the key of the only example made from each of them.
      reason: why there are none, as a sentence without a full stop.
    """

    paths: Sequence[str]
    keys: frozenset[str]
    reason: str = ""

    def iterate(self) -> Iterator[RawRecord]:
        found = (each for each in read_raw_records(self.paths) if each.is_servable)
        return (each for each in found if each.examples[0] in self.keys)


def find_raw_tests(inputs: Inputs, client: SavedModelClient) -> RawTests:
    """Chooses the raw files of records that are still in the test split."""
    paths = inputs.raw_test_files
    preprocessing = Preprocessing.read(inputs.models[0].saved_model)
    if stages := preprocessing.client_stages:
        reason = f"raw files are not answered: {', '.join(stages)} is left to the client"
        if any(not Preprocessing.read(each.saved_model).client_stages for each in inputs.models):
            reason += ". The champion answers them, so its clients have to change"
        return RawTests((), frozenset(), reason)
    if not client.takes_files:
        return RawTests((), frozenset(), "the model takes no raw files")
    if not paths:
        return RawTests((), frozenset(), "the data set keeps no raw test files")
    if preprocessing.splits:
        reason = "a raw file makes several test images, so the answers cannot be compared"
        return RawTests((), frozenset(), reason)
    index, places = find_index(inputs.dataset.uri), {}
    for path in paths:
        shard = Path(path).name.removeprefix(RAW_TEST_PREFIX)
        for record in read_raw_records([path]):
            if record.is_servable and len(record.examples) == 1:
                places[record.key, shard] = record.examples[0]
    if index is not None:
        current = {(each.key, each.shard) for each in iterate_split(index, "test")}
        places = {place: example for place, example in places.items() if place in current}
    if not places:
        return RawTests((), frozenset(), "no raw test file is a JPEG or PNG")
    return RawTests(paths, frozenset(places.values()))


def answer_files(
    client: SavedModelClient, tests: RawTests, signature: str = SERVING_DEFAULT
) -> Iterator[tuple[list[str], dict[str, np.ndarray]]]:
    """Yields the keys of examples, and the outputs for their raw files, in batches."""
    files = iter(tests.iterate())
    while batch := list(itertools.islice(files, _BATCH_FILES)):
        inputs = {IMAGE_BYTES: np.array([record.file for record in batch], object)}
        keys = [record.examples[0] for record in batch]
        yield keys, client.call_signature(signature, **inputs)


def compare_classes(
    client: SavedModelClient,
    tests: RawTests,
    rows: Mapping[str, int],
    labels: np.ndarray,
    classes: np.ndarray,
) -> AsServed:
    """Compares the answers of a classifier.

    `classes` are its answers to the images, int64 [N] like `labels`. `rows` has the position of
    each key in both.
    """
    if tests.reason:
        return AsServed(reason=tests.reason)
    from scipy.stats import binomtest

    found, chosen, not_finite = [], [], NotFinite()
    for keys, outputs in answer_files(client, tests):
        chosen += [rows[key] for key in keys]
        is_finite = np.isfinite(outputs["probabilities"]).all(axis=1)
        not_finite = not_finite.add(keys, is_finite)
        found.append(np.where(is_finite, outputs["classes"], -1))
    labels_M, images_M, files_M = labels[chosen], classes[chosen], np.concatenate(found)
    is_right = files_M == labels_M
    low, high = compute_wilson_interval_95(int(is_right.sum()), len(chosen))
    agreement = float(np.mean(files_M == images_M))
    counts = compare_answers(labels_M, files_M, images_M)
    only = counts["only_challenger_right"], counts["only_champion_right"]
    p_value = binomtest(only[0], sum(only)).pvalue if any(only) else 1.0  # McNemar's test (1947)
    return AsServed(
        num_files=len(chosen),
        agreement=agreement,
        metric="accuracy",
        from_files=float(is_right.mean()),
        from_images=float(np.mean(images_M == labels_M)),
        low=low,
        high=high,
        passed=agreement >= MIN_AGREEMENT and p_value >= _MIN_P_VALUE and not not_finite.count,
        not_finite=not_finite,
    )


def to_verdict(as_served: AsServed) -> list[RuleVerdict]:
    """Returns the verdict, or none if nothing was measured."""
    if not as_served.num_files:
        return []
    return [
        RuleVerdict(
            metric="as_served",
            passed=as_served.passed,
            text=as_served.text,
            value=as_served.from_files,
        )
    ]
