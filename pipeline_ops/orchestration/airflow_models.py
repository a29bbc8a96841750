"""Tables of Airflow's database outside its public interface, and its version.

Any release of Airflow may move or change them. The scheduler has imported them anyway, in contrast
to the parts of the API server in `airflow_internals.py`.
"""

from __future__ import annotations

from airflow import __version__

from pipeline_ops.errors import ConfigError

TESTED = ("3.2", "3.3")
"""The releases of Airflow that this package is tested with, as in `pyproject.toml`."""

TAG = "trainyard"
"""The tag that the factory gives its DAGs."""


def make_missing_error(error: ImportError) -> ConfigError:
    """Makes the error for a part that this release of Airflow lacks."""
    return ConfigError(
        f"Airflow {__version__} lacks a part that Trainyard's pages, notes and orphan reaper need "
        f"({error}). Trainyard is tested with Airflow {' and '.join(TESTED)}. Install one of them: "
        f"pip install 'apache-airflow=={TESTED[-1]}.*'"
    )


try:
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.dagrun import DagRun, DagRunNote
    from airflow.models.log import Log
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    if __version__.startswith("3.2."):
        JobEntry = XComModel  # see `orchestration/task_run.py`
    else:
        from airflow.models.task_state_store import TaskStateStoreModel as JobEntry
except ImportError as error:
    raise make_missing_error(error) from error

__all__ = [
    "TAG",
    "DagModel",
    "DagRun",
    "DagRunNote",
    "DagTag",
    "JobEntry",
    "Log",
    "SerializedDagModel",
    "TaskInstance",
    "XComModel",
    "create_session",
]
