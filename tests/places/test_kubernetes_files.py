"""The files in docker/kubernetes, and the hosts files for Kubernetes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from engines.fetch import RUNNER
from fake_kubernetes.rbac import Right, read_roles
from fake_kubernetes.validation import find_schema_problems, validate

from pipeline_ops.config.hosts import load_hosts
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.places.kubernetes import KubernetesHosts
from pipeline_ops.places.kubernetes_manifest import build_gang

FOLDER = CODE_ROOT / "docker" / "kubernetes"
HOSTS = sorted(path.stem for path in (FOLDER / "hosts").glob("*.yaml"))
USER = 10001


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def merge(first: Any, second: Any) -> Any:
    """Merges values in the way in which Helm merges files."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    both = {key: merge(first[key], second[key]) for key in first.keys() & second.keys()}
    return first | second | both


VALUES = {
    "celery": read("values.yaml"),
    "kubernetes": merge(read("values.yaml"), read("values-kubernetes-executor.yaml")),
}


@pytest.mark.parametrize("name", ["rbac.yaml", "network-policy.yaml", "gang-from-airflow.yaml"])
def test_all_objects_are_what_kubernetes_publishes(name):
    documents = list(yaml.safe_load_all((FOLDER / name).read_text()))
    assert documents
    for document in documents:
        assert validate(document) == []


def test_nobody_may_read_secrets_or_change_what_runs():
    for rights in read_roles(FOLDER / "rbac.yaml").values():
        for group, resource, verb in rights:
            assert "*" not in (group, resource, verb)
            assert verb not in ("update", "deletecollection", "escalate", "bind")
            # A Job is created suspended and then resumed. Its template cannot be changed.
            assert verb != "patch" or resource == "jobs"
            if resource == "secrets":
                assert verb in ("create", "delete")
    roles = read_roles(FOLDER / "rbac.yaml")
    assert Right("", "pods/exec", "create") not in roles["trainyard-airflow"]
    assert not [right for right in roles["trainyard-supervisor"] if right.resource == "secrets"]


def test_each_role_has_its_accounts():
    documents = list(yaml.safe_load_all((FOLDER / "rbac.yaml").read_text()))
    bindings = {one["roleRef"]["name"]: one for one in documents if one["kind"] == "RoleBinding"}
    assert bindings.keys() == read_roles(FOLDER / "rbac.yaml").keys()
    [account] = [one for one in documents if one["kind"] == "ServiceAccount"]
    [subject] = bindings["trainyard-supervisor"]["subjects"]
    assert subject["name"] == account["metadata"]["name"]
    assert load_hosts(FOLDER / "hosts", "supervisor").service_account == subject["name"]
    airflow = {one["name"] for one in bindings["trainyard-airflow"]["subjects"]}
    assert airflow == {"airflow-worker", "airflow-triggerer"}, "of the chart's release `airflow`"


def test_airflow_has_the_rights_of_a_gang_only_with_the_binding_for_it():
    binding, roles = read("gang-from-airflow.yaml"), read_roles(FOLDER / "rbac.yaml")
    [subject] = binding["subjects"]
    documents = yaml.safe_load_all((FOLDER / "rbac.yaml").read_text())
    [airflow] = [
        one
        for one in documents
        if one["kind"] == "RoleBinding" and one["roleRef"]["name"] == "trainyard-airflow"
    ]
    assert subject in airflow["subjects"]
    needed = roles["trainyard-supervisor"]
    assert not needed <= roles["trainyard-airflow"]
    assert needed <= roles["trainyard-airflow"] | roles[binding["roleRef"]["name"]]


def test_the_chart_is_told_the_version_of_airflow_that_the_image_locks():
    lock = (CODE_ROOT / "docker" / "locks" / "airflow.txt").read_text()
    [locked] = re.findall(r"^apache-airflow==(\S+)", lock, re.MULTILINE)
    assert read("values.yaml")["airflowVersion"] == locked


def test_each_secret_for_the_store_is_one_that_the_document_creates():
    document = (CODE_ROOT / "docs" / "docker.md").read_text()
    entries = VALUES["celery"]["secret"]
    for entry in entries:
        assert f"--from-literal={entry['secretKey']}=" in document
    used = {entry["secretName"] for entry in entries}
    used |= {load_hosts(FOLDER / "hosts", name).secret for name in HOSTS}
    used |= set(re.findall(r"secretRef: {name: (\S+)}", (FOLDER / "flink.yaml").read_text()))
    assert used == set(re.findall(r"create secret generic (\S+)", document))
    assert {entry["envName"] for entry in entries} >= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def test_the_network_policy_is_for_all_pods_of_trainyard():
    policy = read("network-policy.yaml")
    job, _, _ = build_gang(load_hosts(FOLDER / "hosts", "gang"), "gang", ["true"], 60)
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["ingress"] == []


@pytest.mark.parametrize("name", HOSTS)
def test_a_hosts_file_is_valid(name):
    hosts = load_hosts(FOLDER / "hosts", name)
    assert isinstance(hosts, KubernetesHosts)
    assert hosts.secret, "the access to the store is not in the file"
    for manifest in build_gang(hosts, "gang", ["true"], 60):
        assert validate(manifest) == []


def test_the_example_next_to_the_pipelines_is_valid():
    assert isinstance(load_hosts(CODE_ROOT / "configs" / "hosts", "kubernetes"), KubernetesHosts)


@pytest.mark.parametrize("executor", VALUES)
def test_airflow_runs_as_the_user_of_its_image_and_without_rights(executor):
    values = VALUES[executor]
    dockerfile = (CODE_ROOT / "docker" / "airflow.Dockerfile").read_text()
    assert f"USER {USER}:{USER}" in dockerfile
    assert f"AIRFLOW_HOME={values['airflowHome']}" in dockerfile
    assert (values["uid"], values["gid"]) == (USER, USER)
    assert values["securityContexts"]["pod"]["runAsNonRoot"] is True
    assert values["securityContexts"]["containers"]["capabilities"] == {"drop": ["ALL"]}
    tokens = {
        name
        for name in ("apiServer", "scheduler", "dagProcessor", "triggerer", "workers")
        if values[name]["serviceAccount"]["automountServiceAccountToken"]
    }
    wanted = {"triggerer", "workers"} | ({"scheduler"} if executor == "kubernetes" else set())
    assert tokens == wanted
    assert values["allowPodLaunching"] is (executor == "kubernetes")


@pytest.mark.parametrize("executor", VALUES)
def test_no_secret_is_in_the_values(executor):
    text = json.dumps(VALUES[executor])
    for word in ("password=", "://admin", "AKIA", "BEGIN "):
        assert word not in text
    data = VALUES[executor]["data"]
    assert set(data) == {"metadataSecretName", "resultBackendSecretName", "brokerUrlSecretName"}


def test_the_job_server_is_valid_and_has_the_address_that_the_pipeline_names():
    documents = list(yaml.safe_load_all((FOLDER / "beam-job-server.yaml").read_text()))
    service, deployment, policy = documents
    assert validate(service) == validate(policy) == []
    pod = {"apiVersion": "v1", "kind": "Pod"} | deployment["spec"]["template"]
    pod["metadata"]["name"] = deployment["metadata"]["name"]
    assert validate(pod) == []
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    [container] = pod["spec"]["containers"]
    name, flink = service["metadata"]["name"], (FOLDER / "flink.yaml").read_text()
    assert {f"--job-host={name}", "--job-port=8099"} < {*container["args"]}
    assert f"endpoint: {name}:8099" in flink
    [version] = re.findall(r"^  image: flink:(.+)$", flink, re.MULTILINE)
    assert container["image"] == f"apache/beam_flink{version}_job_server:{RUNNER}"


def test_flink_is_open_to_its_namespace_by_its_rest_port_alone():
    """M8. Its pool, whose port nobody outside of the pod uses, starts what a client sends it."""
    deployment, policy = yaml.safe_load_all((FOLDER / "flink.yaml").read_text())
    assert validate(policy) == []
    name, namespace = (deployment["metadata"][key] for key in ("name", "namespace"))
    assert policy["metadata"]["namespace"] == namespace
    own = {"matchLabels": {"app": name}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    among_themselves, others = policy["spec"]["ingress"]
    assert among_themselves == {"from": [{"podSelector": own}]}
    assert others["ports"] == [{"port": 8081}]
    assert f"rest_address: http://{name}-rest:8081" in (FOLDER / "flink.yaml").read_text()
    for peer in others["from"]:
        assert "namespaceSelector" not in peer or peer["podSelector"]["matchLabels"]
    page = (CODE_ROOT / "docs" / "flink-and-spark.md").read_text()
    assert "| 8081 |" in page and "| 50000 |" in page


def test_only_flink_has_the_token_that_creates_pods():
    """M8: the worker beside it runs the authors' stages."""
    deployment, _ = yaml.safe_load_all((FOLDER / "flink.yaml").read_text())
    pod = deployment["spec"]["taskManager"]["podTemplate"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    tokens = [
        volume["name"]
        for volume in pod["volumes"]
        for source in volume.get("projected", {"sources": []})["sources"]
        if "serviceAccountToken" in source
    ]
    [token] = tokens
    with_token = [
        container["name"]
        for container in pod["containers"]
        if token in [mount["name"] for mount in container["volumeMounts"]]
    ]
    assert with_token == ["flink-main-container"]


def test_the_sidecar_of_flink_is_a_valid_container():
    deployment, _ = yaml.safe_load_all((FOLDER / "flink.yaml").read_text())
    manager = deployment["spec"]["taskManager"]
    pod = {"apiVersion": "v1", "kind": "Pod"} | manager["podTemplate"]
    for container in pod["spec"]["containers"]:
        container.setdefault("image", "flink")
    assert find_schema_problems(pod) == []
    [worker] = [one for one in pod["spec"]["containers"] if one["name"] == "beam-worker"]
    dockerfile = (CODE_ROOT / "docker" / "beam-worker.Dockerfile").read_text()
    port = worker["ports"][0]["containerPort"]
    assert f"EXPOSE {port}" in dockerfile
    assert f"--service_port={port}" in dockerfile
    assert f"localhost:{port}" in (FOLDER / "flink.yaml").read_text(), "what the pipeline says"
    assert worker["securityContext"]["runAsUser"] == USER
