"""What tests of Airflow's own UI share: an embedded Airflow with a DAG file of the test's own, and a browser that is logged in."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded import USER, Home, Server
from pipeline_ops.cli.ready import wait_for_dag, wait_until_healthy

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def running_airflow(home: Path, config: Path, dag_id: str, environment: Mapping[str, str]) -> Iterator[AirflowApi]:
    """Airflow with the DAG files that lie in its home; the DAG is unpaused."""
    argv = [sys.executable, str(Path(__file__).parent / "cli" / "holder.py"), str(home), str(config)]
    holder = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = [holder.stdout.readline() for _ in range(2)]
    assert lines[1].startswith("up "), lines
    server = Server.alive(Home(home))
    with AirflowApi(server.url, USER, server.password) as api:
        wait_until_healthy(api, Home(home), server)
        wait_for_dag(api, Home(home), server, dag_id, since=0.0)
        api.pause(dag_id, paused=False)
        yield api
    holder.communicate(timeout=60)


@contextlib.contextmanager
def logged_in_page(api: AirflowApi) -> Iterator[object]:
    """A page of a headless Chromium, for a person who has logged in."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(90_000)
        page.goto(str(api._client.base_url))
        page.fill("input[name=username]", USER)
        page.fill("input[name=password]", api._login["password"])
        page.click("button[type=submit]")
        page.wait_for_url(re.compile(r".*/(home)?$"))
        yield page
        browser.close()


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
