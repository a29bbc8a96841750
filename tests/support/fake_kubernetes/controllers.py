"""The controllers of Jobs and of garbage: they make pods, judge their ends, and collect orphans."""

from __future__ import annotations

import secrets
from typing import Any

from .objects import Object, Objects, format_time, has_ended, set_condition

_INDEX = "batch.kubernetes.io/job-completion-index"


class Controllers:
    """See the module.

    Attributes:
      admission: why no pod is admitted; "" if all are.
    """

    def __init__(self, objects: Objects):
        self._objects = objects
        self._counted: set[str] = set()
        """The uids of pods whose end was counted."""
        self.admission = ""

    def tick(self) -> None:
        with self._objects.lock:
            for job in self._objects.list("jobs"):
                self._advance(job)
            for resource, found in self._objects.list_orphans():
                if "deletionTimestamp" not in found["metadata"]:
                    self.delete(resource, found)

    def delete(self, resource: str, found: Object, grace_seconds: int | None = None) -> None:
        """Does what DELETE does. Pods end gracefully, and other objects are gone at once."""
        with self._objects.lock:
            if resource != "pods":
                self._objects.remove(resource, found)
                return
            metadata = found["metadata"]
            default = found["spec"].get("terminationGracePeriodSeconds", 30)
            grace = default if grace_seconds is None else grace_seconds
            grace = min(grace, metadata.get("deletionGracePeriodSeconds", grace))
            metadata["deletionGracePeriodSeconds"] = grace
            metadata["deletionTimestamp"] = format_time(grace)
            self._objects.record("pods", found)
            if grace == 0:
                self.finish(found)

    def finish(self, pod: Object) -> None:
        """Forgets a pod that has ended, after its Job has noticed."""
        with self._objects.lock:
            if not has_ended(pod):
                pod["status"]["phase"] = "Failed"
            for job in self._objects.list("jobs"):
                if _is_owner(job, pod):
                    self._count_end(job, pod)
            self._objects.remove("pods", pod)

    def warn(self, about: Object, reason: str, message: str) -> None:
        """Records a warning about an object, once."""
        metadata = about["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{reason.lower()}"},
            "involvedObject": {"kind": about["kind"], "name": metadata["name"]},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": format_time(),
        }
        self._objects.add("events", metadata["namespace"], event)

    def _advance(self, job: Object) -> None:
        spec = job["spec"]
        pods = [pod for pod in self._objects.list("pods") if _is_owner(job, pod)]
        for pod in filter(has_ended, pods):
            self._count_end(job, pod)
        if spec.get("suspend") or _is_finished(job):
            return
        if self.admission:
            self.warn(job, "FailedCreate", f"Error creating: {self.admission}")
            return
        held = {_get_index(pod) for pod in pods if pod["status"]["phase"] != "Failed"}
        for index in map(str, range(spec.get("completions", 1))):
            if index not in held:
                self._make_pod(job, index)

    def _make_pod(self, job: Object, index: str) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
        owner |= {key: job["metadata"][key] for key in ("name", "uid")}
        metadata: dict[str, Any] = {
            "labels": dict(template["metadata"].get("labels") or {})
            | {"batch.kubernetes.io/job-name": name},
            "annotations": dict(template["metadata"].get("annotations") or {}),
            "ownerReferences": [owner],
        }
        if job["spec"].get("completionMode") == "Indexed":
            name += f"-{index}"
            metadata["annotations"][_INDEX] = index
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata | {"name": f"{name}-{secrets.token_hex(3)[:5]}"},
            "spec": dict(template["spec"]),
            "status": {"phase": "Pending", "conditions": []},
        }
        self._objects.add("pods", job["metadata"]["namespace"], pod)

    def _count_end(self, job: Object, pod: Object) -> None:
        """Counts the end of a pod, once. With the last one, its Job ends."""
        spec, status = job["spec"], job.setdefault("status", {})
        if pod["metadata"]["uid"] in self._counted or _is_finished(job):
            return
        self._counted.add(pod["metadata"]["uid"])
        key = pod["status"]["phase"].lower()
        status[key] = status.get(key, 0) + 1
        if status.get("succeeded", 0) >= spec.get("completions", 1):
            set_condition(job, "Complete", "True", "CompletionsReached", "")
        elif message := _match_policy(job, pod):
            set_condition(job, "Failed", "True", "PodFailurePolicy", message)
        elif status.get("failed", 0) > spec["backoffLimit"]:
            message = "Job has reached the specified backoff limit"
            set_condition(job, "Failed", "True", "BackoffLimitExceeded", message)
        self._objects.record("jobs", job)


def _match_policy(job: Object, pod: Object) -> str:
    """The message of the rule of `podFailurePolicy` that a condition of a pod matches, or ""."""
    kinds = {each["type"] for each in pod["status"]["conditions"] if each["status"] == "True"}
    for number, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", [])):
        for kind in kinds & {pattern["type"] for pattern in rule.get("onPodConditions", [])}:
            where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            return f"Pod {where} has condition {kind} matching FailJob rule at index {number}"
    return ""


def _is_owner(job: Object, pod: Object) -> bool:
    owners = pod["metadata"]["ownerReferences"]
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def _is_finished(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(each["type"] in ("Failed", "Complete") for each in conditions)


def _get_index(pod: Object) -> str:
    return str(pod["metadata"]["annotations"].get(_INDEX, "0"))
