"""Weights of classes."""

from __future__ import annotations

import json

import pytest

from beam_jobs.statistics.summary import compute_class_weights


@pytest.mark.parametrize(
    "counts, wanted",
    [
        ({"a": 10, "b": 10}, {"a": 1.0, "b": 1.0}),
        ({"a": 30, "b": 10}, {"a": 2 / 3, "b": 2.0}),
        ({"a": 30, "b": 0, "c": 10}, {"a": 2 / 3, "b": 0.0, "c": 2.0}),
    ],
)
def test_every_class_has_the_same_sum_of_weights_and_the_mean_is_1(counts, wanted):
    assert compute_class_weights(counts) == pytest.approx(wanted)
    sums = {
        round(counts[name] * weight, 9)
        for name, weight in compute_class_weights(counts).items()
        if counts[name]
    }
    assert len(sums) == 1
    assert sum(
        counts[name] * weight for name, weight in compute_class_weights(counts).items()
    ) == pytest.approx(sum(counts.values()))


def test_the_weights_lie_beside_the_shards_and_change_the_digest(animals, encode):
    plain = animals.run()
    weighted = animals.run(balance="by_class")
    weights = json.loads((weighted.artifact / "class_weights.json").read_bytes())
    train = weighted.manifest.figures["labels"]["train"]
    assert weights == pytest.approx(
        {name: sum(train.values()) / (2 * count) for name, count in train.items()}
    )
    assert weighted.shards == plain.shards
    assert weighted.manifest.digest != plain.manifest.digest
