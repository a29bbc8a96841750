"""Kubernetes: a job is a Job with one pod. No kubectl is needed, and no route to the pod.

The name of the Job follows from the attempt, so of two tries to start it, one succeeds. The access
to the store is in a Secret that the Job owns, so it is created after the Job. Until then the Job is
suspended: the kubelet would look for a missing Secret again only after ten seconds or more. A
Secret that gets its owner later would stay behind if the starter died in between. If the
Secret is refused, the Job is deleted. If the starter dies in between, the job counts as ended after
a minute, and the next try starts another one. A pod is never replaced.

Requests and objects are plain JSON with the fields that Kubernetes documents, sent with the
connection of the official client (TLS, proxy, credentials). Each request has a time limit. It is
repeated a few times after 410, 429 (with the pause that the server asks for), errors of the server
or of the network, and 403, because a server that has just started does not know all Roles yet. The
caller chooses all names of objects, so a repeated request does no harm.

docker/kubernetes/rbac.yaml grants the rights that an account needs in the namespace of its jobs. An
error about a missing right names it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from pipeline_ops.config.hosts import Hosts
from pipeline_ops.contract.cancellation import GRACE_SECONDS
from pipeline_ops.contract.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.job.runner import Job
from pipeline_ops.places.kubernetes_manifest import (
    INSTANCE_LABEL,
    RESUMED,
    build_gang,
    build_job,
    build_secret,
    select_secret_values,
    set_owner,
)
from pipeline_ops.places.kubernetes_settings import KubernetesSettings
from pipeline_ops.places.kubernetes_state import (
    find_warning,
    may_replace_pods,
    to_job_state,
    to_pod_state,
)
from pipeline_ops.places.launcher import Host, Launcher, log_failed_release, wait_until
from pipeline_ops.places.place import (
    OWN_NAMES,
    JobLaunch,
    JobState,
    Place,
    build_python_command,
    name_job,
)
from pipeline_ops.places.pod_exec import (
    CONTAINER,
    RBAC_FILE,
    build_exec_command,
    get_auth_headers,
    open_configuration,
    read_message,
)
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import wait_until_gone

Kind = Literal["jobs", "pods", "secrets", "services", "networkpolicies", "events"]
"""Resources by their names in a Role."""
_PATHS: Mapping[Kind, str] = {
    "jobs": "apis/batch/v1/namespaces/{}/jobs",
    "pods": "api/v1/namespaces/{}/pods",
    "secrets": "api/v1/namespaces/{}/secrets",
    "services": "api/v1/namespaces/{}/services",
    "networkpolicies": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "events": "api/v1/namespaces/{}/events",
}
_HOLDER_MODULE = "pipeline_ops.places.allocation_holder"
_KEEP_PODS_SECONDS = 300
_KINDS: Mapping[str, Kind] = {
    "Job": "jobs",
    "Service": "services",
    "NetworkPolicy": "networkpolicies",
}
_INDEX = "batch.kubernetes.io/job-completion-index"
_METHODS = {"create": "POST", "get": "GET", "list": "GET", "patch": "PATCH", "delete": "DELETE"}
_STRICT = {"fieldValidation": "Strict"}
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_MAX_REPEATS = 4
_MAX_PAUSE_SECONDS = 8
_LATER = (408, 410, 429, 500, 502, 503, 504)
"""Status codes of requests that may succeed later."""


class KubernetesClient:
    """The objects of one namespace.

    Without a `context`, the access is the current one, or that of the cluster around this process.
    """

    def __init__(self, namespace: str, context: str | None = None):
        self._configuration: Any = open_configuration(context)
        from kubernetes.client.rest import RESTClientObject
        from urllib3 import Retry

        class BoundedRetry(Retry):
            def get_retry_after(self, response: Any) -> float | None:
                seconds = super().get_retry_after(response)
                return seconds and min(seconds, _MAX_PAUSE_SECONDS)

        self._configuration.retries = BoundedRetry(
            _MAX_REPEATS,
            other=0,  # such as a certificate of another authority
            allowed_methods=None,
            status_forcelist=(*_LATER, 403),
            raise_on_status=False,
            backoff_factor=0.5,
            backoff_max=_MAX_PAUSE_SECONDS,
        )
        self.namespace, self._pool = namespace, RESTClientObject(self._configuration).pool_manager
        self.server_time = time.time()
        """The time of the server at its last answer. All times in objects are of its clock."""

    def create(self, kind: Kind, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """Creates an object. Returns it, or None if there is one of that name."""
        return _parse(self._send("create", kind, body=manifest, query=_STRICT))

    def read(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """An object, or None if there is none."""
        return _parse(self._send("get", kind, f"/{name}"))

    def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> bool:
        """Merges a change into an object. Returns False if there is none."""
        return self._send("patch", kind, f"/{name}", body=change, query=_STRICT) is not None

    def list_events(self, name: str) -> list[dict[str, Any]]:
        """The events about an object."""
        answer = self._send(
            "list", "events", query={"fieldSelector": f"involvedObject.name={name}"}
        )
        return list((_parse(answer) or {}).get("items") or [])

    def list_pods(self, instance: str) -> list[dict[str, Any]]:
        """The pods of a job or a gang."""
        answer = self._send("list", "pods", query={"labelSelector": f"{INSTANCE_LABEL}={instance}"})
        return list((_parse(answer) or {}).get("items") or [])

    def read_log(self, pod: str, num_lines: int) -> str:
        """The end of what the container has printed."""
        query = {"container": CONTAINER, "tailLines": str(num_lines)}
        answer = self._send("get", "pods", f"/{pod}", "/log", query=query)
        return (answer or b"").decode(errors="replace")

    def delete(self, kind: Kind, name: str, grace_seconds: int | None = None) -> None:
        """Deletes an object, if it is there, and afterwards the objects that it owns.

        `grace_seconds` is for pods, between SIGTERM and SIGKILL. With 0, Kubernetes forgets the pod
        at once, even if its node does not answer.
        """
        query = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            query["gracePeriodSeconds"] = str(grace_seconds)
        self._send("delete", kind, f"/{name}", query=query)

    def _send(
        self,
        verb: str,
        kind: Kind,
        name: str = "",
        part: str = "",
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> bytes | None:
        """Sends a request, again if that may help. None for 404 of an object, and for 409."""
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        path, what = _PATHS[kind].format(self.namespace), f"{verb} {kind}{part}"
        url = f"{self._configuration.host}/{path}{name}{part}?{urlencode(query or {})}"
        content_type = "application/merge-patch+json" if verb == "patch" else "application/json"
        try:
            response = self._pool.request(
                _METHODS[verb],
                url,
                body=body and json.dumps(body),
                headers={"Content-Type": content_type, **get_auth_headers(self._configuration)},
                timeout=Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
            )
        except (HTTPError, OSError) as error:
            status, problem = 0, str(error)
        else:
            if date := response.headers.get("Date"):
                self.server_time = email.utils.parsedate_to_datetime(date).timestamp()
            status, is_creation = response.status, verb == "create"
            if status < 300:
                return bytes(response.data)
            is_there = status == 409 and b'"AlreadyExists"' in response.data
            if is_there if is_creation else status == 404:
                return None
            problem = read_message(response.data) or response.reason or ""
        if "certificate verify failed" in problem or status not in (0, *_LATER):
            raise self._to_error(status, what, problem)
        raise MachineError(f"Kubernetes can't {what} ({status or 'no answer'}): {problem}")

    def _to_error(self, status: int, what: str, problem: str) -> TrainyardError:
        where = f"in the namespace {self.namespace}"
        if status in (401, 403) and "exceeded quota" in problem:
            return MachineError(f"Kubernetes has no room {where}: {problem}")
        if status in (401, 403):
            return ConfigError(
                f"Kubernetes does not let this account {what} {where} ({status}): {problem}",
                f"Apply {RBAC_FILE}, or correct `namespace` in the hosts file. A gang needs "
                "`train.runs_on` with a hosts file that has `pod: {serviceAccountName: "
                "trainyard-supervisor}`",
            )
        if status == 404:
            return ConfigError(
                f"Kubernetes can't {what} {where}: {problem}",
                "Correct `namespace` in the hosts file, or create the namespace",
            )
        return ConfigError(
            f"Kubernetes refuses to {what} {where} ({status}): {problem}", "Correct the hosts file"
        )


def _parse(answer: bytes | None) -> dict[str, Any] | None:
    return None if answer is None else dict(json.loads(answer))


_END_SECONDS = 2.5
"""How long a cancelled pod may outlive its grace period before it is removed by force."""
_POLL_SECONDS = 0.2
_TAIL_LINES, _TAIL_BYTES = 40, 2000


class KubernetesPlace(Place):
    """See `Place`."""

    def __init__(self, hosts: KubernetesSettings):
        self._hosts = hosts
        self._client = KubernetesClient(hosts.namespace, hosts.context)
        self.queue_seconds = hosts.queue_timeout_seconds

    def start(self, launch: JobLaunch) -> None:
        name = name_job(launch.attempt)
        values = select_secret_values(self._hosts, launch.environment, os.environ)
        created = self._client.create("jobs", build_job(self._hosts, launch, bool(values)))
        if not values:
            return
        job = created or self._client.read("jobs", name)
        try:
            if job is not None:
                self._client.create("secrets", set_owner(build_secret(name, values), job))
            if job is None or not self._client.patch("jobs", name, RESUMED):
                raise MachineError(f"the Job {name} was deleted while it was started")
        except TrainyardError:
            with contextlib.suppress(TrainyardError):
                self._client.delete("jobs", name)
            raise

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        name = name_job(attempt)
        pods = self._client.list_pods(name)
        if any(is_running(pod) for pod in pods):
            return JobState("running")
        job = self._client.read("jobs", name)
        state = to_job_state(job, pods, self._client.server_time, self.queue_seconds)
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
        self._client.delete("secrets", name)
        return not self._client.list_pods(name)

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

        On a node that does not answer, the job ends by the cancellation request or its lost lease.
        """
        self._client.delete("jobs", name)
        self._delete_pods(name, int(GRACE_SECONDS))
        end_seconds = GRACE_SECONDS + _END_SECONDS
        if not wait_until_gone(lambda: self._client.list_pods(name), end_seconds, _POLL_SECONDS):
            self._delete_pods(name, 0)

    def _delete_pods(self, name: str, grace_seconds: int) -> None:
        for pod in self._client.list_pods(name):
            self._client.delete("pods", pod["metadata"]["name"], grace_seconds)


def is_running(pod: dict[str, Any]) -> bool:
    """Returns whether a pod runs, and was not asked to end."""
    is_deleted = "deletionTimestamp" in pod["metadata"]
    return pod.get("status", {}).get("phase") == "Running" and not is_deleted


class KubernetesLauncher(Launcher):
    """Pods of an Indexed Job: created for a gang, reached through `pod_exec.py`, then deleted.

    A headless Service gives each pod a name of its own, so a restarted pod has its old address.
    `allocation_holder.py` holds the pods and does nothing else. Agents are started in them, as on
    any other host.

    All objects are named `name` with the number of the allocation. `name` must be unique among live
    jobs. `run` identifies the agents. The cluster ends the pods after `deadline_seconds` at most.
    """

    def __init__(self, hosts: KubernetesSettings, name: str, run: str, deadline_seconds: int):
        self._hosts, self._base_name, self._run = hosts, name, run
        self._deadline_seconds = deadline_seconds
        self._num_allocations, self._name = 0, ""
        self._client = KubernetesClient(hosts.namespace, hosts.context)

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        hosts, client = self._hosts, self._client
        self._num_allocations += 1
        name = self._name = f"{self._base_name}-{self._num_allocations}"
        try:
            manifest, *others = build_manifests(hosts, name, self._run, self._deadline_seconds)
            job = client.create("jobs", manifest) or client.read("jobs", name)
            if job is None:
                raise MachineError(f"the Job {name} was deleted during its creation")
            for other in others:
                client.create(_KINDS[other["kind"]], set_owner(other, job))
            self._wait_for_pods(check)
        except BaseException:
            self.release()
            raise
        return [
            Host(
                name=f"{name}-{index}",
                address=f"{name}-{index}.{name}.{hosts.namespace}.svc",
                workers=hosts.workers_per_pod,
            )
            for index in range(hosts.pods)
        ]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        # A restarted pod has another name, with the same index.
        name = host.name
        for pod in filter(is_running, self._client.list_pods(self._name)):
            metadata = pod["metadata"]
            if host.name == f"{self._name}-{metadata['annotations'][_INDEX]}":
                name = metadata["name"]
        command = build_python_command(self._hosts, AGENT_MODULE, agent.run)
        return build_exec_command(self._hosts.namespace, self._hosts.context, name, command)

    def is_intact(self) -> bool:
        """Returns whether the Job still replaces lost pods.

        It does not after the success of a pod, which follows a long time without an agent.
        """
        job = self._client.read("jobs", self._name) if self._name else None
        return job is not None and may_replace_pods(job)

    def release(self) -> None:
        if self._name:
            with log_failed_release(f"the pods of {self._name} were", _KEEP_PODS_SECONDS):
                for kind in _KINDS.values():
                    self._client.delete(kind, self._name)
            self._name = ""

    def _wait_for_pods(self, check: Callable[[], None]) -> None:
        timeout_seconds = self._hosts.queue_timeout_seconds
        if not wait_until(self._are_all_running, check, timeout_seconds):
            pods, wanted = self._client.list_pods(self._name), self._hosts.pods
            states = {to_pod_state(pod, self._client.server_time).message for pod in pods}
            cause = "; ".join(sorted(filter(None, states))) or "Kubernetes has created none"
            raise MachineError(
                f"{sum(map(is_running, pods))} of {wanted} pods of the Job {self._name} run after "
                f"{timeout_seconds} s (queue_timeout_seconds in the hosts file). {cause}"
            )

    def _are_all_running(self) -> bool:
        """Returns whether all pods run. Raises ConfigError if one of them can never run."""
        pods = self._client.list_pods(self._name)
        for pod in pods:
            state = to_pod_state(pod, self._client.server_time)
            if state.phase == "ended" and not state.exit_code.is_retried:
                raise ConfigError(f"the pod {pod['metadata']['name']}: {state.message}")
        return sum(map(is_running, pods)) >= self._hosts.pods


def build_manifests(
    hosts: KubernetesSettings, name: str, run: str, deadline_seconds: int
) -> list[dict[str, Any]]:
    """The objects of a gang, which own its pods."""
    command = build_python_command(hosts, _HOLDER_MODULE, run, str(_KEEP_PODS_SECONDS))
    return build_gang(hosts, name, command, deadline_seconds)


class KubernetesHosts(KubernetesSettings):
    """Pods, which are created for a job or a gang and deleted after it."""

    def open_place(self) -> KubernetesPlace:
        return KubernetesPlace(self)

    def make_launcher(self, job: Job) -> KubernetesLauncher:
        # A DNS name, and unique among the objects of the cluster.
        pipeline, run = job.request.pipeline.replace("_", "-")[:30], str(job.attempt.folder)
        name = f"{OWN_NAMES}{pipeline}-{compute_digest(run)[:8]}"
        return KubernetesLauncher(self, name, run, job.request.deadline_seconds)

    def list_hosts(self) -> list[Host]:
        names = [f"pod-{number}" for number in range(self.pods)]
        return [Host(name=n, address=n, workers=self.workers_per_pod) for n in names]

    def describe_gang(self, pipeline: str, run: Path, deadline_seconds: int) -> Iterator[str]:
        name = f"{OWN_NAMES}{pipeline}".replace("_", "-")
        items = build_manifests(self, name, str(run), deadline_seconds)
        yield json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2)

    def find_job_problems(self, task: str, file: str, gang: Hosts | None) -> Iterator[str]:
        if self.image_digest is None:
            yield (
                f"the image {self.image} has no digest, and another image of that name would give "
                f"another result. Write image: {self.image_name}@sha256:... with 64 digits into "
                f"{file}. `docker push IMAGE && docker inspect --format "
                "'{{index .RepoDigests 0}}' IMAGE` prints it."
            )
        if (
            task == "train"
            and isinstance(gang, KubernetesHosts)
            and not (self.service_account or gang.context)
        ):
            yield (
                "the job of the training creates the pods of its gang, and has no account for it. "
                "Write pod: {serviceAccountName: trainyard-supervisor} "
                f"(docker/kubernetes/rbac.yaml) into {file}."
            )
