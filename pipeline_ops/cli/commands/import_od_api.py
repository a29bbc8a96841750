"""`trainyard import-od-api PIPELINE_CONFIG`: converts a config of the Object Detection API.

It makes a pipeline's YAML from a `pipeline.config` of the TensorFlow Object Detection API. Fields
without a counterpart are listed in the head of the YAML, and with `--output` also in the terminal.
The records stay where they are. No existing file is overwritten.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_ops.cli.arguments import (
    Commands,
    add_command,
    add_output,
    load_checked,
    make_int_parser,
)
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import write_atomically

if TYPE_CHECKING:
    from pipeline_ops.od_api.convert import ConvertedConfig


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "import-od-api",
        import_od_api,
        "Convert a pipeline.config of the TensorFlow Object Detection API.",
        "Prints or writes the YAML of a pipeline. Fields without a counterpart are listed\n"
        "at the top of the YAML. The records stay where they are. Overwrites no existing\n"
        "file.",
    )
    parser.add_argument(
        "pipeline_config",
        metavar="PIPELINE_CONFIG",
        type=Path,
        help="File to convert. Relative paths in it start at the current folder.",
    )
    add_output(parser, "FILE.yaml", "Config file to write. Default: print the config.")
    parser.add_argument(
        "--num-examples",
        metavar="N",
        type=make_int_parser(1),
        help="Number of training examples. Needed if the record files are not available here.",
    )


def import_od_api(arguments: argparse.Namespace) -> int:
    from pipeline_ops.od_api.convert import convert

    output: Path | None = arguments.output
    if output is not None and output.exists():
        raise ConfigError(f"{output}: already exists. Choose another name, or remove the file.")
    name = output.stem if output else ""
    converted = convert(arguments.pipeline_config, arguments.num_examples, name)
    text = converted.to_yaml()
    _validate_yaml(text, converted.sections["pipeline"], arguments.pipeline_config)
    if output is None:
        print(text, end="")
        return 0
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, text.encode())
    _print_conversion(output, converted)
    return 0


def _validate_yaml(text: str, name: str, origin: Path) -> None:
    """Raises ConfigError for a value that our config does not allow."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            load_checked(file)
        except ConfigError as error:
            raise ConfigError(
                f"{origin}: cannot be converted. The resulting YAML is invalid:\n"
                f"{str(error).replace(f'{file}:', 'line ')}"
            ) from error


def _print_conversion(output: Path, converted: ConvertedConfig) -> None:
    print(f"Wrote {output}")
    for title, items in converted.list_differences().items():
        print(f"\n{title}")
        for item in items:
            print(f"  {item}")
    print(f"\nNext:  trainyard validate --deep {output}")
