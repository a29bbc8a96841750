"""The ports of a gang on one host: each test starts a real job and looks with `ss`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launch.running import RunningJob, make_agent_spec, starting
from listeners import ListenerMonitor

from pipeline_ops.config.hosts import LocalHosts, SshHost, SshHosts
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.gang_protocol import AGENT_MODULE, Event
from pipeline_ops.launch.train import choose_isolation

SERVERS = {
    "train__strategy": "parameter_server",
    "train__workers": 1,
    "train__parameter_servers": 1,
}
_LISTEN = "0A"  # in /proc/net/tcp


@pytest.mark.hosts
def test_two_workers_on_one_host_open_no_port(start):
    """F5: TensorFlow's workers listened on all interfaces."""
    job = start()
    with ListenerMonitor(job.all) as watch:
        assert job.end() == ExitCode.SUCCESS, job.message()
    assert watch.num_polls > 5
    assert watch.seen == set()


@pytest.mark.hosts
def test_parameter_servers_on_one_host_are_out_of_reach(start):
    """F5: they listen, in a network namespace that only the gang is in."""
    job = start(**SERVERS, is_held=True)
    with ListenerMonitor(job.all) as watch:
        job.wait_until_held()
        inside = job.worker("ps 0")
        addresses = [
            address
            for of_role in json.loads((job.job.attempt.folder / "launch-plan.json").read_text())[
                "workers"
            ][0]["cluster"].values()
            for address in of_role
        ]
        assert len(addresses) == 3
        assert {int(address.rpartition(":")[2]) for address in addresses} <= listening_ports(inside)
        for address in addresses:
            assert not can_connect(address)
        if os.geteuid() == 0:  # another user of this host cannot enter either
            other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            entered = subprocess.run(
                [*other, "nsenter", f"--net=/proc/{inside}/ns/net", "true"],
                capture_output=True,
                text=True,
            )
            assert entered.returncode and "ermission denied" in entered.stderr, entered.stderr
        job.release()
        assert job.end() == ExitCode.SUCCESS, job.message()
    assert watch.seen == set()
    assert job.survivors() == []


def listening_ports(pid: int) -> set[int]:
    """Returns the listening ports in the network namespace of a process."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == _LISTEN}


def can_connect(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex((host, int(port))) == 0


@pytest.mark.hosts
def test_where_the_network_is_trusted_servers_listen(dataset, make_job_in, tmp_path):
    """The tests above would see a listener. This is the way for kernels that refuse namespaces."""
    with starting(
        make_job_in, dataset, tmp_path, {"launcher": "local", "network": "trusted"}, **SERVERS
    ) as start_job:
        job = start_job()
        with ListenerMonitor(job.all) as watch:
            assert job.end() == ExitCode.SUCCESS, job.message()
    assert len(watch.seen) >= 3


def test_a_kernel_that_refuses_namespaces_is_told_with_the_cure(tmp_path):
    """The agent runs where no more namespaces can be made."""
    spec = make_agent_spec(tmp_path, isolation="always")
    limits = "; ".join(f"echo 0 > /proc/sys/user/max_{kind}_namespaces" for kind in ("net", "user"))
    argv = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        f'{limits}; exec "$@"',
        "sh",
        sys.executable,
        "-m",
        AGENT_MODULE,
        spec.run,
    ]
    done = subprocess.run(
        argv, input=spec.model_dump_json() + "\n", capture_output=True, text=True, timeout=60
    )
    event = Event.parse(done.stdout.encode())
    assert (event.event, event.is_permanent_failure) == ("refused", True), done.stderr
    assert event.message.startswith(
        "the kernel refuses the gang a network namespace (No space left on device)"
    )
    assert "write `network: trusted` into a hosts file" in event.message


@pytest.mark.parametrize(
    ("isolation", "gpus", "is_isolated"),
    [
        ("never", "0", False),
        ("with GPUs", "", False),
        ("with GPUs", "0", True),
        ("always", "", True),
    ],
)
def test_an_agent_leaves_the_network_where_servers_of_tensorflow_will_listen(
    tmp_path, isolation, gpus, is_isolated
):
    spec = make_agent_spec(
        tmp_path, isolation=isolation, environment={"CUDA_VISIBLE_DEVICES": gpus}
    )
    argv = [sys.executable, "-m", AGENT_MODULE, spec.run]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as agent:
        agent.stdin.write(spec.model_dump_json().encode() + b"\n")
        agent.stdin.flush()
        assert Event.parse(agent.stdout.readline()).event == "hello"
        namespace = os.readlink(f"/proc/{agent.pid}/ns/net")
        interfaces = Path(f"/proc/{agent.pid}/net/dev").read_text()
        agent.stdin.close()
    assert (namespace != os.readlink("/proc/self/ns/net")) == is_isolated
    if is_isolated:
        assert [line.split(":")[0].strip() for line in interfaces.splitlines() if ":" in line] == [
            "lo"
        ]


LOCAL, TRUSTED = LocalHosts(launcher="local"), LocalHosts(launcher="local", network="trusted")
ONE_FAR = SshHosts(launcher="ssh", hosts=[SshHost(name="a")])
TWO_FAR = SshHosts(launcher="ssh", hosts=[SshHost(name="a"), SshHost(name="b")], network="trusted")


@pytest.mark.parametrize(
    ("strategy", "workers", "hosts", "wanted"),
    [
        ("parameter_server", 1, LOCAL, "always"),
        ("parameter_server", 1, ONE_FAR, "always"),
        ("parameter_server", 1, TRUSTED, "never"),
        ("parameter_server", 1, TWO_FAR, "never"),
        ("multi_worker_mirrored", 2, LOCAL, "with GPUs"),
        ("auto", 2, LOCAL, "with GPUs"),
        ("multi_worker_mirrored", 2, TWO_FAR, "never"),
        ("multi_worker_mirrored", 1, LOCAL, "never"),
        ("one_device", 1, LOCAL, "never"),
    ],
)
def test_a_gang_gets_a_namespace_where_it_is_on_one_host_and_may_have_servers(
    strategy, workers, hosts, wanted
):
    servers = {"parameter_servers": 1} if strategy == "parameter_server" else {}
    assert (
        choose_isolation(
            Train(model="digits_cnn", strategy=strategy, workers=workers, **servers), hosts
        )
        == wanted
    )


@pytest.mark.hosts
def test_a_port_scan_of_the_whole_host_does_not_disturb_a_gang(start):
    """F15."""
    job = start(train__max_restarts=0)
    ended = threading.Event()
    scanning = threading.Thread(target=scan_until, args=(ended, job), daemon=True)
    scanning.start()
    try:
        assert job.end() == ExitCode.SUCCESS, job.message()
    finally:
        ended.set()
        scanning.join()


def scan_until(ended: threading.Event, job: RunningJob) -> None:
    """Connects to every Unix socket of the gang's rings and sends garbage."""
    while not ended.is_set():
        names = [
            line.split()[-1]
            for line in Path("/proc/net/unix").read_text().splitlines()
            if "@trainyard-ring-" in line
        ]
        for name in names:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(0.2)
                try:
                    client.connect("\0" + name[1:])
                    client.sendall(b"x" * 48)
                except OSError:
                    continue
        time.sleep(0.005)
