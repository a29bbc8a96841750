"""The manifests for Kubernetes: accepted by the published schema, and with few rights."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from fake_kubernetes.validation import validate

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.places.kubernetes import KubernetesHosts
from pipeline_ops.places.kubernetes_manifest import (
    RESUMED,
    STARTED,
    build_gang,
    build_job,
    build_secret,
    select_secret_values,
    set_owner,
)
from pipeline_ops.places.place import JobLaunch, name_job
from pipeline_ops.storage.open_store import STORES_VARIABLE, open_root

IMAGE = f"registry.example/jobs@sha256:{'1' * 64}"
FULL = {
    "launcher": "kubernetes",
    "image": IMAGE,
    "namespace": "ml",
    "pods": 3,
    "cpu": "500m",
    "memory": "1.5Gi",
    "gpus": 2,
    "secret": "store",
    "volumes": [{"claim": "raw", "mount": "/data"}],
    "pod": {
        "serviceAccountName": "trainer",
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "training",
        "imagePullSecrets": [{"name": "pull"}],
        "securityContext": {"fsGroup": 20},
    },
    "python": "/usr/bin/python3",
    "code": "/app",
    "environment": {"HF_TOKEN": "hidden", "TMPDIR": "/data/tmp"},
    "queue_timeout_seconds": 600,
}
LEAST = {"launcher": "kubernetes", "image": IMAGE}
LAUNCH = JobLaunch(
    Attempt(open_root("/root/runs/digits/run/train/attempt-00000001")),
    "beam_jobs.__main__",
    {"TOKEN": "hidden"},
    3600,
    "digits",
    "preprocess",
)


def build(values: dict, **changes) -> dict:
    return build_job(KubernetesHosts.model_validate(values | changes), LAUNCH, True)


def find_container(job: dict) -> dict:
    [container] = job["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("values", [FULL, LEAST], ids=["full", "least"])
def test_all_objects_are_what_kubernetes_publishes(values):
    hosts = KubernetesHosts.model_validate(values)
    secret = build_secret("x", {"NAME": "value"})
    for manifest in [build(values), secret, *build_gang(hosts, "gang", ["true"], 60)]:
        assert validate(manifest) == []


def test_the_schema_can_be_seen_to_refuse():
    job = build(FULL)
    find_container(job)["imagePolicy"] = "Always"
    assert "imagePolicy" in validate(job)[0]
    job = build(FULL)
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    assert validate(job) == ["spec.podFailurePolicy: only with restartPolicy Never"]
    job = build(FULL)
    find_container(job)["volumeMounts"][0]["name"] = "missing"
    assert validate(job) == ["volumeMounts.name: Not found: 'missing'"]


def test_a_job_has_one_pod_that_is_never_replaced():
    spec = build(FULL)["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert {rule["action"] for rule in spec["podFailurePolicy"]["rules"]} == {"FailJob"}
    assert "completions" not in spec, "one, by default"


def test_the_cluster_ends_a_job_only_after_its_own_deadline():
    assert build(FULL)["spec"]["activeDeadlineSeconds"] == 600 + 3600 + 300
    assert build(FULL)["spec"]["ttlSecondsAfterFinished"] > 3600


def test_the_command_is_that_of_the_init_process():
    assert find_container(build(FULL))["command"] == [
        *(
            "env",
            "PYTHONSAFEPATH=1",
            "PYTHONHASHSEED=0",
            "PYTHONPATH=/app",
            "/usr/bin/python3",
            "-m",
        ),
        *("pipeline_ops.places.init_process", "beam_jobs.__main__", str(LAUNCH.attempt.request)),
    ]
    assert find_container(build(LEAST))["command"][:5] == [
        "env",
        "PYTHONSAFEPATH=1",
        "PYTHONHASHSEED=0",
        "python",
        "-m",
    ]


def test_the_name_and_the_labels_find_the_job_again():
    metadata = build(FULL)["metadata"]
    assert metadata["name"] == name_job(LAUNCH.attempt)
    assert metadata["labels"]["app.kubernetes.io/instance"] == metadata["name"]
    assert metadata["annotations"]["trainyard/attempt"] == str(LAUNCH.attempt.folder)
    template = build(FULL)["spec"]["template"]["metadata"]
    assert template["labels"] == metadata["labels"]


def test_an_object_with_an_owner_goes_with_its_job():
    job = {"metadata": {"name": "job-1", "uid": "uid-1"}}
    owned = set_owner(build_secret("name", {"TOKEN": "hidden"}), job)
    assert validate(owned) == []
    assert owned["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "job-1", "uid": "uid-1"}
    ]


def test_a_job_is_suspended_until_its_secret_is_there():
    job = build(FULL)
    assert job["spec"]["suspend"] is True
    assert STARTED not in job["metadata"]["annotations"]
    assert RESUMED["spec"]["suspend"] is False
    assert STARTED in RESUMED["metadata"]["annotations"]
    hosts = KubernetesHosts.model_validate(LEAST)
    assert build_job(hosts, LAUNCH, False)["spec"]["suspend"] is False


def test_no_secret_is_in_a_job():
    assert "hidden" not in str(build(FULL))
    assert find_container(build(FULL))["envFrom"] == [
        {"secretRef": {"name": "store"}},
        {"secretRef": {"name": name_job(LAUNCH.attempt)}},
    ]
    hosts = KubernetesHosts.model_validate(FULL)
    values = select_secret_values(hosts, LAUNCH.environment, {})
    assert values == LAUNCH.environment | hosts.environment
    assert not values.keys() & {each["name"] for each in find_container(build(FULL))["env"]}
    assert "hidden" not in str(build_gang(hosts, "gang", ["sleep"], 60))
    secret = build_secret("name", {"TOKEN": "hidden"})
    assert base64.b64decode(secret["data"]["TOKEN"]) == b"hidden"
    hosts = KubernetesHosts.model_validate(LEAST)
    assert find_container(build_job(hosts, LAUNCH, False))["envFrom"] == []


@pytest.mark.parametrize("access", [{}, {"secret": "own"}, {"pod": {"serviceAccountName": "own"}}])
def test_credentials_of_airflow_are_sent_only_if_the_pod_has_no_others(access, tmp_path):
    hosts = KubernetesHosts.model_validate(LEAST | access)
    file = tmp_path / "key.json"
    file.write_text("{}")
    environment = {
        "AWS_ACCESS_KEY_ID": "outer",
        "GOOGLE_SERVICE_ACCOUNT": str(file),
        "AIRFLOW__CORE__FERNET_KEY": "never",
        "PATH": "/bin",
    }
    launch = {"AWS_ACCESS_KEY_ID": "inner", STORES_VARIABLE: "{}", "OTHER": "x"}
    values = select_secret_values(hosts, launch, environment)
    needed = {STORES_VARIABLE: "{}", "OTHER": "x"}
    credentials = {"AWS_ACCESS_KEY_ID": "inner", "GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}
    assert values == (needed if access else needed | credentials)


def test_a_pod_has_no_rights_that_it_does_not_need():
    for named, wanted in ((None, False), ("trainer", True)):
        account = {"serviceAccountName": named} if named else {}
        pod = build(FULL, pod=account)["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is wanted
        assert pod.get("serviceAccountName") == named
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_a_pod_can_write_to_folders_of_its_own_and_nowhere_else():
    container = find_container(build(FULL, environment={}))
    volumes = build(FULL)["spec"]["template"]["spec"]["volumes"]
    kinds = {volume["name"]: volume.get("emptyDir") for volume in volumes}
    mounts = {mount["mountPath"]: kinds[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts == {"/data": None, "/work": {}, "/tmp": {}, "/dev/shm": {"medium": "Memory"}}
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    for name in ("HOME", "TMPDIR", "TRAINYARD_LOCAL_FOLDER"):
        assert any(variables[name].startswith(path) for path in ("/work", "/tmp"))


def test_resources_and_the_choice_of_nodes_are_fields():
    container, pod = find_container(build(FULL)), build(FULL)["spec"]["template"]["spec"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"] == {
        "cpu": "500m",
        "memory": "1.5Gi",
        "nvidia.com/gpu": "2",
    }
    assert find_container(build(LEAST, cpu=None, memory=None))["resources"]["limits"] == {}
    own = FULL["pod"] | {"securityContext": pod["securityContext"]}
    assert own.items() <= pod.items()
    assert pod["securityContext"]["fsGroup"] == 20
    assert pod["securityContext"]["runAsNonRoot"] is True, "merged, and not replaced"


@pytest.mark.parametrize("key", ["containers", "initContainers", "volumes", "restartPolicy"])
def test_a_pod_of_the_hosts_file_can_not_replace_what_runs(key):
    with pytest.raises(ValueError, match=f"must not set {key}, which Trainyard writes"):
        build(LEAST, pod={key: []})


def test_a_folder_is_seen_only_through_a_volume():
    hosts = KubernetesHosts.model_validate(FULL)
    assert hosts.find_folder_problem(Path("/data/digits")) == ""
    assert "[{claim: NAME, mount: /database}]" in hosts.find_folder_problem(Path("/database"))
