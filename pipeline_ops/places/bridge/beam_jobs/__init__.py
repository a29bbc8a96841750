"""Leads another interpreter to Airflow's package `beam_jobs`, and to nothing else."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[4] / "beam_jobs")]
