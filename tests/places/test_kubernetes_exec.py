"""Pipes to commands in pods: binary, at once, and ended from both sides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from fake_kubernetes import KubernetesCluster
from fake_kubernetes.exec import NEW, OLD
from fake_kubernetes.hosts import make_hosts
from processes import Stopwatch, wait_until

from pipeline_ops.errors import ExitCode
from pipeline_ops.places.kubernetes import KubernetesClient
from pipeline_ops.places.kubernetes_manifest import build_gang
from pipeline_ops.places.pod_exec import build_exec_command


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pod(cluster) -> str:
    """A running pod of a gang."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("admin")))
        client = KubernetesClient(cluster.namespace)
        job, _, _ = build_gang(make_hosts(), "gang", ["sleep", "600"], 600)
        client.create("jobs", job)
        return cluster.find_pod("gang", "Running")["metadata"]["name"]


@pytest.fixture
def run(cluster, pod, monkeypatch):
    """Starts a command in the pod."""
    account = cluster.write_kubeconfig("trainyard-supervisor")
    monkeypatch.setenv("KUBECONFIG", str(account))
    started = []

    def start(*command: str, name: str = pod) -> subprocess.Popen[bytes]:
        argv, pipe = build_exec_command(cluster.namespace, None, name, command), subprocess.PIPE
        started.append(subprocess.Popen(argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    cluster.kubelet.protocols = [NEW, OLD]
    for process in started:
        process.kill()
        process.wait()


def run_cat(run) -> subprocess.Popen[bytes]:
    """Starts `cat`, which has answered a line."""
    process = run("cat")
    process.stdin.write(b"line\n")
    assert process.stdout.readline() == b"line\n"
    return process


def count_processes(cluster: KubernetesCluster) -> int:
    return len(cluster.list_processes("gang"))


@pytest.mark.parametrize("protocol", [NEW, OLD])
def test_all_bytes_pass_unchanged_in_both_directions(cluster, run, protocol):
    cluster.kubelet.protocols = [protocol]
    data = os.urandom(3_000_000) + bytes(range(256))
    counted = "head -c 3000256; echo problem >&2; exit 7"
    process = run("sh", "-c", counted)
    output, errors = process.communicate(data, timeout=60)
    if protocol == NEW:
        assert (process.returncode, output == data, errors) == (7, True, b"problem\n")
    else:  # the connection ends with the input, and what was not sent yet is lost
        assert process.returncode in (7, 255) and data.startswith(output)


def test_a_line_is_answered_at_once(run):
    process = run_cat(run)
    times = []
    for _ in range(50):
        began = time.monotonic()
        process.stdin.write(b"x" * 200 + b"\n")
        process.stdout.readline()
        times.append(time.monotonic() - began)
    assert sorted(times)[25] < 0.05, times
    process.stdin.close()
    assert process.wait(20) == 0


@pytest.mark.parametrize("protocol", [NEW, OLD])
def test_the_end_of_the_input_ends_the_command(cluster, run, protocol):
    cluster.kubelet.protocols = [protocol]
    before = count_processes(cluster)
    process = run_cat(run)
    assert count_processes(cluster) == before + 1
    watch = Stopwatch()
    process.stdin.close()
    process.wait(20)
    wait_until(lambda: count_processes(cluster) == before, 20)
    assert watch.seconds < 3


def test_a_killed_launcher_ends_the_command(cluster, run):
    before = count_processes(cluster)
    process = run_cat(run)
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: count_processes(cluster) == before, 20)


def test_a_server_that_is_gone_ends_the_pipe(cluster, run):
    process = run_cat(run)
    cluster.stop()
    try:
        assert process.wait(20) == 255
    finally:
        cluster.start()


def test_a_reader_that_is_slow_loses_nothing(run):
    process = run("sh", "-c", "yes 0123456789 | head -c 4000000")
    time.sleep(1)
    output, _ = process.communicate(timeout=60)
    assert len(output) == 4_000_000
    assert process.returncode == 0


def test_a_missing_pod_is_named(run):
    process = run("true", name="missing")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.RETRY
    assert b'pods "missing" not found' in errors


def test_a_missing_right_is_named(cluster, run, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("trainyard-airflow")))
    process = run("true")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.CONFIG
    assert b"docker/kubernetes/rbac.yaml" in errors


def test_a_command_that_is_missing_ends_the_pipe(run):
    process = run("/missing/program")
    _, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, None), errors


def test_the_helper_imports_neither_the_config_nor_the_models(cluster):
    """It is started for each host, and its start is a part of each restart."""
    program = (
        "import sys, pipeline_ops.places.pod_exec as helper\n"
        "helper.open_configuration(None)\n"
        "print([name for name in sys.modules if name.startswith(('pipeline_ops.config', "
        "'kubernetes.client.models.v1_pod', 'tensorflow'))])"
    )
    environment = os.environ | {"KUBECONFIG": str(cluster.write_kubeconfig("admin"))}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
