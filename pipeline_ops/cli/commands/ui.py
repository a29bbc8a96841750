"""`trainyard ui`: keeps an embedded Airflow up, for its UI."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.cli.arguments import load_checked
from pipeline_ops.cli.commands.run import print_address
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi
from pipeline_ops.cli.local_airflow.embedded import USER, Home
from pipeline_ops.cli.local_airflow.ready import wait_for_dag, wait_until_healthy
from pipeline_ops.cli.local_airflow.server import check_alive, embedded_airflow
from pipeline_ops.cli.local_airflow.stopping import stop_signals
from pipeline_ops.cli.terminal_view import make_console
from pipeline_ops.config.pipeline_files import config_files
from pipeline_ops.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

_LOOK_SECONDS = 1.0


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "ui",
        help="keep the embedded Airflow up until Ctrl-C",
        description=(
            "Keeps an embedded Airflow up until Ctrl-C. Meanwhile, `trainyard run` uses it."
        ),
    )
    parser.add_argument(
        "configs",
        metavar="CONFIG",
        nargs="*",
        type=Path,
        default=[CODE_ROOT / "configs"],
        help="YAML files of pipelines, or folders of them; by default the folder configs",
    )
    parser.set_defaults(command=ui)


def ui(arguments: argparse.Namespace) -> int:
    console, home = make_console(stderr=False), Home.of_environment()
    places = [place.resolve() for place in arguments.configs]
    pipelines = usable_pipelines(places, console)
    with (
        stop_signals(),
        embedded_airflow(home, places, say=console.print, schedules=True) as server,
    ):
        print_address(console, home, server)
        with AirflowApi(
            server.url, USER, server.password, meanwhile=lambda: check_alive(home, server)
        ) as api:
            wait_until_healthy(api, home, server)
            dags = [wait_for_dag(api, home, server, pipeline, since=0.0) for pipeline in pipelines]
        if not server.schedules:
            console.print("Schedules are off in it, because `trainyard run` started it.")
        for line in schedule_lines(dags):
            console.print(line, soft_wrap=True)
        console.print(f"Ready     {', '.join(pipelines)}. Ctrl-C ends it.")
        while True:
            check_alive(home, server)
            time.sleep(_LOOK_SECONDS)


def schedule_lines(dags: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the DAGs that start runs by themselves, and those that would if they were not paused.

    The DAGs are given as the API describes them.
    """
    scheduled = [dag for dag in dags if dag["timetable_summary"]]
    running = [
        f"{dag['dag_id']} ({dag['timetable_summary']})" for dag in scheduled if not dag["is_paused"]
    ]
    paused = [dag["dag_id"] for dag in scheduled if dag["is_paused"]]
    if running:
        yield f"Schedules {', '.join(running)}"
    if paused:
        yield (
            f"Paused    {', '.join(paused)}: nothing starts by the schedule until you unpause it "
            "in the UI, with the switch beside its name"
        )


def usable_pipelines(places: Iterable[Path], console: Console) -> list[str]:
    """The pipelines of all configs.

    A config that cannot be used is shown and does not affect the others.

    Raises:
      ConfigError: there is no usable pipeline.
    """
    found, problems = [], 0
    for file in config_files(places):
        try:
            found.append(load_checked(file).pipeline)
        except ConfigError as problem:
            problems += 1
            console.print(str(problem), style="red", soft_wrap=True)
    if not found:
        raise ConfigError(
            f"no usable pipeline among {', '.join(map(str, places))}"
            if problems
            else f"no YAML file in {', '.join(map(str, places))}"
        )
    return found
