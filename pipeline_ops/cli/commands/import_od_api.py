"""`trainyard import-od-api PIPELINE_CONFIG`: converts a config of the Object Detection API."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline_ops.cli.arguments import (
    Commands,
    add_command,
    add_output,
    load_text,
    make_int_parser,
)
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_files import write_atomically


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, import_od_api)
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
    """Convert a pipeline.config of the TensorFlow Object Detection API.

    Prints or writes the YAML of a pipeline. Fields without a counterpart are listed
    at the top of the YAML. The records stay where they are. Overwrites no existing
    file.
    """
    from pipeline_ops.od_api.convert import convert

    output: Path | None = arguments.output
    if output is not None and output.exists():
        raise ConfigError(f"{output}: already exists. Choose another name, or remove the file.")
    name = output.stem if output else ""
    converted = convert(arguments.pipeline_config, arguments.num_examples, name)
    text = converted.to_yaml()
    problem = f"{arguments.pipeline_config}: cannot be converted. The resulting YAML is invalid"
    load_text(text, f"{converted.sections['pipeline']}.yaml", problem)
    if output is None:
        print(text, end="")
        return 0
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, text.encode())
    print(f"Wrote {output}")
    for title, items in converted.list_differences().items():
        print(f"\n{title}")
        for item in items:
            print(f"  {item}")
    print(f"\nNext:  trainyard validate --deep {output}")
    return 0
