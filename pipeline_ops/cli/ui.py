"""`trainyard ui`: keeps an embedded Airflow up, to click around in."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.arguments import load_checked
from pipeline_ops.cli.embedded import USER, Home
from pipeline_ops.cli.ready import wait_for_dag, wait_until_healthy
from pipeline_ops.cli.run import print_address
from pipeline_ops.cli.screen import make_console
from pipeline_ops.cli.server import check_alive, embedded_airflow
from pipeline_ops.cli.stopping import stop_signals
from pipeline_ops.contracts.fingerprint import CODE_ROOT

_LOOK_SECONDS = 1.0


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("ui", help="keep the embedded Airflow up until Ctrl-C",
                                 description="Keeps an embedded Airflow up until Ctrl-C. Meanwhile, `trainyard run` uses it.")
    parser.add_argument("configs", metavar="CONFIG", nargs="*", type=Path, default=[CODE_ROOT / "configs"],
                        help="YAML files of pipelines, or folders of them; by default the folder configs")
    parser.set_defaults(command=ui)


def ui(arguments: argparse.Namespace) -> int:
    console, home = make_console(stderr=False), Home.of_environment()
    places = [place.resolve() for place in arguments.configs]
    pipelines = [load_checked(place).pipeline for place in places if not place.is_dir()]
    console.print("Starting Airflow; the first time in a folder this takes a little longer.")
    with stop_signals(), embedded_airflow(home, places, say=console.print, schedules=True) as server:
        with AirflowApi(server.url, USER, server.password, meanwhile=lambda: check_alive(home, server)) as api:
            wait_until_healthy(api, home, server)
            for pipeline in pipelines:
                wait_for_dag(api, home, server, pipeline, since=0.0)
        print_address(console, server)
        if not server.schedules:
            console.print("Schedules are off in it, because `trainyard run` started it.")
        console.print("Ctrl-C ends it.")
        while True:
            check_alive(home, server)
            time.sleep(_LOOK_SECONDS)
