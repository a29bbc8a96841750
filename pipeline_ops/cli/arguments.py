"""The arguments that several commands share, such as the config and its overrides."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline_ops.config.model_data_rules import check_model_for_data
from pipeline_ops.config.notify import check_notifiers
from pipeline_ops.config.pipeline import PipelineConfig, find_config_files, load_config
from pipeline_ops.config.reading import locate_in_file, parse_value
from pipeline_ops.config.sources import OwnCodeSource
from pipeline_ops.contract.layout import Layout
from pipeline_ops.errors import ConfigError
from pipeline_ops.places.source_download import download_source
from pipeline_ops.raw_data.folder import check_folder, find_raw_folder, list_folder
from pipeline_ops.user_code.models import check_names, digest_user_code

if TYPE_CHECKING:
    from beam_jobs.sources import SourceData

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the pipeline.")]
OptionalConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="YAML file of the pipeline.")
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        default_factory=list,
        show_default=False,
        help="Override one value of the config, for example train.epochs=3. Can be repeated.",
    ),
]


def make_configs_argument(default: Path | None = None) -> Any:
    """Returns the argument for one or more configs. If there is a default, it may be left out."""
    return typer.Argument(
        metavar="CONFIG",
        default_factory=(lambda: [default]) if default else None,
        show_default=f"the folder {default.name}" if default else False,
        help="YAML files of pipelines, or folders with such files.",
    )


def list_config_files(paths: Sequence[Path]) -> list[Path]:
    """Returns the YAML files at the paths. Raises ConfigError if there are none."""
    if files := list(find_config_files(paths)):
        return files
    raise ConfigError(
        f"{', '.join(map(str, paths))}: no YAML files found. "
        "Pass a config, or a folder with configs."
    )


def parse_overrides(
    texts: Iterable[str], option: str = "--set", example: str = "train.epochs=3"
) -> dict[str, Any]:
    """Converts `["train.epochs=3"]` to `{"train.epochs": 3}`. Raises ConfigError."""
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"{option} {text}: expected KEY=VALUE, for example {example}.")
        if not value.strip():  # such as a variable of a shell that is not set
            raise ConfigError(
                f"{option} {text}: has no value. Write {key.strip()}=null for none, or "
                f"{key.strip()}='\"\"' for an empty text."
            )
        try:
            overrides[key.strip()] = parse_value(value)
        except ConfigError as error:
            error.add_location(f"{option} {text}")
            raise
    return overrides


def load_checked(file: Path, overrides: dict[str, Any] | None = None) -> PipelineConfig:
    """Reads a config and checks the code that it names: source, stages, model and notifiers.

    Raises ConfigError, whose message has a line for each error.
    """
    from beam_jobs.stages import check_stages

    config = load_config(file, overrides)
    check_stages(config.preprocess, file)
    if isinstance(config.preprocess.source, OwnCodeSource):
        from beam_jobs.sources.user_source import check_source

        check_source(config.preprocess.source, file)
    try:
        for section in (config.train, config.evaluate):
            check_names(section, config.file.parent)
            digest_user_code(section, config.file.parent)
    except ConfigError as error:  # its message begins with the key
        key = str(error).partition(":")[0].split(".")
        error.add_location(locate_in_file(file, key))
        raise
    check_notifiers(config.notify, file)
    return config


def load_runnable(file: Path, overrides: dict[str, Any] | None = None) -> PipelineConfig:
    """Reads a config as `load_checked` does, and checks its model against the data.

    Raises DataError: there is no folder of raw data, or it lacks what the source names.
    """
    config = load_checked(file, overrides)
    check_model_for_data(config)
    check_folder(config)
    return config


def load_text(text: str, name: str, problem: str) -> PipelineConfig:
    """Reads the YAML of a config that is not written yet, and checks its model against the data.

    The message of a ConfigError begins with `problem`.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        try:
            config = load_checked(file)
            check_model_for_data(config)
        except ConfigError as error:
            raise ConfigError(f"{problem}:\n{str(error).replace(str(file), name)}") from error
    return config


def read_source(config: PipelineConfig) -> SourceData:
    """Downloads the raw data if asked, and reads names and annotations as the job does."""
    from beam_jobs.sources import read_source_data

    download_source(config)
    preprocess, listings = config.preprocess, Layout(config.root, config.pipeline).listings
    listing = list_folder(find_raw_folder(config), listings, preprocess.source.file_patterns)

    def read_transformed(*arguments: Any) -> Any:
        from beam_jobs.transform import read_transformed_here  # it takes seconds

        return read_transformed_here(*arguments)

    return read_source_data(preprocess, listing, config.file, read_transformed)
