"""The description of this package that Airflow lists among its providers."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Returns the facts that `airflow providers list` shows, as Airflow's provider schema asks."""
    return {
        "package-name": "airflow-provider-trainyard",
        "name": "Trainyard",
        "description": "Retrains a TensorFlow model on a schedule, from one YAML file.",
    }
