"""`trainyard preview CONFIG`: a picture of raw examples before and after the stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline_ops.cli.arguments import ConfigFile, Overrides, load_checked, parse_overrides
from pipeline_ops.storage.local_files import write_atomically


def preview(
    config_file: ConfigFile,
    overrides: Overrides,
    stage: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Show only this stage of the config. Default: all stages after decode.",
        ),
    ] = None,
    examples: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=200, help="Number of raw examples to show."),
    ] = 16,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Image to write. Default: <pipeline>-preview.png in the current folder.",
        ),
    ] = None,
) -> int:
    """Draw raw examples before and after the stages, with labels and boxes.

    Writes one PNG file. Runs no pipeline.
    """
    config = load_checked(config_file, parse_overrides(overrides))
    from pipeline_ops.cli.drawing import draw_preview

    png, outcomes = draw_preview(config, stage, examples)
    output = output or Path(f"{config.pipeline}-preview.png")
    write_atomically(output, png)
    print(f"{output}: {', '.join(f'{each.count} {each.kind}' for each in outcomes)}")
    for each in outcomes:
        if figures := each.describe_figures():
            print(f"  {each.kind}: {figures}")
    return 0
