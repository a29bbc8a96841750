"""Flink and Spark on this machine: what our jobs rely on, with a small pipeline of the tests."""

from __future__ import annotations

import json
import pwd
import socket

import psutil
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.runner import PipelineState
from engine_pipeline import NUM_PLANS, ObjectJob, start_pipeline
from engines.fixtures import USER
from listeners import filter_non_loopback, find_listeners
from processes import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
SECONDS_PER_PLAN = 0.3
NUM_BEFORE_FAULT = 6
MAX_CANCEL_SECONDS = 10


@pytest.fixture(scope="module", params=["flink", "spark"])
def engine(request) -> str:
    """Of the module, so that all tests of an engine follow one another."""
    return request.param


@pytest.fixture
def cluster(engine, engine_clusters):
    return engine_clusters.get(engine)


@pytest.fixture
def start(cluster, s3_root, tmp_path):
    """Starts the pipeline, whose objects are written below `s3_root`."""

    def call(**job):
        given = ObjectJob(root=str(s3_root), closed=str(tmp_path), **job)
        return start_pipeline(given, cluster.build_options(s3_root.name))

    return call


def read_objects(root) -> list[dict]:
    return [json.loads((root / entry.name).read()) for entry in root.list_folder()]


def wait_for_objects(root, count: int = NUM_BEFORE_FAULT) -> None:
    wait_until(lambda: len(root.list_folder()) >= count, seconds=120)


def read_counters(result) -> dict[str, int]:
    found = result.metrics().query(MetricsFilter().with_namespace("objects"))["counters"]
    return {counter.key.metric.name: counter.result for counter in found}


def assert_complete(result, root) -> None:
    """Each object is there, and the counters tell of each once, whatever was repeated."""
    found = read_objects(root)
    assert sorted(entry["number"] for entry in found) == list(range(NUM_PLANS))
    assert read_counters(result)["written"] == NUM_PLANS


def find_job(cluster, root):
    [job] = [job for job in cluster.list_jobs() if job.name.startswith(root.name)]
    return job


class TestJob:
    def test_a_job_runs_as_another_user_on_both_nodes(self, start, cluster, s3_root):
        result = start()
        assert result.wait_until_finish() == PipelineState.DONE
        assert_complete(result, s3_root)
        found = read_objects(s3_root)
        assert {entry["user"] for entry in found} == {pwd.getpwnam(USER).pw_uid}
        assert {entry["sees_driver"] for entry in found} == {False}
        assert len({entry["process"] for entry in found}) == cluster.num_nodes
        sizes = [entry.num_bytes for entry in s3_root.list_folder()]
        assert read_counters(result)["bytes"] == sum(sizes)

    def test_an_error_of_a_worker_reaches_the_driver(self, start):
        with pytest.raises(RuntimeError, match="plan 17 can't be carried out"):
            start(failing=17).wait_until_finish()

    def test_only_beams_java_servers_listen_on_other_interfaces(self, start, cluster, s3_root):
        result = start(seconds=SECONDS_PER_PLAN)
        wait_for_objects(s3_root)
        processes = {name: cluster.find_processes(name) for name in cluster.process_names}
        listeners = {
            name: find_listeners(process.pid for process in found)
            for name, found in processes.items()
        }
        users = {process.username() for found in processes.values() for process in found}
        assert result.wait_until_finish() == PipelineState.DONE
        is_open = {name for name, found in listeners.items() if filter_non_loopback(found)}
        assert all(listeners.values())
        assert is_open <= {"job-server", *cluster.node_names}
        assert users == {USER}


class TestFaults:
    """Spark may give up: it asks a dead worker four times, and does not repeat a shuffle whose
    order may differ. The next job does the rest."""

    @pytest.fixture
    def finish(self, engine, start, s3_root):
        def call(result) -> None:
            try:
                assert result.wait_until_finish() == PipelineState.DONE
            except RuntimeError:
                assert engine == "spark"
                result = start(seconds=SECONDS_PER_PLAN)
                assert result.wait_until_finish() == PipelineState.DONE
            assert_complete(result, s3_root)

        return call

    def test_a_killed_sdk_worker_loses_and_doubles_nothing(self, start, finish, cluster, s3_root):
        result = start(seconds=SECONDS_PER_PLAN)
        wait_for_objects(s3_root)
        cluster.kill_sdk_worker()
        finish(result)

    def test_a_killed_node_loses_and_doubles_nothing(self, start, finish, cluster, s3_root):
        result = start(seconds=SECONDS_PER_PLAN)
        wait_for_objects(s3_root)
        cluster.kill_node(1)
        finish(result)


class TestCancel:
    def test_a_cancelled_job_leaves_no_worker(self, engine, start, cluster, s3_root):
        result = start(seconds=1)
        wait_for_objects(s3_root)
        if engine == "flink":  # Beam's own cancel leaves the job running
            cluster.cancel_job(find_job(cluster, s3_root).id)
        else:
            result.cancel()
        wait_until(lambda: not cluster.find_sdk_workers(), seconds=MAX_CANCEL_SECONDS)
        wait_until(
            lambda: find_job(cluster, s3_root).state in ("CANCELED", "FINISHED"),
            seconds=MAX_CANCEL_SECONDS,
        )
        assert len(read_objects(s3_root)) < NUM_PLANS


class TestStop:
    def test_a_stopped_cluster_leaves_neither_processes_nor_files(self, engine, engine_clusters):
        cluster = engine_clusters.get(engine)
        # The workers of the last job may still be there.
        wait_until(lambda: len(cluster.find_processes()) == 2 + 2 * cluster.num_nodes)
        processes, address = cluster.find_processes(), cluster.job_endpoint.split(":")
        engine_clusters.stop()
        assert not [process for process in processes if psutil.pid_exists(process.pid)]
        assert not cluster.folder.exists()
        with pytest.raises(OSError):
            socket.create_connection(address, 1)
