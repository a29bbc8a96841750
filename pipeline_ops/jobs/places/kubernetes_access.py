"""The access to a cluster, for requests (`kubernetes_client.py`) and pipes (`pod_exec.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline_ops.errors import ConfigError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

CONTAINER = "trainyard"
"""The name of the only container of a pod."""
RBAC_FILE = "docker/kubernetes/rbac.yaml"


def open_configuration(context: str | None) -> Configuration:
    """The access of the kubeconfig file, or of the pod around this process.

    Raises:
      ConfigError: there is no such access, or the client is not installed.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise ConfigError(
            "the hosts file has launcher: kubernetes, and the client of Kubernetes is not "
            "installed",
            "Install the extra kubernetes: pip install '.[kubernetes]' in a clone of Trainyard",
        ) from None
    configuration = client.Configuration()
    load_file: Callable[..., None] = config.load_kube_config  # neither function has types
    load_pod: Callable[..., None] = config.load_incluster_config
    file = os.environ.get("KUBECONFIG")
    try:
        if context is None and file is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_pod(client_configuration=configuration)
        else:
            load_file(file, context, client_configuration=configuration)
    except config.ConfigException as error:
        raise ConfigError(
            f"there is no access to Kubernetes: {error}",
            "Set KUBECONFIG, correct `context` in the hosts file, or run Airflow in the cluster "
            "with a service account",
        ) from None
    configuration.retries = False  # `kubernetes_client.py` decides which requests are sent again
    return configuration
