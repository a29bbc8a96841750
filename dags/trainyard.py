"""Makes one Airflow DAG of every pipeline config, and one that moves their models in and out of service.

Airflow reads this file; there is nothing to change in it.

The configs are the YAML files in `configs/`, or in the files and folders that TRAINYARD_CONFIGS lists, separated by
colons. A config that can't be used does not take the others down: its DAG is missing, and the import error says why.
"""

from __future__ import annotations

import os
from pathlib import Path

from beam_jobs.stages import check_stages
from pipeline_ops.contracts.config import load_config
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.operators.factory import BrokenConfigs, config_files, make_dag
from pipeline_ops.operators.models_dag import make_models_dag

_DEFAULT = str(Path(__file__).resolve().parents[1] / "configs")

configs, problems = [], []
for file in config_files(os.environ.get("TRAINYARD_CONFIGS", _DEFAULT).split(os.pathsep)):
    try:
        dag = make_dag(file, check=lambda config: check_stages(config.preprocess, config.file))
    except ConfigError as problem:
        problems.append(str(problem))
    else:
        globals()[dag.dag_id] = dag
        configs.append(load_config(file))

if configs:
    models = make_models_dag(configs)
if problems:
    broken = BrokenConfigs(problems)
