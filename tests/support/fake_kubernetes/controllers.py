"""The controllers of Jobs and of garbage: they make pods, judge their ends, and collect orphans."""

from __future__ import annotations

import datetime
import secrets
import time
from typing import Any

from .kubelet import set_condition
from .objects import Object, Objects, format_time

_INDEX = "batch.kubernetes.io/job-completion-index"


class Controllers:
    """See the module."""

    def __init__(self, objects: Objects):
        self._objects = objects
        self._counted: set[str] = set()
        """The uids of pods whose end was counted."""
        self.admission = ""
        """Why no pod is admitted; "" if all are."""
        self._done: dict[str, set[int]] = {}
        """The indexes that have succeeded, by the uid of their Job."""

    def tick(self) -> None:
        with self._objects.lock:
            for job in self._objects.list("jobs"):
                self._advance(job)
            self._collect_garbage()

    def delete(self, resource: str, found: Object, grace_seconds: int | None) -> None:
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
            self._objects.touch("pods", found)
            if grace == 0:
                self.finish(found)

    def warn(self, about: Object, reason: str, message: str) -> None:
        """Records a warning about an object, once."""
        metadata = about["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{reason.lower()}"},
            "involvedObject": {"kind": about.get("kind", ""), "name": metadata["name"]},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": format_time(),
        }
        self._objects.add("events", metadata["namespace"], event)

    def finish(self, pod: Object) -> None:
        """Forgets a pod that has ended, after its Job has noticed."""
        with self._objects.lock:
            for job in self._objects.list("jobs"):
                if _is_owner(job, pod):
                    if pod["status"]["phase"] not in ("Succeeded", "Failed"):
                        pod["status"]["phase"] = "Failed"
                    self._notice(job, pod)
            self._objects.remove("pods", pod)

    def _advance(self, job: Object) -> None:
        spec = job["spec"]
        status = job.setdefault("status", {"startTime": format_time()})
        if "startTime" not in status:
            status["startTime"] = format_time()
        pods = [pod for pod in self._objects.list("pods") if _is_owner(job, pod)]
        for pod in pods:
            if pod["status"]["phase"] in ("Succeeded", "Failed"):
                self._notice(job, pod)
        if _is_finished(job):
            for pod in pods:
                has_ended = pod["status"]["phase"] in ("Succeeded", "Failed")
                if not has_ended and "deletionTimestamp" not in pod["metadata"]:
                    self.delete("pods", pod, None)
            return
        limit = spec.get("activeDeadlineSeconds")
        if limit and time.time() - _parse(status["startTime"]) > limit:
            self._fail(job, "DeadlineExceeded", "Job was active longer than specified deadline")
            return
        self._make_pods(job, pods)

    def _make_pods(self, job: Object, pods: list[Object]) -> None:
        spec = job["spec"]
        is_suspended = bool(spec.get("suspend"))
        if is_suspended != _has_condition(job, "Suspended"):
            reason = "JobSuspended" if is_suspended else "JobResumed"
            set_condition(job, "Suspended", str(is_suspended), reason, "")
            self._objects.touch("jobs", job)
        if is_suspended:
            return
        if self.admission:
            self.warn(job, "FailedCreate", f"Error creating: {self.admission}")
            return
        is_indexed = spec.get("completionMode") == "Indexed"
        done = self._done.get(job["metadata"]["uid"], set())
        for index in range(spec.get("completions", 1)):
            present = [
                pod
                for pod in pods
                if not is_indexed or pod["metadata"]["annotations"][_INDEX] == str(index)
            ]
            is_replaced = spec.get("podReplacementPolicy") != "Failed"
            active = [
                pod
                for pod in present
                if pod["status"]["phase"] in ("Pending", "Running")
                and not (is_replaced and "deletionTimestamp" in pod["metadata"])
            ]
            if active or index in done:
                continue
            self._make_pod(job, index if is_indexed else None)

    def _make_pod(self, job: Object, index: int | None) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        infix = "" if index is None else f"-{index}"
        metadata: dict[str, Any] = {
            "name": f"{name}{infix}-{secrets.token_hex(3)[:5]}",
            "labels": dict(template["metadata"].get("labels") or {})
            | {"batch.kubernetes.io/job-name": name},
            "annotations": dict(template["metadata"].get("annotations") or {}),
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": name,
                    "uid": job["metadata"]["uid"],
                    "controller": True,
                }
            ],
        }
        if index is not None:
            metadata["annotations"][_INDEX] = str(index)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": dict(template["spec"]),
            "status": {"phase": "Pending", "conditions": []},
        }
        self._objects.add("pods", job["metadata"]["namespace"], pod)

    def _notice(self, job: Object, pod: Object) -> None:
        """Counts the end of a pod, once."""
        status, uid = job["status"], pod["metadata"]["uid"]
        if uid in self._counted or _is_finished(job):
            return
        self._counted.add(uid)
        if pod["status"]["phase"] == "Succeeded":
            index = pod["metadata"].get("annotations", {}).get(_INDEX, "0")
            self._done.setdefault(job["metadata"]["uid"], set()).add(int(index))
            status["succeeded"] = status.get("succeeded", 0) + 1
            if status["succeeded"] >= job["spec"].get("completions", 1):
                self._set(job, "Complete", "CompletionsReached", "")
            return
        status["failed"] = status.get("failed", 0) + 1
        if message := self._match_policy(job, pod):
            self._fail(job, "PodFailurePolicy", message)
        elif status["failed"] > job["spec"].get("backoffLimit", 6):
            message = "Job has reached the specified backoff limit"
            self._fail(job, "BackoffLimitExceeded", message)

    def _match_policy(self, job: Object, pod: Object) -> str:
        metadata = pod["metadata"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        rules = (job["spec"].get("podFailurePolicy") or {}).get("rules", [])
        states = pod["status"].get("containerStatuses") or [{}]
        ended = states[0].get("state", {}).get("terminated")
        for number, rule in enumerate(rules):
            for pattern in rule.get("onPodConditions") or []:
                for condition in pod["status"].get("conditions", []):
                    if (condition["type"], condition["status"]) == (
                        pattern["type"],
                        pattern["status"],
                    ):
                        return (
                            f"Pod {where} has condition {pattern['type']} matching FailJob rule "
                            f"at index {number}"
                        )
            if ended and (wanted := rule.get("onExitCodes")):
                is_in = ended["exitCode"] in wanted["values"]
                if is_in is (wanted["operator"] == "In"):
                    return (
                        f"Container {states[0]['name']} for pod {where} failed with exit code "
                        f"{ended['exitCode']} matching FailJob rule at index {number}"
                    )
        return ""

    def _fail(self, job: Object, reason: str, message: str) -> None:
        self._set(job, "Failed", reason, message)

    def _set(self, job: Object, kind: str, reason: str, message: str) -> None:
        set_condition(job, kind, "True", reason, message)
        self._objects.touch("jobs", job)

    def _collect_garbage(self) -> None:
        alive = set(self._objects.owners())
        for resource, found in self._objects.owned():
            metadata = found["metadata"]
            is_orphan = not any(owner["uid"] in alive for owner in metadata["ownerReferences"])
            if is_orphan and (resource != "pods" or "deletionTimestamp" not in metadata):
                self.delete(resource, found, None)


def _is_owner(job: Object, pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def _has_condition(job: Object, kind: str) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _is_finished(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] in ("Failed", "Complete") for each in conditions)


def _parse(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()
