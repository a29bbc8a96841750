"""`trainyard import-od-api PIPELINE_CONFIG`: converts a config of the Object Detection API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline_ops.cli.arguments import load_text
from pipeline_ops.config.pipeline import PIPELINE_PATTERN, PipelineConfig
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_files import write_atomically


def import_od_api(
    pipeline_config: Annotated[
        Path,
        typer.Argument(
            metavar="PIPELINE_CONFIG",
            help="File to convert. Relative paths in it start at the current folder.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Config file to write. Default: print the config."),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the pipeline. Default: the name of the file to write or to convert.",
        ),
    ] = "",
) -> int:
    """Convert a pipeline.config of the TensorFlow Object Detection API.

    Prints or writes the YAML of a pipeline. Fields without a counterpart are listed
    at the top of the YAML. The records stay where they are. Overwrites no existing
    file.
    """
    from pipeline_ops.od_api.convert import convert

    if output is not None and output.exists():
        raise ConfigError(f"{output}: already exists. Choose another name, or remove the file.")
    name = name or (output.stem if output else "")
    if output and name != output.stem:
        raise ConfigError(
            f"--name {name}: a pipeline has the name of its file, {output.stem}. Leave out --name."
        )
    if name and not re.fullmatch(PIPELINE_PATTERN, name):
        raise ConfigError(
            f"{name} cannot be the name of a pipeline, which has at most 63 lower-case letters, "
            "digits, _ and -. Choose another --output or --name."
        )
    converted = convert(pipeline_config, name)
    text, yaml_name = converted.to_yaml(), f"{converted.sections['pipeline']}.yaml"
    problem = f"{pipeline_config}: has a value that we cannot take"
    try:
        config = load_text(text, yaml_name, problem)
    except ConfigError as error:  # without the lines of a YAML that is not written
        raise ConfigError(re.sub(rf"{re.escape(yaml_name)}(:\d+)*: ", "", str(error))) from None
    if output is None:
        print(text, end="")
        return 0
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, text.encode())
    print(f"Wrote {output}")
    print(f"\n{converted.stand_in}.")
    for item in converted.summarize():
        print(f"  {item}")
    print("\nCarried over:")
    for item in _list_carried_over(config, converted.sections["preprocess"]["source"]):
        print(f"  {item}")
    number = sum(map(len, converted.list_differences().values()))
    print(f"\nThe end of {output} lists each difference: {number}.")
    print(f"\nNext:  trainyard validate --deep {output}")
    return 0


def _list_carried_over(config: PipelineConfig, source: dict[str, Any]) -> list[str]:
    train, size = config.train, config.preprocess.stages[-1].parameters
    augmentation = ", ".join(train.input.augment.model_dump(exclude_unset=True)) or "none"
    parts = [part["files"] for part in source["parts"]]
    missing = [files for files in parts if not any(Path(source["path"]).glob(files))]
    return [
        *([f"no records yet: {', '.join(missing)}"] if missing else []),
        f"{train.model}; {train.length} of batch {train.batch_size}; "
        f"{train.optimizer.name}, learning rate {train.learning_rate:g}",
        f"images of {size['height']}x{size['width']} pixels; augmentation: {augmentation}",
    ]
