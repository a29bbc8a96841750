"""The state of a job by the objects of Kubernetes: whether it waits or runs, and why it has ended.

Pure functions of the Job, its pods and the time. The fields and reasons are those of
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline_ops.errors import ExitCode
from pipeline_ops.places.kubernetes_manifest import STARTED
from pipeline_ops.places.place import OWN_NAMES, JobState

_PULL_GRACE_SECONDS = 300.0
"""How long a registry may be out of reach."""
_START_GRACE_SECONDS = 60.0
"""How long a container may lack what its specification names, such as a Secret."""
_LOST_SECONDS = 30.0
"""How long a pod may outlive the grace period of its deletion before its node counts as lost."""

_PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_IMAGE_REASONS = ("InvalidImageName", "ErrImageNeverPull")
_NO_IMAGE = (
    "not found",
    "manifest unknown",
    "does not exist",
    "denied",
    "unauthorized",
    "authentication required",
    "authorization failed",
    "403 forbidden",
    "401 unauthorized",
    "no match for platform",
)
"""Texts of registries and runtimes for an image that is not there, or not for us."""
_START_REASONS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
)
_EXIT_CODES = (ExitCode.CONFIG, ExitCode.DATA, ExitCode.BUG)
_CANNOT_START = ("StartError", "ContainerCannotRun")
_NO_COMMAND = (126, 127)
"""Exit codes of `env` for a program that cannot be run, or is not there."""

Object = Mapping[str, Any]


def to_job_state(
    job: Object | None, pods: Sequence[Object], now: float, queue_seconds: float
) -> JobState:
    """The state of a job by its Job, if there is one, and its pods, at the cluster's time `now`.

    It may wait for `queue_seconds` until it runs.
    """
    if pods:
        newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
        state = to_pod_state(newest, now)
    elif job is None:
        return JobState("absent", "Kubernetes does not know the job: it was deleted, or is gone")
    else:
        state = _to_podless_state(job, now)
    if state.phase == "waiting":
        since = _read_time((job or pods[0])["metadata"].get("creationTimestamp"), now)
        if now - since > queue_seconds:
            return JobState(
                "ended",
                f"the pod has not run within {queue_seconds:.0f} s (queue_timeout_seconds in the "
                f"hosts file): {state.message}",
            )
    return state


def to_pod_state(pod: Object, now: float) -> JobState:
    """The state of a job by its pod."""
    status, metadata = pod.get("status", {}), pod["metadata"]
    if status.get("phase") in ("Succeeded", "Failed"):
        return _to_end_state(status)
    # The time of the deletion includes the grace period.
    if now - _read_time(metadata.get("deletionTimestamp"), now) > _LOST_SECONDS:
        return JobState("ended", f"the job was lost: {_explain_deletion(status)}")
    container = _find_container(status)
    if status.get("phase") == "Running" or "running" in container.get("state", {}):
        return JobState("running")
    return _to_start_state(status, container, now)


def _to_start_state(status: Object, container: Object, now: float) -> JobState:
    """The state of a pod that has not run yet."""
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), " ".join(waiting.get("message", "").split())
    scheduled = _find_condition(status, "PodScheduled")
    waited_seconds = now - _read_time(scheduled.get("lastTransitionTime"), now)
    text = f"{reason}: {message}" if message else reason
    if reason in _IMAGE_REASONS or reason in _PULL_REASONS:
        is_permanent = reason in _IMAGE_REASONS or any(
            sign in message.lower() for sign in _NO_IMAGE
        )
        if is_permanent:
            return JobState(
                "ended",
                f"the image can't be pulled: {text}. Correct `image` or `pod.imagePullSecrets` in "
                "the hosts file",
                ExitCode.CONFIG,
            )
        if waited_seconds > _PULL_GRACE_SECONDS:
            return JobState("ended", f"the image could not be pulled: {text}")
    if reason in _START_REASONS and waited_seconds > _START_GRACE_SECONDS:
        return JobState(
            "ended",
            f"the container can't be made: {text}. Correct the hosts file",
            # The job's own Secret is missing if its starter was killed. The next try makes both.
            ExitCode.RETRY if f'secret "{OWN_NAMES}' in text else ExitCode.CONFIG,
        )
    if scheduled.get("status") != "True":
        text = scheduled.get("message") or scheduled.get("reason")
        return JobState("waiting", f"waits for a node: {text}" if text else "waits for a node")
    return JobState("waiting", text or "its pod has a node, and starts")


def _to_end_state(status: Object) -> JobState:
    container = _find_container(status).get("state", {}).get("terminated", {})
    code, reason = container.get("exitCode"), container.get("reason")
    disruption = _find_condition(status, "DisruptionTarget")
    has_no_command = reason in _CANNOT_START or code in _NO_COMMAND
    if reason == "OOMKilled":
        cause = (
            "out of memory: the kernel has killed it, because its container may not use more. Give "
            "it more `memory` in the hosts file, or lower the batch size"
        )
    elif status.get("reason") or disruption.get("status") == "True":
        cause = _explain_deletion(status)
    elif has_no_command:
        problem = " ".join(container.get("message", "").split()) or f"exit code {code}"
        cause = (
            f"its command can't be run: {problem}. `image` in the hosts file must have this "
            "project, or `python` and `code` say where it is"
        )
    elif not container:
        cause = "its pod has failed before its container was started"
    else:
        killed = ", so it was killed by signal 9" if code == 137 else ""
        cause = f"its container ended with exit code {code}{killed}"
    exit_code = ExitCode.RETRY
    if has_no_command:
        exit_code = ExitCode.CONFIG
    elif code in _EXIT_CODES:
        exit_code = ExitCode(code)
    return JobState("ended", f"the job ended without a status: {cause}", exit_code)


def _explain_deletion(status: Object) -> str:
    disruption = _find_condition(status, "DisruptionTarget")
    reason = status.get("reason") or disruption.get("reason")
    if not reason:
        return "it was deleted, and its node does not answer (node loss)"
    details = " ".join((status.get("message") or disruption.get("message") or "").split())
    return f"Kubernetes has ended it: {reason}{details and f': {details}'}"


def may_replace_pods(job: Object) -> bool:
    """Returns whether the Job of a gang replaces each of its pods.

    It does not after its end, nor any pod whose index has succeeded.
    """
    status = job.get("status", {})
    is_over = any(_find_condition(status, kind) for kind in ("Failed", "FailureTarget", "Complete"))
    return not is_over and not status.get("succeeded")


def find_warning(events: Sequence[Object]) -> str:
    """Returns the text of the newest warning, or an empty string."""
    # The times are texts that sort. Newer recorders write `eventTime` alone.
    newest = max(
        (event for event in events if event.get("type") == "Warning"),
        key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""),
        default={},
    )
    return " ".join(newest.get("message", "").split())


def _to_podless_state(job: Object, now: float) -> JobState:
    conditions = {
        condition["type"]: condition
        for condition in job.get("status", {}).get("conditions") or []
        if condition.get("status") == "True"
    }
    if failed := conditions.get("Failed") or conditions.get("FailureTarget"):
        text = f"{failed.get('reason')}: {' '.join(failed.get('message', '').split())}"
        if "DisruptionTarget" in text:
            text = f"its pod was evicted or preempted, or its node was lost: {text}"
        return JobState("ended", f"the job ended without a status: {text}")
    if "Complete" in conditions or "SuccessCriteriaMet" in conditions:
        return JobState("ended", "the job ended without a status, and its pod is gone")
    if job["metadata"].get("deletionTimestamp"):
        return JobState("ended", "the job was deleted in Kubernetes")
    metadata = job["metadata"]
    if job["spec"].get("suspend") and STARTED not in metadata.get("annotations", {}):
        if now - _read_time(metadata.get("creationTimestamp"), now) > _START_GRACE_SECONDS:
            return JobState("ended", "the process that started the job was killed before its end")
        return JobState("waiting", "its Secret is made")
    if "Suspended" in conditions:
        return JobState("waiting", "the Job is suspended, for example in a queue of the cluster")
    return JobState("waiting", "Kubernetes has not made its pod yet")


def _find_container(status: Object) -> Object:
    found: Sequence[Object] = status.get("containerStatuses") or [{}]
    return found[0]


def _find_condition(status: Object, kind: str) -> Object:
    for condition in status.get("conditions") or []:
        if condition["type"] == kind:
            return dict(condition)
    return {}


def _read_time(text: str | None, default: float) -> float:
    if not text:
        return default
    return datetime.datetime.fromisoformat(text).timestamp()
