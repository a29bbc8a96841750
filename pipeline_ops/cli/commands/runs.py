"""`trainyard runs`: the runs of a pipeline, and what has become of each."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from pipeline_ops.cli.arguments import ConfigFile
from pipeline_ops.cli.run_view import make_console
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.results import format_figure
from pipeline_ops.contract.run_summary import RunSummary, list_summaries
from pipeline_ops.errors import ExitCode

_MAX_RUNS = 10_000


def runs(
    config_file: ConfigFile,
    newest: Annotated[
        int, typer.Option("--newest", metavar="N", min=1, max=_MAX_RUNS, help="How many to show.")
    ] = 20,
    changed: Annotated[
        bool, typer.Option("--changed", help="Leave out the runs in which nothing had changed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each run, newest first.")
    ] = False,
) -> int:
    """List the runs of a pipeline, the newest first, with what has become of each.

    A run that was ended from outside, or that has not ended, is only in Airflow.
    """
    config = load_config(config_file)
    found = list_summaries(Layout(config.root, config.pipeline), newest)
    shown = [run for run in found.runs if not (changed and run.outcome.kind == "unchanged")]
    for problem in found.problems:
        make_console(stderr=True).print(problem, style="red")
    if as_json:
        for run in shown:
            print(json.dumps(run.model_dump(mode="json")))
        return ExitCode.SUCCESS
    for line in format_runs(shown):
        print(line)
    if not shown:
        print(f"no run of {config.pipeline} has ended yet below {config.root}")
    if found.num_older:
        print(f"and {found.num_older:,} older ones: --newest {newest + found.num_older}")
    return ExitCode.SUCCESS


def format_runs(runs: Iterable[RunSummary]) -> Iterator[str]:
    """Yields two lines for each run: when, by whom, metrics, data and version; and its sentence."""
    for run in runs:
        ended = dt.datetime.fromtimestamp(run.ended, dt.UTC)
        parts = [f"{ended:%Y-%m-%d %H:%M} UTC", run.triggered_by]
        parts += [
            f"{name} {format_figure(metric.value)}"
            + (f" ({metric.difference})" if metric.difference else "")
            for name, metric in run.metrics.items()
        ]
        if run.num_examples:
            parts.append(f"{sum(run.num_examples.values()):,} examples")
        parts.append(run.moves)
        if run.num_rejected:
            parts.append(f"{run.num_rejected:,} rejected")
        parts += [f"{key}={value}" for key, value in run.values.items()]
        yield "  ".join(part for part in parts if part)
        yield f"    {run.outcome.sentence}"
