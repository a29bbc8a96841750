"""The rights that an account needs in the namespace of its jobs, and the question for them.

docker/kubernetes/rbac.yaml grants them. `trainyard doctor` asks for them, and the supervisor of a
gang does before it creates anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline_ops.jobs.places.kubernetes_access import RBAC_FILE
from pipeline_ops.jobs.places.kubernetes_client import KubernetesClient
from pipeline_ops.system.host_check import Finding


class Right(NamedTuple):
    """A verb for a resource of an API group. A resource may have a part, such as `pods/log`."""

    group: str
    resource: str
    verb: str


def _grant(group: str, resource: str, *verbs: str) -> list[Right]:
    return [Right(group, resource, verb) for verb in verbs]


JOB_RIGHTS: Sequence[Right] = [
    *_grant("batch", "jobs", "create", "get", "patch", "delete"),
    *_grant("", "events", "list"),
    *_grant("", "pods", "list", "delete"),
    *_grant("", "pods/log", "get"),
    *_grant("", "secrets", "create", "delete"),
]
"""Of Airflow's account, for `runs_on`."""
GANG_RIGHTS: Sequence[Right] = [
    *_grant("batch", "jobs", "create", "get", "delete"),
    *_grant("", "pods", "list"),
    *_grant("", "pods/exec", "get", "create"),
    *_grant("", "services", "create", "delete"),
    *_grant("networking.k8s.io", "networkpolicies", "create", "delete"),
]
"""Of the account of a training job, for `train.hosts`."""


def find_missing_rights(client: KubernetesClient, rights: Sequence[Right]) -> list[Right]:
    """The rights that this process's account lacks. Kubernetes answers; nothing is changed.

    Raises:
      MachineError: Kubernetes does not answer.
      ConfigError: it does not know this account.
    """
    return [right for right in rights if not client.is_allowed(*right)]


def check_job_rights(client: KubernetesClient) -> Iterator[Finding]:
    """Yields one finding if `JOB_RIGHTS` are missing. Raises like `find_missing_rights`."""
    return _check_rights(client, JOB_RIGHTS, f"Apply {RBAC_FILE}")


def check_gang_rights(client: KubernetesClient) -> Iterator[Finding]:
    """Yields one finding if `GANG_RIGHTS` are missing. Raises like `find_missing_rights`."""
    cure = (
        f"Apply {RBAC_FILE}, and let `train.runs_on` name a hosts file with `service_account: "
        "trainyard-supervisor`"
    )
    return _check_rights(client, GANG_RIGHTS, cure)


def _check_rights(
    client: KubernetesClient, rights: Sequence[Right], cure: str
) -> Iterator[Finding]:
    if missing := find_missing_rights(client, rights):
        names = ", ".join(f"{right.verb} {right.resource}" for right in missing)
        yield Finding(
            check="rights in Kubernetes",
            problem=f"this account may not {names} in the namespace {client.namespace}",
            cure=f"{cure}, or correct `namespace` in the hosts file.",
        )
