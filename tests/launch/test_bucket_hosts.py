"""Training on hosts over real ssh that share nothing but a bucket.

The hosts are network namespaces of one machine. Each has a folder for its disk, which the others do
not see.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from launch.network import Network, why_not
from launch.on_bucket import bucket_jobs, upload_dataset
from launch.running import INTERVAL, command, wait_until
from object_servers.fault_proxy import FaultProxy
from object_servers.s3_server import S3Server

from pipeline_ops.errors import ExitCode

PATIENT = {"train__heartbeat_timeout_seconds": 6, "train__start_timeout_seconds": 90}
SECRET = "the-secret-of-the-bucket"


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    if reason := why_not():
        pytest.skip(f"no hosts to train on: {reason}")
    network = Network(tmp_path_factory.mktemp("network"), 2, has_disks=True)
    network.up()
    yield network
    network.down()


@pytest.fixture(scope="module")
def server(network):
    with S3Server(network.gateway) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.build_environment().items():
            patch.setenv(name, value)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        server.make_bucket("bucket")
        yield server


@pytest.fixture
def start(network, server, dataset, tmp_path):
    root = f"s3://bucket/{tmp_path.name}"
    with bucket_jobs(
        tmp_path, root, upload_dataset(dataset, root), network.hosts_file(2)
    ) as start_job:
        disk = str(network.get_disk("launcher"))
        yield lambda **options: start_job(disk, **PATIENT | {"train__workers": 2} | options)
        for host in network.hosts:
            network.reconnect(host)


@pytest.fixture(scope="module")
def here():
    return {"launcher": "local", "cores": 2}


def list_files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def find_text(folder: Path, text: str) -> list[Path]:
    """The files below a folder that contain a text."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return [file for file in files if text.encode() in file.read_bytes()]


@pytest.mark.hosts
def test_two_hosts_train_what_one_machine_trains(start, undisturbed, network, tmp_path):
    home = Path("~/.cache").expanduser()
    before = list_files(home) if home.exists() else []
    job = start(is_held=True)
    job.wait_until_held()
    disks = [network.get_disk(host) for host in network.hosts]
    for number, disk in enumerate(disks):
        names = {Path(name).name for name in list_files(disk)}
        assert f"worker-{number}.jsonl" in names and f"worker-{1 - number}.jsonl" not in names
        assert any(name.endswith(".tfrecord") for name in names)
    assert {path.name for path in job.local.iterdir()} >= {"worker-0.jsonl", "worker-1.jsonl"}
    assert find_text(network.folder, SECRET) == find_text(tmp_path, SECRET) == []
    job.release()
    status = job.end()
    assert status.exit_code == ExitCode.SUCCESS, job.read_log()
    figures, theirs = job.read_figures(), undisturbed.figures()
    assert (figures.workers, figures.restarts) == (2, 0)
    assert figures.weights_digest == theirs.weights_digest
    assert len(figures.worker_weights_digests) == 2
    assert job.read_steps("trained") == job.read_steps("trained", "worker 1") == [figures.steps]
    assert job.work.walk() == []
    wait_until(lambda: not job.survivors())
    for disk in disks:
        left = [name for name in list_files(disk) if not name.startswith("trainyard-cache/")]
        assert left == [], "logs and checkpoints of the hosts are gone with the gang"
    assert [file for file in (tmp_path / "temporary").rglob("*") if "hold" not in file.name] == []
    assert (list_files(home) if home.exists() else []) == before


@pytest.mark.hosts
def test_a_gang_on_one_far_host_reaches_the_bucket_from_its_namespace(start, undisturbed, network):
    far = network.hosts_file(1)["hosts"][0] | {"cores": 2, "workers": 2}
    job = start(is_held=True, lab={"network": "isolated", "hosts": [far]})
    job.wait_until_held()
    [host, _] = network.hosts
    [proxy] = [pid for pid in job.survivors() if "store_proxy" in command(pid)]
    assert count_namespaces(job.survivors()) == 3  # of the launcher, the host and the gang
    assert os.path.samefile(f"/proc/{proxy}/ns/net", f"/run/netns/{host}")
    job.release()
    status = job.end()
    assert status.exit_code == ExitCode.SUCCESS, job.read_log()
    assert job.read_figures().weights_digest == undisturbed.figures().weights_digest
    assert job.read_messages("warning") == []
    wait_until(lambda: not job.survivors())


def count_namespaces(pids: list[int]) -> int:
    return len({os.readlink(f"/proc/{pid}/ns/net") for pid in pids})


@pytest.mark.hosts
def test_the_gang_goes_on_without_the_host_of_the_chief_and_its_disk(
    start, undisturbed, network, tmp_path
):
    job = start(is_held=True, train__min_workers=1)
    job.wait_until_held()
    network.cut(network.hosts[0])
    for entry in network.get_disk(network.hosts[0]).iterdir():
        shutil.rmtree(entry)
    job.wait_until(lambda: job.read_messages("restart"))
    job.release()
    status = job.end()
    assert status.exit_code == ExitCode.SUCCESS, job.read_log()
    assert f"host {network.hosts[0]}: it has been silent" in job.read_messages("restart")[0]
    assert job.read_steps("restored")[-1] >= INTERVAL
    figures, theirs = job.read_figures(), undisturbed.figures()
    assert (figures.workers, figures.restarts) == (1, 1)
    assert abs(figures.history[-1].metrics["loss"] - theirs.history[-1].metrics["loss"]) <= 1e-6
    network.reconnect(network.hosts[0])
    wait_until(lambda: not job.survivors())


@pytest.mark.hosts
def test_the_failure_of_a_worker_on_another_disk_is_explained(network, start, tmp_path):
    (tmp_path / "failing.py").write_text(
        "import keras\n\n\nclass Fail(keras.callbacks.Callback):\n"
        "    def on_epoch_end(self, epoch, logs):\n        raise ValueError('no such luck')\n"
    )
    job = start(train__callbacks=["failing:Fail"], train__max_restarts=0)
    status = job.end()
    assert status.exit_code != ExitCode.SUCCESS
    assert "no such luck" in status.message, status.message
    assert any(f"on {host}" in status.message for host in network.hosts)


@pytest.mark.hosts
@pytest.mark.timeout(900)
def test_no_host_is_lost_while_the_job_waits_for_a_slow_store(start, server, network, monkeypatch):
    """Each request of the job takes longer than a host may wait for its ping."""
    disks = [network.get_disk(host) for host in network.hosts]
    kept = [list_files(disk) for disk in disks]  # a failed job's checkpoints, for its next try
    with FaultProxy(server.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        job = start(
            is_held=True,
            lab={"environment": {"AWS_ENDPOINT_URL": server.address}},
            train__epochs=1,
            train__heartbeat_timeout_seconds=4,
        )
        job.wait_until_held()
        with proxy.failing(latency_seconds=5.0):
            job.release()
            status = job.end()
        assert status.exit_code == ExitCode.SUCCESS, job.read_log()
        assert job.read_figures().restarts == 0
    assert "has been silent" not in job.read_log()
    wait_until(lambda: not job.survivors())
    for disk, before in zip(disks, kept, strict=True):
        left = [name for name in list_files(disk) if not name.startswith("trainyard-cache/")]
        assert set(left) <= set(before)


@pytest.mark.hosts
def test_a_host_that_does_not_reach_the_bucket_is_named(network, start):
    with S3Server(network.gateway) as empty:
        empty.make_bucket("bucket")
        job = start(lab={"environment": {"AWS_ENDPOINT_URL": empty.address}})
        status = job.end()
    assert status.exit_code == ExitCode.CONFIG, status
    assert (
        f"host {network.hosts[0]}: it does not see the storage root: s3://bucket/" in status.message
    )
    assert "is missing there. Give it the same endpoint" in status.message
