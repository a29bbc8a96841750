"""Makes one Airflow DAG of every pipeline config, and one that moves their models in and out of service.

Airflow reads this file; there is nothing to change in it.

The configs are the YAML files in `configs/`, or in the files and folders that TRAINYARD_CONFIGS lists, separated by
colons. A config that cannot be used hurts nothing else: its DAG is tagged `broken`, says why, and cannot be triggered.
`trainyard_broken.py` reports all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

from beam_jobs.stages import check_stages
from pipeline_ops.operators.dags import make_dags

_DEFAULT = str(Path(__file__).resolve().parents[1] / "configs")

globals().update(make_dags(os.environ.get("TRAINYARD_CONFIGS", _DEFAULT).split(os.pathsep), check_stages))
