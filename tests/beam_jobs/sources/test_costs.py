"""A file of any kind with one hostile field costs little, and is an error of the data at most.

TRAINYARD_FUZZ_CASES=2000 reads that many files of each kind, and the group `stores` a few hundred.
"""

from __future__ import annotations

import os
import subprocess
import sys

import hostile_files
import pytest

from pipeline_ops.contract.source_code import CODE_ROOT

CASES = int(os.environ.get("TRAINYARD_FUZZ_CASES", "25"))
READERS = [*hostile_files.SOURCES, *hostile_files.OTHERS]


def read_files(reader: str, first: int, count: int) -> None:
    command = [sys.executable, hostile_files.__file__, reader, str(first), str(count)]
    environment = os.environ | {"PYTHONPATH": str(CODE_ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seed = (done.stdout.split() or ["none"])[-1]
    assert done.returncode == 0, f"{reader}, seed {seed}, exit {done.returncode}: {done.stderr}"
    assert seed == str(first + count - 1)


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_field_costs_little_and_is_an_error_of_the_data(reader):
    read_files(reader, 0, CASES)


@pytest.mark.stores
@pytest.mark.parametrize("reader", READERS)
def test_hundreds_of_hostile_fields_cost_little(reader):
    read_files(reader, 1000, 400)
