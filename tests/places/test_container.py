"""Jobs in containers of a real Docker daemon. They share nothing with this machine but a bucket."""

from __future__ import annotations

import concurrent.futures
import json
import zlib
from collections.abc import Callable, Iterator

import pytest
from answering_server import HEADERS, answering_server
from placed_job import PlacedJob

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.request import read_status
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.places.container import ContainerPlace, build_body
from pipeline_ops.storage.open_store import open_path

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("small_image"),
]


@pytest.fixture
def job(engine, bucket, request) -> Callable[..., PlacedJob]:
    started: list[PlacedJob] = []

    def make(do: str = "wait", planned: str = "", **values: object) -> PlacedJob:
        number = zlib.crc32(f"{request.node.name} {len(started)}".encode())
        place = engine.place(**values)
        started.append(PlacedJob(f"{bucket}/root", number, place, do, planned=planned))
        return started[-1]

    yield make
    for one in started:
        one.place.clean(one.attempt)


def test_a_job_leaves_its_artifact_and_nothing_in_its_place(engine, job):
    before = engine.list_volumes()
    one = job("nothing").start()
    outcome = one.wait_for_outcome()
    assert outcome.exit_code is ExitCode.SUCCESS, outcome
    assert open_path(outcome.manifest).exists()
    one.wait_for_phase("ended")
    assert "the job does: nothing" in one.place.read_output(one.attempt)
    assert "the job does: nothing" in one.attempt.log.read_log_end(1 << 20)[1].decode()
    assert one.place.clean(one.attempt)
    assert one.find().phase == "absent"
    assert engine.list_volumes() == before
    assert one.place.clean(one.attempt), "a second time there is nothing to do"


def test_a_job_has_no_rights_and_shares_nothing(engine, job):
    one = job("nothing").start()
    outcome = one.wait_for_outcome()
    folder = open_path(one.request.artifact).parent
    file = read_manifest(outcome.manifest).get_file("seen.json")
    seen = json.loads((folder / file.stored_at).read(1 << 20))
    assert seen["uid"] == 10001
    assert int(seen["capabilities"], 16) == 0
    assert seen["no_new_privileges"] == "1"
    assert seen["writable"] == ["/dev/mqueue", "/dev/shm", "/tmp", "/work"]
    assert seen["mounts"]["/tmp"] == "tmpfs"
    described = engine.describe(one.name)
    assert described["HostConfig"]["ReadonlyRootfs"]
    [mount] = described["Mounts"]
    assert (mount["Type"], mount["Destination"]) == ("volume", "/work")
    assert described["HostConfig"]["RestartPolicy"]["Name"] == "no"
    labels = described["Config"]["Labels"]
    assert labels["trainyard.attempt"] == str(one.attempt.folder)
    assert (labels["trainyard.pipeline"], labels["trainyard.job"]) == ("digits", "train")


def test_a_job_is_started_once(engine, job):
    one = job("wait")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: one.start(), range(4)))
    one.wait_until_ready()
    first = engine.describe(one.name)
    one.start()
    assert engine.describe(one.name)["State"]["StartedAt"] == first["State"]["StartedAt"]
    engine.kill_container(one.attempt)
    one.wait_for_phase("ended")
    one.start()
    assert one.find().phase == "ended", "it is not started again after its end"


def create_container(job: PlacedJob) -> None:
    """Makes the container of a job, and does not start it."""
    image = job.place._find_planned_image(None)
    body = build_body(job.place._hosts, image, job.launch)
    job.place._daemon.call("create_container_from_config", body, name=job.name)


def test_a_container_of_a_killed_starter_is_started_by_the_next_one(engine, job):
    one = job("wait")
    create_container(one)
    assert one.find().phase == "absent", "it was not started"
    one.start().wait_until_ready()
    assert one.find().phase == "running"


def test_a_container_that_was_not_started_goes_with_a_cancellation(engine, job):
    one = job("wait")
    create_container(one)
    one.place.cancel(one.attempt)
    assert engine.docker.run("docker", "inspect", one.name).returncode != 0


def test_a_container_that_was_killed_has_an_explained_end(engine, job):
    one = job("wait").start().wait_until_ready()
    engine.kill_container(one.attempt)
    outcome = one.wait_for_outcome()
    assert outcome.exit_code is ExitCode.RETRY
    assert "its container was killed by signal 9" in outcome.message


def test_want_of_memory_is_named(job):
    one = job("eat", memory="150Mi").start()
    outcome = one.wait_for_outcome()
    assert outcome.exit_code is ExitCode.RETRY
    assert "out of memory" in outcome.message
    assert "Give it more `memory` in the hosts file" in outcome.message


def test_want_of_memory_of_the_first_process_is_named(engine, job):
    """A limit that is too low even for the init process, which no hosts file may have."""
    one = job("wait")
    one.place = ContainerPlace(engine.hosts().model_copy(update={"memory": "24Mi"}))
    one.start()
    state = one.wait_for_phase("ended")
    assert "out of memory: it needed more than the limit of 24Mi" in state.message, state
    assert state.exit_code is ExitCode.RETRY


@pytest.mark.parametrize(
    ("status", "code", "kind", "text"),
    [
        (404, "MANIFEST_UNKNOWN", ConfigError, "can't be pulled"),
        (401, "UNAUTHORIZED", ConfigError, "can't be pulled"),
        (403, "DENIED", ConfigError, "can't be pulled"),
        (500, "UNKNOWN", MachineError, "could not be pulled"),
    ],
)
def test_a_failed_pull_is_named(engine, monkeypatch, status, code, kind, text):
    error = json.dumps({"errors": [{"code": code, "message": code.lower()}]}).encode()

    def answer(method: str, path: str) -> tuple[int, bytes]:
        return (200, b"{}") if path == "/v2/" else (status, error)

    headers = HEADERS | {"Docker-Distribution-Api-Version": "registry/2.0"}
    with answering_server(answer, engine.gateway, headers) as host:
        place = engine.place(image=f"{host}/team/jobs:1", pull="missing")
        with pytest.raises(kind, match=text):
            place.find_versions([])


def test_a_registry_that_can_not_be_reached_is_tried_again(engine):
    with pytest.raises(MachineError, match="could not be pulled"):
        engine.place(image="127.0.0.1:9/jobs:1", pull="missing").find_versions([])


def test_the_job_runs_in_the_image_that_was_planned(engine, job, tmp_path):
    [image] = engine.place().find_versions([]).values()
    newer = engine.build_image("moving", "FROM small\nENV NEWER=1\n", tmp_path)
    one = job("wait", planned=image, image="moving").start()
    assert engine.describe(one.name)["Image"] == image != newer
    with pytest.raises(MachineError, match="When the job was planned, it was sha256:1111"):
        job("wait", planned="sha256:" + 64 * "1").start()


def test_an_image_without_the_project_is_refused(engine, job, tmp_path):
    engine.build_image("empty", "FROM small\nENV PYTHONPATH=/nowhere\n", tmp_path)
    one = job("wait", image="empty").start()
    state = one.wait_for_phase("ended")
    assert state.exit_code is ExitCode.CONFIG
    assert "lacks this project or one of its packages" in state.message


def test_an_interpreter_that_is_not_in_the_image_is_named(job):
    one = job("wait", python="/opt/nowhere/python").start()
    state = one.wait_for_phase("ended")
    assert state.exit_code is ExitCode.CONFIG
    assert "/opt/nowhere/python" in state.message


def test_gpus_without_a_driver_are_refused(job):
    with pytest.raises(ConfigError, match="Install the NVIDIA container toolkit"):
        job("wait", gpus=1).start()


def test_a_network_that_is_missing_is_refused(job):
    with pytest.raises(ConfigError, match="network nowhere not found"):
        job("wait", docker_network="nowhere").start()


def test_a_disk_that_is_full_from_the_beginning_is_reported(engine, job):
    engine.fill_disk()
    try:
        one = job("nothing").start()
        outcome = one.wait_for_outcome()
    finally:
        engine.free_disk()
    assert outcome.exit_code is ExitCode.RETRY, outcome


def test_forgotten_containers_of_the_pipeline_are_removed(engine, job, monkeypatch):
    from pipeline_ops.places import container

    old, new = job("nothing").start(), job("nothing").start()
    for one in (old, new):
        one.wait_for_phase("ended")
    new.place.clean(new.attempt)
    assert old.find().phase == "ended", "a day has not passed"
    third = job("nothing").start()
    third.wait_for_phase("ended")
    monkeypatch.setattr(container, "_KEEP", -container._KEEP)
    third.place.clean(third.attempt)
    assert old.find().phase == "absent"


def test_a_daemon_is_reached_over_tls(engine, job, monkeypatch):
    with pytest.raises(ConfigError, match="DOCKER_CERT_PATH"):
        engine.place(daemon=engine.secure_address).find_versions([])
    monkeypatch.setenv("DOCKER_CERT_PATH", str(engine.certificates))
    one = job("nothing", daemon=engine.secure_address).start()
    assert one.wait_for_outcome().exit_code is ExitCode.SUCCESS


def test_a_job_is_lost_with_the_host_of_its_daemon(engine, job):
    one = job("wait").start().wait_until_ready()
    engine.lose()
    with pytest.raises(MachineError, match="does not answer"):
        one.find()
    engine.start()
    one.wait_for_phase("ended")
    assert one.find().exit_code is ExitCode.RETRY
    assert one.place.clean(one.attempt)
    assert read_status(one.attempt) is None


def test_a_job_that_its_daemon_stops_is_tried_again(engine, job):
    one = job("wait").start().wait_until_ready()
    engine.restart()
    outcome = one.wait_for_outcome()
    assert outcome.exit_code is ExitCode.RETRY
    assert "stopped the job" in outcome.message, outcome


@pytest.fixture
def live_restore(engine) -> Iterator[None]:
    engine.restart(survives=True)
    yield
    engine.restart()


@pytest.mark.usefixtures("live_restore")
def test_a_job_survives_its_daemon_with_live_restore(engine, job):
    one = job("wait").start().wait_until_ready()
    engine.kill()
    handle = JobHandle(one.attempt, one.place)
    assert handle.read_outcome() is None
    assert handle.is_alive(), "a daemon that does not answer is no reason to start it again"
    engine.start()
    assert one.find().phase == "running"
    one.place.cancel(one.attempt)
    assert engine.find_pids(one.name) == []
    assert one.place.clean(one.attempt)
