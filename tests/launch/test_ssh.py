"""Training on hosts over real ssh. Faults of these hosts cost seconds but no training."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

import pytest
from launch.network import Network, why_not
from launch.outcomes import assert_same, assert_went_on
from launch.running import INTERVAL, STEPS_PER_EPOCH, RunningJob, command, parent, starting
from scenes import AUGMENT, DETECTORS, DIGIT_SCENES, SGD

from pipeline_ops.contract.layout import lock_file
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ExitCode

PATIENT = {"train__heartbeat_timeout_seconds": 6, "train__start_timeout_seconds": 90}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    if reason := why_not():
        pytest.skip(f"no hosts to train on: {reason}")
    network = Network(tmp_path_factory.mktemp("network"), 3)
    network.up()
    yield network
    network.down()


@pytest.fixture
def start(network, dataset, make_job_in, tmp_path):
    """Starts jobs on the first hosts of the network."""
    with starting(make_job_in, dataset, tmp_path, {}, **PATIENT) as start_job:

        def start_on(
            hosts: int = 2, name: str = "attempt", lab: dict | None = None, **overrides
        ) -> RunningJob:
            return start_job(
                name,
                network.hosts_file(hosts) | (lab or {}),
                **({"train__workers": hosts} | overrides),
            )

        yield start_on
        for host in network.hosts:
            network.reconnect(host)


@pytest.fixture
def alone(dataset, make_job_in, tmp_path_factory):
    """Starts jobs on this machine for comparison."""
    with starting(
        make_job_in, dataset, tmp_path_factory.mktemp("alone"), {"launcher": "local", "cores": 1}
    ) as start_job:
        yield start_job


@pytest.fixture(scope="module")
def here():
    return {"launcher": "local", "cores": 2}


def read_namespace(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino


@pytest.mark.hosts
def test_two_hosts_train_what_one_machine_trains(start, undisturbed):
    job = start(hosts=2, is_held=True)
    job.wait_until_held()
    pids = (os.getpid(), job.worker("worker 0"), job.worker("worker 1"))
    assert len(set(map(read_namespace, pids))) == 3, "each process is in another network"
    job.release()
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert job.figures().workers == 2
    assert_same(job, undisturbed)
    assert job.survivors() == []


@pytest.mark.hosts
@pytest.mark.parametrize("model", DETECTORS)
def test_two_hosts_train_a_detector_as_one_device_does(
    network, scenes, make_job_in, tmp_path, model
):
    detector = {
        "train__model": model,
        "train__model_parameters": DETECTORS[model],
        "train__global_batch_size": 16,
        "train__optimizer": SGD,
        "train__input.augment": AUGMENT,
        "train__best_checkpoint": None,
        "train__reduce_learning_rate": None,
        "train__epochs": 1,
    }
    places = {
        "hosts": (network.hosts_file(2), PATIENT | {"train__workers": 2}),
        "here": ({"launcher": "local", "cores": 1}, {"train__workers": 1}),
    }
    metrics = []
    for name, (hosts, options) in places.items():
        folder = tmp_path / name
        with starting(make_job_in, scenes, folder, hosts, DIGIT_SCENES, **detector) as start_job:
            job = start_job(**options)
            assert job.end() == ExitCode.SUCCESS, job.message()
            metrics += [epoch.metrics for epoch in job.figures().history]
            assert job.survivors() == []
    together, alone = metrics
    assert together == pytest.approx(alone, rel=1e-5)


@pytest.mark.hosts
def test_three_hosts_train_what_one_machine_trains(start, alone):
    job, reference = start(hosts=3), alone(lab={"cores": 3}, train__workers=3)
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert reference.end() == ExitCode.SUCCESS
    assert job.figures().workers == 3
    assert_same(job, reference)
    assert job.survivors() == []


@pytest.mark.hosts
def test_a_lost_host_shrinks_the_gang_and_the_result_is_the_same(start, network, undisturbed):
    job = start(hosts=2, is_held=True, train__min_workers=1)
    job.wait_until_held()
    network.cut(network.hosts[1])
    assert job.end() == ExitCode.SUCCESS, job.message()
    network.reconnect(network.hosts[1])
    assert_went_on(undisturbed, job, survive_seconds=15)
    assert f"host {network.hosts[1]}: it has been silent" in job.messages("restart")[0]
    assert (job.figures().workers, job.figures().restarts) == (1, 1)


@pytest.mark.hosts
def test_a_network_that_is_cut_for_a_while_costs_a_restart_and_no_worker(
    start, network, undisturbed
):
    job = start(hosts=2, is_held=True)
    job.wait_until_held()
    network.cut(network.hosts[1])
    job.wait_for(lambda moment: moment.phase == "restart")
    network.reconnect(network.hosts[1])
    assert_went_on(undisturbed, job, survive_seconds=15)
    assert job.figures().workers == 2


@pytest.mark.hosts
def test_a_returned_host_grows_the_gang_back_and_the_curve_stays_the_same(start, alone, network):
    # Adam makes the rounding of one worker and of two so large that an activation changes its sign.
    plain = {"train__optimizer": {"name": "sgd", "learning_rate": 0.02, "momentum": 0.9}}
    calm = alone(train__workers=1, **plain)
    assert calm.end() == ExitCode.SUCCESS
    network.cut(network.hosts[1])
    job = start(hosts=2, is_held=True, train__min_workers=1, **plain)
    job.wait_until_held()
    network.reconnect(network.hosts[1])
    assert (
        "take 2 workers instead of 1" in job.wait_for(lambda moment: moment.phase == "grow").message
    )
    job.release()
    assert_went_on(calm, job)
    assert (job.figures().workers, job.figures().restarts) == (2, 0)
    assert job.steps("preempted") == job.steps("restored"), "growth loses no step"
    both = zip(job.figures().history, calm.figures().history, strict=True)
    assert max(abs(mine.metrics["loss"] - theirs.metrics["loss"]) for mine, theirs in both) <= 1e-6


@pytest.mark.hosts
def test_a_cut_network_leaves_nothing_on_the_far_side(start, network):
    job = start(hosts=2, is_held=True, train__max_restarts=0, train__start_timeout_seconds=60)
    job.wait_until_held()
    far = job.worker("worker 1")
    network.cut(network.hosts[1])
    begin = time.monotonic()
    assert job.end() == ExitCode.RETRY
    assert f"host {network.hosts[1]}: it has been silent" in job.message()
    assert job.survivors(seconds=15) == [], f"worker 1 was {far}"
    assert time.monotonic() - begin < 60


@pytest.mark.hosts
def test_a_host_that_does_not_answer_is_named_within_the_deadline(start, network):
    network.cut(network.hosts[1])
    begin = time.monotonic()
    job = start(hosts=2, train__max_restarts=0, train__start_timeout_seconds=20)
    assert job.end() == ExitCode.RETRY
    assert (
        f"at least 2 are needed: host {network.hosts[1]}: the connection ended with 255"
        in job.message()
    )
    assert "timed out" in job.message() or "No route to host" in job.message()
    assert time.monotonic() - begin < 60
    assert job.survivors() == []


@pytest.mark.hosts
def test_a_gang_of_another_launcher_is_not_joined_by_a_second_one(start):
    """The hosts refuse the second gang even if the locks of the storage do not reach them."""
    first = start(hosts=1, train__epochs=3000)
    first.wait_for_step(5)
    lock = lock_file(first.job.folder).local
    lock.unlink()  # as if storage had no locks
    second = start(
        hosts=1,
        name="second",
        train__epochs=3000,
        train__start_timeout_seconds=20,
        train__max_restarts=0,
    )
    assert second.end() == ExitCode.RETRY
    assert "a gang for the same artifact runs there already" in second.message()
    assert str(first.agents()[0]) in second.message()
    assert first.process.poll() is None and first.messages("restart") == [], (
        "the first one was not disturbed"
    )


@pytest.mark.hosts
def test_a_killed_launcher_leaves_nothing_on_any_host(start, undisturbed):
    job = start(is_held=True)
    job.wait_until_held()
    job.kill_launcher()
    again = start(name="second")
    assert_went_on(undisturbed, job, again)
    assert again.steps("restored") == [STEPS_PER_EPOCH]


@pytest.mark.hosts
@pytest.mark.parametrize("victim", ["agent", "ssh"])
def test_a_killed_carrier_ends_its_host_and_the_gang_goes_on(network, start, undisturbed, victim):
    job = start(is_held=True)
    job.wait_until_held()
    ssh = next(
        pid
        for pid in job.all()
        if parent(pid) == job.process.pid and network.hosts[1] in command(pid)
    )
    os.kill(far_agent(job) if victim == "agent" else ssh, signal.SIGKILL)
    assert_went_on(undisturbed, job)
    assert f"host {network.hosts[1]}: the connection ended" in job.messages("restart")[0]
    assert job.figures().restarts == 1


def far_agent(job: RunningJob) -> int:
    return next(
        pid for pid in job.agents() if read_namespace(pid) == read_namespace(job.worker("worker 1"))
    )


@pytest.mark.hosts
def test_a_stopped_agent_does_not_hide_its_workers(start, undisturbed):
    """The stopped agent cannot end them. Its successor does."""
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(far_agent(job), signal.SIGSTOP)
    assert_went_on(undisturbed, job)


@pytest.mark.hosts
def test_three_hosts_go_on_as_two_when_one_is_lost_for_good(start, network, alone):
    """The model is smooth, so another order of sums stays small (`training/test_equality.py`)."""
    smooth = {"train__model": "acme_vision.nets:smooth"}
    job = start(hosts=3, is_held=True, train__min_workers=2, **smooth)
    job.wait_until_held()
    network.cut(network.hosts[2])
    assert job.end() == ExitCode.SUCCESS, job.message()
    calm = alone(lab={"cores": 2}, train__workers=2, **smooth)
    assert calm.end() == ExitCode.SUCCESS
    assert_went_on(calm, job, survive_seconds=15)
    assert (job.figures().workers, job.figures().restarts) == (2, 1)


@pytest.mark.hosts
def test_a_checkpoint_that_one_host_can_not_read_is_given_up_by_all(
    start, network, undisturbed, tmp_path
):
    """Another file is mounted over it on one host. Other hosts can read it."""
    job = start(is_held=True)
    job.wait_until_held()
    job.kill_launcher()
    newest, damaged = (
        job.job.work / f"checkpoint-{STEPS_PER_EPOCH:09d}.npz",
        tmp_path / "damaged",
    )
    damaged.write_bytes(newest.read_bytes()[:5000])
    subprocess.run(
        [*network.on(network.hosts[1]), "mount", "--bind", str(damaged), str(newest)], check=True
    )
    again = start(name="second", train__max_restarts=0)
    assert again.end() == ExitCode.SUCCESS, again.message()
    assert again.steps("restored") == again.steps("restored", "worker 1") == [INTERVAL]
    assert (
        f"worker 1 cannot read a checkpoint in {newest.parent} that is newer than step {INTERVAL}, "
        f"but other workers read the one of step {STEPS_PER_EPOCH}"
    ) in "".join(again.figures().warnings)
    assert_same(again, undisturbed)


@pytest.mark.hosts
def test_a_host_whose_key_is_not_known_is_refused(network, start, tmp_path):
    unknown = f"Host *\n  UserKnownHostsFile {tmp_path / 'none'}"
    job = start(
        hosts=1,
        lab={"config_file": network.write_config(tmp_path / "config", unknown)},
        train__start_timeout_seconds=10,
        train__max_restarts=0,
    )
    assert job.end() == ExitCode.RETRY
    assert (
        f"host {network.hosts[0]}" in job.message()
        and "Host key verification failed" in job.message()
    )


@pytest.mark.hosts
def test_a_host_behind_jump_hosts_is_reached_as_the_ssh_config_says(start, network, tmp_path):
    last, first = (f"root@{network.addresses[host]}:22" for host in network.hosts[1:3])
    jump = f"Host {network.hosts[0]}\n  ProxyJump {first},{last}"
    file = network.write_config(tmp_path / "ssh_config", jump)
    job = start(hosts=1, lab={"config_file": file}, train__epochs=1)
    assert job.end() == ExitCode.SUCCESS, job.message()
    log = (network.folder / f"{network.hosts[0]}.log").read_text()
    assert f"from {network.addresses[network.hosts[1]]}" in log, (
        "it was reached from the last jump host"
    )


def test_a_host_with_other_code_is_named_before_anything_is_trained(network, start, tmp_path):
    shutil.copytree(
        CODE_ROOT / "pipeline_ops",
        tmp_path / "copy" / "pipeline_ops",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    changed = tmp_path / "copy" / "pipeline_ops" / "training" / "loop.py"
    changed.write_text(changed.read_text() + "# changed\n")
    job = start(hosts=1, lab={"code": str(tmp_path / "copy")})
    assert job.end() == ExitCode.CONFIG, "a retry does not help"
    assert f"host {network.hosts[0]}: its copy of this project (digest" in job.message()
    assert job.survivors() == []


def test_a_host_that_does_not_see_the_storage_root_is_named(start, network, tmp_path):
    """The folder of the job is hidden on that host by an empty one."""
    subprocess.run(
        [*network.on(network.hosts[0]), "mount", "-t", "tmpfs", "none", str(tmp_path)], check=True
    )
    try:
        job = start(hosts=1)
        assert job.end() == ExitCode.CONFIG
        assert f"host {network.hosts[0]}: it does not see the storage root" in job.message()
    finally:
        subprocess.run([*network.on(network.hosts[0]), "umount", str(tmp_path)], check=True)
