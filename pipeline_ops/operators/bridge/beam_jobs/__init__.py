"""Leads another interpreter to the package `beam_jobs` that Airflow's side runs, and to nothing beside it."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[4] / "beam_jobs")]
