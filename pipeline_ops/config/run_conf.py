"""The config of one run: the author's YAML with the values of the run's conf.

A conf comes from any user who may trigger a run. It never reaches `load_config` unchecked: a field
that only the author may set, a whole section, an item of a list, a null that is not a value of the
field, and unknown keys and values are refused. A refusal is a ConfigError, so Airflow does not try
again. The embedded Airflow has one user, who owns the YAML, so there a conf is trusted: it may set
any key but the locations of the pipeline, as `trainyard run --set` does.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.config.fields import (
    SAME_FOR_ALL_RUNS,
    ConfigField,
    Scalar,
    collect_fields,
    get_value,
    resolve_allowed_value,
)
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.errors import ConfigError

_MAX_KEY, _MAX_TEXT, _MAX_INTEGER = 200, 4096, 2**63
_MAX_PROBLEMS = 20
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def parse_conf(author: PipelineConfig, conf: Any) -> dict[str, Scalar]:
    """Returns the overrides of a run.

    Args:
      author: the author's config, which says what is open to runs.
      conf: the conf as Airflow has it.

    Raises:
      ConfigError: with a line for each problem.
    """
    if not isinstance(conf, Mapping):
        raise ConfigError(
            f"the run's conf must be a mapping of keys to values, got {type(conf).__name__}"
        )
    overrides, problems = {}, []
    for key, value in conf.items():
        try:
            overrides[key] = _parse_value(author, key, value)
        except ValueError as problem:
            problems.append(f"conf {_shorten(key)}: {problem}")
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more"]
    if problems:
        raise ConfigError("\n".join(problems))
    return _find_types(author, overrides) | overrides


def list_settable_keys(author: PipelineConfig) -> list[str]:
    """The keys that a run of this pipeline may set."""
    leaves = collect_fields(type(author))
    return [key for key, leaf in leaves.items() if author.per_run.get(key, leaf.is_per_run)]


def _parse_value(author: PipelineConfig, key: Any, conf_value: Any) -> Scalar:
    leaf = _find_field(author, key)
    value = _check_scalar(leaf, conf_value)
    author_value = get_value(author, key)
    if type(author_value) is type(value) and author_value == value:
        return value
    if key in author.per_run:
        return resolve_allowed_value(leaf, value, author.per_run[key], author.file.parent)
    if leaf.run_pattern and value is not None and not re.fullmatch(leaf.run_pattern, str(value)):
        raise ValueError(
            f"a run may set it to {leaf.run_pattern_description}, got {_shorten(value)!r}. "
            f"Change it in {author.file}, or open more values there with per_run."
        )
    return value


def _find_types(author: PipelineConfig, keys: Iterable[str]) -> dict[str, str]:
    """The author's `type` of each section that a run changes.

    A section that the YAML leaves out has a default type.
    """
    types = {f"{key.rpartition('.')[0]}.type" for key in keys}
    return {
        key: author_value for key in types if (author_value := get_value(author, key)) is not None
    }


def _find_field(author: PipelineConfig, key: Any) -> ConfigField:
    """The leaf that a run may set. Raises ValueError if there is none."""
    if not isinstance(key, str) or len(key) > _MAX_KEY or _UNPRINTABLE.search(key):
        raise ValueError(f"a key must be a text of at most {_MAX_KEY} printable characters")
    leaves = collect_fields(type(author))
    leaf = leaves.get(key)
    if leaf is not None and (key in author.per_run or leaf.is_per_run):
        return leaf
    if leaf is not None:
        hint = ", or open it there with per_run" if leaf.can_be_opened else ""
        reason = f": {leaf.fixed}" if leaf.fixed else ""
        raise ValueError(
            f"cannot be overridden for a single run{reason}. Change it in {author.file}{hint}."
        )
    general = re.sub(r"\.-?\d+(?=\.|$)", "[]", key)
    if any(
        name == general
        or name.startswith((f"{general}.", f"{general}[]"))
        or (leaf.kind != "scalar" and general.startswith((f"{name}.", f"{name}[]")))
        for name, leaf in leaves.items()
    ):  # a section, a list, a mapping, or a part of one
        raise ValueError(
            "cannot be overridden for a single run, because it is not a single value. "
            f"Change it in {author.file}."
        )
    raise ValueError(f"unknown key; {suggest_name(key, list_settable_keys(author))}")


def _check_scalar(leaf: ConfigField, value: Any) -> Scalar:
    if value is None and not leaf.accepts(None):
        raise ValueError("must not be null. Leave it out to use the value of the YAML.")
    if not isinstance(value, Scalar):
        raise ValueError(
            "must be a single value, "
            f"got a {'list' if isinstance(value, list) else type(value).__name__}"
        )
    if isinstance(value, str) and (len(value) > _MAX_TEXT or _UNPRINTABLE.search(value)):
        raise ValueError(f"must be a text of at most {_MAX_TEXT} printable characters")
    if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
        raise ValueError("must be a number below 2**63")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {value}")
    return value


def _shorten(key: Any) -> str:
    text = ascii(key)[1:-1] if isinstance(key, str) else ascii(key)
    return text if len(text) <= 80 else f"{text[:80]}..."


TRUSTED_CONF = "TRAINYARD_TRUSTED_CONF"
"""The environment variable in which the embedded Airflow names its own home."""

_SOURCE_PATH = "preprocess.source.path"
Interval = tuple[dt.datetime, dt.datetime]


def apply_conf(
    config: PipelineConfig, conf: Mapping[str, Any] | None, interval: Interval | None = None
) -> PipelineConfig:
    """Returns the author's config with the values of a run.

    Args:
      config: the author's config.
      conf: the run's conf, as Airflow has it. Only the embedded Airflow trusts it.
      interval: start and end of the run's data, for a source whose path names them.

    Raises:
      ConfigError: with a line for each problem of the conf.
    """
    if _is_conf_trusted():
        overrides = {**_find_types(config, conf or {}), **(conf or {})}
    else:
        overrides = parse_conf(config, conf) if conf else {}
    source = config.preprocess.source
    source = source.model_copy(update={"path": overrides.get(_SOURCE_PATH, source.path)})
    if interval is not None and source.has_interval:
        found = source.format_interval(*interval)
        overrides |= {f"preprocess.source.{key}": value for key, value in found.items()}
    if not overrides:
        return config
    run = config.with_overrides(overrides)
    if PipelineRef.from_config(run) != PipelineRef.from_config(config):
        raise ConfigError(
            f"conf: the names and locations of a pipeline cannot be overridden for a single run: "
            f"{SAME_FOR_ALL_RUNS}. Change them in {config.file}."
        )
    return run


def _is_conf_trusted() -> bool:
    """Returns whether this is the embedded Airflow.

    Another Airflow that inherits the variable, for example from a shell, has another home.
    """
    home = os.environ.get(TRUSTED_CONF)
    return bool(home) and home == os.environ.get("AIRFLOW_HOME")


def load_run_config_or_author(file: Path | str, conf: Mapping[str, Any] | None) -> PipelineConfig:
    """Returns the config of a run, or the author's if the conf is refused.

    Notifications use it, because they must work for such a run, too.
    """
    author = load_config(file)
    try:
        return apply_conf(author, conf)
    except ConfigError:
        return author
