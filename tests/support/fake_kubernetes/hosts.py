"""The hosts file with which jobs run in the fake cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.places.kubernetes import KubernetesHosts

SUPPORT = Path(__file__).resolve().parents[1]
IMAGE = f"registry.example/trainyard-jobs@sha256:{'0' * 64}"
HOSTS = {
    "launcher": "kubernetes",
    "image": IMAGE,
    "namespace": "training",
    "python": sys.executable,
    "code": os.pathsep.join([str(CODE_ROOT), str(SUPPORT)]),
}
"""A pod has the interpreter and the code of the tests."""


def make_hosts(**values: object) -> KubernetesHosts:
    return KubernetesHosts.model_validate(HOSTS | values)
