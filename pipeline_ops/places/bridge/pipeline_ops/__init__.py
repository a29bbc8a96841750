"""Leads another interpreter to Airflow's package `pipeline_ops`, and to nothing else."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[4] / "pipeline_ops")]
