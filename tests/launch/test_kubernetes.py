"""The launcher for Kubernetes: the real client, a fake cluster, and agents in its pods.

The pods run on this machine, and share its files only where a test says so.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from fake_kubernetes import KubernetesCluster
from fake_kubernetes.hosts import HOSTS, IMAGE, make_hosts
from gangs import run_gang
from launch.on_bucket import bucket_jobs, upload_dataset
from launch.running import QUICK, config_with_hosts, make_agent_spec, wait_until

from pipeline_ops.contract.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.places.kubernetes import KubernetesHosts, KubernetesLauncher, build_manifests

FULL = {
    "launcher": "kubernetes",
    "image": "registry.example/trainyard:1",
    "pods": 3,
    "namespace": "ml",
    "gpus": 2,
    "pod": {"serviceAccountName": "trainer"},
    "secret": "store",
    "volumes": [{"claim": "shared", "mount": "/trainyard"}],
    "python": "/usr/bin/python3",
    "code": "/app",
}


def build(**changes: object) -> list[dict]:
    return build_manifests(KubernetesHosts.model_validate(FULL | changes), "gang", "/run", 3600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def account(cluster, monkeypatch):
    """The tests have the rights of the supervisor's Role, and no others."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("trainyard-supervisor")))
    yield cluster.accounts["trainyard-supervisor"]
    cluster.reset()


@pytest.fixture
def make_launcher(account):
    def make(**changes: object) -> KubernetesLauncher:
        return KubernetesLauncher(make_hosts(**changes), "gang", "/run", 3600)

    return make


def check() -> None:
    """Stands for the check that a launcher makes while it waits. No one has asked it to end."""


def test_every_pod_has_a_name_that_the_headless_service_resolves():
    job, service, _ = build()
    assert service["spec"]["clusterIP"] == "None"
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    selected = service["spec"]["selector"].items()
    assert selected <= job["spec"]["template"]["metadata"]["labels"].items()
    assert job["spec"]["activeDeadlineSeconds"] == 3600 + 3600, "also if the launcher is dead"


def test_only_pods_of_the_same_gang_reach_a_pod():
    """F5, F17."""
    job, _, policy = build()
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected == job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]
    assert "gang" in selected.values(), "another gang has another label"


def test_pods_are_hosts_until_they_are_released(cluster, make_launcher):
    launcher = make_launcher(pods=2, workers_per_pod=3)
    hosts = launcher.allocate(check)
    assert [(host.name, host.workers) for host in hosts] == [("gang-1-0", 3), ("gang-1-1", 3)]
    assert [host.address for host in hosts] == [
        "gang-1-0.gang-1.training.svc",
        "gang-1-1.gang-1.training.svc",
    ]
    assert launcher.is_intact()
    launcher.release()
    assert not launcher.is_intact()
    wait_until(lambda: cluster.list_names("pods") == [], 60)
    for resource in ("jobs", "services", "networkpolicies"):
        assert cluster.list_names(resource) == []
    assert launcher.allocate(check)[0].name == "gang-2-0", "another allocation has other names"
    launcher.release()


def test_a_restarted_pod_is_reached_under_its_host(cluster, make_launcher):
    launcher = make_launcher()
    [host] = launcher.allocate(check)
    agent = AgentSpec(
        host=host.name, run="/run", lock="x", token_file="/t", silence_timeout_seconds=5
    )
    first = cluster.find_pod("gang-1", "Running")["metadata"]["name"]
    assert first in launcher.build_command(host, agent)
    cluster.kill("gang-1")

    def find_other() -> bool:
        command = launcher.build_command(host, agent)
        return first not in command and any(word.startswith("gang-1-0-") for word in command)

    wait_until(find_other, 60)
    launcher.release()


def test_what_a_killed_supervisor_leaves_goes_with_its_job(cluster, make_launcher):
    make_launcher().allocate(check)
    assert cluster.list_names("services") == cluster.list_names("networkpolicies") == ["gang-1"]
    cluster.objects.remove("jobs", cluster.get("jobs", "gang-1"))  # as ttlSecondsAfterFinished does
    for resource in ("services", "networkpolicies", "pods"):
        wait_until(lambda resource=resource: cluster.list_names(resource) == [], 60)


def test_a_gang_whose_image_does_not_exist_ends_at_once(cluster, make_launcher):
    cluster.kubelet.pull_errors[IMAGE] = ("ErrImagePull", "manifest unknown")
    with pytest.raises(ConfigError, match="manifest unknown"):
        make_launcher().allocate(check)
    assert cluster.list_names("jobs") == []


def test_pods_without_a_node_are_given_back_after_a_while(cluster, make_launcher):
    cluster.kubelet.unschedulable = "0/3 nodes are available: 3 Insufficient cpu."
    with pytest.raises(MachineError) as caught:
        make_launcher(queue_timeout_seconds=2).allocate(check)
    assert "0 of 1 pods of the Job gang-1 run after 2 s" in str(caught.value)
    assert "3 Insufficient cpu" in str(caught.value)
    assert cluster.list_names("jobs") == []


def test_a_wait_that_is_no_longer_needed_gives_the_pods_back(cluster, make_launcher):
    class Over(Exception):
        pass

    def stop() -> None:
        raise Over

    cluster.kubelet.unschedulable = "0/3 nodes are available"
    with pytest.raises(Over):
        make_launcher().allocate(stop)
    assert cluster.list_names("jobs") == []


def test_each_right_of_the_supervisors_role_is_needed_and_no_other(account, make_launcher):
    account.used.clear()
    account.refused.clear()
    launcher = make_launcher()
    [host] = launcher.allocate(check)
    agent = AgentSpec(
        host=host.name, run="/run", lock="x", token_file="/t", silence_timeout_seconds=5
    )
    subprocess.run(launcher.build_command(host, agent), input=b"", timeout=60, check=True)
    assert launcher.is_intact()
    launcher.release()
    assert account.used == account.rights
    assert account.refused == set()


@pytest.mark.hosts
def test_a_missing_right_is_an_error_that_leaves_nothing(
    cluster, account, make_launcher, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("trainyard-airflow")))
    with pytest.raises(ConfigError, match="account create services.*trainyard-supervisor"):
        make_launcher().allocate(check)
    wait_until(lambda: cluster.list_names("jobs") == [], 60)


@pytest.mark.kubernetes
def test_two_workers_that_share_only_a_bucket_survive_the_kill_of_their_pod(
    cluster, account, dataset, tmp_path, make_root
):
    """It is deleted after the training. The access to the bucket goes through the pipe."""
    root = make_root("s3")
    manifest = upload_dataset(dataset, root.uri)
    with bucket_jobs(tmp_path, root.uri, manifest, HOSTS | {"workers_per_pod": 2}) as start:
        job = start(is_held=True, train__workers=2, train__epochs=3)
        job.wait_until_held()
        [name] = [name for name in cluster.list_names("jobs") if name.startswith("trainyard-")]
        cluster.kill(name)
        job.wait_until(lambda: job.read_messages("restart"))
        job.release()
        status = job.end()
        assert status.exit_code == ExitCode.SUCCESS, job.read_log()
        figures = job.read_figures()
        assert (figures.workers, figures.restarts) == (2, 1)
        wait_until(lambda: cluster.list_names("pods") == [], 60)
        assert cluster.list_names("jobs") == job.survivors() == []
    assert "testtest" not in json.dumps(cluster.objects.versions)
    assert account.refused == set()


class NearbyLauncher(KubernetesLauncher):
    """The pods are processes of this machine, which can't resolve their names."""

    def allocate(self, check):
        return [
            host.model_copy(update={"address": "127.0.0.1"}) for host in super().allocate(check)
        ]


@pytest.mark.hosts
@pytest.mark.timeout(900)
def test_a_gang_trains_on_while_each_answer_of_the_api_takes_twenty_seconds(
    cluster, account, dataset, make_job_in, tmp_path
):
    """Meanwhile a third host is lost and connected again, so the API is needed."""
    make = make_job_in(tmp_path, dataset, config_with_hosts(tmp_path, {"launcher": "local"}))
    job = make(
        **QUICK | {"train__hosts": None, "train__workers": 2, "train__heartbeat_timeout_seconds": 5}
    )
    folder, hold = job.attempt.folder, job.attempt.folder / "hold"
    hosts = make_hosts(pods=3, network="trusted")
    launcher = NearbyLauncher(hosts, "gang", str(folder), 3600)
    pool = HostPool(launcher, make_agent_spec(folder, silence_timeout_seconds=5))

    def lose_third_host() -> int:
        """Returns the number of requests before the API is slow."""
        try:
            wait_until((folder / "held").exists, 120)
            plan = json.loads((folder / "launch-plan.json").read_text())
            [name] = pool.hosts.keys() - {worker["host"] for worker in plan["workers"]}
            third = pool.hosts[name]
            wait_until(lambda: third.is_ready)
            num_requests = len(cluster.api.requests)
            cluster.api.delay_seconds = 20.0
            for process in cluster.kubelet.find_processes(cluster.find_pod(name)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if AGENT_MODULE in process.cmdline():
                        process.kill()
            wait_until(lambda: third.tries == 2 and third.is_ready, 120, lambda: third)
            return num_requests
        finally:
            hold.unlink()

    hold.touch()
    events = []
    with ThreadPoolExecutor(1) as thread, contextlib.closing(pool):
        lost = thread.submit(lose_third_host)
        gang = run_gang(job, pool, events.append)
        num_requests = lost.result()
        assert sorted(host.tries for host in pool.hosts.values()) == [1, 1, 2]
    assert gang.restarts == 0
    assert {event.phase for event in events}.isdisjoint({"restart", "grow", "warning"})
    late = [request.rpartition("/")[2] for request in cluster.api.requests[num_requests:]]
    assert late[:2] == ["pods", "exec"] and len(late) == 5, "and three to give the pods back"
    assert cluster.list_names("jobs") == []
