"""Nothing that is accepted has a wrong box, a wrong class, or an object without its box."""

from __future__ import annotations

import shutil

import pytest
from reports.fuzz import find_faults, make_combination, write_combination
from reports.reading import read_case

MIN_ACCEPTED = 0.4
"""The share of combinations that are read without an error. Refusing all of them is no way out."""
CHUNK = 200


def check_combinations(seeds, folder, capsys):
    faults, accepted = [], 0
    for seed in seeds:
        combination = make_combination(seed)
        data = folder / str(seed) / "data"
        pictures = write_combination(data, combination)
        try:
            result = read_case(data, folder / "first.yaml", capsys)
        except Exception as error:  # a crash is one more fault, and not the end of the search
            faults.append(f"{combination}: {type(error).__name__}: {error}")
            continue
        shutil.rmtree(data)
        accepted += not result.error
        if found := find_faults(combination, pictures, result):
            faults.append(f"{combination}: {'; '.join(found)}")
    share = accepted / len(seeds)
    assert not faults, f"{len(faults)} of {len(seeds)}:\n" + "\n".join(faults[:20])
    assert share >= MIN_ACCEPTED, f"{share:.0%} are accepted"


def test_what_is_accepted_of_forty_combinations_is_right(tmp_path, capsys):
    check_combinations(range(40), tmp_path, capsys)


@pytest.mark.stores
@pytest.mark.parametrize("start", range(40, 2000, CHUNK))
def test_what_is_accepted_of_two_thousand_combinations_is_right(start, tmp_path, capsys):
    check_combinations(range(start, min(start + CHUNK, 2000)), tmp_path, capsys)
