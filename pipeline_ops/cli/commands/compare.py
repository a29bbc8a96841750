"""`trainyard compare RUN RUN`: two runs side by side, as a table in the terminal and as a page.

It starts no job.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline_ops.cli.run_view import make_console
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.results import format_figure
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_files import write_atomically
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from rich.table import Table


def compare(
    first_run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run, runs/<pipeline>/<run id>. With --config, a run id suffices.",
        ),
    ],
    second_run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run that is compared with it.")
    ],
    config_file: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG", help="YAML file of the pipeline of the runs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="HTML page to write. Default: <pipeline>-comparison.html in the current folder.",
        ),
    ] = None,
) -> int:
    """Compare two runs side by side.

    Prints a table and writes a page: metrics, curves, classes, and what changed
    between the runs.
    """
    folders = [_find_run_folder(run, config_file) for run in (first_run, second_run)]
    from pipeline_ops.evaluation.compare import (
        build_fact_rows,
        build_metric_rows,
        find_changes,
        have_same_test_split,
        read_run,
        render_comparison,
    )

    first, second = map(read_run, folders)
    pipeline = second.manifests["evaluate"].pipeline
    output = output or Path(f"{pipeline}-comparison.html")
    write_atomically(output, render_comparison(pipeline, first, second).encode())
    console = make_console(stderr=False)
    metrics, facts = build_metric_rows(first, second), build_fact_rows(first, second)
    console.print(_build_table(first.name, second.name, metrics, facts), soft_wrap=False)
    if not have_same_test_split(first, second):
        console.print(
            "The two runs have different test splits. A difference may come from the images "
            "instead of the models.",
            style="yellow",
        )
    for job, lines in find_changes(first, second).items():
        for line in lines:
            console.print(f"{job:<11}{line}")
    console.print(f"Page      {output}")
    return 0


def _find_run_folder(run: str, config_file: Path | None) -> StorePath:
    folder = open_path(run)
    if config_file is not None and not folder.list_folder():
        config = load_config(config_file)
        folder = Layout(config.root, config.pipeline).run_folder(run)
    if folder.list_folder():
        return folder
    known = [entry.name for entry in folder.parent.list_folder() if entry.is_folder]
    advice = "Pass the folder of a run, or its run id with --config."
    if known and config_file:
        advice = f"Existing runs: {', '.join(known)}."
    raise ConfigError(f"{folder}: no such run. {advice}")


def _build_table(
    first: str, second: str, metrics: list[dict[str, Any]], facts: list[tuple[str, str, str]]
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in (first, second, "difference"):
        table.add_column(Text(column), justify="right", overflow="fold")
    for row in metrics:
        is_same = abs(row["difference"]) < 0.00005 or not math.isfinite(row["difference"])
        gain = row["difference"] * row["direction"]
        style = "dim" if is_same or not gain else "green" if gain > 0 else "red"
        table.add_row(
            row["name"],
            format_figure(row["first"]),
            format_figure(row["second"]),
            Text(f"{row['difference']:+.4f}", style=style),
        )
    table.add_section()
    for name, first_value, second_value in facts:
        table.add_row(name, first_value, second_value, "")
    return table
