"""Jobs as Jobs of Kubernetes: the real client, a fake cluster, and real processes for pods."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_kubernetes import KubernetesCluster
from fake_kubernetes.hosts import IMAGE, make_hosts
from placed_job import PlacedJob
from processes import Stopwatch, wait_until

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.places.kubernetes import KubernetesPlace
from pipeline_ops.storage.open_store import open_path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def account(cluster, monkeypatch):
    """All tests have the rights of Airflow's Role, and no others."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("trainyard-airflow")))
    yield cluster.accounts["trainyard-airflow"]
    cluster.reset()


@pytest.fixture
def make(account, tmp_path):
    made: list[PlacedJob] = []

    def make_job(do: str = "wait", root: str = "", **options) -> PlacedJob:
        environment = options.pop("environment", None)
        hosts = make_hosts(**options)
        root = root or str(tmp_path / "root")
        made.append(PlacedJob(root, len(made), KubernetesPlace(hosts), do, environment))
        return made[-1]

    return make_job


def test_a_job_works_with_a_bucket_and_leaves_nothing_in_the_cluster(cluster, make, make_root):
    root = make_root("s3")
    job = make("nothing", root.uri).start()
    secret = cluster.get("secrets", job.name)
    assert base64.b64decode(secret["data"]["AWS_SECRET_ACCESS_KEY"]) == b"testtest"
    assert "testtest" not in json.dumps(cluster.get("jobs", job.name))
    outcome = job.wait_for_outcome()
    assert outcome.exit_code is ExitCode.SUCCESS, outcome
    stored = read_manifest(outcome.manifest).get_file("seen.json").stored_at
    seen = json.loads(open_path(f"{root.uri}/artifacts/digits/train/{stored}").read(1 << 20))
    assert "AWS_ENDPOINT_URL" in seen["variables"]
    log = job.attempt.log.read_log_end(1 << 20)[1].decode()
    assert "the job does: nothing" in log
    job.wait_for_phase("ended")
    assert "the job does: nothing" in job.place.read_output(job.attempt)
    assert job.place.clean(job.attempt)
    assert job.find().phase == "absent"
    assert job.name not in [*cluster.list_names("jobs"), *cluster.list_names("secrets")]
    assert job.place.clean(job.attempt), "a second time there is nothing to do"


def test_the_secret_goes_with_its_job_even_if_airflow_does_not_return(cluster, make):
    job = make("wait", environment={"TOKEN": "hidden"}).start()
    assert cluster.get("secrets", job.name)
    cluster.objects.remove("jobs", cluster.get("jobs", job.name))  # as ttlSecondsAfterFinished does
    wait_until(lambda: cluster.get("secrets", job.name) is None)


def test_a_pod_never_waits_for_its_secret(cluster, make):
    """A kubelet that has missed a Secret looks again only ten seconds later, or more."""
    job = make("wait", environment={"TOKEN": "hidden"})
    cluster.fail("POST .*/secrets", 503, 2)
    job.start().wait_until_ready()
    states = [found["status"] for kind, found in cluster.objects.versions if kind == "pods"]
    assert states and "CreateContainerConfigError" not in json.dumps(states)


def test_a_job_whose_starter_was_killed_is_tried_again(cluster, make, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_arguments: object) -> None:
        raise Killed

    job = make("wait", environment={"TOKEN": "hidden"})
    monkeypatch.setattr("pipeline_ops.places.kubernetes.build_secret", kill)
    with pytest.raises(Killed):
        job.start()
    assert job.find().phase == "waiting"
    cluster.age_job(job.name, 100)
    state = job.find()
    assert (state.phase, state.exit_code) == ("ended", ExitCode.RETRY)
    assert job.place.clean(job.attempt)
    assert cluster.list_names("pods") == cluster.list_names("jobs") == []


def test_a_pod_that_is_not_admitted_says_why(cluster, make):
    refusal = 'pods "x" is forbidden: error looking up service account training/missing'
    cluster.controllers.admission = refusal
    job = make("wait").start()
    wait_until(lambda: refusal in job.find().message)
    assert job.find().phase == "waiting"
    cluster.controllers.admission = ""
    job.wait_until_ready()


def test_a_sandbox_that_cannot_be_made_says_why(cluster, make):
    cluster.kubelet.pull_errors[IMAGE] = ("ContainerCreating", "")
    job = make("wait").start()
    pod = cluster.find_pod(job.name)
    cluster.controllers.warn(pod, "FailedCreatePodSandBox", "runc create failed: no space left")
    wait_until(lambda: "no space left" in job.find().message)
    assert job.find().phase == "waiting"


def test_two_starts_are_one_job(cluster, make):
    job = make()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: job.start(), range(3)))
    job.wait_until_ready()
    processes = cluster.list_processes(job.name)
    job.start()
    assert cluster.list_processes(job.name) == processes
    cluster.kill(job.name)
    job.wait_for_phase("ended")
    job.start()
    assert job.find().phase == "ended", "it is not started again after its end"


@pytest.mark.kubernetes
def test_a_job_whose_secret_is_refused_does_not_stay(cluster, make):
    job = make(environment={"TOKEN": "hidden"})
    cluster.fail("POST .*/secrets", 500, times=5)
    with pytest.raises(MachineError, match=r"can't create secrets \(500\)"):
        job.start()
    assert not cluster.get("jobs", job.name)
    job.wait_for_phase("absent")
    job.start()
    job.wait_until_ready()


def test_a_job_that_waits_for_a_node_is_cancelled_too(cluster, make):
    cluster.kubelet.unschedulable = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    job = make("wait").start()
    state = job.wait_for_phase("waiting")
    wait_until(lambda: "3 Insufficient nvidia.com/gpu" in job.find().message)
    job.place.cancel(job.attempt)
    assert job.find().phase == "absent", state


def test_a_pod_on_a_node_that_does_not_answer_is_forgotten(cluster, make):
    job = make().start().wait_until_ready()
    cluster.lose_node(job.name, is_removed=False)
    watch = Stopwatch()
    job.place.cancel(job.attempt)
    assert watch.seconds < 7
    assert job.find().phase == "absent"


@pytest.mark.kubernetes
def test_the_cluster_may_be_away_while_a_job_runs(cluster, make):
    job = make().start().wait_until_ready()
    processes = cluster.list_processes(job.name)
    cluster.stop()
    try:
        with pytest.raises(MachineError, match="no answer"):
            job.find()
    finally:
        cluster.start()
    assert job.find().phase == "running"
    assert cluster.list_processes(job.name) == processes


ENDS = {"kill": "killed by signal 9", "lose_node": "its node was lost"}
"""Methods of the cluster, with the reason that each leaves: in the pod, or in the Job alone."""


@pytest.mark.parametrize("end", ENDS)
def test_an_end_has_its_reason_and_is_retried(cluster, make, end):
    job = make().start().wait_until_ready()
    getattr(cluster, end)(job.name)
    outcome = job.wait_for_outcome()
    assert outcome.exit_code is ExitCode.RETRY
    assert re.search(ENDS[end], outcome.message), outcome.message
    assert cluster.list_processes(job.name) == []


def test_a_job_that_the_cluster_stops_reports_it_itself(cluster, make):
    job = make().start().wait_until_ready()
    cluster.evict(job.name)
    outcome = job.wait_for_outcome()
    assert outcome.exit_code is ExitCode.RETRY
    assert "its host has stopped the job" in outcome.message
    wait_until(lambda: cluster.list_processes(job.name) == [])
    assert "evicted or preempted" in job.wait_for_phase("ended").message


def test_a_pod_that_is_evicted_while_it_waits_is_retried(cluster, make):
    cluster.kubelet.pull_errors[IMAGE] = ("ContainerCreating", "")
    job = make().start()
    cluster.find_pod(job.name)
    cluster.evict(job.name)
    state = job.wait_for_phase("ended")
    assert state.exit_code is ExitCode.RETRY
    assert "evicted or preempted" in state.message


def test_an_image_that_does_not_exist_is_an_error_of_the_hosts_file(cluster, make):
    message = f'failed to pull and unpack image "{IMAGE}": not found'
    cluster.kubelet.pull_errors[IMAGE] = ("ErrImagePull", message)
    outcome = make().start().wait_for_outcome()
    assert outcome.exit_code is ExitCode.CONFIG
    assert "the image can't be pulled" in outcome.message
    assert "pod.imagePullSecrets" in outcome.message


def test_an_interpreter_that_the_image_lacks_is_an_error_of_the_hosts_file(make):
    job = make(python="/missing/python").start()
    outcome = job.wait_for_outcome()
    assert outcome.exit_code is ExitCode.CONFIG
    assert "127" in outcome.message and "No such file" in outcome.message


def test_a_store_that_the_pod_does_not_see_is_an_error_of_the_hosts_file(make):
    job = make()
    job.attempt.request.remove()
    outcome = job.start().wait_for_phase("ended")
    assert outcome.exit_code is ExitCode.CONFIG
    assert "must reach the same store" in job.place.read_output(job.attempt)


@pytest.mark.parametrize(
    ("status", "headers"),
    [(429, {"Retry_After": "1"}), (403, {}), (410, {}), (500, {}), (503, {}), (504, {})],
)
def test_a_server_that_is_busy_or_does_not_know_its_roles_yet_is_asked_again(
    cluster, make, status, headers
):
    job = make()
    cluster.fail("POST .*/jobs", status, 2, **headers)
    cluster.fail("GET .*/pods", status, 1, **headers)
    began = time.monotonic()
    job.start()
    assert time.monotonic() - began > float(headers.get("Retry_After", 0.4))
    assert job.find().may_run


def test_a_server_that_stays_busy_is_an_error_that_is_retried(cluster, make, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    job = make()
    cluster.fail("GET .*/pods", 429, 100, Retry_After="1")
    with pytest.raises(MachineError, match=r"can't list pods \(429\): a fault of the test"):
        job.find()


def test_a_pause_is_as_long_as_the_server_asks_but_not_for_ever(cluster, make, monkeypatch):
    pauses: list[float] = []
    job = make()
    cluster.fail("GET .*/pods", 429, 2, Retry_After="3")
    cluster.fail("GET .*/pods", 429, 1, Retry_After="3600")
    monkeypatch.setattr("pipeline_ops.places.kubernetes.time.sleep", pauses.append)
    job.find()
    monkeypatch.undo()
    assert [pause for pause in pauses if pause >= 1] == [3.0, 3.0, 8.0]


def test_a_missing_right_is_named_with_its_file(cluster, make, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("trainyard-supervisor")))
    job = make(environment={"TOKEN": "x"})
    with pytest.raises(ConfigError) as caught:
        job.start()
    assert cluster.get("jobs", job.name) is None, "no pod waits for its Secret"
    message = str(caught.value)
    assert "create secrets in the namespace training (403)" in message
    assert "docker/kubernetes/rbac.yaml" in message


def test_a_missing_namespace_is_named(make):
    with pytest.raises(ConfigError, match='namespaces "elsewhere" not found.*`namespace`'):
        make(namespace="elsewhere").start()


def test_a_quota_that_is_used_up_is_retried(cluster, make):
    cluster.fail("POST .*/jobs", 403, 5)
    cluster.api.faults[-1].message = 'jobs.batch "x" is forbidden: exceeded quota: small'
    with pytest.raises(MachineError, match="exceeded quota"):
        make().start()


def test_a_request_that_the_cluster_refuses_is_an_error_of_the_hosts_file(make):
    with pytest.raises(ConfigError, match="Correct the hosts file"):
        make(environment={"TOKEN": "x"}, pod={"nodeSelector": {"Pool": "a b"}}).start()


def test_an_unknown_field_of_a_pod_is_named(make):
    with pytest.raises(ConfigError, match="favouriteColour"):
        make(pod={"favouriteColour": "red"}).start()


def test_a_missing_kubeconfig_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="KUBECONFIG"):
        KubernetesPlace(make_hosts())


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[kubernetes\]'"):
        KubernetesPlace(make_hosts())


def test_an_unknown_context_says_what_to_do(account):
    with pytest.raises(ConfigError, match="`context` in the hosts file"):
        KubernetesPlace(make_hosts(context="elsewhere"))


def test_the_version_of_the_environment_is_the_digest_of_the_image(account):
    assert KubernetesPlace(make_hosts()).find_versions(["numpy"]) == {"image": f"sha256:{'0' * 64}"}
    with pytest.raises(ConfigError, match="must end with its digest"):
        KubernetesPlace(make_hosts(image="registry.example/jobs:1")).find_versions([])


def test_each_right_of_airflows_role_is_needed_and_no_other(cluster, make, account):
    """Runs the whole life of a job, and compares what it has used with the Role."""
    account.used.clear()
    account.refused.clear()
    job = make(environment={"TOKEN": "x"}).start().wait_until_ready()
    job.start()
    job.find()
    job.wait_until(lambda: job.place.read_output(job.attempt))
    cluster.kubelet.unschedulable = "no node"
    make("wait").start().find()  # while it waits, its events are read
    job.place.cancel(job.attempt)
    job.find()
    job.place.clean(job.attempt)
    assert account.used == account.rights
    assert account.refused == set()
