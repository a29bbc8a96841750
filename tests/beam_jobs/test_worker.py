"""How many worker processes there are, and that they are gone afterwards."""

from __future__ import annotations

import os

import pytest

from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.worker import compute_num_processes
from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import ExitCode
from pipeline_ops.raw_data.raw_file import RawFile
from pipeline_ops.system.processes import find_group_members

CORES = len(os.sched_getaffinity(0))


def plans(count: int, num_bytes: int) -> list[ShardPlan]:
    return [
        ShardPlan("train", f"{index}", (Record(RawFile(f"{index}", num_bytes, 0)),))
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("runner", "num_shards", "num_bytes", "wanted"),
    [
        ({"workers": 1}, 8, 10**9, 1),
        ({"name": "spark", "endpoint": "jobs:8099"}, 8, 10**9, 1),
        ({"workers": 2}, 8, 10, 2),
        ({"workers": 5}, 3, 10, 3),
        ({}, 400, 10**9, CORES),
        ({}, 1, 10**9, 1),
        ({}, 8, 1000, 1),
    ],
    ids=str,
)
def test_there_are_as_many_processes_as_the_work_is_worth(runner, num_shards, num_bytes, wanted):
    assert compute_num_processes(BeamRunner(**runner), plans(num_shards, num_bytes)) == wanted


def test_no_process_outlives_the_job(animals, wait_for):
    process, attempt = animals.start(animals.plan(runner={"workers": 3}))
    assert process.wait(240) == ExitCode.SUCCESS, attempt.log.local.read_text()
    wait_for(lambda: not find_group_members(process.pid), 10)
