"""`trainyard preview CONFIG`: a picture of raw examples before and after the stages."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline_ops.cli.arguments import (
    Commands,
    add_command,
    add_config,
    add_output,
    add_overrides,
    load_checked,
    make_int_parser,
    parse_overrides,
)
from pipeline_ops.storage.local_files import write_atomically

_MAX_EXAMPLES = 200


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, preview)
    add_config(parser)
    parser.add_argument(
        "--stage",
        metavar="NAME",
        help="Show only this stage of the config. Default: all stages after decode.",
    )
    parser.add_argument(
        "--examples",
        metavar="N",
        type=make_int_parser(1, _MAX_EXAMPLES),
        default=16,
        help=f"Number of raw examples to show, at most {_MAX_EXAMPLES}. Default: 16.",
    )
    add_output(
        parser, "FILE.png", "Image to write. Default: <pipeline>-preview.png in the current folder."
    )
    add_overrides(parser)


def preview(arguments: argparse.Namespace) -> int:
    """Draw raw examples before and after the stages, with labels and boxes.

    Writes one PNG file. Runs no pipeline.
    """
    config = load_checked(arguments.config, parse_overrides(arguments.overrides))
    from pipeline_ops.cli.drawing import draw_preview

    png, outcomes = draw_preview(config, arguments.stage, arguments.examples)
    output = arguments.output or Path(f"{config.pipeline}-preview.png")
    write_atomically(output, png)
    counts = [f"{count} {outcome}" for outcome, count in outcomes.items()]
    print(f"{output}: {', '.join(counts)}")
    return 0
