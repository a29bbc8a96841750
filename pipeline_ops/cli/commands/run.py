"""`trainyard run CONFIG`: one run of a pipeline, from start to end, shown in the terminal.

It starts an embedded Airflow, or joins the one that runs, and triggers the pipeline's DAG in it.
With `--airflow URL`, it triggers the DAG in an Airflow that exists.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pipeline_ops.cli.airflow_access import USER, Access, is_loopback
from pipeline_ops.cli.airflow_api import ACCESS_VARIABLE, AirflowApi, make_run_id
from pipeline_ops.cli.arguments import (
    ConfigFile,
    Overrides,
    load_runnable,
    parse_overrides,
)
from pipeline_ops.cli.embedded_airflow import (
    NOBODY_ELSE,
    AirflowHome,
    AirflowServer,
    embedded_airflow,
)
from pipeline_ops.cli.run_view import (
    RunMonitor,
    RunStatus,
    TaskStatus,
    make_console,
    print_result,
    terminal_view,
)
from pipeline_ops.cli.stop_signals import Stopped, handle_stop_signals
from pipeline_ops.cli.summary import summarize_run
from pipeline_ops.config.fields import (
    READ_WITH_THE_DAG,
    SAME_FOR_ALL_RUNS,
    collect_fields,
    get_value,
)
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.run_conf import apply_conf
from pipeline_ops.contract.layout import APPROVE, TRIAL, Attempt, Layout, format_trial_name
from pipeline_ops.contract.task_record import TaskRecord
from pipeline_ops.errors import ConfigError, ExitCode, MachineError, TrainyardError
from pipeline_ops.planning.bucket_check import check_bucket
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.raw_data.folder import check_interval
from pipeline_ops.storage.local_files import replace_non_finite
from pipeline_ops.storage.open_store import open_near, open_path
from pipeline_ops.storage.store_options import JOB_PATIENCE, wait_at_most

if TYPE_CHECKING:
    from rich.console import Console

_POLL_SECONDS = 0.2
_GENERAL_FAILURE = 1
_DAG_SECONDS = 180
"""An Airflow that is healthy may not have read its DAG files yet."""
_PER_RUN_SECTIONS = ("search.", "evaluate.approval.")
"""Sections whose values tasks read in each run. Only their presence is part of the DAG."""


def run(
    config_file: ConfigFile,
    overrides: Overrides,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the result as one JSON object on stdout, and everything else on stderr.",
        ),
    ] = False,
    airflow_url: Annotated[
        str | None,
        typer.Option(
            "--airflow",
            metavar="URL",
            help="Run in this Airflow, which has the pipeline's DAG, instead of an embedded one. "
            f"The password is read from {ACCESS_VARIABLE}, or asked for.",
        ),
    ] = None,
    user: Annotated[str, typer.Option(metavar="USER", help="The user for --airflow.")] = USER,
) -> int:
    """Run a pipeline once and show its progress.

    The run takes place in an embedded Airflow that stops with this command. The exit status is 0 if
    the run succeeded. A model that does not pass the gate is not published, and the run still
    succeeds.
    """
    values = parse_overrides(overrides)
    console = make_console(stderr=as_json)
    try:
        with handle_stop_signals():
            if airflow_url:
                config = apply_conf(load_config(config_file), values)
                airflow = _open_existing(airflow_url, user, config, console)
            else:
                config = load_runnable(config_file, values)
                airflow = _open_embedded(config, console)
            with airflow as (api, dag, server):
                check_alive = server.check_alive if server else lambda: None
                with _temporarily_unpaused(api, dag):
                    draws_examples = not as_json
                    status = _run_once(api, config, values, console, draws_examples, check_alive)
                ended_by = ""
                with contextlib.suppress(TrainyardError):  # not everybody may read the audit log
                    if status.state == "failed":
                        ended_by = api.find_canceller(config.pipeline, status.run_id)
                print_failures(console, config, status, server.home if server else None)
    except Stopped:
        console.print("Stopped. The same command goes on with what is done.")
        raise
    summary = summarize_run(config, status, ended_by)
    print_result(console, summary, status)
    if as_json:
        print(json.dumps(replace_non_finite(summary)), flush=True)
    return compute_exit_status(status)


_Airflow: TypeAlias = tuple[AirflowApi, dict[str, Any], AirflowServer | None]


@contextlib.contextmanager
def _open_embedded(config: PipelineConfig, console: Console) -> Iterator[_Airflow]:
    """Yields a session with the embedded Airflow, its DAG, and the server."""
    _validate_dag_unchanged(load_config(config.file), config)
    check_interval(config)
    check_bucket(config)
    with connect([config.file], console) as (api, server):
        since = config.file.stat().st_mtime
        yield api, server.wait_for_dag(api, config.pipeline, since), server


@contextlib.contextmanager
def _open_existing(
    url: str, user: str, config: PipelineConfig, console: Console
) -> Iterator[_Airflow]:
    """Yields a session with the Airflow of `--airflow`, which must reach the same store."""
    password = os.environ.get(ACCESS_VARIABLE) or getpass.getpass(f"Password of {user}: ")
    announce = functools.cache(console.print)  # each text once
    no_answer = f"Waiting for an answer of {url}, as at a restart. Stop if that is not its address."
    with AirflowApi(url, user, password, lambda: announce(no_answer)) as api:
        api.log_in()
        deadline = time.monotonic() + _DAG_SECONDS
        while (dag := api.dag(config.pipeline)) is None:
            announce(
                f"Waiting for the DAG {config.pipeline}, which {url} has not read yet. It comes "
                f"from {config.file.name} in the folder of its configs."
            )
            if time.monotonic() > deadline:
                raise MachineError(
                    f"{url} has no DAG {config.pipeline} after {_DAG_SECONDS} s. Copy "
                    f"{config.file} to its configs, or read the log of its DAG processor, and "
                    "correct what it names."
                )
            time.sleep(_POLL_SECONDS)
        yield api, dag, None


@contextlib.contextmanager
def connect(
    configs: Sequence[Path],
    console: Console,
    schedules: bool = False,
    access: Access = NOBODY_ELSE,
) -> Iterator[tuple[AirflowApi, AirflowServer]]:
    """Keeps an embedded Airflow up, and logs in once it is healthy."""
    home = AirflowHome.from_environment()
    with (
        embedded_airflow(home, configs, console.print, schedules, access=access) as server,
        AirflowApi(server.url, USER, server.password, before_retry=server.check_alive) as api,
    ):
        # Elsewhere than at a terminal, the password would stay in a log.
        password = server.password if console.is_terminal else f"in {home.passwords}"
        console.print(f"Airflow   {server.url}   user {USER}   password {password}")
        for name, role in server.access.users.items():
            own = f"password {server.passwords[name]}" if console.is_terminal else ""
            console.print(f"          {role:<10} user {name}   {own}".rstrip())
        if not is_loopback(server.access.host):
            console.print(
                f"It answers at {server.access.host} without encryption, so passwords can be read "
                "on the way.",
                style="yellow",
            )
        server.wait_until_healthy(api)
        yield api, server


@contextlib.contextmanager
def _temporarily_unpaused(api: AirflowApi, dag: Mapping[str, Any]) -> Iterator[None]:
    """Unpauses a DAG for a while. A paused one is paused again afterwards."""
    api.pause(dag["dag_id"], paused=False)
    try:
        yield
    finally:
        if dag["is_paused"]:
            # If Airflow is gone, the error that ended it follows.
            with contextlib.suppress(TrainyardError):
                api.pause(dag["dag_id"], paused=True)


def _run_once(
    api: AirflowApi,
    config: PipelineConfig,
    overrides: Mapping[str, Any],
    console: Console,
    draws_examples: bool,
    check_alive: Callable[[], None],
) -> RunStatus:
    if not config.evaluate.approval:
        for run in api.list_active_runs(config.pipeline):
            console.print(f"Waiting for the run {run} to finish. A pipeline has one run at a time.")
    triggered, run_id = time.time(), make_run_id()
    api.trigger(config.pipeline, overrides, run_id)
    layout, train = Layout(config.root, config.pipeline), JOBS.index("train")
    trials = list[str]()
    if config.search:
        trials = ["search", *map(format_trial_name, range(config.search.max_trials))]
    asking = [APPROVE] if config.evaluate.approval else []
    tasks = [*JOBS[:train], *trials, *JOBS[train:-1], *asking, JOBS[-1]]
    console.print(f"Page      {api.get_run_page(config.pipeline, run_id)}")
    monitor = RunMonitor(api, layout, run_id, triggered, tasks)
    try:
        # The tasks outlast an outage of the store, and so does this command.
        with terminal_view(console) as show, wait_at_most(JOB_PATIENCE.retries):
            while True:
                status = monitor.poll()
                show(status)
                preprocess = status.task("preprocess")
                if draws_examples and preprocess.state == "success":
                    draws_examples = False
                    if preprocess.record and not preprocess.is_cached:
                        print_examples(console, layout, run_id, preprocess.record)
                if status.is_finished:
                    return status
                check_alive()
                time.sleep(_POLL_SECONDS)
    except Stopped:
        console.print(f"Cancelling {run_id}.")
        with contextlib.suppress(TrainyardError):
            api.fail_run(config.pipeline, run_id)
        raise


def print_examples(console: Console, layout: Layout, run_id: str, record: TaskRecord) -> None:
    """Draws training examples of a new data set. A failure is one line, and the run goes on."""
    try:
        from pipeline_ops.cli.drawing import draw_examples

        with wait_at_most(0):
            picture = draw_examples(open_near(layout.root, str(record.manifest)))
        place = layout.examples_picture(run_id)
        if not place.is_local:  # a person opens the picture, so it is on this machine
            place = open_path(Path(f"{layout.pipeline}-examples.png").absolute())
        place.write(picture)
        console.print(f"Examples  {place}")
    except Exception as error:
        console.print(f"Examples  cannot be drawn: {error}")


def print_failures(
    console: Console, config: PipelineConfig, status: RunStatus, home: AirflowHome | None = None
) -> None:
    """Prints the reason of each failed task of a run that did not succeed, and the logs to read."""
    for task in _list_failed(status):
        if task.name.startswith(TRIAL) and status.task("train").state == "success":
            continue
        record = task.record
        message = "stopped by Airflow or by a user in its UI"
        if record and record.state == "failed":
            message = record.message
        console.print(f"{task.name} failed: {message}", style="red")
        if record and record.attempt:
            console.print(f"    job log      {Attempt(Path(record.attempt)).log}")
        if home:
            airflow_log = home.task_logs(config.pipeline, status.run_id, task.name)
            console.print(f"    Airflow log  {airflow_log}")


def _list_failed(status: RunStatus) -> list[TaskStatus]:
    if status.state == "success":
        return []
    return [task for task in status.tasks if task.state == "failed"]


def compute_exit_status(status: RunStatus) -> int:
    """Returns 0 for a run that succeeded, the job's own exit code for one that failed, else 1."""
    if status.state == "success":
        return ExitCode.SUCCESS
    codes = (task.record.exit_code for task in _list_failed(status) if task.record)
    return next(filter(None, codes), _GENERAL_FAILURE)


def _validate_dag_unchanged(file_config: PipelineConfig, config: PipelineConfig) -> None:
    """Raises ConfigError for overrides of what Airflow or other runs know from the file."""
    changed = {
        scalar_key: field.fixed
        for key, field in collect_fields(PipelineConfig).items()
        if not key.startswith(_PER_RUN_SECTIONS)
        and field.fixed in (READ_WITH_THE_DAG, SAME_FOR_ALL_RUNS)
        and (scalar_key := key.partition("[]")[0])
        and get_value(file_config, scalar_key) != get_value(config, scalar_key)
    }
    before, after = file_config.search, config.search
    if before is None or after is None:
        changed |= {"search": READ_WITH_THE_DAG} if before is not after else {}
    elif before.max_parallel != after.max_parallel:
        changed["search.max_parallel"] = READ_WITH_THE_DAG
    if file_config.evaluate.approval is None and config.evaluate.approval is not None:
        changed["evaluate.approval"] = READ_WITH_THE_DAG
    if changed:
        key, reason = next(iter(changed.items()))
        raise ConfigError(
            f"--set {key}: cannot be set for a single run: {reason}. "
            f"Change it in {file_config.file}."
        )
