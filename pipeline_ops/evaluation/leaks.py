"""Whether the test split tells the truth: test images that are in a training split, too.

Equal are raw files of the same bytes, as the data set's index has them. Nearly equal images are found by preprocessing, where
`preprocess.duplicates: remove_near` asks for it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.artifacts.dataset import INDEX
from pipeline_ops.artifacts.dataset_index import Place, read_places
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Champion, Dataset

_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Leaks:
    """How many test examples have an equal image in the training split of the data set, and in that of the champion's.

    None where it can't be told: the data set has no index, the champion is none, or what it was trained on is gone.
    """

    challenger: int | None
    champion: int | None


def find_leaks(dataset: Dataset, champion: Champion | None, allowed: int) -> Leaks:
    """Raises DataError if the challenger has been trained on more test images than are allowed, with the first of them."""
    index = _index_of(dataset.uri)
    if index is None:
        return Leaks(None, None)
    tests = {place.content: place for place in read_places(index) if place.split == "test"}
    leaked = _in_training(tests, index)
    if len(leaked) > allowed:
        pairs = ", ".join(f"{tests[place.content].key} equals {place.key}" for place in list(leaked.values())[:_NAMED])
        raise DataError(f"{dataset.uri}: {len(leaked)} test image{'s are' if len(leaked) != 1 else ' is'} in the training split, too "
                        f"(evaluate.allowed_leaks: {allowed}): {pairs}{', ...' if len(leaked) > _NAMED else ''}; "
                        "set preprocess.duplicates to remove_exact")
    theirs = _index_of_champion(champion) if champion else None
    return Leaks(len(leaked), None if theirs is None else len(_in_training(tests, theirs)))


def _in_training(tests: dict[str, Place], index: Path) -> dict[str, Place]:
    """By content: the first training record that equals a test record."""
    found: dict[str, Place] = {}
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
