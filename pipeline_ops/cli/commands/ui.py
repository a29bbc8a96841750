"""`trainyard ui`: keeps an embedded Airflow up, for its UI."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline_ops.cli.airflow_access import LOOPBACK, Access, parse_host, parse_users
from pipeline_ops.cli.arguments import (
    list_config_files,
    load_checked,
    make_configs_argument,
)
from pipeline_ops.cli.commands.run import connect
from pipeline_ops.cli.run_view import make_console
from pipeline_ops.cli.stop_signals import handle_stop_signals
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

_POLL_SECONDS = 1.0


def ui(
    config_paths: Annotated[list[Path], make_configs_argument(CODE_ROOT / "configs")],
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Port to listen on. Default: that of last time."
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen on, 0.0.0.0 for all. Passwords are sent without encryption.",
        ),
    ] = LOOPBACK,
    users: Annotated[
        str,
        typer.Option(
            metavar="NAME:ROLE,...",
            help="More users, such as anna:op,vera:viewer. Roles are viewer, user, op and admin.",
        ),
    ] = "",
) -> int:
    """Start an embedded Airflow with its UI, until Ctrl-C.

    `trainyard run` uses this Airflow while it is up.
    """
    access = Access(host=parse_host(host), port=port, users=parse_users(users))
    console = make_console(stderr=False)
    configs = [path.resolve() for path in config_paths]
    pipelines = load_valid_pipelines(configs, console)
    with handle_stop_signals(), connect(configs, console, True, access) as (api, server):
        dags = [server.wait_for_dag(api, pipeline, since=0.0) for pipeline in pipelines]
        if not server.schedules:
            console.print("Schedules are off, because `trainyard run` started this Airflow.")
        for line in describe_schedules(dags):
            console.print(line)
        console.print(f"Ready     {', '.join(pipelines)}. Press Ctrl-C to stop.")
        while True:
            server.check_alive()
            time.sleep(_POLL_SECONDS)


def describe_schedules(dags: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Says which DAGs, as the API describes them, have schedules that run or are paused."""
    scheduled = [dag for dag in dags if dag["timetable_summary"]]
    running = [
        f"{dag['dag_id']} ({dag['timetable_summary']})" for dag in scheduled if not dag["is_paused"]
    ]
    paused = [dag["dag_id"] for dag in scheduled if dag["is_paused"]]
    if running:
        yield f"Schedules {', '.join(running)}"
    if paused:
        yield (
            f"Paused    {', '.join(paused)}: scheduled runs start only after you unpause it in the "
            "UI, with the switch next to its name"
        )


def load_valid_pipelines(config_paths: Sequence[Path], console: Console) -> list[str]:
    """Lists the pipelines, and shows the errors of configs that cannot be used.

    Raises ConfigError if none can be used.
    """
    found = []
    for file in list_config_files(config_paths):
        try:
            found.append(load_checked(file).pipeline)
        except ConfigError as problem:
            console.print(str(problem), style="red")
    if not found:
        raise ConfigError(
            f"no valid config in {', '.join(map(str, config_paths))}. Fix the errors above."
        )
    return found
