"""The pages of a pipeline with many runs and versions: their time, their size, and the memory.

An embedded Airflow gets generated runs and versions. Each page is asked for once cold and then some
times warm. After that, all pages are asked for in turn while the memory of the API server is read.
With `--demo`, the pipeline has also run once for real, and the Airflow stays up to be looked at.

    python tests/bench/pages.py [--runs 5000] [--versions 1000] [--requests 10000]
    python tests/bench/pages.py --demo [--runs 60] [--versions 8]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import yaml

from pipeline_ops.cli.airflow_access import USER, Access
from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import (
    DAGS,
    AirflowHome,
    AirflowServer,
    Secrets,
    build_airflow_environment,
    embedded_airflow,
)
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.run_summary import list_summaries
from pipeline_ops.system.processes import find_descendants

ROOT = Path(__file__).resolve().parents[2]
_DEMO_USERS = {"anna": "op", "vera": "viewer"}
_WARM = 10


def write_demo_config(folder: Path, raw: Path) -> Path:
    """Writes the config of the digits with a storage of its own and a short training."""
    values = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())
    values["storage"]["root"] = str(folder / "storage")
    values["preprocess"]["source"]["path"] = str(raw)
    values["train"] |= {"epochs": 3, "early_stopping": None}
    values["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.1}]
    values.pop("schedule", None)
    config = folder / "digits.yaml"
    config.write_text(yaml.safe_dump(values, sort_keys=False))
    return config


def fill(home: AirflowHome, server: AirflowServer, config: Path, runs: int, versions: int) -> None:
    """Fills the database and the storage, in a process with the environment of this Airflow."""
    arguments = [str(config)], server.port, Secrets.load_or_create(home, server.access.users)
    environment = build_airflow_environment(
        os.environ, home, DAGS, *arguments, False, server.access
    )
    support = str(ROOT / "tests" / "support")
    environment["PYTHONPATH"] = os.pathsep.join([support, environment["PYTHONPATH"]])
    program = ROOT / "tests" / "support" / "demo_runs.py"
    counts = ["--runs", str(runs), "--versions", str(versions)]
    subprocess.run([sys.executable, program, config, *counts], env=environment, check=True)


def list_pages(dag: str, run_ids: list[str]) -> dict[str, str]:
    """The addresses of the pages, by name."""
    here, run = f"/trainyard/pipelines/{dag}", f"run_id={quote(run_ids[0], safe='')}"
    some = "&".join(f"run_id={quote(run_id, safe='')}" for run_id in run_ids[:8])
    return {
        "outcomes": f"{here}/runs",
        "outcomes, all, sorted": f"{here}/runs?all=1&sort=-accuracy",
        "outcomes, found": f"{here}/runs?text=anna",
        "outcomes, older": f"{here}/runs?span=1",
        "runs together": f"{here}/overlay?{some}",
        "progress": f"{here}/progress?{run}",
        "report": f"{here}/report?{run}",
        "models": "/trainyard/models",
        "model": f"{here}/models",
    }


def measure(server: AirflowServer, dag: str, run_ids: list[str], num_requests: int) -> None:
    client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)
    login = {"username": USER, "password": server.password}
    token = client.post("/auth/token", json=login).json()["access_token"]
    client.headers["Authorization"] = f"Bearer {token}"
    pages = list_pages(dag, run_ids)
    print(f"{'page':24}{'first':>9}{'median':>9}{'kB':>8}")
    for name, address in pages.items():
        seconds = []
        for _ in range(_WARM + 1):
            begin = time.perf_counter()
            answer = client.get(address)
            seconds.append(time.perf_counter() - begin)
            assert answer.status_code == 200, answer.text
        size = len(answer.content) / 1e3
        print(f"{name:24}{seconds[0]:8.2f}s{statistics.median(seconds[1:]):8.2f}s{size:8.0f}")
    processes = [psutil.Process(pid) for pid in find_descendants(server.process.pid)]
    api = [each for each in processes if "api" in " ".join(each.cmdline())]
    used = lambda: sum(each.memory_info().rss for each in api) / 2**20  # noqa: E731
    for done in range(num_requests):
        if done % max(1, num_requests // 5) == 0:
            print(f"{done:6} requests: {used():.0f} MiB in the API server")
        client.get([*pages.values()][done % len(pages)])
    print(f"{num_requests:6} requests: {used():.0f} MiB in the API server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--versions", type=int)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--raw", type=Path, default=ROOT / ".trainyard" / "raw" / "digits")
    options = parser.parse_args()
    runs = options.runs or (60 if options.demo else 5000)
    versions = options.versions or (8 if options.demo else 1000)
    with tempfile.TemporaryDirectory(prefix="trainyard-pages-") as name:
        folder = Path(name)
        home, config = AirflowHome(folder / "airflow"), write_demo_config(folder, options.raw)
        pipeline = load_config(config)
        access = Access(users=_DEMO_USERS if options.demo else {})
        if options.demo:
            environment = os.environ | {"TRAINYARD_HOME": str(folder)}
            command = [sys.executable, "-m", "pipeline_ops.cli.main", "run", str(config)]
            subprocess.run(command, env=environment, check=True)
        with (
            embedded_airflow(home, [config], print, access=access) as server,
            AirflowApi(server.url, USER, server.password) as api,
        ):
            server.wait_until_healthy(api)
            server.wait_for_dag(api, pipeline.pipeline, since=0.0)
            fill(home, server, config, runs, versions)
            if options.demo:
                print(f"{server.url}/dags/{pipeline.pipeline}/plugin/trainyard_outcomes")
                print(f"{USER} {server.password}")
                for user, role in access.users.items():
                    print(f"{user} ({role}) {server.passwords[user]}")
                print("Ctrl-C ends it, and removes all of it.")
                while True:
                    server.check_alive()
                    time.sleep(1)
            found = list_summaries(Layout(pipeline.root, pipeline.pipeline), 8).runs
            measure(server, pipeline.pipeline, [run.run_id for run in found], options.requests)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
