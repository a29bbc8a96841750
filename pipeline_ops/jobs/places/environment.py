"""The command and the variables of a process on another host."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.config.hosts import ContainerHosts, Hosts, KubernetesHosts
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.open_store import STORES_VARIABLE
from pipeline_ops.system.processes import SAFE_PATH

HOSTS_VARIABLE = "TRAINYARD_HOSTS_ENVIRONMENT"
"""A variable of a training with the `environment` of its hosts file as JSON, for its gang."""
_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")
_KEY_FILE, _KEY = "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"
_AIRFLOW_PREFIXES = ("AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_")


def build_job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Makes the environment that a job inherits.

    It lacks Airflow's settings, among which are its database and its keys. Python adds no folder of
    its own to `sys.path`.
    """
    inherited = {
        name: value for name, value in environment.items() if not name.startswith(_AIRFLOW_PREFIXES)
    }
    return inherited | SAFE_PATH


def collect_store_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which another host reaches the bucket as this one does. They are secret.

    The key of a Google service account travels as a text, because its file is on this host. Other
    files that a variable names must be at the same path on the other host.

    Raises:
      ConfigError: the key can't be read.
    """
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(_CREDENTIALS) or name == STORES_VARIABLE
    }
    if _KEY_FILE in found:
        file = found.pop(_KEY_FILE)
        try:
            found[_KEY] = Path(file).read_text()
        except OSError as error:
            raise ConfigError(f"{_KEY_FILE}: {file} can't be read: {error.strerror}") from None
    return found


def make_hosts_variable(hosts: Hosts | None) -> dict[str, str]:
    """The variable that tells a training the environment of its gang. Empty if there is none."""
    return {HOSTS_VARIABLE: json.dumps(hosts.environment)} if hosts and hosts.environment else {}


def read_hosts_variable(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the gang, from the variables of the training."""
    return dict(json.loads(environment.get(HOSTS_VARIABLE, "{}")))


def build_python_command(hosts: Hosts, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this project on a host."""
    variables = build_python_environment(hosts)
    return [
        "env",
        *(f"{name}={value}" for name, value in variables.items()),
        *(hosts.python or _find_default_python(hosts), "-m", module),
        *arguments,
    ]


def build_python_environment(hosts: Hosts) -> dict[str, str]:
    """Returns variables with which Python finds this project on a host.

    Python does not import from the folder in which the command is started.
    """
    if _has_image(hosts):
        return SAFE_PATH | ({"PYTHONPATH": hosts.code} if hosts.code else {})
    return SAFE_PATH | {"PYTHONPATH": hosts.code or str(CODE_ROOT)}


def _find_default_python(hosts: Hosts) -> str:
    return "python" if _has_image(hosts) else sys.executable


def _has_image(hosts: Hosts) -> bool:
    """Returns whether Python and this project are in an image."""
    return isinstance(hosts, ContainerHosts | KubernetesHosts)
