"""The preprocess job on Flink and Spark. Its workers are another user, who shares only a bucket."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from config_files import write_config
from engines.fixtures import USER
from engines.workplace import MESSAGE_SECONDS, REPOSITORY, Driver, find_jobs, is_empty
from held_airflow import run_airflow
from listeners import filter_non_loopback, find_listeners
from processes import wait_until

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ExitCode

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
BCCD = Path(os.environ.get("TRAINYARD_BCCD", REPOSITORY.parent / "shared" / "data" / "bccd"))
MAX_CANCEL_SECONDS = 10
HEARTBEAT_SECONDS = 15
"""After it, a task of Airflow knows that it was cleared."""
_DAGS = """
from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags

globals().update(make_dags([{config!r}], check_stages))
"""
on_flink = pytest.mark.parametrize("engine", ["flink"], indirect=True)


def test_the_data_set_of_digits_is_that_of_the_embedded_runner(
    digits, runner, cluster, check_manifest
):
    driver = digits.start(digits.plan(runner))
    driver.wait_for_shards(2)
    users = {process.username() for process in cluster.find_sdk_workers()}
    assert len(cluster.find_sdk_workers()) >= cluster.num_nodes and users == {USER}
    listeners = {
        name: find_listeners(process.pid for process in cluster.find_processes(name))
        for name in cluster.process_names
    }
    is_open = {name for name, found in listeners.items() if filter_non_loopback(found)}
    assert is_open <= {"job-server", *cluster.node_names}, "only Beam's servers in Java"
    status = driver.finish()
    assert status.exit_code is ExitCode.SUCCESS, status.message
    moments = ProgressReader(driver.attempt.progress).read_new()
    assert any(cluster.url in moment.message for moment in moments)
    assert any(0 < (moment.done or 0) < 120 for moment in moments), "live"
    check_manifest(driver.plan, digits.plan())


@pytest.mark.skipif(not BCCD.is_dir(), reason="needs the BCCD data set, see test_bccd.py")
def test_the_data_set_of_bccd_is_that_of_the_embedded_runner(digits, runner, check_manifest):
    (digits.root / "raw").remove_tree()
    digits.fill(BCCD)
    digits.overrides = {
        "preprocess.source": {"type": "voc", "path": f"{digits.root}/raw"},
        "preprocess.stages": [
            {"decode": {"channels": 3}},
            {"resize": {"height": 96, "width": 128}},
        ],
        "preprocess.rejects": {"max_count": 2},
        "train.model": "center_detector",
        "evaluate.gate": [{"metric": "map_50", "at_least": 0.1}],
    }
    plan = digits.plan(runner)
    status = digits.run(plan)
    assert status.exit_code is ExitCode.SUCCESS, status.message
    check_manifest(plan, digits.plan())


@pytest.mark.parametrize(
    ("transform", "given", "number"), [("MadeImages", None, 90), ("FewDigits", "image_folder", 36)]
)
def test_a_transform_of_the_author_gives_the_data_set_of_the_embedded_runner(
    digits, runner, check_manifest, transform, given, number
):
    source = {"type": "beam", "path": f"{digits.root}/raw"}
    source["transform"] = f"engine_transforms:{transform}"
    if given:
        source["input"] = {"type": given}
    digits.overrides = {"preprocess.source": source}
    plan = digits.plan(runner)
    status = digits.run(plan)
    assert status.exit_code is ExitCode.SUCCESS, status.message
    assert sum(read_manifest(plan.manifest).figures["num_examples"].values()) == number
    check_manifest(plan, digits.plan())


class TestEnd:
    """Before the faults, because a killed TaskManager leaves a worker."""

    def test_a_cancelled_job_leaves_nothing_on_the_engine(self, digits, runner, cluster):
        driver = digits.start(digits.plan(runner))
        driver.wait_for_shards(1)
        began = time.monotonic()
        os.killpg(driver.process.pid, signal.SIGTERM)
        wait_until(lambda: is_empty(cluster), seconds=MAX_CANCEL_SECONDS)
        assert driver.process.wait(MAX_CANCEL_SECONDS) == ExitCode.CANCELLED
        assert time.monotonic() - began < MAX_CANCEL_SECONDS
        assert not driver.plan.manifest.exists()

    def test_a_late_job_leaves_nothing_on_the_engine(self, digits, runner, cluster):
        """In the middle of its work: Beam's job server for Spark ends with a job that is cancelled
        while Spark starts."""
        stages = ["decode", *["engine_stages:slow"] * 4, {"resize": {"height": 28, "width": 28}}]
        plan = digits.plan(runner, **{"preprocess.stages": stages})
        soon = plan.request.model_copy(update={"deadline_seconds": 60})
        driver = digits.start(dataclasses.replace(plan, request=soon))
        driver.wait_for_shards(1)
        status = driver.finish()
        assert status.exit_code is ExitCode.RETRY
        assert status.message == "not done after timeout_seconds (60)"
        wait_until(lambda: is_empty(cluster), seconds=MAX_CANCEL_SECONDS)

    @on_flink
    def test_a_cleared_task_and_a_failed_run_leave_nothing_on_the_engine(
        self, digits, runner, cluster, tmp_path
    ):
        folder = tmp_path / "airflow"
        config = write_config(folder, digits.build_values(runner))
        (folder / "dag.py").write_text(_DAGS.format(config=str(config)))

        def find_running() -> list[str]:
            return [job.id for job in find_jobs(cluster) if job.state == "RUNNING"]

        with run_airflow(folder, config, ["digits"], dict(os.environ)) as api:
            run = api.trigger("digits", {})
            [first] = wait_until(find_running, 120)
            cleared = {"dag_run_id": run, "task_ids": ["preprocess"], "only_failed": False}
            api._call(
                "POST", "/api/v2/dags/digits/clearTaskInstances", {"dry_run": False, **cleared}
            )
            wait_until(lambda: first not in find_running(), HEARTBEAT_SECONDS + MAX_CANCEL_SECONDS)
            [second] = wait_until(find_running, 120)
            assert first != second
            api.fail_run("digits", run)
            wait_until(lambda: is_empty(cluster), HEARTBEAT_SECONDS + MAX_CANCEL_SECONDS)
        ended = {job.id: job.state for job in find_jobs(cluster)}
        assert ended[first] == ended[second] == "CANCELED"

    def test_a_bug_of_the_author_is_not_repeated(self, digits, runner):
        names = [file.name for file in (digits.root / "raw" / "3").list_folder()]
        plan = digits.plan(
            runner,
            **{
                "preprocess.stages": [
                    "decode",
                    {"engine_stages:broken": {"key": f"3/{names[0]}"}},
                    {"resize": {"height": 28, "width": 28}},
                ]
            },
        )
        status = digits.run(plan)
        assert status.exit_code is ExitCode.BUG
        assert f"stage engine_stages:broken failed on 3/{names[0]}" in status.message
        assert "KeyError" in status.message

    @on_flink
    def test_the_next_try_does_not_follow_a_job_that_has_ended_without_its_driver(
        self, digits, runner, cluster
    ):
        """Beam's job server keeps it for running."""
        driver = digits.start(digits.plan(runner))
        driver.wait_for_shards(1)
        driver.process.kill()
        driver.process.wait()
        [job] = [job for job in find_jobs(cluster) if job.state == "RUNNING"]
        cluster.cancel_job(job.id)
        wait_until(lambda: is_empty(cluster))
        known, second = len(find_jobs(cluster)), digits.start(driver.plan)
        wait_until(lambda: len(find_jobs(cluster)) > known)
        os.killpg(second.process.pid, signal.SIGTERM)
        assert second.finish().exit_code is ExitCode.CANCELLED


class TestFaults:
    """Spark may give up: it does not repeat a shuffle whose order may differ. Then the task is
    tried again."""

    def finish(self, digits, driver: Driver) -> None:
        status = driver.finish()
        if status.exit_code is ExitCode.RETRY:
            assert "spark" in str(driver.plan.request.config), status.message
            status = digits.run(driver.plan)
        assert status.exit_code is ExitCode.SUCCESS, status.message

    @pytest.mark.parametrize("victim", ["sdk worker", "node"])
    def test_a_killed_part_of_the_engine_costs_only_the_shards_in_flight(
        self, digits, runner, cluster, check_manifest, victim
    ):
        driver = digits.start(digits.plan(runner))
        before = driver.wait_for_shards(5)
        if victim == "sdk worker":
            cluster.kill_sdk_worker()
        else:
            cluster.kill_node(1)
        self.finish(digits, driver)
        driver.check_shards(before)
        check_manifest(driver.plan, digits.plan())

    def test_the_next_try_follows_the_job_of_a_killed_driver(
        self, digits, runner, cluster, check_manifest
    ):
        known = len(find_jobs(cluster))
        driver = digits.start(digits.plan(runner))
        before = driver.wait_for_shards(3)
        driver.process.kill()
        driver.process.wait()
        second = digits.start(driver.plan)
        self.finish(digits, second)
        driver.check_shards(before)
        assert len(find_jobs(cluster)) == known + 1, "it has started a second job"
        check_manifest(driver.plan, digits.plan())

    @on_flink
    def test_a_store_with_outages_costs_time_only(
        self, digits, runner, s3_address, store_of_workers, check_manifest
    ):
        """One request in twenty gets 503, and once there is no answer for 20 seconds."""
        store_of_workers.reset_traffic()
        with store_of_workers.failing(unavailable_one_in=20):
            driver = digits.start(digits.plan(runner))
            before = driver.wait_for_shards(3)
            s3_address.pause(seconds=20)
            self.finish(digits, driver)
        assert store_of_workers.num_requests > 120
        driver.check_shards(before)
        check_manifest(driver.plan, digits.plan())

    def test_a_store_that_refuses_connections_is_named(
        self, start, digits, cluster, store_of_workers
    ):
        """Flink repeats until it is back. Spark, which needs most of the time for its start, tells
        nothing before it gives up, and then the task is tried again."""
        reason = rf"s3://trainyard/\S*: the connection was refused .*{store_of_workers.address}"
        with store_of_workers.failing(refused=True):
            driver = start()
            if cluster.name == "flink":
                place = f"flink repeats a step at {cluster.pool}"
                wait_until(lambda: re.search(f"{place}: .*{reason}", driver.text), MESSAGE_SECONDS)
            else:
                hint = f"or they may not reach {digits.root}/root: look at the pool's output"
                wait_until(lambda: hint in driver.text, MESSAGE_SECONDS)
                status = driver.finish()
                assert re.search(reason, status.message)
                assert status.exit_code is ExitCode.RETRY
        if cluster.name == "flink":
            assert driver.finish().exit_code is ExitCode.SUCCESS


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestStop:
    def test_a_stopped_cluster_leaves_neither_processes_nor_files(self, engine, engine_clusters):
        cluster = engine_clusters.get(engine)
        processes = cluster.find_processes()
        engine_clusters.stop()
        assert not [process for process in processes if is_alive(process)]
        assert not cluster.folder.exists()
