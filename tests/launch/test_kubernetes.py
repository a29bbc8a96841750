"""The launcher for Kubernetes, without a cluster.

The manifest is checked with Kubernetes's published schema, and a stand-in for kubectl runs pods on
this machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
from launch.running import QUICK, RunningJob, config_with_hosts

from pipeline_ops.config.hosts_clusters import KubernetesHosts
from pipeline_ops.errors import ExitCode
from pipeline_ops.launch.kubernetes import build_manifest

SCHEMA = json.loads((Path(__file__).parent / "kubernetes-v1.34.json").read_text())
FULL = {
    "launcher": "kubernetes",
    "image": "registry.example/trainyard:1",
    "pods": 3,
    "namespace": "ml",
    "gpus": 2,
    "service_account": "trainer",
    "volumes": [{"claim": "shared", "mount": "/trainyard"}],
    "node_selector": {"pool": "gpu"},
    "image_pull_secrets": ["pull"],
    "python": "/usr/bin/python3",
    "code": "/app",
}


def check(item: dict) -> None:
    jsonschema.Draft202012Validator(
        {"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{item['kind']}"}
    ).validate(item)


@pytest.mark.parametrize(
    "values",
    [FULL, {key: FULL[key] for key in ("launcher", "image", "pods", "volumes")}],
    ids=["full", "least"],
)
def test_the_manifest_is_what_kubernetes_publishes(values):
    for item in build_manifest(
        KubernetesHosts.model_validate(values), "trainyard-digits-1", "/run", 3600
    )["items"]:
        check(item)


def test_the_schema_can_be_seen_to_refuse():
    service, job, _ = build_manifest(KubernetesHosts.model_validate(FULL), "x", "/run", 3600)[
        "items"
    ]
    job["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    service["spec"]["clusterIP"] = 3
    for item in (service, job):
        with pytest.raises(jsonschema.ValidationError):
            check(item)


def test_every_pod_has_a_name_that_the_headless_service_resolves():
    service, job, _ = build_manifest(KubernetesHosts.model_validate(FULL), "gang", "/run", 3600)[
        "items"
    ]
    assert service["spec"]["clusterIP"] == "None"
    assert (
        job["spec"]["completionMode"] == "Indexed"
        and job["spec"]["completions"] == job["spec"]["parallelism"] == 3
    )
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert (
        service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    )
    assert job["spec"]["activeDeadlineSeconds"] == 3600, (
        "the cluster ends the pods of a dead launcher"
    )


def test_a_pod_has_no_rights_that_it_does_not_need():
    """F17."""
    hosts = KubernetesHosts.model_validate(FULL)
    for named, wanted in ((None, False), ("trainer", True)):
        _, job, _ = build_manifest(
            hosts.model_copy(update={"service_account": named}), "gang", "/run", 60
        )["items"]
        pod = job["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is wanted, (
            "only an account that was named has a token"
        )
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"name": "tmp", "mountPath": "/tmp"} in pod["containers"][0]["volumeMounts"], (
        "jobs need a folder for temporary files"
    )


def test_only_pods_of_the_same_gang_reach_a_pod():
    """F5, F17."""
    _, job, policy = build_manifest(KubernetesHosts.model_validate(FULL), "gang", "/run", 3600)[
        "items"
    ]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected == job["spec"]["template"]["metadata"]["labels"], (
        "the policy is for the pods of the gang"
    )
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]
    assert "gang" in selected.values(), "another gang has another label"


def test_a_pod_trains_through_kubectl_exec_and_is_deleted_after_it(
    dataset, make_job_in, tmp_path, monkeypatch
):
    state = tmp_path / "cluster"
    state.mkdir()
    monkeypatch.setenv(
        "PATH", f"{Path(__file__).parent / 'stand_in'}{os.pathsep}{os.environ['PATH']}"
    )
    monkeypatch.setenv("KUBECTL_STAND_IN", str(state))
    config = config_with_hosts(
        tmp_path, {key: FULL[key] for key in ("launcher", "image", "volumes")} | {"pods": 1}
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    job = RunningJob(
        make_job_in(tmp_path, dataset, config)(
            "attempt",
            **(QUICK | {"train__epochs": 1, "train__workers": 1, "train__strategy": "one_device"}),
        ),
        temporary,
    )
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert job.survivors() == []
    assert list(temporary.iterdir()) == []
    calls = (state / "calls").read_text().splitlines()
    assert any(call.startswith("exec --stdin trainyard-digits-") for call in calls)
    assert calls[-1].startswith("delete --ignore-not-found")
