"""`trainyard run CONFIG`: one run of a pipeline, from start to end, shown in the terminal.

It starts an embedded Airflow, or joins the one that runs, and triggers the pipeline's DAG in it.
The exit status is 0 only if the run succeeded. A model that did not pass the gate is a success that
publishes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.cli.arguments import add_config, add_overrides, load_runnable, parse_overrides
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, new_run_id
from pipeline_ops.cli.local_airflow.author_overrides import (
    keep_overrides,
    refuse_changes_of_the_dag,
    split_overrides,
)
from pipeline_ops.cli.local_airflow.embedded import USER, AirflowServer, Home
from pipeline_ops.cli.local_airflow.ready import wait_for_dag, wait_until_healthy
from pipeline_ops.cli.local_airflow.server import check_alive, embedded_airflow
from pipeline_ops.cli.local_airflow.stopping import Stopped, stop_signals
from pipeline_ops.cli.summary import summarise
from pipeline_ops.cli.terminal_view import make_console, make_screen, print_result
from pipeline_ops.cli.watch import RunView, RunWatcher
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ExitCode, TrainyardError
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.planning.trials import plan_trials
from pipeline_ops.raw_data.folder import refuse_interval

if TYPE_CHECKING:
    from rich.console import Console

_LOOK_SECONDS = 0.2
_FAILED = 1


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "run",
        help="run a pipeline in an embedded Airflow and watch it",
        description="Runs a pipeline once, in an embedded Airflow that ends with this command.",
    )
    add_config(parser)
    add_overrides(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object in the last line; everything else goes to stderr",
    )
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    overrides = parse_overrides(arguments.overrides)
    config = load_runnable(arguments.config, overrides)
    refuse_changes_of_the_dag(load_config(config.file), config)
    refuse_interval(config)
    console = make_console(stderr=arguments.json)
    with stop_signals():
        view = _run_embedded(config, overrides, console)
    summary = summarise(config, view)
    print_result(console, summary, view)
    if arguments.json:
        print(json.dumps(summary), flush=True)
    return exit_status(view)


def _run_embedded(
    config: PipelineConfig, overrides: Mapping[str, Any], console: Console
) -> RunView:
    home = Home.of_environment()
    with (
        embedded_airflow(home, [config.file], say=console.print) as server,
        AirflowApi(
            server.url, USER, server.password, meanwhile=lambda: check_alive(home, server)
        ) as api,
    ):
        print_address(console, home, server)
        wait_until_healthy(api, home, server)
        dag = wait_for_dag(api, home, server, config.pipeline, since=config.file.stat().st_mtime)
        with _unpaused(api, dag):
            return _run_once(api, home, server, config, overrides, console)


def print_address(console: Console, home: Home, server: AirflowServer) -> None:
    """Prints the address, the user and, at a terminal, the password.

    Elsewhere the password would stay in a log, so only the file that holds it is named.
    """
    password = server.password if console.is_terminal else f"in {home.passwords}"
    console.print(f"Airflow   {server.url}   user {USER}   password {password}", soft_wrap=True)


@contextlib.contextmanager
def _unpaused(api: AirflowApi, dag: Mapping[str, Any]) -> Iterator[None]:
    """Unpauses a DAG for a while. A paused one is paused again afterwards.

    This command does not decide whether a schedule may start the DAG.
    """
    api.pause(dag["dag_id"], paused=False)
    try:
        yield
    finally:
        if dag["is_paused"]:
            with contextlib.suppress(
                TrainyardError
            ):  # then Airflow is gone, and the error that ended it follows
                api.pause(dag["dag_id"], paused=True)


def _run_once(
    api: AirflowApi,
    home: Home,
    server: AirflowServer,
    config: PipelineConfig,
    overrides: Mapping[str, Any],
    console: Console,
) -> RunView:
    if config.evaluate.approval:
        console.print(
            "Approval  before export a person is asked, in Airflow under Required Actions; "
            "this command waits for the answer."
        )
    for active in [] if config.evaluate.approval else api.active_runs(config.pipeline):
        console.print(f"Waiting for the run {active}: a pipeline has one run at a time.")
    triggered, run_id = time.time(), new_run_id()
    conf, authors = split_overrides(load_config(config.file), overrides)
    if authors:
        console.print(
            f"Author    {', '.join(authors)}: set by this command. "
            f"A run from Airflow's UI cannot set {'it' if len(authors) == 1 else 'them'}.",
            soft_wrap=True,
        )
    keep_overrides(home, config.file, run_id, overrides)
    api.trigger(config.pipeline, conf, run_id)
    watcher = RunWatcher(
        api,
        Layout(config.root, config.pipeline),
        config.pipeline,
        run_id,
        triggered,
        task_names(config),
    )
    try:
        view = _follow(watcher, home, server, console)
    except Stopped:
        console.print(f"Cancelling {run_id}.")
        with contextlib.suppress(TrainyardError):
            api.fail_run(config.pipeline, run_id)
        raise
    if view.state != "success":
        print_failures(console, config, home, view)
    return view


def task_names(config: PipelineConfig) -> list[str]:
    """The tasks that have a state to show, in the order in which they run."""
    trials = ["search", *(trial.name for trial in plan_trials(config))] if config.search else []
    position = JOBS.index("train")
    return [*JOBS[:position], *trials, *JOBS[position:]]


def _follow(watcher: RunWatcher, home: Home, server: AirflowServer, console: Console) -> RunView:
    with make_screen(console) as screen:
        while True:
            view = watcher.look()
            screen.show(view)
            if view.is_finished:
                return view
            check_alive(home, server)
            time.sleep(_LOOK_SECONDS)


def print_failures(console: Console, config: PipelineConfig, home: Home, view: RunView) -> None:
    """Prints the reason of each failed task, and the logs to read."""
    for task in view.tasks:
        if task.state != "failed" or (
            task.name.startswith("trial-") and view.task("train").state == "success"
        ):
            continue
        record = task.record
        message = (
            record.message
            if record and record.state == "failed"
            else "ended by Airflow, or by a person in its UI"
        )
        console.print(f"{task.name} failed: {message}", style="red", soft_wrap=True)
        if record and record.attempt:
            console.print(f"    job log      {Attempt(Path(record.attempt)).log}", soft_wrap=True)
        console.print(
            f"    Airflow log  {home.task_logs(config.pipeline, view.run_id, task.name)}",
            soft_wrap=True,
        )


def exit_status(view: RunView) -> int:
    """Returns 0 for a run that succeeded, the job's own exit code for one that failed, else 1."""
    if view.state == "success":
        return ExitCode.SUCCESS
    codes = [
        task.record.exit_code
        for task in view.tasks
        if task.state == "failed" and task.record and task.record.exit_code
    ]
    return codes[0] if codes else _FAILED
