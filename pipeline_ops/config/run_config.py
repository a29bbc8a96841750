"""The config of one run: the author's YAML, the command line's values, and the run's conf.

    load_config(file)                      the author's config: pages, orphan reaper, registry, DAGs
    load_author_config(file, run_id)       the same, with the values of `trainyard run --set`
    load_run_config(file, conf, run_id)    the same, with the values that the run's conf may set

A conf comes from any user who may trigger a run. It never reaches `load_config` unchecked.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.config.overrides import parse_conf
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.yaml_source import ConfigFile
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import read_json, write_json

AUTHOR_OVERRIDES = "TRAINYARD_AUTHOR_OVERRIDES"
"""The environment variable with the folder of the command line's overrides.

Only the embedded Airflow has it.
"""

_SOURCE_PATH = "preprocess.source.path"
Interval = tuple[dt.datetime, dt.datetime]


def load_author_config(file: ConfigFile, run_id: str | None) -> PipelineConfig:
    """Returns the config that the author gave this run. Raises ConfigError."""
    return load_config(file, _read_author_overrides(file, run_id))


def load_run_config(
    file: ConfigFile,
    conf: Mapping[str, Any] | None,
    run_id: str | None,
    interval: Interval | None = None,
) -> PipelineConfig:
    """Returns the config of a run.

    Args:
      file: the author's YAML.
      conf: the run's conf, as Airflow has it. None of it is trusted.
      run_id: the run, or None if it does not exist yet.
      interval: start and end of the run's data, for a source whose path names them.

    Raises:
      ConfigError: with a line for each problem.
    """
    return apply_conf(load_author_config(file, run_id), conf, interval)


def apply_conf(
    config: PipelineConfig, conf: Mapping[str, Any] | None, interval: Interval | None = None
) -> PipelineConfig:
    """Returns the author's config with the values of a run. `load_run_config` has the arguments.

    Raises:
      ConfigError: with a line for each problem of the conf.
    """
    overrides = parse_conf(config, conf) if conf else {}
    source = config.preprocess.source
    source = source.model_copy(update={"path": overrides.get(_SOURCE_PATH, source.path)})
    if interval is not None and source.has_interval:
        overrides[_SOURCE_PATH] = source.format_path(*interval)
    return config.with_overrides(overrides) if overrides else config


def load_run_config_or_author(
    file: ConfigFile, conf: Mapping[str, Any] | None, run_id: str
) -> PipelineConfig:
    """Returns the config of a run, or the author's if the conf is refused.

    Pages and notifications use it, because they must work for such a run, too.
    """
    try:
        return load_run_config(file, conf, run_id)
    except ConfigError:
        return load_author_config(file, run_id)


def write_author_overrides(
    folder: Path, file: Path, run_id: str, overrides: Mapping[str, Any]
) -> None:
    """Keeps the command line's overrides of a run. They must be there before the run starts."""
    value = {"config": str(file.resolve()), "run_id": run_id, "overrides": dict(overrides)}
    write_json(_build_overrides_path(folder, file, run_id), value)


def _read_author_overrides(file: ConfigFile, run_id: str | None) -> dict[str, Any]:
    folder = os.environ.get(AUTHOR_OVERRIDES)
    if not folder or run_id is None:
        return {}
    value = read_json(_build_overrides_path(Path(folder), Path(file), run_id))
    return value["overrides"] if value else {}


def _build_overrides_path(folder: Path, file: Path, run_id: str) -> Path:
    """The file of a run's overrides, named by a digest, because a run id may hold any character."""
    digest = hashlib.sha256(
        f"{file.resolve()}\n{run_id}".encode(errors="surrogatepass")
    ).hexdigest()
    return folder / f"{digest}.json"
