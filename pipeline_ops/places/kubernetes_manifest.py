"""The objects that Kubernetes is asked to create. All functions are pure.

Pods of jobs and of gangs run as the image's user, which must not be root, with a read-only root
file system, no capabilities, and folders of their own at /work, /tmp and /dev/shm. They have no
token of the cluster unless `pod` in the hosts file names a service account.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline_ops.places.kubernetes_settings import KubernetesSettings
from pipeline_ops.places.place import (
    CREDENTIALS,
    JobLaunch,
    build_init_command,
    build_python_environment,
    collect_store_environment,
    name_job,
)
from pipeline_ops.places.pod_exec import CONTAINER

STARTED = "trainyard/started"
"""The annotation of a Job whose Secret is there. Another suspended Job waits for its starter."""
RESUMED: Mapping[str, Any] = {
    "metadata": {"annotations": {STARTED: "true"}},
    "spec": {"suspend": False},
}
"""The patch that resumes a Job after its Secret exists."""
INSTANCE_LABEL = "app.kubernetes.io/instance"
"""The label by which the pods of a job or a gang are found."""

_KEEP_SECONDS = 6 * 3600
"""How long Kubernetes keeps a Job after its end, and with it the reason of the end, and the Secret.
Airflow removes both earlier unless it is away."""
_SLACK_SECONDS = 300
_STOP_SECONDS = 30
"""The time between SIGTERM and SIGKILL when the cluster ends a pod."""
_GROUP = 10001
"""The group of the images in `docker/`, which gets the right to write to volumes."""
_FOLDERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "work": ("/work", {}),
    "tmp": ("/tmp", {}),  # noqa: S108
    "shm": ("/dev/shm", {"medium": "Memory"}),  # noqa: S108
}
"""Paths and kinds of the folders of a pod, by the names of their volumes."""
_ENVIRONMENT = {"HOME": "/work", "TMPDIR": "/tmp", "TRAINYARD_LOCAL_FOLDER": "/work/local"}  # noqa: S108


def build_job(hosts: KubernetesSettings, launch: JobLaunch, has_secret: bool) -> dict[str, Any]:
    """Builds the Job of one process, with one pod, which is never replaced.

    With `has_secret`, the Job is suspended until `RESUMED` is applied.
    """
    name = name_job(launch.attempt)
    metadata = {
        "name": name,
        "labels": build_labels(name, "job"),
        "annotations": {
            "trainyard/pipeline": launch.pipeline,
            "trainyard/job": launch.job,
            "trainyard/attempt": str(launch.attempt.folder),
        },
    }
    pod = build_pod_spec(hosts, build_init_command(hosts, launch), [name] if has_secret else [])
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": has_secret,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            # Both rules do what `backoffLimit` does, but name the cause in the Job's condition,
            # which outlives the pod.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
                ]
            },
            "activeDeadlineSeconds": (
                hosts.queue_timeout_seconds + launch.deadline_seconds + _SLACK_SECONDS
            ),
            "ttlSecondsAfterFinished": _KEEP_SECONDS,
            "template": {
                "metadata": {key: value for key, value in metadata.items() if key != "name"},
                "spec": pod,
            },
        },
    }


def build_secret(name: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Builds the Secret with variables of a job, to be owned by it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {"name": name, "labels": build_labels(name, "job")},
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in values.items()},
    }


def select_secret_values(
    hosts: KubernetesSettings, launch: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a job's own Secret: the access to the store, and those of the hosts file.

    If the hosts file names a Secret or an account, these have the access, and no credentials of
    Airflow's host (`environment`) are sent.
    """
    access = collect_store_environment({**environment, **launch})
    if hosts.secret or hosts.service_account:
        access = _omit_credentials(access)
    return _omit_credentials(launch) | access | hosts.environment


def build_gang(
    hosts: KubernetesSettings, name: str, command: Sequence[str], deadline_seconds: int
) -> list[dict[str, Any]]:
    """Builds the Job of a gang's pods, and the Service and the NetworkPolicy that it will own.

    The Job replaces each pod that has not succeeded. A headless Service gives each pod a name, so a
    restarted pod has its old address. The cluster ends the pods after the deadline in any case.
    """
    labels = build_labels(name, "gang")
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": hosts.pods,
            "parallelism": hosts.pods,
            "backoffLimit": hosts.pods * 100,
            "activeDeadlineSeconds": hosts.queue_timeout_seconds + deadline_seconds,
            "ttlSecondsAfterFinished": _SLACK_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": build_pod_spec(hosts, command, []) | {"subdomain": name},
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
    }
    # TensorFlow's servers ask for no credentials, so only pods of the same gang may reach them. The
    # pipes to the agents go through the API server and the kubelet, and are not affected.
    same_gang = {"matchLabels": labels}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "podSelector": same_gang,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": same_gang}]}],
        },
    }
    return [job, service, policy]


def set_owner(manifest: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest that Kubernetes removes together with a Job that it has created."""
    owner = {"apiVersion": "batch/v1", "kind": "Job"}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def build_labels(name: str, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "trainyard",
        "app.kubernetes.io/component": component,
        INSTANCE_LABEL: name,
    }


def build_pod_spec(
    hosts: KubernetesSettings, command: Sequence[str], secrets: Sequence[str]
) -> dict[str, Any]:
    """Builds the specification of a pod with one container.

    `secrets` are names of further Secrets with variables. The last one has precedence.
    """
    sources = [*([hosts.secret] if hosts.secret else []), *secrets]
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(hosts.service_account),
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": _GROUP,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_build_container(hosts, command, sources)],
        "volumes": [
            *(
                {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": volume.claim}}
                for number, volume in enumerate(hosts.volumes)
            ),
            *({"name": name, "emptyDir": kind} for name, (_, kind) in _FOLDERS.items()),
        ],
    }
    return _merge(pod, hosts.pod)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merges nested mappings. Other values, also lists, are replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = base.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merge(old, value)
        merged[key] = value
    return merged


def _omit_credentials(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(CREDENTIALS)}


def _build_container(
    hosts: KubernetesSettings, command: Sequence[str], secrets: Sequence[str]
) -> dict[str, Any]:
    variables = _ENVIRONMENT | build_python_environment(hosts)
    given = hosts.environment  # from the Secret of a job, or from the launcher of a gang
    resources = {
        "cpu": hosts.cpu,
        "memory": hosts.memory,
        "nvidia.com/gpu": str(hosts.gpus) if hosts.gpus else None,
    }
    limits = {name: quantity for name, quantity in resources.items() if quantity}
    return {
        "name": CONTAINER,
        "image": hosts.image,
        "command": list(command),
        "env": [
            {"name": name, "value": value} for name, value in variables.items() if name not in given
        ],
        "envFrom": [{"secretRef": {"name": secret}} for secret in secrets],
        "resources": {"requests": limits, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            *(
                {"name": f"volume-{number}", "mountPath": volume.mount}
                for number, volume in enumerate(hosts.volumes)
            ),
            *({"name": name, "mountPath": path} for name, (path, _) in _FOLDERS.items()),
        ],
    }
