"""`trainyard preview CONFIG [--stage NAME]`: a picture of raw examples before and after the stages.

It runs no pipeline.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline_ops.cli.arguments import add_config, add_overrides, load_checked, parse_overrides
from pipeline_ops.storage.atomic import write_whole

_MOST_EXAMPLES = 200


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "preview",
        help="draw what the stages do to some raw examples",
        description=(
            "Draws raw examples before and after the stages of a config, with labels and boxes, "
            "into one PNG file."
        ),
    )
    add_config(parser)
    parser.add_argument(
        "--stage",
        metavar="NAME",
        help="only this stage of the config; without it, all of them after decode",
    )
    parser.add_argument(
        "--examples",
        metavar="N",
        type=_count,
        default=16,
        help=f"how many raw examples to show, at most {_MOST_EXAMPLES} (default: 16)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE.png",
        type=Path,
        help="the picture (default: <pipeline>-preview.png, here)",
    )
    add_overrides(parser)
    parser.set_defaults(command=preview)


def preview(arguments: argparse.Namespace) -> int:
    config = load_checked(arguments.config, parse_overrides(arguments.overrides))
    from beam_jobs.preview import preview as draw_preview

    result = draw_preview(config, arguments.stage, arguments.examples)
    output = arguments.output or Path(f"{config.pipeline}-preview.png")
    write_whole(output, result.png)
    print(
        f"{output}: {', '.join(f'{count} {outcome}' for outcome, count in result.outcomes.items())}"
    )
    return 0


def _count(text: str) -> int:
    """Parses a number of examples. Raises ArgumentTypeError."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_EXAMPLES:
        raise argparse.ArgumentTypeError(f"must be a number of 1 to {_MOST_EXAMPLES}, got {text}")
    return int(text)
