"""What several commands have in common on the command line: the config and its overrides."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from pipeline_ops.contracts.config import PipelineConfig, load_config
from pipeline_ops.contracts.config_notify import check_notifiers
from pipeline_ops.contracts.config_text import parse_value
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.own_code import code_of


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=Path, help="the pipeline's YAML file")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
                        help="replace one value of the config, for example train.epochs=3; may be given again")


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """`["train.epochs=3"]` becomes `{"train.epochs": 3}`. Raises ConfigError."""
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set {text}: must be KEY=VALUE, for example train.epochs=3")
        overrides[key.strip()] = _parse(text, value)
    return overrides


def load_checked(file: Path, overrides: dict[str, Any] | None = None) -> PipelineConfig:
    """The config; its stages, the modules of its model and its notifiers are checked as well.

    Raises:
      ConfigError: with a line for each thing that is wrong.
    """
    from beam_jobs.stages import check_stages

    config = load_config(file, overrides)
    check_stages(config.preprocess, config.file)
    code_of(config.train, config.file.parent)
    check_notifiers(config.notify, config.file)
    return config


def _parse(text: str, value: str) -> Any:
    try:
        return parse_value(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text}: the value is not valid YAML: {getattr(error, 'problem', None) or error}") from None
