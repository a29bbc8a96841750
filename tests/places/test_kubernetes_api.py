"""The fake API server as the official client sees it, and its refusals."""

from __future__ import annotations

import pytest
from fake_kubernetes import KubernetesCluster
from fake_kubernetes.hosts import make_hosts
from fake_kubernetes.validation import find_schema_problems

from pipeline_ops.errors import ConfigError
from pipeline_ops.places.kubernetes import KubernetesClient
from pipeline_ops.places.kubernetes_manifest import build_gang


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def open_client(cluster, monkeypatch):
    def open_as(account: str) -> KubernetesClient:
        monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig(account)))
        return KubernetesClient(cluster.namespace)

    yield open_as
    cluster.reset()


def test_an_unknown_account_is_refused(cluster, open_client, monkeypatch):
    file = cluster.write_kubeconfig("admin")
    file.write_text(file.read_text().replace("token-of-admin", "wrong"))
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(ConfigError, match="401"):
        KubernetesClient(cluster.namespace).read("jobs", "x")


def test_a_certificate_of_another_authority_is_refused(cluster, monkeypatch, tmp_path):
    with KubernetesCluster(tmp_path / "other") as other:
        file = other.write_kubeconfig("admin")
        file.write_text(file.read_text().replace(other.address, cluster.address))
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(ConfigError, match="certificate verify failed"):
            KubernetesClient(cluster.namespace).read("jobs", "x")


def test_the_server_shows_what_a_real_one_shows(cluster, open_client):
    """All versions of all objects that it has shown so far are valid."""
    job, _, _ = build_gang(make_hosts(), "gang", ["false"], 60)
    open_client("admin").create("jobs", job)
    cluster.find_pod("gang", "Failed")
    for _, found in cluster.objects.versions:
        assert find_schema_problems(found) == []


def test_the_server_refuses_what_a_real_one_refuses(cluster, open_client):
    opened = open_client("admin")
    job, service, _ = build_gang(make_hosts(), "gang", ["true"], 60)
    assert opened.create("services", service)["metadata"]["uid"]
    assert opened.create("services", service) is None, "409: it exists"
    assert opened.read("services", "missing") is None
    job["metadata"]["name"] = "Not_A_Name"
    with pytest.raises(ConfigError, match=r"\(422\).*Not_A_Name"):
        opened.create("jobs", job)
    opened.delete("services", "gang")
    opened.delete("services", "gang")


def test_an_answer_that_comes_late_is_awaited(cluster, open_client):
    """A total limit of 5 s for a request once stood beside those for its parts."""
    cluster.api.delay_seconds, num_requests = 6.0, len(cluster.api.requests)
    assert open_client("admin").read("jobs", "missing") is None
    assert len(cluster.api.requests) == num_requests + 1
