"""`trainyard import-od-api PIPELINE_CONFIG`: converts a config of the Object Detection API.

It makes a pipeline's YAML from a `pipeline.config` of the TensorFlow Object Detection API. Fields
without a counterpart are listed in the head of the YAML, and with `--out` also in the terminal. The
records stay where they are. No existing file is overwritten.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_ops.cli.arguments import load_checked
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import write_whole

if TYPE_CHECKING:
    from pipeline_ops.od_api.convert import Converted


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "import-od-api",
        help="make a config of an Object Detection API's pipeline.config",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "pipeline_config",
        metavar="PIPELINE_CONFIG",
        type=Path,
        help="its paths start where this command runs, if they are relative",
    )
    parser.add_argument(
        "--out",
        metavar="YAML",
        type=Path,
        help="where the config is written; without it, it is printed",
    )
    parser.add_argument(
        "--num-examples",
        metavar="N",
        type=_positive,
        help="training records, where the files are not here to be counted",
    )
    parser.set_defaults(command=import_od_api)


def import_od_api(arguments: argparse.Namespace) -> int:
    from pipeline_ops.od_api.convert import convert

    out: Path | None = arguments.out
    if out is not None and out.exists():
        raise ConfigError(f"{out}: is there already; choose another name, or remove it")
    converted = convert(arguments.pipeline_config, arguments.num_examples)
    text = converted.as_yaml()
    _check(text, arguments.pipeline_config)
    if out is None:
        print(text, end="")
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, text.encode())
    _tell(out, converted)
    return 0


def _check(text: str, origin: Path) -> None:
    """Raises ConfigError for a value that our config does not allow."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{origin.stem}.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            load_checked(file)
        except ConfigError as error:
            raise ConfigError(
                f"{origin}: says something that no config of ours may:\n"
                f"{str(error).replace(str(file), origin.name)}"
            ) from error


def _tell(out: Path, converted: Converted) -> None:
    print(f"wrote {out}\n\nWhat became something else:")
    for note in converted.notes:
        print(f"  {note}")
    print(
        "\nFields that have no counterpart:"
        if converted.left
        else "\nEvery field has a counterpart."
    )
    for leaf in converted.left:
        print(f"  {leaf} (line {leaf.line})")
    print(f"\nCheck it:  trainyard validate {out}")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
