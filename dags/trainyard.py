"""Creates one Airflow DAG for each pipeline config.

Airflow reads this file. It needs no changes.

The configs are the YAML files in `configs/`, or in the files and folders that TRAINYARD_CONFIGS
lists, separated by colons. An invalid config does not affect the others. Its DAG is tagged
`broken`, states the reason, and cannot be triggered.
"""

from __future__ import annotations

import os
from pathlib import Path

from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags

_DEFAULT = str(Path(__file__).resolve().parents[1] / "configs")

globals().update(
    make_dags(os.environ.get("TRAINYARD_CONFIGS", _DEFAULT).split(os.pathsep), check_stages)
)
