"""Which of several equal or nearly equal images stays."""

from __future__ import annotations

import random

import pytest

from beam_jobs.planning.duplicates import remove_duplicates
from beam_jobs.planning.plan import Record
from beam_jobs.stages.stage import Box
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest


def record(key: str, content: str, label: str = "cat", **keys) -> Record:
    return Record(RawFile(key, 1, compute_digest(content.encode())), label, **keys)


def decide(train=(), validation=(), test=(), perceptual_hashes=None, max_bits=0):
    """The keys that stay, by split, and what the quarantine says: (key, reason, detail)."""
    decision = remove_duplicates(
        {"train": list(train), "validation": list(validation), "test": list(test)},
        {
            compute_digest(content.encode()): bits
            for content, bits in (perceptual_hashes or {}).items()
        },
        max_bits,
    )
    assert [record.key for record in decision.quarantined] == [
        reject.key for reject in decision.rejected
    ]
    return (
        {split: [member.key for member in members] for split, members in decision.by_split.items()},
        [(reject.key, reject.reason, reject.detail) for reject in decision.rejected],
    )


def test_of_equal_images_the_one_in_test_stays():
    kept, out = decide(
        train=[record("a", "x")], validation=[record("b", "x")], test=[record("c", "x")]
    )
    assert kept == {"train": [], "validation": [], "test": ["c"]}
    assert out == [("a", "duplicate", "equal to c"), ("b", "duplicate", "equal to c")]


def test_without_a_test_image_the_one_in_validation_stays():
    kept, _ = decide(train=[record("a", "x")], validation=[record("b", "x")])
    assert kept == {"train": [], "validation": ["b"], "test": []}


def test_within_a_split_the_first_by_key_stays():
    kept, out = decide(train=[record("b", "x"), record("a", "x"), record("c", "y")])
    assert kept["train"] == ["a", "c"]
    assert out == [("b", "duplicate", "equal to a")]


def test_contents_that_only_python_hashes_to_the_same_number_all_stay():
    digests = [1, 2**61, 2**62 - 1]
    assert len(set(map(hash, digests))) == 1
    records = [Record(RawFile(f"{digest}", 1, digest), f"{digest}") for digest in digests]
    decision = remove_duplicates({"train": records}, {}, 0)
    assert (decision.by_split, decision.quarantined) == ({"train": records}, ())


def test_equal_images_with_different_labels_are_all_rejected():
    kept, out = decide(
        train=[record("a", "x", "cat"), record("b", "x", "dog")],
        test=[record("c", "x", "cat"), record("d", "y")],
    )
    assert kept == {"train": [], "validation": [], "test": ["d"]}
    assert [(key, reason) for key, reason, _ in out] == [
        (key, "conflicting_labels") for key in "abc"
    ]
    assert out[0][2] == "equal to b, which is dog, while this is cat"


@pytest.mark.parametrize(
    "other, is_conflict",
    [((Box(0, 0, 2, 2, "cell"),), False), ((Box(0, 0, 1, 1, "disc"),), True), ((), True)],
)
def test_equal_images_conflict_if_they_have_other_boxes(other, is_conflict):
    boxes = (Box(0, 0, 1, 1, "cell"),)
    _, out = decide(train=[record("a", "x", "", boxes=boxes), record("b", "x", "", boxes=other)])
    assert [reason for _, reason, _ in out] == (
        ["conflicting_labels"] * 2 if is_conflict else ["duplicate"]
    )


@pytest.mark.parametrize(
    "num_bits, is_near", [(0, True), (1, True), (3, True), (4, False), (20, False)]
)
def test_near_is_what_differs_in_few_bits(num_bits, is_near):
    for seed in range(30):
        chance = random.Random(seed)
        one = chance.getrandbits(64)
        other = one
        for bit in chance.sample(range(64), num_bits):
            other ^= 1 << bit
        kept, out = decide(
            train=[record("a", "x")],
            test=[record("b", "y")],
            perceptual_hashes={"x": f"{one:016x}", "y": f"{other:016x}"},
            max_bits=3,
        )
        assert kept["train"] == ([] if is_near else ["a"])
        assert out == ([("a", "duplicate", "near b")] if is_near else [])


def test_near_images_with_different_labels_both_stay():
    kept, out = decide(
        train=[record("a", "x", "cat")],
        test=[record("b", "y", "dog")],
        perceptual_hashes={"x": "0" * 16, "y": "0" * 16},
        max_bits=3,
    )
    assert (kept["train"], kept["test"], out) == (["a"], ["b"], [])


def test_what_has_no_hash_is_near_to_nothing():
    kept, _ = decide(
        train=[record("a", "x"), record("b", "y"), record("c", "z")],
        perceptual_hashes={"x": "-", "y": "-"},
        max_bits=8,
    )
    assert kept["train"] == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(10))
def test_no_two_that_stay_are_near_and_each_that_goes_is_near_one_that_stays(seed):
    chance = random.Random(seed)
    centres = [chance.getrandbits(64) for _ in range(20)]
    numbers = {
        f"{index:03d}": chance.choice(centres)
        ^ sum({1 << chance.randrange(64) for _ in range(chance.randrange(5))})
        for index in range(200)
    }
    perceptual_hashes = {key: f"{number:016x}" for key, number in numbers.items()}
    every = [record(key, key) for key in numbers]
    chance.shuffle(every)
    kept, out = decide(
        train=every[:120],
        validation=every[120:160],
        test=every[160:],
        perceptual_hashes=perceptual_hashes,
        max_bits=4,
    )
    staying = [key for keys in kept.values() for key in keys]

    def distance(one: str, other: str) -> int:
        return (numbers[one] ^ numbers[other]).bit_count()

    assert all(distance(one, other) > 4 for one in staying for other in staying if one < other)
    assert all(distance(key, detail.removeprefix("near ")) <= 4 for key, _, detail in out)
    assert len(staying) + len(out) == 200
