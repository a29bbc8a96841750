"""Running stages on one example."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter

import numpy as np
import pytest
from pydantic import Field, ValidationError

from beam_jobs.stages import BoundStage, StageFailed, run_stages
from beam_jobs.stages.stage import Example, Reject, Rejected, Skip, Stage, parameters
from pipeline_ops.errors import ConfigError

IMAGE = np.zeros((2, 3, 1), np.uint8)
EXAMPLE = Example("cat/1.png", "cat", b"bytes", IMAGE)


@parameters
class Nothing:
    amount: int = Field(1, ge=0)


def bind(function, name="invert"):
    return BoundStage(name, Stage(Nothing, function), Nothing())


def test_parameters_are_frozen_and_checked_where_they_are_born():
    assert dataclasses.is_dataclass(Nothing)
    with pytest.raises(ValidationError):
        Nothing(amount=-1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Nothing().amount = 2


def test_stages_run_in_order_and_their_time_is_counted_by_name():
    spent = Counter()
    stages = [
        bind(lambda e, p: e.with_image(e.image + np.uint8(1)), "add"),
        bind(lambda e, p: e.with_image(e.image * np.uint8(3)), "triple"),
    ]
    [example] = run_stages(stages, EXAMPLE, spent)
    assert (example.image == 3).all()
    assert set(spent) == {"add", "triple"}


def test_new_pixels_mean_that_the_file_no_longer_counts():
    assert EXAMPLE.is_original
    assert not EXAMPLE.with_image(IMAGE).is_original


def test_a_reject_says_which_stage_and_why():
    def refuse(example, parameters):
        raise Reject("too_dark", "mean 3 of 255")

    with pytest.raises(Rejected) as caught:
        run_stages([bind(refuse)], EXAMPLE, Counter())
    assert (caught.value.stage, caught.value.reason, caught.value.detail) == (
        "invert",
        "too_dark",
        "mean 3 of 255",
    )


def test_a_bug_in_a_stage_names_stage_record_place_and_error():
    with pytest.raises(StageFailed) as caught:
        run_stages([bind(lambda e, p: 1 / 0)], EXAMPLE, Counter())
    place = rf"{re.escape(__file__)}:\d+"
    assert re.fullmatch(
        f"stage invert failed on cat/1.png, in {place}: ZeroDivisionError: division by zero",
        caught.value.problem,
    )


def test_a_bug_below_the_file_of_a_stage_has_its_last_line_there():
    def parse(text):
        return json.loads(text)

    with pytest.raises(StageFailed) as caught:
        run_stages([bind(lambda e, p: parse("["))], EXAMPLE, Counter())
    line = parse.__code__.co_firstlineno + 1
    assert f" in {__file__}:{line}: JSONDecodeError: " in str(caught.value)


def test_a_stage_that_cannot_be_called_is_named_too():
    with pytest.raises(StageFailed, match=r"on cat/1.png, in .*__init__.py:\d+: TypeError"):
        run_stages([bind(lambda e: e)], EXAMPLE, Counter())


@pytest.mark.parametrize(
    "result, fault",
    [
        (None, "a NoneType"),
        ([EXAMPLE, None], "a NoneType"),
        ([], "an empty list (to leave an example out, raise Skip)"),
        ([EXAMPLE, EXAMPLE], "two examples with one key"),
        (EXAMPLE.with_image(IMAGE.astype(np.float32)), "an image of float32 [2, 3, 1]"),
        (EXAMPLE.with_image(IMAGE[:, :, 0]), "an image of uint8 [2, 3]"),
        (EXAMPLE.with_image(IMAGE[:0]), "an image of uint8 [0, 3, 1]"),
        (EXAMPLE.with_image(None), "an image of NoneType []"),
    ],
)
def test_a_stage_that_returns_no_example_is_told_what_it_must_return(result, fault):
    with pytest.raises(StageFailed) as caught:
        run_stages([bind(lambda e, p: result)], EXAMPLE, Counter())
    assert str(caught.value) == (
        f"stage invert returned {fault} for cat/1.png; "
        "it must return an Example whose image is uint8 [height, width, 1 or 3]"
    )


def test_want_of_memory_is_not_the_stages_fault():
    def exhaust(example, parameters):
        raise MemoryError

    with pytest.raises(MemoryError):
        run_stages([bind(exhaust)], EXAMPLE, Counter())


def test_an_error_of_the_config_is_passed_on_as_it_is():
    def refuse(example, parameters):
        raise ConfigError("amount must fit")

    with pytest.raises(ConfigError, match="^amount must fit$"):
        run_stages([bind(refuse)], EXAMPLE, Counter())


def copies(example, parameters):
    return [dataclasses.replace(example, key=f"{example.key}#{number}") for number in range(3)]


def test_one_example_may_become_several_and_each_goes_through_the_rest():
    brighten = bind(lambda e, p: e.with_image(e.image + np.uint8(1)), "brighten")
    examples = run_stages([bind(copies, "copies"), brighten, brighten], EXAMPLE, Counter())
    assert [example.key for example in examples] == ["cat/1.png#0", "cat/1.png#1", "cat/1.png#2"]
    assert all((example.image == 2).all() for example in examples)


def test_an_example_that_is_not_wanted_is_counted_and_the_others_stay():
    def skip_the_second(example, parameters):
        if example.key.endswith("#1"):
            raise Skip("second")
        return example

    skipped, passed = Counter(), Counter()
    stages = [bind(copies, "copies"), bind(skip_the_second, "choose")]
    examples = run_stages(stages, EXAMPLE, Counter(), skipped, passed)
    assert [example.key for example in examples] == ["cat/1.png#0", "cat/1.png#2"]
    assert skipped == {"choose: second": 1}
    assert passed == {"copies": 3, "choose": 2}


def test_a_reject_goes_for_the_record_and_so_for_all_that_was_made_of_it():
    def reject_last(example, parameters):
        if example.key.endswith("#2"):
            raise Reject("last", "it is the last")
        return example

    passed = Counter()
    stages = [bind(copies, "copies"), bind(reject_last, "choose")]
    with pytest.raises(Rejected):
        run_stages(stages, EXAMPLE, Counter(), passed=passed)
    assert passed == {"copies": 3, "choose": 2}
