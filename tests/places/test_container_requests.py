"""The requests to a Docker daemon and the meaning of its answers, without a daemon."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
from answering_server import answering_server
from pydantic import ValidationError

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.places.container import ContainerHosts, ContainerPlace, Daemon, build_body
from pipeline_ops.places.place import INIT_MODULE, JobLaunch
from pipeline_ops.storage.open_store import open_root

LAUNCH = JobLaunch(Attempt(open_root("/folder/attempt")), "module", {}, 300, "digits", "train")


def make_hosts(**values: object) -> ContainerHosts:
    return ContainerHosts.model_validate({"launcher": "container", "image": "jobs"} | values)


def build(**values: object) -> dict:
    return build_body(make_hosts(**values), "sha256:1", LAUNCH)


def test_a_container_has_no_right_that_it_does_not_need():
    host = build()["HostConfig"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["RestartPolicy"] == {"Name": "no"}
    assert host["Mounts"] == [] and "Binds" not in host and "Privileged" not in host


def test_a_container_writes_to_a_volume_of_its_own_and_has_no_other_entry_point():
    body = build()
    assert body["Volumes"] == {"/work": {}}
    variables = dict(line.split("=", 1) for line in body["Env"])
    assert variables["HOME"] == variables["TMPDIR"] == "/work"
    assert variables["TRAINYARD_LOCAL_FOLDER"] == "/work/local"
    python = ["PYTHONSAFEPATH=1", "PYTHONHASHSEED=0", "python", "-m", INIT_MODULE, "module"]
    assert body["Entrypoint"] == ["env"]
    assert body["Cmd"] == [*python, "/folder/attempt/request.json"]


def test_a_container_without_limits_has_none_and_one_of_memory_is_without_swap():
    host = build()["HostConfig"]
    assert not {"Memory", "NanoCpus", "DeviceRequests", "NetworkMode"} & set(host)
    host = build(memory="512Mi", cpu="1.5")["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == host["ShmSize"] == 512 << 20
    assert host["NanoCpus"] == 1_500_000_000


def test_gpus_are_a_request_for_devices():
    [request] = build(gpus=3)["HostConfig"]["DeviceRequests"]
    assert request == {"Driver": "", "Capabilities": [["gpu"]], "Count": 3}


def test_named_folders_are_mounted():
    volume = {"folder": "/data", "mount": "/mnt/data", "read_only": True}
    [mount] = build(volumes=[volume])["HostConfig"]["Mounts"]
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == ("/data", "/mnt/data", True)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"docker_network": "none"}, "from which the store can be reached, got none"),
        ({"volumes": [{"folder": "/x", "mount": "/work"}]}, "must not be mounted at /work"),
        ({"daemon": "localhost:2375"}, "daemon"),
    ],
)
def test_a_hosts_file_that_can_not_work_is_refused(values, problem):
    with pytest.raises(ValidationError, match=problem):
        make_hosts(**values)


def test_a_socket_of_another_user_is_named():
    error = Daemon("unix:///d.sock")._describe_silence(PermissionError(13, "Permission denied"))
    assert isinstance(error, ConfigError)
    assert "no right to use the Docker daemon unix:///d.sock" in str(error)


def test_the_daemon_is_that_of_the_hosts_file_then_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://there:2376")
    assert Daemon("unix:///d.sock").address == "unix:///d.sock"
    assert Daemon().address == "tcp://there:2376"
    monkeypatch.delenv("DOCKER_HOST")
    assert Daemon().address == "unix:///var/run/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "ssh://there")
    with pytest.raises(ConfigError, match="DOCKER_HOST is ssh://there.*Forward the socket"):
        Daemon()


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[docker\]'"):
        Daemon("unix:///d.sock").inspect("x")


class Answers:
    """A Docker daemon that has the images `images`, and notes the requests that it gets."""

    def __init__(self):
        config = {"User": "10001", "Volumes": {"/work": {}}}
        self.images, self.requests = {"jobs": {"Id": "sha256:1", "Config": config}}, []
        self.failure: tuple[int, str] | None = None
        """The status and the message of all answers but the version."""

    def __call__(self, method: str, path: str) -> tuple[int, bytes]:
        self.requests.append(f"{method} {path}")
        name = path.partition("/images/")[2].removesuffix("/json")
        if path.endswith("/version"):
            return 200, b'{"ApiVersion": "1.44"}'
        if name in self.images and not self.failure:
            return 200, json.dumps(self.images[name]).encode()
        status, message = self.failure or (404, f"No such image: {name}")
        return status, json.dumps({"message": message}).encode()


@pytest.fixture
def daemon():
    daemon = Answers()
    with answering_server(daemon) as host:
        daemon.address = f"tcp://{host}"
        yield daemon


def test_another_image_than_that_of_the_plan_starts_no_container(daemon):
    place = ContainerPlace(make_hosts(daemon=daemon.address))
    launch = dataclasses.replace(LAUNCH, versions={"image": "sha256:2"})
    with pytest.raises(MachineError, match="is now sha256:1. When the job was planned, it was sha"):
        place.start(launch)
    assert not any(request.startswith("POST") for request in daemon.requests)


def test_an_image_that_is_missing_and_never_pulled_is_found(daemon):
    hosts = make_hosts(daemon=daemon.address, image="other:1", pull="never")
    with pytest.raises(ConfigError, match="has no image other:1"):
        ContainerPlace(hosts).find_versions([])


def test_a_daemon_that_is_not_there_is_told_with_its_cure():
    with pytest.raises(MachineError, match="tcp://127.0.0.1:9 does not answer") as caught:
        ContainerPlace(make_hosts(daemon="tcp://127.0.0.1:9")).find_versions([])
    assert caught.value.cure.startswith("Start it, or correct `daemon`")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        *(({"User": user}, "would run as root.* USER 10001") for user in ("", "0", "root", "0:0")),
        ({"Volumes": {}}, "no volume /work.*write VOLUME /work"),
    ],
)
def test_an_image_that_jobs_can_not_use_is_refused(daemon, config, problem):
    daemon.images["jobs"]["Config"] |= config
    with pytest.raises(ConfigError, match=problem):
        ContainerPlace(make_hosts(daemon=daemon.address)).find_versions([])


@pytest.mark.parametrize(
    ("status", "explanation", "kind"),
    [
        (400, "invalid mount config for type bind: bind source path does not exist", ConfigError),
        (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs", ConfigError),
        (500, 'could not select device driver "" with capabilities: [[gpu]]', ConfigError),
        (404, "network nowhere not found", ConfigError),
        (404, "No such container: x", MachineError),
        (409, "removal of container x is already in progress", MachineError),
        (500, "mkdir /var/lib/docker/overlay2/x: no space left on device", MachineError),
        (503, "service unavailable", MachineError),
    ],
)
def test_an_error_of_the_daemon_is_one_of_the_hosts_file_or_of_the_machine(
    daemon, status, explanation, kind
):
    daemon.failure = status, explanation
    with pytest.raises(kind) as caught:
        Daemon(daemon.address).call("start", "x")
    assert type(caught.value) is kind
    assert daemon.address in str(caught.value) and explanation in str(caught.value)
