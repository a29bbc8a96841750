"""`trainyard compare RUN RUN`: two runs side by side, as a table in the terminal and as a page.

It starts no job.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.cli.terminal_view import make_console
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import write_whole


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "compare",
        help="draw two runs side by side",
        description=(
            "Compares the models of two runs: metrics, curves, classes, "
            "and what changed between them."
        ),
    )
    for name in ("first", "second"):
        parser.add_argument(
            name,
            metavar="RUN",
            help="the folder of a run, runs/<pipeline>/<run id>; with --config, its id",
        )
    parser.add_argument(
        "--config", type=Path, help="the pipeline's YAML file, whose runs are meant"
    )
    parser.add_argument(
        "--output",
        metavar="FILE.html",
        type=Path,
        help="the page (default: <pipeline>-comparison.html, here)",
    )
    parser.set_defaults(command=compare)


def compare(arguments: argparse.Namespace) -> int:
    folders = [_folder_of(run, arguments.config) for run in (arguments.first, arguments.second)]
    from pipeline_ops.evaluation.compare import (
        changes,
        fact_rows,
        have_one_test_split,
        metric_rows,
        read_run,
        render_comparison,
    )

    first, second = map(read_run, folders)
    pipeline = second.manifests["evaluate"].pipeline
    output = arguments.output or Path(f"{pipeline}-comparison.html")
    write_whole(output, render_comparison(pipeline, first, second).encode())
    console = make_console(stderr=False)
    console.print(
        _table(first.name, second.name, metric_rows(first, second), fact_rows(first, second))
    )
    if not have_one_test_split(first, second):
        console.print(
            "The two runs had different test splits: a difference may be one of the images, "
            "and not of the models.",
            style="yellow",
        )
    for job, lines in changes(first, second).items():
        for line in lines:
            console.print(f"{job:<11}{line}", soft_wrap=True)
    console.print(f"Page      {output}", soft_wrap=True)
    return 0


def _folder_of(run: str, config_file: Path | None) -> Path:
    """The folder of a run. Raises ConfigError if there is no such run."""
    folder = Path(run)
    if config_file is not None and not folder.is_dir():
        config = load_config(config_file)
        folder = Layout(config.root, config.pipeline).run(run)
    if not folder.is_dir():
        known = (
            sorted(path.name for path in folder.parent.iterdir() if path.is_dir())
            if folder.parent.is_dir()
            else []
        )
        raise ConfigError(
            f"{folder}: there is no such run; "
            + (
                f"there are {', '.join(known)}"
                if known and config_file
                else "name the folder of one, or give --config and its id"
            )
        )
    return folder


def _table(first: str, second: str, metrics: list[dict], facts: list[tuple[str, str, str]]):
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in (first, second, "difference"):
        table.add_column(Text(column), justify="right", overflow="fold")
    for row in metrics:
        is_same = abs(row["difference"]) < 0.00005
        style = "dim" if is_same else "green" if row["difference"] * row["sense"] > 0 else "red"
        table.add_row(
            row["name"],
            f"{row['first']:.4f}",
            f"{row['second']:.4f}",
            Text(f"{row['difference']:+.4f}", style=style),
        )
    table.add_section()
    for name, ours, theirs in facts:
        table.add_row(name, ours, theirs, "")
    return table
