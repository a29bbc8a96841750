"""The states of a job by the objects of Kubernetes.

The objects have the fields that the documentation describes. No cluster has recorded them.
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.places.kubernetes_manifest import STARTED
from pipeline_ops.jobs.places.kubernetes_state import (
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


CASES = {
    "no pod yet": (job(), [], "waiting", "has not made its pod", None),
    "suspended": (
        job(condition("Suspended"), spec={"suspend": True}, annotations={STARTED: "true"}),
        *([], "waiting", "queue of the cluster", None),
    ),
    "its Secret is made": (
        job(condition("Suspended"), spec={"suspend": True}),
        *([], "waiting", "its Secret is made", None),
    ),
    "its starter was killed": (
        job(condition("Suspended"), spec={"suspend": True}, ago=100.0),
        *([], "ended", "started the job was killed", ExitCode.RETRY),
    ),
    "unknown": (None, [], "absent", "does not know", None),
    "unschedulable": (
        job(),
        [pod("Pending", condition("PodScheduled", "Unschedulable", "0/3 nodes", "False"))],
        *("waiting", "waits for a node: 0/3 nodes", None),
    ),
    "unseen": (job(), [pod("Pending")], "waiting", "waits for a node", None),
    "no status": (None, [{"metadata": {"name": "x"}, "status": {}}], "waiting", "", None),
    "creating": (job(), [waiting("ContainerCreating")], "waiting", "ContainerCreating", None),
    "pull error": (job(), [waiting("ErrImagePull", "i/o timeout")], "waiting", "i/o timeout", None),
    "pull error for long": (
        *(job(), [waiting("ImagePullBackOff", "i/o timeout", 400)]),
        *("ended", "could not be pulled", ExitCode.RETRY),
    ),
    "no image": (
        *(job(), [waiting("ErrImagePull", IMAGE_MISSING)]),
        *("ended", "Correct `image`", ExitCode.CONFIG),
    ),
    "image denied": (
        *(job(), [waiting("ImagePullBackOff", "pull access denied, 403 Forbidden")]),
        *("ended", "pod.imagePullSecrets", ExitCode.CONFIG),
    ),
    "invalid image": (
        *(job(), [waiting("InvalidImageName", "couldn't parse")]),
        *("ended", "InvalidImageName", ExitCode.CONFIG),
    ),
    "no secret yet": (
        *(job(), [waiting("CreateContainerConfigError", 'secret "s" not found')]),
        *("waiting", 'secret "s" not found', None),
    ),
    "no secret": (
        *(job(), [waiting("CreateContainerConfigError", 'secret "s" not found', 100)]),
        *("ended", 'secret "s" not found', ExitCode.CONFIG),
    ),
    "root": (
        *(job(), [waiting("CreateContainerConfigError", "image will run as root", 100)]),
        *("ended", "will run as root", ExitCode.CONFIG),
    ),
    "running": (job(), [pod("Running", state={"running": {}})], "running", "", None),
    "stopping": (job(), [pod("Running", deleted=-20)], "running", "", None),
    "out of memory": (
        *(job(), [pod("Failed", state=ended(137, "OOMKilled"))]),
        *("ended", "out of memory", ExitCode.RETRY),
    ),
    "killed": (
        *(job(), [pod("Failed", state=ended(137))]),
        *("ended", "signal 9", ExitCode.RETRY),
    ),
    "exit code of a config error": (
        *(job(), [pod("Failed", state=ended(78))]),
        *("ended", "exit code 78", ExitCode.CONFIG),
    ),
    "exit code of a machine error": (
        *(job(), [pod("Failed", state=ended(75))]),
        *("ended", "exit code 75", ExitCode.RETRY),
    ),
    "succeeded without a status": (
        *(job(), [pod("Succeeded", state=ended(0, "Completed"))]),
        *("ended", "exit code 0", ExitCode.RETRY),
    ),
    "no interpreter": (
        *(job(), [pod("Failed", state=ended(128, "StartError", message="no such file"))]),
        *("ended", "no such file", ExitCode.CONFIG),
    ),
    "wrong python": (
        *(job(), [pod("Failed", state=ended(127))]),
        *("ended", "`python` and `code` say where", ExitCode.CONFIG),
    ),
    "evicted": (
        job(),
        [
            pod(
                "Failed",
                disrupted("TerminationByKubelet"),
                reason="Evicted",
                message="low on resource: memory",
            )
        ],
        *("ended", "Evicted: low on resource: memory", ExitCode.RETRY),
    ),
    "preempted": (
        *(job(), [pod("Failed", disrupted("PreemptionByScheduler"), state=ended(143))]),
        *("ended", "PreemptionByScheduler: details", ExitCode.RETRY),
    ),
    "preempted by the kubelet": (
        *(job(), [pod("Failed", reason="Preempting", message="for a critical pod")]),
        *("ended", "Preempting: for a critical", ExitCode.RETRY),
    ),
    "drained": (
        *(job(), [pod("Failed", disrupted("EvictionByEvictionAPI"))]),
        *("ended", "EvictionByEvictionAPI: details", ExitCode.RETRY),
    ),
    "node shut down": (
        *(job(), [pod("Failed", disrupted("TerminationByKubelet"), reason="Terminated")]),
        *("ended", "Terminated: details", ExitCode.RETRY),
    ),
    "node removed": (
        *(job(), [pod("Failed", disrupted("DeletionByPodGC"))]),
        *("ended", "DeletionByPodGC: details", ExitCode.RETRY),
    ),
    "node silent": (
        *(job(), [pod("Running", disrupted("DeletionByTaintManager"), deleted=60)]),
        *("ended", "DeletionByTaintManager: details", ExitCode.RETRY),
    ),
    "node silent for a moment": (
        *(job(), [pod("Running", disrupted("DeletionByTaintManager"), deleted=10)]),
        *("running", "", None),
    ),
    "deleted on a silent node": (
        *(job(), [pod("Running", deleted=60)]),
        *("ended", "node does not answer (node loss)", ExitCode.RETRY),
    ),
    "deadline": (
        *(job(condition("Failed", "DeadlineExceeded", "longer than specified")), []),
        *("ended", "DeadlineExceeded: longer than specified", ExitCode.RETRY),
    ),
    "disrupted, and its pod is gone": (
        job(
            condition(
                "Failed",
                "PodFailurePolicy",
                "Pod ml/x has condition DisruptionTarget matching FailJob rule at index 0",
            )
        ),
        [],
        *(
            "ended",
            "evicted or preempted, or its node was lost: PodFailurePolicy: Pod ml/x",
            ExitCode.RETRY,
        ),
    ),
    "failed, and its pod is gone": (
        *(job(condition("Failed", "PodFailurePolicy", "failed with exit code 137")), []),
        *("ended", "exit code 137", ExitCode.RETRY),
    ),
    "deleted": (job(deletionTimestamp=at(1)), [], "ended", "was deleted", ExitCode.RETRY),
    "admission": (
        *(job(), [pod("Failed", reason="UnexpectedAdmissionError", message="no device")]),
        *("ended", "UnexpectedAdmissionError: no device", ExitCode.RETRY),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_state_of_a_job(case):
    found, pods, phase, text, exit_code = CASES[case]
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
