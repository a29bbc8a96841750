"""Kubernetes: a job is a Job with one pod. No kubectl is needed, and no route to the pod.

The name of the Job follows from the attempt, so of two tries to start it, one succeeds. The access
to the store is in a Secret that Kubernetes removes with the Job. It is created after the Job,
because its owner must exist. Until then the Job is suspended, so that no pod asks for a Secret that
is not there: the kubelet would look again only after ten seconds or more. If the Secret is refused,
the Job is deleted. If the starter dies in between, the job counts as ended after a minute, and the
next try starts another one. A pod is never replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.config.hosts import KubernetesHosts
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.jobs.cancellation import GRACE_SECONDS
from pipeline_ops.jobs.places.kubernetes_client import GANG_RIGHTS, JOB_RIGHTS, KubernetesClient
from pipeline_ops.jobs.places.kubernetes_manifest import (
    RESUMED,
    build_job,
    build_secret,
    select_secret_values,
    set_owner,
)
from pipeline_ops.jobs.places.kubernetes_state import find_warning, judge_job
from pipeline_ops.jobs.places.place import JobLaunch, JobState, Place, name_job
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host_check import Finding
from pipeline_ops.system.processes import wait_until_gone

_END_SECONDS = 2.5
"""How long a cancelled pod may outlive its grace period before it is removed by force."""
_POLL_SECONDS = 0.2
_TAIL_LINES, _TAIL_BYTES = 40, 2000


class KubernetesPlace(Place):
    """See `Place`."""

    def __init__(self, hosts: KubernetesHosts):
        self._hosts = hosts
        self._client = KubernetesClient(hosts.namespace, hosts.context)
        self.queue_seconds = hosts.queue_timeout_seconds

    def start(self, launch: JobLaunch) -> None:
        name = name_job(launch.attempt)
        values = select_secret_values(self._hosts, launch.environment, os.environ)
        created = self._client.create("job", build_job(self._hosts, launch, bool(values)))
        if not values:
            return
        job = created or self._client.read("job", name)
        try:
            if job is not None:
                self._client.create("secret", set_owner(build_secret(name, values), job))
            if job is None or not self._client.patch("job", name, RESUMED):
                raise MachineError(f"the Job {name} was deleted while it was started")
        except TrainyardError:
            with contextlib.suppress(TrainyardError):
                self._client.delete("job", name)
            raise

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        name = name_job(attempt)
        pods = self._client.list_pods(name)
        if any(is_running(pod) for pod in pods):
            return JobState("running")
        job = self._client.read("job", name)
        state = judge_job(job, pods, self._client.server_time, self.queue_seconds)
        if state.phase != "waiting":
            return state
        # What the objects do not say: a pod that is not admitted, a sandbox that cannot be made.
        waiting = pods[-1]["metadata"]["name"] if pods else name
        warning = find_warning(self._client.list_events(waiting))
        if not warning or warning in state.message:
            return state
        return dataclasses.replace(state, message=f"{state.message}: {warning}")

    def read_output(self, attempt: Attempt[StorePath]) -> str:
        pods = self._client.list_pods(name_job(attempt))
        if not pods:
            return ""
        try:
            text = self._client.read_log(pods[-1]["metadata"]["name"], _TAIL_LINES)
        except ConfigError:  # the container has not been started
            return ""
        return text[-_TAIL_BYTES:].strip()

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        self._end(name_job(attempt))

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        """Removes the Job, its pods and its Secret. Ends the job if it runs."""
        name = name_job(attempt)
        self._end(name)
        self._client.delete("secret", name)
        return not self._client.list_pods(name)

    def check(self) -> Iterator[Finding]:
        self._client.validate_rights(JOB_RIGHTS)
        yield from ()

    def check_for_gang(self) -> Iterator[Finding]:
        self._client.validate_rights(GANG_RIGHTS)
        yield from ()

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        """The digest of the image, which holds all packages.

        ConfigError if the hosts file has none.
        """
        if (digest := self._hosts.image_digest) is None:
            raise ConfigError(
                f"the image {self._hosts.image} in the hosts file must end with its digest, "
                "@sha256:..., so that all pods run the same one"
            )
        return {"image": digest}

    def _end(self, name: str) -> None:
        """Deletes the Job and its pods: SIGTERM, SIGKILL, then by force.

        A pod on a node that does not answer is forgotten. Its job finds the cancellation request,
        or that it has lost its lease.
        """
        self._client.delete("job", name)
        self._delete_pods(name, int(GRACE_SECONDS))
        end_seconds = GRACE_SECONDS + _END_SECONDS
        if not wait_until_gone(lambda: self._client.list_pods(name), end_seconds, _POLL_SECONDS):
            self._delete_pods(name, 0)

    def _delete_pods(self, name: str, grace_seconds: int) -> None:
        for pod in self._client.list_pods(name):
            self._client.delete("pod", pod["metadata"]["name"], grace_seconds)


def is_running(pod: dict[str, Any]) -> bool:
    """Returns whether a pod runs, and was not asked to end."""
    is_deleted = "deletionTimestamp" in pod["metadata"]
    return pod.get("status", {}).get("phase") == "Running" and not is_deleted
