"""The states of a job by the objects of Kubernetes.

The objects have the fields that the documentation describes. No cluster has recorded them.
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pipeline_ops.errors import ExitCode
from pipeline_ops.places.kubernetes_manifest import STARTED
from pipeline_ops.places.kubernetes_state import (
    find_warning,
    may_replace_pods,
    to_job_state,
)

NOW = 1_800_000_000.0
IMAGE_MISSING = 'rpc error: code = NotFound desc = failed to pull "x": not found'


def at(seconds_ago: float) -> str:
    when = datetime.datetime.fromtimestamp(NOW - seconds_ago, datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, reason: str = "", message: str = "", status: str = "True", ago=10.0):
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(ago),
    }


def pod(phase: str, *conditions: dict, state: dict | None = None, ago=20.0, **fields: Any) -> dict:
    deleted = fields.pop("deleted", None)
    metadata = {"name": "trainyard-1-abcde", "creationTimestamp": at(ago)}
    if deleted is not None:
        metadata["deletionTimestamp"] = at(deleted)
    status = {"phase": phase, "conditions": list(conditions)} | fields
    if state:
        status["containerStatuses"] = [{"name": "trainyard", "state": state}]
    return {"metadata": metadata, "status": status}


def waiting(reason: str, message: str = "", ago: float = 10.0) -> dict:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod("Pending", condition("PodScheduled", ago=ago), state=state)


def ended(code: int, reason: str = "Error", **fields: Any) -> dict:
    return {"terminated": {"exitCode": code, "reason": reason} | fields}


def job(*conditions: dict, ago: float = 30.0, **fields: Any) -> dict:
    spec, status = fields.pop("spec", {}), fields.pop("status", {})
    metadata = {"name": "trainyard-1", "creationTimestamp": at(ago)} | fields
    return {
        "metadata": metadata,
        "spec": spec,
        "status": {"conditions": list(conditions)} | status,
    }


def disrupted(reason: str, message: str = "details") -> dict:
    return condition("DisruptionTarget", reason, message)


RETRY, CONFIG = ExitCode.RETRY, ExitCode.CONFIG
SUSPENDED = condition("Suspended")
GONE = "Pod ml/x has condition DisruptionTarget matching FailJob rule at index 0"
JOBS = {
    "unknown": (None, "absent", "does not know", None),
    "no pod yet": (job(), "waiting", "has not made its pod", None),
    "suspended": (
        *(job(SUSPENDED, spec={"suspend": True}, annotations={STARTED: "true"}), "waiting"),
        *("queue of the cluster", None),
    ),
    "no Secret": (job(SUSPENDED, spec={"suspend": True}), "waiting", "its Secret is made", None),
    "its starter was killed": (
        *(job(SUSPENDED, spec={"suspend": True}, ago=100.0), "ended"),
        *("started the job was killed", RETRY),
    ),
    "deadline": (
        *(job(condition("Failed", "DeadlineExceeded", "longer than specified")), "ended"),
        *("DeadlineExceeded: longer than specified", RETRY),
    ),
    "disrupted": (
        *(job(condition("Failed", "PodFailurePolicy", GONE)), "ended"),
        *("evicted or preempted, or its node was lost: PodFailurePolicy: Pod ml/x", RETRY),
    ),
    "failed": (
        *(job(condition("Failed", "PodFailurePolicy", "failed with exit code 137")), "ended"),
        *("exit code 137", RETRY),
    ),
    "deleted": (job(deletionTimestamp=at(1)), "ended", "was deleted", RETRY),
}
"""Jobs without a pod, with the state of each."""


def failed(state: dict, *conditions: dict, **fields: Any) -> dict:
    return pod("Failed", *conditions, state=state, **fields)


TIMEOUT = "i/o timeout"
UNSCHEDULABLE = condition("PodScheduled", "Unschedulable", "0/3 nodes", "False")
DENIED, NO_SECRET = "pull access denied, 403 Forbidden", 'secret "s" not found'
TAINTED, KUBELET = disrupted("DeletionByTaintManager"), disrupted("TerminationByKubelet")
MORE_MEMORY = (
    "out of memory: the kernel has killed it, because its container may not use more. Give it more "
    "`memory` in the hosts file"
)
NO_FILE, CREATE = "no such file", "CreateContainerConfigError"
PODS = {
    "unseen": (pod("Pending"), "waiting", "waits for a node", None),
    "no status": ({"metadata": {"name": "x"}, "status": {}}, "waiting", "", None),
    "unschedulable": (
        pod("Pending", UNSCHEDULABLE),
        "waiting",
        "waits for a node: 0/3 nodes",
        None,
    ),
    "creating": (waiting("ContainerCreating"), "waiting", "ContainerCreating", None),
    "pull error": (waiting("ErrImagePull", TIMEOUT), "waiting", TIMEOUT, None),
    "registry away": (
        waiting("ImagePullBackOff", TIMEOUT, 400),
        "ended",
        "could not be pulled",
        RETRY,
    ),
    "no image": (waiting("ErrImagePull", IMAGE_MISSING), "ended", "Correct `image`", CONFIG),
    "image denied": (waiting("ImagePullBackOff", DENIED), "ended", "pod.imagePullSecrets", CONFIG),
    "invalid image": (waiting("InvalidImageName", "x"), "ended", "InvalidImageName", CONFIG),
    "no secret yet": (waiting(CREATE, NO_SECRET), "waiting", NO_SECRET, None),
    "no secret": (waiting(CREATE, NO_SECRET, 100), "ended", NO_SECRET, CONFIG),
    "root": (waiting(CREATE, "will run as root", 100), "ended", "will run as root", CONFIG),
    "running": (pod("Running", state={"running": {}}), "running", "", None),
    "stopping": (pod("Running", deleted=-20), "running", "", None),
    "out of memory": (failed(ended(137, "OOMKilled")), "ended", MORE_MEMORY, RETRY),
    "killed": (failed(ended(137)), "ended", "signal 9", RETRY),
    "config error": (failed(ended(78)), "ended", "exit code 78", CONFIG),
    "machine error": (failed(ended(75)), "ended", "exit code 75", RETRY),
    "no outcome": (pod("Succeeded", state=ended(0, "Completed")), "ended", "exit code 0", RETRY),
    "no interpreter": (failed(ended(128, "StartError", message=NO_FILE)), "ended", NO_FILE, CONFIG),
    "wrong python": (failed(ended(127)), "ended", "`python` and `code` say where", CONFIG),
    "evicted": (
        *(failed({}, KUBELET, reason="Evicted", message="low on resource"), "ended"),
        *("Evicted: low on resource", RETRY),
    ),
    "preempted": (
        *(failed(ended(143), disrupted("PreemptionByScheduler")), "ended"),
        *("PreemptionByScheduler: details", RETRY),
    ),
    "preempted by the kubelet": (
        *(failed({}, reason="Preempting", message="for a critical pod"), "ended"),
        *("Preempting: for a critical", RETRY),
    ),
    "drained": (
        *(failed({}, disrupted("EvictionByEvictionAPI")), "ended"),
        *("EvictionByEvictionAPI: details", RETRY),
    ),
    "shut down": (failed({}, KUBELET, reason="Terminated"), "ended", "Terminated: details", RETRY),
    "node removed": (
        failed({}, disrupted("DeletionByPodGC")),
        "ended",
        "DeletionByPodGC: details",
        RETRY,
    ),
    "node silent": (
        pod("Running", TAINTED, deleted=60),
        "ended",
        "DeletionByTaintManager: details",
        RETRY,
    ),
    "node silent for a moment": (pod("Running", TAINTED, deleted=10), "running", "", None),
    "node lost": (pod("Running", deleted=60), "ended", "does not answer (node loss)", RETRY),
    "admission": (
        *(failed({}, reason="UnexpectedAdmissionError", message="no device"), "ended"),
        *("UnexpectedAdmissionError: no device", RETRY),
    ),
}
"""Pods of a job, with the state of each."""


@pytest.mark.parametrize(
    ("found", "pods", "phase", "text", "exit_code"),
    [
        *(pytest.param(found, [], *state, id=name) for name, (found, *state) in JOBS.items()),
        *(pytest.param(job(), [one], *state, id=name) for name, (one, *state) in PODS.items()),
    ],
)
def test_the_state_of_a_job(found, pods, phase, text, exit_code):
    state = to_job_state(found, pods, NOW, 3600)
    assert (state.phase, text in state.message) == (phase, True), state
    if exit_code is not None:
        assert state.exit_code is exit_code


def test_the_newest_pod_counts():
    old = pod("Failed", state=ended(137), ago=100)
    assert to_job_state(job(), [pod("Running", ago=5), old], NOW, 3600).phase == "running"


def test_a_wait_ends_with_the_time_of_the_hosts_file():
    for found, pods in ((job(ago=500), []), (job(ago=500), [waiting("ContainerCreating")])):
        assert to_job_state(found, pods, NOW, 600).phase == "waiting"
        state = to_job_state(found, pods, NOW, 400)
        assert (state.phase, state.exit_code) == ("ended", ExitCode.RETRY)
        assert "has not run within 400 s (queue_timeout_seconds" in state.message
    assert to_job_state(job(ago=500), [pod("Running")], NOW, 400).phase == "running"


def test_a_gang_whose_pod_has_succeeded_or_whose_job_has_ended_is_not_replaced():
    assert may_replace_pods(job())
    assert may_replace_pods(job(status={"failed": 3, "active": 2}))
    assert not may_replace_pods(job(status={"succeeded": 1}))
    assert not may_replace_pods(job(condition("Failed", "DeadlineExceeded")))
    assert not may_replace_pods(job(condition("Complete")))


def test_the_newest_warning_is_told():
    events = [
        {"type": "Warning", "message": "first", "lastTimestamp": at(20)},
        {"type": "Warning", "message": "Error creating:  quota", "eventTime": at(5)},
        {"type": "Normal", "message": "created", "lastTimestamp": at(1)},
    ]
    assert find_warning(events) == "Error creating: quota"
    assert find_warning(events[2:]) == ""
