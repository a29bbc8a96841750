"""Triggers a pipeline over REST and follows the run: `run_pipeline.py CONFIG [--set KEY=VALUE]...`.

It runs in the container of the API server. Its exit status is 0 if the run succeeded. A run may set
the keys that configs/REFERENCE.md lists as set by "run", and those that `per_run` opens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.cli.arguments import add_config, add_overrides, parse_overrides
from pipeline_ops.cli.commands.run import compute_exit_status, list_task_names
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, make_run_id
from pipeline_ops.cli.run_view import (
    RunMonitor,
    RunStatus,
    make_console,
    print_result,
    terminal_view,
)
from pipeline_ops.cli.summary import summarize_run
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import MachineError, TrainyardError

_URL = "http://127.0.0.1:8080"
_PASSWORDS = Path("/run/secrets/airflow_passwords")
_DAG_SECONDS, _POLL_SECONDS = 180, 0.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="run_pipeline.py")
    add_config(parser)
    add_overrides(parser)
    arguments = parser.parse_args()
    overrides = parse_overrides(arguments.overrides)
    config = load_config(arguments.config)
    ((user, password),) = json.loads(_PASSWORDS.read_text()).items()
    console = make_console(stderr=False)
    with AirflowApi(_URL, user, password) as api:
        api.log_in()
        _wait_for_dag(api, config.pipeline)
        run_id, triggered = make_run_id(), time.time()
        api.pause(config.pipeline, paused=False)
        api.trigger(config.pipeline, overrides, run_id)
        console.print(f"Run       {run_id}")
        layout = Layout(config.root, config.pipeline)
        monitor = RunMonitor(api, layout, run_id, triggered, list_task_names(config))
        with terminal_view(console) as show:
            while not (status := monitor.poll()).is_finished:
                show(status)
                time.sleep(_POLL_SECONDS)
            show(status)
    print_result(console, summarize_run(config, status), status)
    _print_failures(config, status)
    return compute_exit_status(status)


def _wait_for_dag(api: AirflowApi, dag: str) -> None:
    """A cluster that is healthy may not have read its DAG files yet."""
    deadline = time.monotonic() + _DAG_SECONDS
    while api.dag(dag) is None:
        if time.monotonic() > deadline:
            raise MachineError(
                f"There is no DAG {dag} after {_DAG_SECONDS} seconds. Read the log of the service "
                "dag-processor: `docker logs trainyard-dag-processor-1`, or with the name that "
                "`docker ps` shows. Correct what it names, then run again."
            )
        time.sleep(1)


def _print_failures(config: PipelineConfig, status: RunStatus) -> None:
    for task in status.tasks:
        if task.state == "failed":
            print(f"{task.name} failed: {task.record.message if task.record else 'see its log'}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrainyardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
