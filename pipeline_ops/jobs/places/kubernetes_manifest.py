"""The objects that Kubernetes is asked to create. All functions are pure.

Jobs and gangs have the same pods: the image's own user, which must not be root, a read-only root
file system, no capabilities, and folders of their own at /work, /tmp and /dev/shm. A pod has no
token of the cluster unless the hosts file names a service account.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline_ops.config.hosts import KubernetesHosts
from pipeline_ops.jobs.places.place import (
    JobLaunch,
    build_python_command,
    build_python_environment,
    collect_store_environment,
    name_job,
)
from pipeline_ops.jobs.places.pod_exec import CONTAINER
from pipeline_ops.jobs.remote_host import INIT_MODULE

STARTED = "trainyard/started"
"""The annotation of a Job whose Secret is there. Another suspended Job waits for its starter."""
RESUMED: Mapping[str, Any] = {
    "metadata": {"annotations": {STARTED: "true"}},
    "spec": {"suspend": False},
}
"""What is changed in the Job of `build_job` once its Secret is there."""
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
_FOLDERS: Mapping[str, Mapping[str, Any]] = {
    "/work": {},
    "/tmp": {},  # noqa: S108
    "/dev/shm": {"medium": "Memory"},  # noqa: S108
}
_ENVIRONMENT = {"HOME": "/work", "TMPDIR": "/tmp", "TRAINYARD_LOCAL_FOLDER": "/work/local"}  # noqa: S108
_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")


def build_job(hosts: KubernetesHosts, launch: JobLaunch, has_secret: bool) -> dict[str, Any]:
    """Builds the Job of one process. It has one pod, which is never replaced.

    With `has_secret`, variables come from the Secret of `build_secret`, and the Job is suspended
    until `RESUMED` is applied.
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
    command = build_python_command(hosts, INIT_MODULE, launch.module, str(launch.attempt.request))
    pod = build_pod_spec(hosts, command, [name] if has_secret else [])
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
    hosts: KubernetesHosts, launch: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables that a job gets by a Secret of its own, among them the access to the store.

    Those of the hosts file are there, too, because they may be secret. If it names a Secret or an
    account, these have the access, and no credentials of Airflow's host (`environment`) are sent.
    """
    access = collect_store_environment({**environment, **launch})
    if hosts.secret or hosts.service_account:
        access = _omit_credentials(access)
    return _omit_credentials(launch) | access | hosts.environment


def build_gang(
    hosts: KubernetesHosts, name: str, command: Sequence[str], deadline_seconds: int
) -> list[dict[str, Any]]:
    """Builds the Job of a gang's pods, and the Service and the NetworkPolicy that it will own.

    The Job replaces each pod that has not succeeded. A headless Service gives each pod a name of
    its own, so a restarted pod has its old address. All three have the same name. The cluster ends
    the pods after the deadline in any case.
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
    return [job, service, _build_network_policy(name, labels)]


def set_owner(manifest: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest with its owner, a Job as Kubernetes has created it.

    Kubernetes removes the object together with that Job.
    """
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
    hosts: KubernetesHosts, command: Sequence[str], secrets: Sequence[str]
) -> dict[str, Any]:
    """Builds the specification of a pod with one container.

    `secrets` are names of Secrets with variables, besides that of the hosts file. A variable in
    several of them has the value of the last.
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
            *({"name": _name_folder(path), "emptyDir": kind} for path, kind in _FOLDERS.items()),
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
    return {name: value for name, value in variables.items() if not name.startswith(_CREDENTIALS)}


def _build_container(
    hosts: KubernetesHosts, command: Sequence[str], secrets: Sequence[str]
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
            *({"name": _name_folder(path), "mountPath": path} for path in _FOLDERS),
        ],
    }


def _build_network_policy(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Lets only pods of the same gang reach its pods: TensorFlow's servers ask for no credentials.

    The pipes to the agents go through the API server and the kubelet, and are not affected.
    """
    same_gang = {"from": [{"podSelector": {"matchLabels": labels}}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": [same_gang],
        },
    }


def _name_folder(path: str) -> str:
    return path.rpartition("/")[2]
