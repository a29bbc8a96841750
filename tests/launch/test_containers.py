"""A gang whose hosts are containers of a real Docker daemon, and share nothing but a bucket.

The supervisor is a container, too. It reaches the daemon over TLS.
"""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from containers import ContainerEngine
from launch.placed_training import PlacedTraining
from launch.running import INTERVAL

from pipeline_ops.config.hosts_clusters import ContainerHosts
from pipeline_ops.errors import MachineError
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.jobs.places.container_daemon import Daemon
from pipeline_ops.launch import container
from pipeline_ops.launch.container import ContainerLauncher, build_gang, describe_hosts

HOSTS = {
    "launcher": "container",
    "image": "trainyard-jobs",
    "containers": 2,
    "network": "trusted",
    "gpus": 2,
}


def test_each_container_gets_gpus_of_its_own():
    hosts = ContainerHosts.model_validate(HOSTS)
    bodies = build_gang(hosts, "sha256:1", "gang", "gang", "digits", "/run")
    gpus = [body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] for body in bodies.values()]
    assert gpus == [["0", "1"], ["2", "3"]]
    assert list(bodies) == ["gang-0", "gang-1"]


def test_containers_share_the_cores_of_their_machine():
    hosts = ContainerHosts.model_validate(HOSTS)
    assert [host.cores for host in describe_hosts(hosts, "gang", 8)] == [4, 4]
    assert [host.cores for host in describe_hosts(hosts, "gang", 1)] == [1, 1]
    limited = hosts.model_copy(update={"cpu": "2500m"})
    assert [host.cores for host in describe_hosts(limited, "gang", 8)] == [2, 2]


def test_the_description_of_a_gang_holds_no_secret():
    hosts = ContainerHosts.model_validate(HOSTS | {"environment": {"PASSWORD": "the-secret"}})
    assert "the-secret" not in json.dumps(
        build_gang(hosts, "sha256:1", "gang", "gang", "digits", "/run")
    )


@pytest.fixture
def launcher(engine, small_image) -> ContainerLauncher:
    hosts = engine.hosts(containers=2, network="trusted")
    launcher = ContainerLauncher(hosts, "trainyard-digits-test", "digits", "/run")
    yield launcher
    launcher.release()


def list_containers(engine) -> set[str]:
    names = engine.docker("ps", "-a", "--format", "{{.Names}}").split()
    return {name for name in names if name.startswith("trainyard-digits-test")}


@pytest.mark.containers
class TestLauncher:
    """The containers of a gang, without a training."""

    def test_containers_reach_each_other_by_their_names(self, engine, launcher):
        hosts = launcher.allocate(lambda: None)
        assert [host.name for host in hosts] == [f"trainyard-digits-test-1-{i}" for i in (0, 1)]
        program = f"import socket; print(socket.gethostbyname('{hosts[1].address}'))"
        found = engine.docker("exec", hosts[0].name, "python", "-c", program)
        network = engine.describe(hosts[1].name)["NetworkSettings"]["Networks"]
        assert list(network) == ["trainyard-digits-test-1"]
        assert found == network["trainyard-digits-test-1"]["IPAddress"]
        assert launcher.is_intact()

    def test_nothing_is_left_of_released_containers(self, engine, launcher):
        volumes = engine.list_volumes()
        launcher.allocate(lambda: None)
        assert len(list_containers(engine)) == 2
        launcher.release()
        assert list_containers(engine) == set()
        assert "trainyard-digits-test" not in engine.docker("network", "ls")
        assert engine.list_volumes() == volumes
        assert not launcher.is_intact()

    def test_a_pipe_is_exact_in_both_directions(self, launcher):
        pipe = self.open_pipe(
            launcher, "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
        )
        content = bytes(range(256)) * 40_000
        output, errors = pipe.communicate(content, timeout=120)
        assert output == content, errors
        assert pipe.returncode == 0

    def test_a_pipe_passes_errors_and_the_exit_code_on(self, launcher):
        pipe = self.open_pipe(launcher, "import sys; sys.stderr.write('no luck'); sys.exit(7)")
        output, errors = pipe.communicate(b"", timeout=120)
        assert (output, errors.decode(), pipe.returncode) == (b"", "no luck", 7)

    def test_a_command_ends_with_its_pipe(self, engine, launcher):
        program = "import sys; print('begins', flush=True); sys.stdin.buffer.read(); print('ends')"
        pipe = self.open_pipe(launcher, program)
        assert pipe.stdout.readline() == b"begins\n"
        pipe.kill()
        pipe.communicate()
        deadline = time.monotonic() + 60
        while "sys.stdin.buffer.read" in engine.docker("top", "trainyard-digits-test-1-0"):
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def test_a_killed_container_comes_back_with_the_next_pipe(self, engine, launcher):
        self.open_pipe(launcher, "pass").communicate(b"", timeout=120)
        engine.docker("kill", "trainyard-digits-test-1-0")
        pipe = self.open_pipe(launcher, "print('back')", is_allocated=True)
        output, errors = pipe.communicate(b"", timeout=120)
        assert output == b"back\n", errors

    def test_a_pipe_goes_over_tls(self, engine, small_image, monkeypatch):
        monkeypatch.setenv("DOCKER_CERT_PATH", str(engine.certificates))
        hosts = engine.hosts(daemon=engine.secure_address)
        launcher = ContainerLauncher(hosts, "trainyard-digits-test", "digits", "/run")
        try:
            program = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.readline() * 1000)"
            pipe = self.open_pipe(launcher, program)
            line = b"x" * 5_000 + b"\n"
            pipe.stdin.write(line)
            pipe.stdin.flush()
            assert pipe.stdout.read() == line * 1000
            assert pipe.wait(60) == 0
        finally:
            launcher.release()

    def test_containers_without_agents_end_and_are_removed(self, engine, launcher, monkeypatch):
        monkeypatch.setattr(container, "_KEEP_SECONDS", 2)
        launcher.allocate(lambda: None)
        deadline = time.monotonic() + 120
        while list_containers(engine):
            assert time.monotonic() < deadline, "a killed launcher leaves them behind"
            time.sleep(0.5)

    def test_an_unreachable_daemon_is_named_by_the_pipe(self, launcher, engine, monkeypatch):
        pipe = self.open_pipe(launcher, "pass")
        pipe.communicate(b"", timeout=120)
        hosts = engine.hosts(daemon="unix:///nowhere.sock")
        launcher._hosts = hosts
        pipe = self.open_pipe(launcher, "pass", is_allocated=True)
        _, errors = pipe.communicate(b"", timeout=120)
        assert "unix:///nowhere.sock does not answer" in errors.decode()
        assert pipe.returncode == MachineError.exit_code
        launcher._hosts = engine.hosts()

    def open_pipe(
        self, launcher: ContainerLauncher, program: str, is_allocated: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts a program in the first container, with a pipe to it."""
        if not is_allocated:
            launcher.allocate(lambda: None)
        [host, *_] = describe_hosts(launcher._hosts, "trainyard-digits-test-1")
        spec = AgentSpec(host="", run="/run", lock="", token_file="", silence_timeout_seconds=60)
        argv = launcher.build_command(host, spec)
        request = json.loads(argv[-1]) | {"command": ["python", "-c", program]}
        return subprocess.Popen(
            [*argv[:-1], json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def list_gang(engine: ContainerEngine) -> list[str]:
    names = engine.docker("ps", "--format", "{{.Names}}").split()
    return sorted(name for name in names if name.startswith("trainyard-digits-"))


@pytest.fixture
def training(engine, image, bucket, dataset, tmp_path):
    common = {"launcher": "container", "image": image("jobs"), "pull": "never"}
    variables = {"environment": {"DOCKER_CERT_PATH": "/tls"}}
    hosts = common | {"containers": 2, "network": "trusted", "daemon": engine.secure_address}
    dockerfile = f"FROM {image('jobs')}\nCOPY *.pem /tls/\n"
    engine.build_image("supervisor", dockerfile, engine.certificates)
    supervisor = common | {"image": "supervisor", "daemon": engine.address}
    training = PlacedTraining(
        tmp_path, f"{bucket}/root", dataset, hosts | variables, supervisor | variables
    )
    yield training
    training.remove()


@pytest.mark.containers
@pytest.mark.timeout(3600)
def test_a_gang_survives_the_container_of_its_chief(training, engine):
    training.wait_until(training.has_checkpoint)
    gang = list_gang(engine)
    assert len(gang) == 2
    engine.docker("kill", gang[0])
    training.wait_until(lambda: training.read_messages("restart"))
    figures = training.end()
    assert (figures.workers, figures.restarts) == (2, 1)
    assert training.read_steps("restored")[-1] >= INTERVAL
    assert list_gang(engine) == [], "its containers are gone with the training"
    with Daemon(engine.address).connect() as api:
        assert not api.networks(filters={"name": "trainyard-digits"})
