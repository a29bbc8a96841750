"""Leaks of the test split: test images that are in a training split, too.

Equal images are raw files with the same bytes, according to the data set's index. Preprocessing
finds nearly equal images if `preprocess.duplicates: remove_near` is set.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.artifacts.dataset import INDEX
from pipeline_ops.artifacts.dataset_index import IndexedRecord, read_places
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Champion, Dataset

_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Leaks:
    """The numbers of test examples with an equal image in the training split.

    One number is for the data set's training split, the other one for the champion's. A number is
    None if it is unknown: the data set has no index, there is no champion, or the champion's
    training data is gone.
    """

    challenger: int | None
    champion: int | None


def find_leaks(dataset: Dataset, champion: Champion | None, allowed: int) -> Leaks:
    """Counts the test images that are in a training split, too.

    Raises:
      DataError: the challenger was trained on more test images than are allowed. The message names
        the first of them.
    """
    index = _index_of(dataset.uri)
    if index is None:
        return Leaks(None, None)
    tests = {place.content: place for place in read_places(index) if place.split == "test"}
    leaked = _in_training(tests, index)
    if len(leaked) > allowed:
        pairs = ", ".join(
            f"{tests[place.content].key} equals {place.key}"
            for place in list(leaked.values())[:_NAMED]
        )
        raise DataError(
            f"{dataset.uri}: {len(leaked)} test image{'s are' if len(leaked) != 1 else ' is'} "
            "in the training split, too "
            f"(evaluate.allowed_leaks: {allowed}): "
            f"{pairs}{', ...' if len(leaked) > _NAMED else ''}; "
            "set preprocess.duplicates to remove_exact"
        )
    theirs = _index_of_champion(champion) if champion else None
    return Leaks(len(leaked), None if theirs is None else len(_in_training(tests, theirs)))


def _in_training(tests: dict[str, IndexedRecord], index: Path) -> dict[str, IndexedRecord]:
    """Returns the first training record that equals a test record, by content."""
    found: dict[str, IndexedRecord] = {}
    for place in read_places(index):
        if place.split == "train" and place.content in tests:
            found.setdefault(place.content, place)
    return found


def _index_of(dataset_uri: str) -> Path | None:
    path = Path(dataset_uri).parent / INDEX
    return path if path.is_file() else None


def _index_of_champion(champion: Champion) -> Path | None:
    try:
        training = read_manifest(champion.manifest.inputs["train"].uri)
        return _index_of(training.inputs["preprocess"].uri)
    except (DataError, KeyError):
        return None
