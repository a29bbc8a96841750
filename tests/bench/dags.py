"""The speed of an Airflow with many pipelines: parsing of the DAG file, and waiting time of runs.

The first part measures, without Airflow's programs, the cost of the DAG file in addition to the
SDK, with one pipeline and with all. The second part starts an embedded Airflow with all pipelines.
It measures the start, the parsing time, memory and CPU time when idle, and for runs of one pipeline
the time from the trigger to the first task and the gaps between tasks. The first of these runs does
the work, and the others are cached.

    python tests/bench/dags.py [--pipelines 200] [--runs 3] [--raw .trainyard/raw/digits]
                               [--parse-only]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psutil
import yaml

from pipeline_ops.cli.airflow_access import USER
from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import AirflowHome, embedded_airflow
from pipeline_ops.system.processes import find_descendants

ROOT = Path(__file__).resolve().parents[2]
_READ = """
import json, os, sys, time
start = time.process_time()
import airflow.sdk, airflow.dag_processing.dagbag, airflow.triggers.base
sdk = time.process_time()
from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags
imported = time.process_time()
dags = make_dags([sys.argv[1]], check_stages)
made = time.process_time()
from airflow.serialization.serialized_objects import DagSerialization
loaded = time.process_time()
for dag in dags.values():
    DagSerialization.to_dict(dag)
print(json.dumps([
    sdk - start, imported - sdk, made - imported, time.process_time() - loaded, len(dags)
]))
"""
_TASKS = ("preprocess", "train", "evaluate", "export")
_RUN_SECONDS = 180.0
_IDLE_SECONDS = 30.0


def write_pipelines(folder: Path, count: int, raw: Path) -> Path:
    """Writes pipelines that differ by name. Returns their folder."""
    values = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())
    values["storage"]["root"], values["preprocess"]["source"]["path"] = (
        str(folder / "storage"),
        str(raw),
    )
    values["train"] |= {"epochs": 2, "early_stopping": None}
    values["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.1}]
    values["notify"] = [
        {
            "notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
            "arguments": {"to": "team@example.org"},
            "events": ["failed"],
        }
    ]
    pipelines = folder / f"{count}-pipelines"
    pipelines.mkdir()
    for index in range(count):
        (pipelines / f"digits-{index:03}.yaml").write_text(
            yaml.safe_dump(values | {"pipeline": f"digits-{index:03}"}, sort_keys=False)
        )
    return pipelines


def print_cost_of_reading(folder: Path, count: int, raw: Path) -> None:
    """Prints CPU times, each the median of three fresh processes.

    Any DAG file costs as much as the SDK.
    """
    costs = {}
    for number in (1, count):
        pipelines = write_pipelines(folder, number, raw)
        found = [
            json.loads(
                subprocess.run(
                    [sys.executable, "-c", _READ, str(pipelines)],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout.splitlines()[-1]
            )
            for _ in range(3)
        ]
        costs[number] = [statistics.median(column) for column in zip(*found, strict=True)]
        assert costs[number][4] == number, "one DAG is missing"
    sdk, imports, _, _, _ = costs[count]
    print(
        f"SDK {sdk:.2f} s CPU; on top of it: imports {imports:.2f} s "
        "(once for each file that is read)"
    )
    for number, (_, _, made, serialized, _) in costs.items():
        print(
            f"{number:4} pipelines: DAGs made in {made:.2f} s, {1e3 * made / number:.1f} ms each; "
            f"serialized by Airflow in {serialized:.2f} s, {1e3 * serialized / number:.1f} ms each"
        )


def print_life_in_airflow(folder: Path, count: int, num_runs: int) -> None:
    home, pipelines = AirflowHome(folder / "airflow"), folder / f"{count}-pipelines"
    begin = time.monotonic()
    with (
        embedded_airflow(home, [pipelines], print) as server,
        AirflowApi(server.url, USER, server.password) as api,
    ):
        server.wait_until_healthy(api)
        healthy = time.monotonic() - begin
        dag = server.wait_for_dag(api, "digits-000", since=0.0)
        print(
            f"start: API and all programs up after {healthy:.1f} s, "
            f"DAGs listed after {time.monotonic() - begin:.1f} s (with a new database)"
        )
        api.pause("digits-000", paused=False)
        runs = [run_once(api) for _ in range(num_runs)]
        time.sleep(10)  # until the memory of the runs is free
        idle = cpu_share(server.process.pid, _IDLE_SECONDS)
        shared, own = memory_mib(server.process.pid)
        print(
            f"with nothing to do: {shared:.0f} MiB PSS, {own:.0f} MiB of them private, "
            f"of {len(find_descendants(server.process.pid)) + 1} processes; {idle:.1%} of a core"
        )
        dag = api.dag("digits-000") or dag
        print(
            f"the DAG processor takes {dag['last_parse_duration']:.2f} s "
            f"for the file of {count} pipelines, in a fork of itself"
        )
    for number, (first, gaps) in enumerate(runs, 1):
        print(
            f"run {number}: first task {first:.2f} s after the trigger, "
            f"gaps {' '.join(f'{gap:.2f}' for gap in gaps)} s"
        )
    print(f"largest gap {max(gap for _, gaps in runs for gap in gaps):.2f} s")


def run_once(api: AirflowApi) -> tuple[float, list[float]]:
    """Measures one run.

    Returns the seconds from the trigger to the start of the first task, and those between tasks.
    """
    triggered = time.time()
    run_id, deadline = api.trigger("digits-000", {}), time.monotonic() + _RUN_SECONDS
    while (state := api.run("digits-000", run_id)["state"]) not in ("success", "failed"):
        assert time.monotonic() < deadline, f"{run_id} is {state}"
        time.sleep(0.2)
    tasks = {task["task_id"]: task for task in api.tasks("digits-000", run_id)}
    assert state == "success", {name: task["state"] for name, task in tasks.items()}
    starts, ends = (
        [datetime.fromisoformat(tasks[name][field]).timestamp() for name in _TASKS]
        for field in ("start_date", "end_date")
    )
    return starts[0] - triggered, [
        start - end for end, start in zip(ends, starts[1:], strict=False)
    ]


def memory_mib(root: int) -> tuple[float, float]:
    """PSS, which counts shared memory once, and the memory that no two processes share."""
    pss = uss = 0
    for pid in (root, *find_descendants(root)):
        with contextlib.suppress(psutil.Error):
            memory = psutil.Process(pid).memory_full_info()
            pss, uss = pss + memory.pss, uss + memory.uss
    return pss / 2**20, uss / 2**20


def cpu_share(root: int, seconds: float) -> float:
    """The share of one core, over some time, with processes that start and end during it."""
    before, begin = _cpu_seconds(root), time.monotonic()
    time.sleep(seconds)
    return (_cpu_seconds(root) - before) / (time.monotonic() - begin)


def _cpu_seconds(root: int) -> float:
    """The CPU time of a process tree, with the processes that have ended and were waited for."""
    seconds = 0.0
    for pid in (root, *find_descendants(root)):
        with contextlib.suppress(psutil.Error):
            seconds += sum(psutil.Process(pid).cpu_times()[:4])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pipelines", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--raw", type=Path, default=ROOT / ".trainyard" / "raw" / "digits")
    parser.add_argument("--parse-only", action="store_true", help="without an Airflow")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        print_cost_of_reading(Path(folder), arguments.pipelines, arguments.raw.resolve())
        if not arguments.parse_only:
            print_life_in_airflow(Path(folder), arguments.pipelines, arguments.runs)


if __name__ == "__main__":
    main()
