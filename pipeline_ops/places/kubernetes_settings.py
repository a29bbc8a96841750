"""The keys of a hosts file with `launcher: kubernetes`."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pipeline_ops.config.fields import Section, config_field
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.places.place import PlaceSection
from pipeline_ops.places.resources import (
    Cpu,
    Memory,
    Resources,
    describe_volume_cure,
    match_pattern,
)

Namespace = Annotated[
    str,
    match_pattern(
        "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        "lower-case letters, digits and hyphens, such as training",
    ),
]
ObjectName = Annotated[
    str,
    match_pattern(
        r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
        "lower-case letters, digits, hyphens and dots, such as trainyard-store",
    ),
]
"""The name of an object in Kubernetes."""
_DIGEST = re.compile("@(sha256:[0-9a-f]{64})$")


class Volume(Section):
    """A persistent volume claim that all pods share."""

    claim: ObjectName
    """The name of the claim."""
    mount: str = Field(pattern=r"^/")
    """The path of the volume in the pods. For a storage root, that on Airflow's host."""


_POD_FIELDS = (
    *("affinity", "dnsConfig", "dnsPolicy", "hostAliases", "hostNetwork", "imagePullSecrets"),
    *("nodeName", "nodeSelector", "priority", "priorityClassName", "runtimeClassName"),
    *("schedulerName", "securityContext", "serviceAccountName", "serviceAccount", "hostname"),
    *("terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "resources"),
    *("preemptionPolicy", "overhead", "resourceClaims", "schedulingGates", "subdomain", "os"),
    *("automountServiceAccountToken", "activeDeadlineSeconds", "enableServiceLinks", "hostUsers"),
    *("hostIPC", "hostPID", "shareProcessNamespace", "setHostnameAsFQDN", "readinessGates"),
)
_OWN_POD_FIELDS = ("containers", "initContainers", "volumes", "restartPolicy")


class KubernetesSettings(Resources, PlaceSection):
    """Pods, which are created for a job or a gang and deleted after it."""

    has_image = True

    launcher: Literal["kubernetes"]
    image: str = config_field(..., selects_program=True, min_length=1)
    """The container image. It must have this project's code and packages
    (`docker/jobs.Dockerfile`). For `runs_on` it ends with its digest, `@sha256:...`."""
    pods: int = Field(1, ge=1, le=1024)
    """Number of hosts for a gang."""
    workers_per_pod: int = Field(1, ge=1, le=64)
    """Number of workers that a pod can take."""
    namespace: Namespace = "default"
    """The namespace of the pods."""
    volumes: list[Volume] = config_field([], selects_program=True)
    cpu: Cpu | None = "1"
    memory: Memory | None = "4Gi"
    secret: ObjectName | None = None
    """A Secret whose entries become variables of the pods, such as the access to a bucket. With
    a `secret` or a service account, Airflow's own credentials are not sent, so one of them must
    have the access."""
    pod: dict[str, Any] = {}
    """A part of Kubernetes' PodSpec, such as `nodeSelector`, `tolerations`, `priorityClassName`,
    `imagePullSecrets` or `serviceAccountName`. It is merged into the specification of the pods, and
    may not have `containers`, `initContainers`, `volumes` or `restartPolicy`. A training with
    `runs_on` needs a service account that may create its gang's pods. Without one, pods have no
    token."""
    queue_timeout_seconds: int = Field(3600, ge=1)
    """Time to wait until the pods run before the task is tried again."""
    context: str | None = None
    """The context in the kubeconfig file. Null is the current one, or the cluster around the
    process."""

    @field_validator("pod")
    @classmethod
    def _validate_pod(cls, pod: dict[str, Any]) -> dict[str, Any]:
        if refused := [name for name in _OWN_POD_FIELDS if name in pod]:
            raise ValueError(
                f"must not set {', '.join(refused)}, which Trainyard writes. The keys image, "
                "environment, cpu, memory, gpus and volumes describe the container"
            )
        if "spec" in pod:
            raise ValueError("is a PodSpec itself. Write the keys of spec into it")
        for name in pod:  # Kubernetes drops an unknown key, and has more keys with each version
            camel = re.sub("_(.)", lambda found: found[1].upper(), name)
            if name not in _POD_FIELDS and difflib.get_close_matches(camel, _POD_FIELDS, n=1):
                raise ValueError(f"PodSpec has no {name}; {suggest_name(camel, _POD_FIELDS)}")
        selector = pod.get("nodeSelector")
        for label, value in selector.items() if isinstance(selector, dict) else ():
            if not isinstance(value, str):
                raise ValueError(f"nodeSelector has {label}: {value!r}. Put the value in quotes")
        return pod

    @property
    def service_account(self) -> str | None:
        return self.pod.get("serviceAccountName")

    @property
    def capacity(self) -> int:
        return self.pods * self.workers_per_pod

    @property
    def num_hosts(self) -> int:
        return self.pods

    @property
    def image_digest(self) -> str | None:
        """The digest that the image ends with, `sha256:...`, or None."""
        found = _DIGEST.search(self.image)
        return found[1] if found else None

    @property
    def image_name(self) -> str:
        """The image without its tag and its digest."""
        return re.sub(r"(:[^/@]*)?(@.*)?$", "", self.image, count=1)

    def find_folder_problem(self, folder: Path) -> str:
        if any(folder.is_relative_to(volume.mount) for volume in self.volumes):
            return ""
        cure = f"volumes: [{{claim: NAME, mount: {folder}}}]"
        return f"which is not seen there. {describe_volume_cure(cure)}"
