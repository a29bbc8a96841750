"""The stage augment."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError

from beam_jobs.stages.augment import Augment, augment
from beam_jobs.stages.stage import Example

from .marked import corners, marked, white_part

EVERYTHING = Augment(
    copies=30,
    flip_horizontal=True,
    flip_vertical=True,
    rotate90=True,
    brightness=0.1,
    contrast=0.2,
    crop=0.4,
)
NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
EXAMPLE = Example("cat/1.png", "cat", b"the file", NOISE)


def test_the_example_itself_comes_first_as_it_was():
    first, *copies = augment(EXAMPLE, EVERYTHING)
    assert first is EXAMPLE
    assert [copy.key for copy in copies] == [f"cat/1.png#copy{number}" for number in range(1, 31)]
    assert {copy.label for copy in copies} == {"cat"}
    assert all(copy.boxes is None for copy in copies)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_examples_to_measure_with_stay_alone(split):
    example = dataclasses.replace(EXAMPLE, split=split)
    assert augment(example, EVERYTHING) is example


def test_the_same_example_gives_the_same_copies():
    once, again = (augment(EXAMPLE, EVERYTHING) for _ in range(2))
    assert all((one.image == other.image).all() for one, other in zip(once, again, strict=True))


@pytest.mark.parametrize(
    "other",
    [
        augment(dataclasses.replace(EXAMPLE, key="cat/2.png"), EVERYTHING),
        augment(EXAMPLE, dataclasses.replace(EVERYTHING, seed=1)),
    ],
    ids=["key", "seed"],
)
def test_another_key_or_seed_gives_other_copies(other):
    assert any(
        not np.array_equal(one.image, two.image)
        for one, two in zip(augment(EXAMPLE, EVERYTHING)[1:], other[1:], strict=True)
    )


def test_copies_differ():
    assert len({copy.image.tobytes() for copy in augment(EXAMPLE, EVERYTHING)}) == 31


@pytest.mark.parametrize(
    "what",
    [
        {"flip_horizontal": True},
        {"flip_vertical": True},
        {"rotate90": True},
        {"crop": 0.5},
        {"flip_horizontal": True, "flip_vertical": True, "rotate90": True, "crop": 0.3},
    ],
)
def test_a_box_is_where_the_pixels_are_in_every_copy(what):
    for copy in augment(
        marked(60, 90, (20, 20, 35, 50)), Augment(copies=40, min_visible=0.01, **what)
    ):
        for box in copy.boxes:
            assert corners(box) == pytest.approx(white_part(copy.image), abs=0.51)


def test_a_flip_and_a_turn_only_move_pixels():
    for copy in augment(
        EXAMPLE, Augment(copies=20, flip_horizontal=True, flip_vertical=True, rotate90=True)
    ):
        assert (np.sort(copy.image, axis=None) == np.sort(NOISE, axis=None)).all()


def test_a_copy_that_chance_has_left_alone_keeps_its_own_bytes():
    copies = augment(EXAMPLE, Augment(copies=20, flip_horizontal=True))
    unchanged = [copy for copy in copies if copy.is_original]
    assert 5 < len(unchanged) < 16
    assert all((copy.image == NOISE).all() for copy in unchanged)


def test_brightness_moves_the_mean_within_its_bounds():
    grey = EXAMPLE.with_image(np.full((20, 30, 3), 128, np.uint8))
    means = [
        copy.image.mean() - 128 for copy in augment(grey, Augment(copies=40, brightness=0.1))[1:]
    ]
    assert -26 <= min(means) < -15
    assert 15 < max(means) <= 26


def test_contrast_keeps_the_mean_and_stretches_the_rest():
    mild = EXAMPLE.with_image((NOISE // 4 + 96).astype(np.uint8))
    spread = [
        (copy.image.mean(), copy.image.std() / mild.image.std())
        for copy in augment(mild, Augment(copies=40, contrast=0.5))[1:]
    ]
    assert max(abs(mean - mild.image.mean()) for mean, _ in spread) < 1
    assert 0.49 < min(stretch for _, stretch in spread) < 0.7
    assert 1.3 < max(stretch for _, stretch in spread) < 1.51


def test_crop_keeps_the_size():
    assert {copy.image.shape for copy in augment(EXAMPLE, Augment(copies=20, crop=0.9))} == {
        (20, 30, 3)
    }


def test_copies_that_are_all_the_same_are_refused():
    with pytest.raises(ValidationError, match="needs at least one of flip_horizontal"):
        Augment(copies=3)
