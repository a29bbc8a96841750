"""Every file operation of a job fails once, or kills it: the outcome is right, or a retry that
names the file.

The next try must leave what an undisturbed run leaves. A failed operation in these tests has a
number: the order in which all processes of the job carry out their operations below the storage
root. A seeded sample has its share of each kind of operation.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest
from faults.harness import ACTIONS, Scene

_SAMPLE = {"preprocess": 50, "train": 5, "evaluate": 12, "export": 10}
"""Cases that take about half a minute a job."""


def run_cases(scene: Scene, choose: Callable[[list[str]], list[tuple[int, str]]]) -> None:
    """Runs the chosen cases (number, action). Fails with a list of all problems."""
    operations = scene.enumerate()
    reference = scene.reference()
    problems, started = [], time.monotonic()
    cases = choose(operations)
    for number, action in cases:
        operation, wrong = scene.fail(number, ACTIONS[action], reference)
        if wrong:
            problems.append(f"operation {number} ({operation}), {action}: " + "\n  ".join(wrong))
            print(problems[-1], flush=True)
    seconds = (time.monotonic() - started) / len(cases)
    print(f"{len(cases)} cases, {len(operations)} operations, {seconds:.2f} s a case")
    assert not problems, f"{len(problems)} of {len(cases)} cases went wrong\n" + "\n".join(problems)


def stratified(operations: list[str], count: int) -> list[tuple[int, str]]:
    """A seeded sample: each kind of operation has its share, each operation one action after the
    other, in any order."""
    draw = random.Random(13)
    by_kind: dict[str, list[list[tuple[int, str]]]] = {}
    for number, operation in enumerate(operations, start=1):
        rounds = by_kind.setdefault(operation.partition(" ")[0], [[] for _ in ACTIONS])
        for cases, action in zip(rounds, draw.sample(list(ACTIONS), len(ACTIONS)), strict=True):
            cases.append((number, action))
    kinds = [
        [case for cases in rounds for case in draw.sample(cases, len(cases))]
        for rounds in by_kind.values()
    ]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*kinds))
    return list(itertools.islice(filter(None, in_turn), count))


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("job", _SAMPLE)
def test_a_failed_file_operation_is_a_retry_and_the_next_try_is_right(job, request):
    scene = request.getfixturevalue(f"{job}_scene")
    run_cases(scene, lambda operations: stratified(operations, _SAMPLE[job]))


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_a_fault_during_the_replacement_of_a_damaged_artifact_is_made_good(preprocess_scene):
    scene = preprocess_scene
    scene.put_back()
    assert scene.attempt()
    plan = scene.plan()
    (plan.manifest.parent / "data.html").remove()
    scene.keep()

    def choose(operations: list[str]) -> list[tuple[int, str]]:
        [renamed, *_] = [
            number
            for number, operation in enumerate(operations, start=1)
            if operation == f"rename {plan.manifest.parent}"
        ]
        numbers = range(renamed - 2, min(renamed + 6, len(operations)) + 1)
        return [(number, action) for number in numbers for action in ACTIONS]

    run_cases(scene, choose)
