"""The arguments that several commands share: the config and its overrides."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline_ops.config.model_data_rules import validate_model_for_data
from pipeline_ops.config.notify import check_notifiers
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.yaml_source import parse_value, place_in
from pipeline_ops.errors import ConfigError
from pipeline_ops.raw_data.folder import validate_folder
from pipeline_ops.user_code.models import code_of, validate_names


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=Path, help="the pipeline's YAML file")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="replace one value of the config, for example train.epochs=3; may be given again",
    )


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Converts `["train.epochs=3"]` to `{"train.epochs": 3}`. Raises ConfigError."""
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set {text}: must be KEY=VALUE, for example train.epochs=3")
        overrides[key.strip()] = _parse(text, value)
    return overrides


def load_checked(file: Path, overrides: dict[str, Any] | None = None) -> PipelineConfig:
    """Reads a config and checks its stages, the modules of its model and its notifiers.

    Raises:
      ConfigError: the config has errors. The message has a line for each of them.
    """
    from beam_jobs.stages import check_stages

    config = load_config(file, overrides)
    check_stages(config.preprocess, file)
    try:
        validate_names(config.train, config.file.parent)
        code_of(config.train, config.file.parent)
    except ConfigError as error:  # its message begins with the key
        raise ConfigError(
            f"{place_in(file, str(error).partition(':')[0].split('.'))}: {error}"
        ) from None
    check_notifiers(config.notify, file)
    return config


def load_runnable(file: Path, overrides: dict[str, Any] | None = None) -> PipelineConfig:
    """Reads a config as `load_checked` does, and checks its model against the data.

    The data are the source, the stages and the folder of raw data.

    Raises:
      DataError: there is no folder of raw data, or it lacks what the source names.
    """
    config = load_checked(file, overrides)
    validate_model_for_data(config)
    validate_folder(config)
    return config


def _parse(text: str, value: str) -> Any:
    try:
        return parse_value(value)
    except ConfigError as error:
        raise ConfigError(f"--set {text}: {error}") from None
