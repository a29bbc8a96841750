"""The programs of an embedded Airflow: their arguments, and the settings in their environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.cli.local_airflow.home import USER, AirflowHome, Secrets, prepend
from pipeline_ops.config.pipeline import find_config_files
from pipeline_ops.config.run_conf import TRUSTED_CONF
from pipeline_ops.system.processes import SAFE_PATH

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
"""Arguments of `airflow`.

The log servers would listen on every address of the machine, and are not needed on one host.
"""

MIGRATE = ("db", "migrate")

_SETTINGS = {
    "core": {
        "executor": "LocalExecutor",
        "load_examples": "False",
        # A schedule in the YAML runs; another Airflow follows its own setting.
        "dags_are_paused_at_creation": "False",
        "parallelism": "4",  # each worker is a forked process, busy or not
        "simple_auth_manager_users": f"{USER}:admin",
        # A YAML changed twice within half a minute must show both times.
        "min_serialized_dag_update_interval": "0",
    },
    "api": {"host": "127.0.0.1", "workers": "1", "instance_name": "Trainyard"},
    # The gap between two tasks; the default of 1 s is for busy clusters.
    "scheduler": {"scheduler_idle_sleep_time": "0.2"},
    "dag_processor": {"parsing_processes": "1"},
    "workers": {
        # How long a finished task may hold its slot, and one that was marked failed may continue.
        "min_heartbeat_interval": "1",
        "max_failed_heartbeats": "15",  # by default it is 3 of 5 s each
    },
    "usage_data_collection": {"enabled": "False"},
}
_PARSE_INTERVAL_SECONDS, _PARSE_INTERVAL_SECONDS_PER_PIPELINE = 10.0, 0.3
"""The time until Airflow reads a changed YAML.

A pipeline costs about 30 ms each time. With many of them, a shorter time would keep a core busy.
"""


def make_bundle(dags: Path) -> dict[str, Any]:
    """A bundle of the DAG files in a folder, as Airflow's setting takes it, without its name."""
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return {"classpath": local, "kwargs": {"path": str(dags)}}


def get_airflow_version() -> str:
    return importlib.metadata.version("apache-airflow-core")


def build_airflow_command(arguments: Iterable[str]) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def build_airflow_environment(
    inherited: Mapping[str, str],
    home: AirflowHome,
    dags: Path,
    configs: Sequence[str],
    port: int,
    home_secrets: Secrets,
    schedules: bool,
) -> dict[str, str]:
    """The environment of every program of the embedded Airflow.

    Settings that the caller's shell has for another Airflow are left out: with them, `db migrate`
    would change the other one's database. So is the variable that would keep Python from writing
    bytecode. Loopback addresses are exempt from proxies.
    """
    url = f"http://127.0.0.1:{port}"
    instance_settings = {
        "core": {
            "fernet_key": home_secrets.fernet,
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_passwords_file": str(home.passwords),
        },
        "api": {"port": str(port), "base_url": url, "secret_key": home_secrets.session},
        "api_auth": {"jwt_secret": home_secrets.jwt},
        "database": {"sql_alchemy_conn": f"sqlite:///{home.database}"},
        "dag_processor": {
            "dag_bundle_config_list": json.dumps([{"name": "trainyard", **make_bundle(dags)}]),
            "min_file_process_interval": str(_compute_parse_interval(configs)),
        },
        "scheduler": {"use_job_schedule": str(schedules)},
    }
    kept = {
        name: value
        for name, value in inherited.items()
        if name.startswith("AIRFLOW_CONN_")
        or (not name.startswith(("AIRFLOW", "_AIRFLOW")) and name != "PYTHONDONTWRITEBYTECODE")
    }
    return {
        **kept,
        **SAFE_PATH,
        **_to_environment_variables(_SETTINGS),
        **_to_environment_variables(instance_settings),
        "AIRFLOW_HOME": str(home.folder),
        "TRAINYARD_CONFIGS": os.pathsep.join(configs),
        TRUSTED_CONF: "1",
        **prepend(kept, "PYTHONPATH", str(CODE_ROOT)),
        **prepend(kept, "NO_PROXY", "127.0.0.1,localhost", ","),
        **prepend(kept, "no_proxy", "127.0.0.1,localhost", ","),
    }


def _compute_parse_interval(configs: Sequence[str]) -> int:
    """Returns the interval in whole seconds."""
    num_pipelines = len(list(find_config_files(configs)))
    return round(max(_PARSE_INTERVAL_SECONDS, _PARSE_INTERVAL_SECONDS_PER_PIPELINE * num_pipelines))


def _to_environment_variables(settings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {
        f"AIRFLOW__{section}__{key}".upper(): value
        for section, keys in settings.items()
        for key, value in keys.items()
    }
