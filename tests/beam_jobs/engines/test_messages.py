"""The messages of a job whose pool, slots or store are not as they must be."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.workplace import MESSAGE_SECONDS, Driver, is_empty
from processes import wait_until

from pipeline_ops.cli.commands.doctor import check_engine
from pipeline_ops.contract.request import Status
from pipeline_ops.errors import ExitCode

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
on_flink = pytest.mark.parametrize("engine", ["flink"], indirect=True)


@pytest.fixture
def pool_python(cluster) -> Iterator[Path]:
    """The folder with all that the workers of the pools import before their packages. It is put
    back as it was. The pools start a process for each worker, so they need no restart."""
    folder, before = cluster.folder, cluster.folder / "before"
    for name in ("code", "modules"):
        shutil.copytree(folder / name, before / name)
    yield folder
    for name in ("code", "modules"):
        shutil.rmtree(folder / name)
        (before / name).rename(folder / name)
    shutil.rmtree(before)


def finish_soon(driver: Driver) -> Status:
    driver.process.wait(MESSAGE_SECONDS)
    return driver.finish()


@on_flink
class TestPool:
    def test_another_copy_of_trainyard_is_named_with_the_pool(self, start, cluster, pool_python):
        file = pool_python / "code" / "beam_jobs" / "exchange.py"
        file.write_text(file.read_text() + "ANOTHER = 1\n")
        status = finish_soon(start())
        assert status.exit_code is ExitCode.CONFIG
        assert f"preprocess.runner.worker_pool: at {cluster.pool}, the copy" in status.message
        assert "Install the same version there" in status.message

    def test_another_version_of_beam_is_named_with_the_pool(self, start, cluster, pool_python):
        """Without our comparison, Beam's own one lets the job hang."""
        modules = pool_python / "modules"
        (modules / "apache_beam-2.1.0.dist-info").mkdir(mode=0o755)
        (modules / "apache_beam-2.1.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: apache-beam\nVersion: 2.1.0\n"
        )
        (modules / "sitecustomize.py").write_text(
            "import apache_beam.version\napache_beam.version.__version__ = '2.1.0'\n"
        )
        status = finish_soon(start())
        assert status.exit_code is ExitCode.CONFIG
        assert f"preprocess.runner.worker_pool: at {cluster.pool}, " in status.message
        assert "has apache-beam 2.1.0 and not 2." in status.message
        assert "need the same packages" in status.message

    def test_a_missing_module_is_named_with_the_pool(self, start, cluster, pool_python):
        (pool_python / "modules" / "engine_stages.py").unlink()
        status = finish_soon(start())
        assert status.exit_code is ExitCode.CONFIG
        assert f"preprocess.runner.worker_pool: at {cluster.pool}, cannot import" in status.message
        assert "No module named 'engine_stages'. Install its package" in status.message

    def test_the_doctor_asks_a_worker(self, digits, runner, cluster, pool_python):
        def ask() -> list[tuple[str, str]]:
            config = digits.load(digits.build_values(runner))
            return [(found.check, found.problem) for found in check_engine(config)]

        server = (f"flink at {cluster.job_endpoint}", "")
        workers = f"the workers of flink at {cluster.pool}"
        assert ask() == [server, (workers, "")]
        (pool_python / "modules" / "engine_stages.py").unlink()
        [_, (check, problem)] = ask()
        assert check == workers
        assert problem.startswith(f"preprocess.runner.worker_pool: at {cluster.pool}, cannot")
        assert "No module named 'engine_stages'" in problem
        assert is_empty(cluster)
        assert "doctor" not in str(list(digits.root.walk()))

    def test_a_pool_that_cannot_start_workers_is_named(self, start, cluster, pool_python):
        (pool_python / "modules" / "sitecustomize.py").write_text("raise SystemExit('broken')\n")
        driver = start()
        wait_until(lambda: "no image is done" in driver.text, MESSAGE_SECONDS)
        assert f"{cluster.pool} may not start workers, or they" in driver.text
        os.killpg(driver.process.pid, signal.SIGTERM)
        assert driver.finish().exit_code is ExitCode.CANCELLED
        wait_until(lambda: is_empty(cluster), seconds=10)


@on_flink
class TestSlots:
    def test_a_job_that_waits_for_slots_says_so_and_goes_on(self, digits, runner, cluster, start):
        first = start(options={"parallelism": 4})
        second = start(options={"parallelism": 4}, height=14)
        message = f"Flink at {cluster.url} has 4 slots, 0 of them free. The job waits for 4."
        assert message in second.text
        assert "Start TaskManagers, or lower preprocess.runner.options.parallelism" in second.text
        os.killpg(first.process.pid, signal.SIGTERM)
        assert second.finish().exit_code is ExitCode.SUCCESS

    def test_a_job_that_waits_for_slots_can_be_cancelled(self, cluster, start):
        driver = start(options={"parallelism": 5})
        assert "The job waits for 5." in driver.text
        os.killpg(driver.process.pid, signal.SIGTERM)
        assert driver.finish().exit_code is ExitCode.CANCELLED
        wait_until(lambda: is_empty(cluster), seconds=10)


@on_flink
class TestStore:
    def test_a_store_that_denies_access_to_the_workers_is_named(
        self, start, cluster, store_of_workers
    ):
        with store_of_workers.failing(denied="all"):
            driver = start()
            wait_until(lambda: "repeats a step" in driver.text, MESSAGE_SECONDS)
            status = driver.finish()
        reason = r"s3://trainyard/\S*: the store denies access: .*"
        place = f"{store_of_workers.address}/trainyard"
        assert re.search(f"flink repeats a step at {cluster.pool}: .*{reason}{place}", driver.text)
        assert status.exit_code is ExitCode.CONFIG
        assert re.search(f"worker_pool: at {cluster.pool}, {reason}{place}", status.message)
        assert "Check the credentials in the environment" in status.message
