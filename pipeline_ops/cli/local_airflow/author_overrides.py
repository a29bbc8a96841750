"""`trainyard run --set`: the author's values for a single run.

They may set fields that a run cannot set by its conf. They reach the embedded Airflow in a file of
its home, which only this command writes and `config/run_config.py` reads. Values that a run may set
are also in the run's conf, where Airflow's UI shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.cli.local_airflow.embedded import Home
from pipeline_ops.config.base import READ_WITH_THE_DAG
from pipeline_ops.config.fields import leaves_of, value_at
from pipeline_ops.config.overrides import parse_conf
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_config import write_author_overrides
from pipeline_ops.errors import ConfigError

_SAME_DAG = ("search.", "evaluate.approval.")
"""Sections whose values tasks read in each run.

Only the presence of a search or an approval is part of the DAG.
"""


def refuse_changes_of_the_dag(plain: PipelineConfig, config: PipelineConfig) -> None:
    """Raises ConfigError for overrides of the DAG itself, which a single run cannot follow."""
    for key, leaf in leaves_of(PipelineConfig).items():
        plain_key = key.partition("[]")[0]
        if (
            not key.startswith(_SAME_DAG)
            and (leaf.fixed == READ_WITH_THE_DAG or key == "pipeline")
            and value_at(plain, plain_key) != value_at(config, plain_key)
        ):
            raise _part_of_the_dag(plain, plain_key)
    if (plain.search is None) != (config.search is None):
        raise _part_of_the_dag(plain, "search")
    if plain.evaluate.approval is None and config.evaluate.approval is not None:
        raise _part_of_the_dag(plain, "evaluate.approval")


def split_overrides(
    plain: PipelineConfig, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The conf of the run, and the keys that a run from Airflow's UI could not set."""
    conf, refused = {}, []
    for key, value in overrides.items():
        try:
            parse_conf(plain, {key: value})
        except ConfigError:
            refused.append(key)
        else:
            conf[key] = value
    hidden = [key for key in conf if any(key.startswith(f"{section}.") for section in refused)]
    return {key: value for key, value in conf.items() if key not in hidden}, refused


def keep_overrides(home: Home, file: Path, run_id: str, overrides: Mapping[str, Any]) -> None:
    """Stores the overrides of a run. Must be called before the run is triggered."""
    if overrides:
        write_author_overrides(home.author_overrides, file, run_id, overrides)


def _part_of_the_dag(plain: PipelineConfig, key: str) -> ConfigError:
    return ConfigError(
        f"--set {key}: it cannot be set for a single run: {READ_WITH_THE_DAG}; "
        f"change it in {plain.file}"
    )
