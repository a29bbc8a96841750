from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from pipeline_ops.planning.job_kinds import JOBS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture
def plan(command):
    return partial(command, "explain", "--hosts", CONFIGS / "digits.yaml")


def test_the_plan_says_who_would_run_where_without_reaching_a_host(plan):
    lines = plan("--set", "train.hosts=ssh").split("\n\n")[1].splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["worker", "0", "trainer-1.example", "trainer-1.example:20000"],
        ["worker", "1", "trainer-2.example", "10.0.0.12:20000"],
    ]


def test_the_plan_says_where_each_task_runs(plan):
    places, gang = plan("--set", "train.runs_on=ssh").split("\n\n")
    header, *rows = places.splitlines()
    assert header.split() == ["task", "runs", "on"]
    here = "the host and the interpreter of Airflow's worker"
    texts = [here, "ssh         hosts/ssh.yaml", here, here]
    assert rows == [f"{task:<12}{text}" for task, text in zip(JOBS, texts, strict=True)]
    assert "worker 0" in gang
    assert plan().partition("\n\n")[0].count(here) == len(JOBS)


def test_the_plan_says_what_the_number_of_replicas_makes_of_batch_and_rate(plan, command):
    by_replica = (
        "--set",
        "train.global_batch_size=null",
        "--set",
        "train.scale_learning_rate=sqrt",
    )
    by_replica += (
        "--set",
        "train.batch_size_per_replica=16",
        "--set",
        "train.devices_per_worker=2",
    )
    sentence = (
        "4 replicas x 16 = a global batch of 64, at a learning rate of 0.002 (0.001 x the square"
    )
    assert plan(*by_replica).splitlines()[-1].startswith(sentence)
    assert "replica" not in plan()


def test_on_this_machine_ports_are_found_when_a_gang_starts_that_needs_them(plan):
    assert "127.0.0.1:(a free one)" in plan()
    alone = ("--set", "train.strategy=one_device", "--set", "train.workers=1")
    assert "127.0.0.1 (no port)" in plan(*alone)


def test_what_a_cluster_would_be_asked_for_is_printed(plan):
    bucket = ("--set", "storage.root=s3://bucket/root")
    command = "sbatch --parsable --no-requeue --no-kill --job-name=trainyard-digits --nodes=2-4"
    assert command in plan("--set", "train.hosts=slurm", *bucket)
    text = plan("--set", "train.hosts=kubernetes", *bucket)
    items = json.loads(text[text.index("{") :])["items"]
    assert [item["kind"] for item in items] == ["Job", "Service", "NetworkPolicy"]


def test_a_misspelt_hosts_file_is_told_the_nearest(tmp_path, command):
    shutil.copytree(CONFIGS / "hosts", tmp_path / "hosts")
    config = shutil.copy(CONFIGS / "digits.yaml", tmp_path)
    words = ("explain", "--hosts", config, "--set", "train.hosts=slrum")
    assert "the nearest valid name is 'slurm'" in command(*words, status=78)
