"""A job and a gang on a real Kubernetes, with the files of docker/kubernetes.

The cluster has one node. No test enforces a network policy, and none has GPUs.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import pytest
import yaml
from fake_kubernetes.hosts import make_hosts
from launch.placed_training import PlacedTraining
from launch.running import INTERVAL, wait_until
from placed_job import PlacedJob
from real_kubernetes import RealCluster

from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ExitCode
from pipeline_ops.places.kubernetes import KubernetesPlace, is_running

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(3600)]
STORE = "trainyard-store"
"""The Secret with the access to the store that the shipped hosts files name."""
SHIPPED = CODE_ROOT / "docker" / "kubernetes"
KINDS = {
    "jobs": "apis/batch/v1",
    "pods": "api/v1",
    "secrets": "api/v1",
    "services": "api/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
}


@pytest.fixture
def cluster(kubernetes_cluster, monkeypatch) -> RealCluster:
    """The tests have the rights of Airflow's Role, and no others."""
    file = kubernetes_cluster.write_kubeconfig("trainyard-airflow")
    monkeypatch.setenv("KUBECONFIG", str(file))
    return kubernetes_cluster


def list_left(cluster: RealCluster) -> list[str]:
    """Returns the objects that the project has made and not removed yet."""
    return [
        f"{kind}/{name}"
        for kind, group in KINDS.items()
        for found in cluster.list(kind, group)
        if (name := found["metadata"]["name"]).startswith("trainyard-") and name != STORE
    ]


def wait_until_clean(cluster: RealCluster) -> None:
    """Waits until nothing is left. Kubernetes' garbage collector promises no time."""

    def describe() -> str:
        pods = cluster.list("pods")
        return yaml.safe_dump({"left": list_left(cluster), "pods": pods}) + cluster.read_logs()

    wait_until(lambda: list_left(cluster) == [], seconds=300, explain=describe)


def read_hosts(name: str, **changes: object) -> dict[str, Any]:
    """A shipped hosts file with changes."""
    return yaml.safe_load((SHIPPED / "hosts" / f"{name}.yaml").read_text()) | changes


def test_a_job_starts_at_once_and_leaves_nothing_behind(cluster, small_image, bucket):
    """Its pod starts without a pause, although its Secret is made after its Job."""
    image = cluster.load_image("small")
    place = KubernetesPlace(make_hosts(image=image, python=None, code=None))
    for number in (1, 2):
        job = PlacedJob(f"{bucket}/jobs", number, place, "nothing", {"TOKEN": "hidden"}).start()
        outcome = job.wait_for_outcome()
        assert outcome.exit_code is ExitCode.SUCCESS, outcome
        [pod] = cluster.list("pods")
        [container] = pod["status"]["containerStatuses"]
        [state] = container["state"].values()  # it runs, or has ended
        [made] = cluster.list("jobs", KINDS["jobs"])
        started, created = state["startedAt"], made["metadata"]["creationTimestamp"]
        assert (read_time(started) - read_time(created)).total_seconds() <= 5
        # Its outcome may be there before containerd has copied what it printed.
        wait_until(lambda job=job: "the job does: nothing" in job.place.read_output(job.attempt))
        assert job.place.clean(job.attempt)
        wait_until_clean(cluster)


def read_time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


@pytest.fixture
def training(cluster, image, bucket, dataset, tmp_path):
    image("jobs")
    changes = {"image": cluster.load_image("trainyard-jobs"), "cpu": "500m"}
    access = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    secret = {"metadata": {"name": STORE}, "stringData": access}
    cluster.request("POST", "/api/v1/namespaces/training/secrets", secret)
    training = PlacedTraining(
        tmp_path,
        f"{bucket}/root",
        dataset,
        read_hosts("gang", pods=2, memory="2Gi", **changes),
        read_hosts("supervisor", memory="1Gi", **changes),
        epochs=40,
    )
    yield training
    training.remove()


def list_gang(cluster: RealCluster) -> list[str]:
    """The names of the running pods of the gang, in the order of their hosts."""
    return sorted(
        pod["metadata"]["name"]
        for pod in cluster.list("pods")
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "gang" and is_running(pod)
    )


def test_a_gang_goes_on_after_the_loss_of_its_pods(cluster, training):
    """One is deleted, and another one evicted, as from a node that is drained."""
    step = INTERVAL
    for restarts, remove in enumerate((cluster.delete_pod, cluster.evict_pod), 1):
        training.wait_until(lambda step=step: training.has_checkpoint(step))
        gang = list_gang(cluster)
        assert len(gang) == 2
        remove(gang[0])
        training.wait_until(
            lambda restarts=restarts: len(training.read_messages("restart")) == restarts
        )
        training.wait_until(
            lambda restarts=restarts: len(training.read_steps("restored")) >= restarts
        )
        restored = training.read_steps("restored")[-1]
        assert restored >= step, "it goes on from its checkpoint"
        assert gang[0] not in list_gang(cluster) and gang[1] in list_gang(cluster)
        step = restored + INTERVAL
    figures = training.end()
    assert (figures.workers, figures.restarts) == (2, 2), training.read_log()
    training.remove()
    wait_until_clean(cluster)
