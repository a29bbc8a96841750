"""Training on the nodes of a real Slurm, and the end of its allocations."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from launch.cluster import Cluster, why_not
from launch.outcomes import assert_same, assert_went_on
from launch.running import command, starting, wait_until

from pipeline_ops.errors import ExitCode
from pipeline_ops.places.slurm import (
    SlurmHosts,
    build_batch_script,
    build_sbatch_command,
    count_nodes,
    parse_node_address,
)


def test_what_slurm_is_asked_for():
    hosts = SlurmHosts(
        launcher="slurm",
        nodes=4,
        min_nodes=2,
        cores_per_node=8,
        arguments=["--partition=gpu", "--gres=gpu:4"],
    )
    command = build_sbatch_command(hosts, "name", Path("/run/slurm.log"), count_nodes(hosts))
    assert command == [
        "sbatch",
        "--parsable",
        "--no-requeue",
        "--no-kill",
        "--job-name=name",
        "--nodes=2-4",
        "--ntasks-per-node=1",
        "--output=/run/slurm.log",
        "--cpus-per-task=8",
        "--partition=gpu",
        "--gres=gpu:4",
    ]
    assert "--exclusive" in build_sbatch_command(
        SlurmHosts(launcher="slurm", nodes=1), "name", Path("/run"), "1"
    ), "without a number of cores the job needs whole nodes"


def test_the_batch_script_quotes_what_a_path_contains(tmp_path):
    """F17: a quote in the storage root executed commands."""
    attack = f"/root'; touch {tmp_path}/executed; echo '"
    hosts = SlurmHosts(
        launcher="slurm",
        nodes=1,
        code=f"$(touch {tmp_path}/executed)",
        python=f"echo `touch {tmp_path}/executed`",
    )
    done = subprocess.run(
        ["sh"], input=build_batch_script(hosts, Path(attack)), capture_output=True, text=True
    )
    assert done.returncode == 127, "there is no such interpreter"
    assert list(tmp_path.iterdir()) == []


def test_the_address_of_a_node_is_the_one_that_slurm_uses():
    assert (
        parse_node_address("NodeName=n10 Arch=x86_64 NodeAddr=10.1.0.10 NodeHostName=cpu-10 Port=0")
        == "10.1.0.10"
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := why_not():
        pytest.skip(f"no Slurm to train on: {reason}")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), 2)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def start(cluster, dataset, make_job_in, tmp_path):
    nodes = {"launcher": "slurm", "network": "trusted", "nodes": 2, "cores_per_node": 1}
    with starting(
        make_job_in, dataset, tmp_path, nodes, train__start_timeout_seconds=90
    ) as start_job:
        yield start_job


@pytest.fixture(scope="module")
def here():
    return {"launcher": "local", "cores": 2}


@pytest.mark.hosts
def test_two_nodes_train_what_one_machine_trains_and_are_given_back(start, cluster, undisturbed):
    job = start(is_held=True)
    job.wait_until_held()
    assert len(cluster.jobs()) == 1
    job.release()
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert_same(job, undisturbed)
    assert job.survivors() == []
    wait_until(lambda: cluster.jobs() == [], explain=cluster.jobs)


@pytest.mark.hosts
@pytest.mark.parametrize("name", ["worker 0", "worker 1"])
def test_a_killed_worker_on_a_node_costs_a_restart(start, undisturbed, name):
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.worker(name), signal.SIGKILL)
    assert_went_on(undisturbed, job)
    assert (
        f"{name} on n{int(name[-1]) + 1} was killed by signal 9 (SIGKILL)"
        in job.messages("restart")[0]
    )


@pytest.mark.hosts
def test_a_killed_launcher_leaves_no_process_on_any_node_and_the_next_try_goes_on(
    start, cluster, undisturbed
):
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    assert [
        survivor
        for survivor in job.survivors(10)
        if "places.allocation_holder" not in survivor and "slurm" not in survivor
    ] == []
    [holder] = [pid for pid in job.all() if "places.allocation_holder" in command(pid)]
    os.kill(holder, signal.SIGTERM)  # it would release the nodes by itself a minute later
    wait_until(lambda: cluster.jobs() == [], explain=cluster.jobs)
    assert_went_on(undisturbed, job, start("second"))


@pytest.mark.hosts
def test_a_cancelled_allocation_is_asked_for_again(start, cluster, undisturbed):
    job = start(is_held=True)
    job.wait_until_held()
    [first] = cluster.jobs()
    subprocess.run(["scancel", first], check=True)
    assert_went_on(undisturbed, job)
    wait_until(lambda: cluster.jobs() == [], explain=cluster.jobs)


@pytest.mark.hosts
def test_one_error_of_scontrol_leaves_no_allocation(start, cluster, undisturbed, tmp_path):
    """The nodes can't be read the first time, and are allocated again."""
    program, failed = tmp_path / "programs" / "scontrol", tmp_path / "failed"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
        if [ "$2" = node ] && mkdir {failed}; then
            squeue --noheader --format=%i > {failed}/jobs
            echo "slurm_load_node error: Unable to contact slurm controller" >&2
            exit 1
        fi
        exec {shutil.which("scontrol")} "$@"
        """
    )
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(program.parent), prepend=os.pathsep)
        job = start(is_held=True)
    job.wait_until_held()
    [first], [second] = (failed / "jobs").read_text().split(), cluster.jobs()
    assert first != second
    job.release()
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert_same(job, undisturbed)
    assert "Unable to contact slurm controller" in job.messages("restart")[0]
    wait_until(lambda: cluster.jobs() == [], explain=cluster.jobs)


def test_what_slurm_refuses_is_told_and_not_tried_again(start):
    job = start(lab={"arguments": ["--partition=nowhere"]})
    assert job.end() == ExitCode.CONFIG
    assert "Slurm refuses the job" in job.message() and "invalid partition" in job.message()


@pytest.mark.hosts
def test_a_queue_that_does_not_move_is_told_within_the_deadline(start, cluster):
    job = start(
        lab={"nodes": 1, "queue_timeout_seconds": 6, "arguments": ["--begin=now+1hour"]},
        train__workers=1,
        train__max_restarts=0,
    )
    assert job.end() == ExitCode.RETRY
    assert "within 6 s (queue_timeout_seconds in the hosts file): (BeginTime)" in job.message()
    wait_until(lambda: cluster.jobs() == [], explain=cluster.jobs)


@pytest.mark.hosts
def test_nothing_lives_of_a_cluster_that_goes_down_with_a_job_in_it(cluster, tmp_path):
    """This happens after a failed test. The test uses another cluster than the others."""
    mine, in_use = Cluster(tmp_path, 1), os.environ["SLURM_CONF"]
    try:
        mine.up()
        subprocess.run(
            ["sbatch", "--wrap", "trap '' TERM; sleep 600"],
            check=True,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: any("sleep 600" in command(pid) for pid in mine.daemons()))
        assert len(mine.daemons()) >= 4, "slurmctld, slurmd, munged and the job"
    finally:
        mine.down()
        os.environ["SLURM_CONF"] = in_use
    assert mine.daemons() == []
