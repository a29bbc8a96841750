"""All DAGs of a folder of pipelines, for a DAG file: that of this repository, or one of a user's own.

    from beam_jobs.stages import check_stages
    from pipeline_ops.operators.dags import make_dags  # Airflow looks for DAGs only in files with these two words

    globals().update(make_dags(["/data/pipelines"], check_stages))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from airflow.sdk import DAG

from pipeline_ops.contracts.config import load_config
from pipeline_ops.contracts.config_preprocess import Preprocess
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.operators.factory import BrokenConfigs, config_files, make_dag
from pipeline_ops.operators.models_dag import make_models_dag


def make_dags(places: Iterable[str | os.PathLike], check_stages: Callable[[Preprocess, Path], None]) -> dict[str, DAG]:
    """One DAG of every config, by name, and one that moves their models in and out of service.

    A config that can't be used does not take the others down: its DAG is missing, and the import error says why.

    Args:
      places: YAML files, and folders of them.
      check_stages: `beam_jobs.stages.check_stages`, which operators may not import.
    """
    dags, configs, problems = {}, [], []
    for file in config_files(places):
        try:
            config = load_config(file)
            check_stages(config.preprocess, config.file)
            dags[config.pipeline] = make_dag(config)
        except ConfigError as problem:
            problems.append(str(problem))
        else:
            configs.append(config)
    others = ([make_models_dag(configs)] if configs else []) + ([BrokenConfigs(problems)] if problems else [])
    return dags | {dag.dag_id: dag for dag in others}
