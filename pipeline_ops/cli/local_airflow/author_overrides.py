"""`trainyard run --set`: the author's values for a single run.

They may set fields that a run cannot set by its conf. They reach the embedded Airflow in a file of
its home, which only this command writes and `config/run_conf.py` reads. Values that a run may set
are also in the run's conf, where Airflow's UI shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.cli.local_airflow.home import AirflowHome
from pipeline_ops.config.fields import READ_WITH_THE_DAG, collect_fields, get_value
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_conf import parse_conf, write_author_overrides
from pipeline_ops.errors import ConfigError

_PER_RUN_SECTIONS = ("search.", "evaluate.approval.")
"""Sections whose values tasks read in each run.

Only the presence of a search or an approval is part of the DAG.
"""


def validate_dag_unchanged(file_config: PipelineConfig, config: PipelineConfig) -> None:
    """Raises ConfigError for overrides that change the DAG itself."""
    for key, leaf in collect_fields(PipelineConfig).items():
        scalar_key = key.partition("[]")[0]
        if (
            not key.startswith(_PER_RUN_SECTIONS)
            and (leaf.fixed == READ_WITH_THE_DAG or key == "pipeline")
            and get_value(file_config, scalar_key) != get_value(config, scalar_key)
        ):
            raise _make_dag_override_error(file_config, scalar_key)
    if (file_config.search is None) != (config.search is None):
        raise _make_dag_override_error(file_config, "search")
    if file_config.evaluate.approval is None and config.evaluate.approval is not None:
        raise _make_dag_override_error(file_config, "evaluate.approval")


def split_overrides(
    file_config: PipelineConfig, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the conf of the run, and the keys that a run from Airflow's UI cannot set."""
    conf, author_only = {}, []
    for key, value in overrides.items():
        try:
            parse_conf(file_config, {key: value})
        except ConfigError:
            author_only.append(key)
        else:
            conf[key] = value
    hidden = [key for key in conf if any(key.startswith(f"{section}.") for section in author_only)]
    return {key: value for key, value in conf.items() if key not in hidden}, author_only


def store_author_overrides(
    home: AirflowHome, file: Path, run_id: str, overrides: Mapping[str, Any]
) -> None:
    """Stores the overrides of a run. Must be called before the run is triggered."""
    if overrides:
        write_author_overrides(home.author_overrides, file, run_id, overrides)


def _make_dag_override_error(file_config: PipelineConfig, key: str) -> ConfigError:
    return ConfigError(
        f"--set {key}: cannot be set for a single run: {READ_WITH_THE_DAG}. "
        f"Change it in {file_config.file}."
    )
