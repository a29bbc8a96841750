"""Reports the pipeline configs that cannot be used, as the import error of this file.

Airflow reads this file. It needs no changes and makes no DAG. An import error in `trainyard.py`
would mark all DAGs of that file stale. Here it marks none.
"""

from __future__ import annotations

import os
from pathlib import Path

from beam_jobs.stages import check_stages
from pipeline_ops.operators.dags import report_broken

_DEFAULT = str(Path(__file__).resolve().parents[1] / "configs")

report_broken(os.environ.get("TRAINYARD_CONFIGS", _DEFAULT).split(os.pathsep), check_stages)
