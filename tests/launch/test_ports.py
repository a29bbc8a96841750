"""The ports of a gang on one host: each test starts a real job and looks with `ss`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from config_files import write_config
from launch.network import Network, why_not
from launch.on_bucket import BucketJob, bucket_jobs, upload_dataset
from launch.running import Agent, RunningJob, make_agent_spec, starting, wait_until
from listeners import ListenerMonitor

from pipeline_ops.cli.commands.doctor import check_gang_ports
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import AGENT_MODULE, Event
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ExitCode
from pipeline_ops.launch.train import choose_isolation
from pipeline_ops.places.local import LocalHosts
from pipeline_ops.places.ssh import SshHost, SshHosts
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.system.host import OPEN_PORTS

SERVERS = {
    "train__strategy": "parameter_server",
    "train__workers": 1,
    "train__parameter_servers": 1,
}
_LISTEN = "0A"  # in /proc/net/tcp


@pytest.mark.hosts
def test_two_workers_on_one_host_open_no_port(start):
    """F5: TensorFlow's workers listen on all interfaces of the network namespace that only the
    gang is in."""
    job = start()
    with ListenerMonitor(job.all) as watch:
        assert job.end() == ExitCode.SUCCESS, job.message()
    assert watch.num_polls > 5
    assert watch.seen == set()


@pytest.mark.hosts
def test_two_workers_with_a_bucket_open_no_port_and_reach_nothing_else(
    dataset, make_root, tmp_path
):
    """M4: also after a worker was killed, and nothing is left of the way to the store."""
    root = make_root("s3")
    place = {"launcher": "local", "cores": 2}
    with bucket_jobs(tmp_path, root.uri, upload_dataset(dataset, root.uri), place) as start:
        job = start(is_held=True)
        with ListenerMonitor(job.survivors) as watch:
            job.wait_until_held()
            worker = find_worker(job, "worker-1")
            assert len(listening_ports(worker)) == 3  # TensorFlow's two, and the way to the store
            store = root.server.address.removeprefix("http://").split(":")
            inside = ["nsenter", f"--net=/proc/{worker}/ns/net", sys.executable, "-c"]
            refused = subprocess.run(
                [*inside, f"import socket; socket.create_connection({tuple(store)})"],
                capture_output=True,
                text=True,
            )
            assert "ConnectionRefusedError" in refused.stderr
            os.kill(worker, signal.SIGKILL)
            job.wait_until(lambda: job.read_messages("restart"))
            job.release()
            status = job.end()
        assert status.exit_code == ExitCode.SUCCESS, job.read_log()
        assert job.read_figures().restarts == 1
        assert job.read_messages("warning") == []
        assert watch.num_polls > 5
        assert watch.seen == set()
        wait_until(lambda: not job.survivors())


def find_worker(job: BucketJob, name: str) -> int:
    log = (job.local / f"{name}.log").resolve()
    [pid] = [pid for pid in job.survivors() if Path(f"/proc/{pid}/fd/1").resolve() == log]
    return pid


@pytest.fixture
def network(tmp_path):
    if reason := why_not():
        pytest.skip(f"no hosts to train on: {reason}")
    network = Network(tmp_path / "network", 2)
    network.folder.mkdir()
    network.up()
    yield network
    network.down()


@pytest.mark.hosts
def test_each_host_of_a_gang_on_several_opens_the_port_of_its_worker(
    dataset, make_job_in, tmp_path, network
):
    """F5: only a hosts file with `network: trusted` allows it."""
    with starting(make_job_in, dataset, tmp_path / "job", network.hosts_file(2)) as start_job:
        job = start_job(is_held=True)
        job.wait_until_held()
        addresses = find_addresses(job)
        assert sorted(address.rpartition(":")[0] for address in addresses) == sorted(
            network.addresses.values()
        )
        assert [can_connect(address) for address in addresses] == [True, True]
        opened = [listening_ports(job.worker(f"worker {number}")) - {22} for number in range(2)]
        assert [len(ports) for ports in opened] == [1, 1]
        job.release()
        assert job.end() == ExitCode.SUCCESS, job.message()
        assert job.survivors() == []


@pytest.mark.hosts
def test_parameter_servers_on_one_host_are_out_of_reach(start):
    """F5: they listen, in a network namespace that only the gang is in."""
    job = start(**SERVERS, is_held=True)
    with ListenerMonitor(job.all) as watch:
        job.wait_until_held()
        inside = job.worker("ps 0")
        addresses = find_addresses(job)
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


def find_addresses(job: RunningJob) -> list[str]:
    """The addresses of all processes of a gang, by its plan."""
    plan = json.loads((job.job.attempt.folder / "launch-plan.json").read_text())
    return [address for found in plan["workers"][0]["cluster"].values() for address in found]


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


WITHOUT_NAMESPACES = [
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    "; ".join(f"echo 0 > /proc/sys/user/max_{kind}_namespaces" for kind in ("net", "user"))
    + '; exec "$@"',
    "sh",
]
"""Starts a command where the kernel refuses namespaces."""
LIMITED = "the kernel's limit of namespaces is reached"
CURE = "Raise it (sysctl user.max_net_namespaces and user.max_user_namespaces)"


def start_agent_without_namespaces(folder: Path, **values: object) -> Event:
    """The first event of an agent where no more namespaces can be made."""
    spec = make_agent_spec(folder, **values)
    argv = [*WITHOUT_NAMESPACES, sys.executable, "-m", AGENT_MODULE, spec.run]
    done = subprocess.run(
        argv, input=spec.model_dump_json() + "\n", capture_output=True, text=True, timeout=60
    )
    return Event.parse(done.stdout.splitlines()[0].encode())


def test_an_author_can_insist_on_closed_ports(tmp_path):
    event = start_agent_without_namespaces(tmp_path, isolation="always")
    assert (event.event, event.is_permanent_failure) == ("refused", True)
    assert event.message.startswith(
        f"the hosts file has `network: isolated`, but {LIMITED}. {CURE}"
    )
    event = start_agent_without_namespaces(tmp_path, isolation="where possible")
    assert (event.event, event.host.open_ports) == ("hello", LIMITED)
    assert event.host.close_ports.startswith(CURE)


@pytest.mark.hosts
def test_where_the_kernel_refuses_namespaces_a_gang_says_what_is_open_and_trains(start):
    job = start(prefix=WITHOUT_NAMESPACES, is_held=True)
    with ListenerMonitor(job.all) as watch:
        job.wait_until_held()
        assert [can_connect(address) for address in find_addresses(job)] == [True, True]
        job.release()
        assert job.end() == ExitCode.SUCCESS, job.message()
    ports = {address.rpartition(":")[2] for address in watch.seen}  # reserved, then TensorFlow's
    assert len(ports) == 2, watch.seen
    warning = f"{OPEN_PORTS}, because {LIMITED}. {CURE}"
    assert warning in (job.job.attempt.folder / "gang.log").read_text()
    events = ProgressReader(Attempt(open_root(job.job.attempt.folder)).progress).read_new()
    assert [event.message for event in events if event.phase == "warning"][0].startswith(warning)


def test_the_doctor_says_what_is_open(tmp_path):
    changes = {"train.strategy": "multi_worker_mirrored", "train.workers": 2}
    local = load_config(write_config(tmp_path, changes | {"storage.root": str(tmp_path)}))
    [finding] = check_gang_ports(local)
    assert (finding.check, finding.problem) == ("ports of the gang", "")
    bucket = write_config(tmp_path, changes | {"storage.root": "s3://bucket/root"})
    [finding] = check_gang_ports(load_config(bucket))
    assert (finding.check, finding.problem) == ("ports of the gang", "")
    code = (
        "from pipeline_ops.cli.commands.doctor import check_gang_ports\n"
        "from pipeline_ops.config.pipeline import load_config\n"
        f"[finding] = check_gang_ports(load_config({str(bucket)!r}))\n"
        "print(finding.is_warning, finding.problem, finding.cure, sep='\\n')"
    )
    done = subprocess.run(
        [*WITHOUT_NAMESPACES, sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    is_warning, problem, cure = done.stdout.splitlines()
    assert (is_warning, problem) == ("True", f"{OPEN_PORTS}, because {LIMITED}")
    assert cure.startswith(CURE)


@pytest.mark.parametrize(
    ("isolation", "is_isolated"),
    [
        ("never", False),
        ("where possible", True),
        ("always", True),
    ],
)
def test_an_agent_leaves_the_network_where_servers_of_tensorflow_will_listen(
    tmp_path, isolation, is_isolated
):
    spec = make_agent_spec(tmp_path, isolation=isolation)
    with Agent(spec) as agent:
        agent.hears("hello")
        process = Path(f"/proc/{agent.process.pid}")
        namespace = os.readlink(process / "ns/net")
        interfaces = (process / "net/dev").read_text()
    assert (namespace != os.readlink("/proc/self/ns/net")) == is_isolated
    if is_isolated:
        assert [line.split(":")[0].strip() for line in interfaces.splitlines() if ":" in line] == [
            "lo"
        ]


LOCAL, TRUSTED = LocalHosts(launcher="local"), LocalHosts(launcher="local", network="trusted")
ISOLATED = LocalHosts(launcher="local", network="isolated")
ONE_FAR = SshHosts(launcher="ssh", hosts=[SshHost(name="a")])
TWO_FAR = SshHosts(launcher="ssh", hosts=[SshHost(name="a"), SshHost(name="b")], network="trusted")


@pytest.mark.parametrize(
    ("strategy", "workers", "hosts", "wanted"),
    [
        ("parameter_server", 1, LOCAL, "where possible"),
        ("parameter_server", 1, ONE_FAR, "where possible"),
        ("parameter_server", 1, ISOLATED, "always"),
        ("multi_worker_mirrored", 2, ISOLATED, "always"),
        ("parameter_server", 1, TRUSTED, "never"),
        ("parameter_server", 1, TWO_FAR, "never"),
        ("multi_worker_mirrored", 2, LOCAL, "where possible"),
        ("auto", 2, LOCAL, "where possible"),
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
