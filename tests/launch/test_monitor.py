"""The cause of a failure, found in the files of a gang. No process is started."""

from __future__ import annotations

import time

import pytest

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import Event
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.progress import ProgressEvent, ProgressWriter
from pipeline_ops.contract.request import Status
from pipeline_ops.errors import ExitCode
from pipeline_ops.launch.monitor import WorkerMonitor
from pipeline_ops.launch.plan import build_launch_plan, get_status_path
from pipeline_ops.places.launcher import Host
from pipeline_ops.storage.local_files import write_json

HOSTS = [
    Host(name="h1", address="h1", workers=1, cores=1),
    Host(name="h2", address="h2", workers=1, cores=1),
]
ECHO = "UnavailableError: Connection reset by peer"


class Scene:
    """A gang whose processes end and report as a test decides."""

    def __init__(self, folder, hosts=HOSTS, **values):
        config = Train(**{"model": "digits_cnn", "workers": 2, "global_batch_size": 8} | values)
        self.attempt = Attempt(folder)
        self.plan = build_launch_plan(config, hosts, self.attempt, folder)
        self.monitor = WorkerMonitor(self.plan, config, self.attempt)

    def ends(self, name: str, code: int, message: str = "") -> None:
        if code > 0:
            write_json(
                get_status_path(self.attempt, name),
                Status(exit_code=ExitCode(code), message=message).model_dump(mode="json"),
            )
        self.monitor.record_event("h1", Event(event="ended", name=name, code=code))

    def reports(self, name: str, phase: str, done: int | None = None) -> None:
        ProgressWriter(self.attempt.worker_progress(name)).report(phase, done)
        self.monitor.read_progress()

    def until_it_fails(self, **alive: Event) -> str:
        """Returns the failure, while hosts repeat their events before each check."""
        while True:
            for host, event in alive.items():
                self.monitor.record_event(host, event)
            if failure := self.monitor.find_failure():
                return str(failure)
            time.sleep(0.1)

    def cause(self) -> str:
        return str(self.monitor.find_cause(self.monitor.find_failure()))


def test_the_echo_of_a_killed_peer_is_not_taken_for_the_cause(tmp_path):
    scene = Scene(tmp_path)
    scene.reports("worker 1", "train", 40)
    scene.ends("worker 0", 75, ECHO)
    scene.ends("worker 1", -9)
    assert scene.cause().startswith(
        "worker 1 on h2 was killed by signal 9 (SIGKILL) at step 40. See "
    )


def test_the_progress_of_a_host_whose_disk_has_other_paths_is_read_from_the_files_here(tmp_path):
    """Its agent sends what its processes report."""
    far = [host.model_copy(update={"local_attempt": f"/far/{host.name}"}) for host in HOSTS]
    scene = Scene(tmp_path, far)
    assert scene.plan.chief.progress == "/far/h1/worker-0.jsonl"
    scene.reports("worker 0", "train", 40)
    scene.ends("worker 0", -9)
    assert "was killed by signal 9 (SIGKILL) at step 40" in scene.cause()


def test_a_crash_of_the_waiting_peer_is_not_taken_for_the_hang_that_it_gave_up(tmp_path):
    scene = Scene(tmp_path, step_timeout_seconds=1, steps_per_call=1)
    scene.reports("worker 0", "train", 22)
    scene.reports("worker 1", "train", 22)
    scene.ends("worker 1", -11)
    assert not scene.monitor.is_explained
    assert "worker 1 on h2 was killed by signal 11 (SIGSEGV)" in scene.cause()
    time.sleep(1.1)
    assert "worker 0 on h1 has reported no progress for 1 s" in scene.cause()


def test_an_error_of_the_config_is_told_before_everything_else(tmp_path):
    scene = Scene(tmp_path)
    scene.ends("worker 0", 75, ECHO)
    scene.ends("worker 1", 78, "there is no such model")
    failure = scene.monitor.find_cause(scene.monitor.find_failure())
    assert (failure.exit_code, str(failure).split(". ")[0]) == (
        ExitCode.CONFIG,
        "worker 1 on h2 failed at step 0: there is no such model",
    )


def test_alone_an_echo_is_all_there_is_to_tell(tmp_path):
    scene = Scene(tmp_path)
    scene.ends("worker 0", 75, ECHO)
    assert ECHO in scene.cause()


def test_a_process_without_a_beat_is_named(tmp_path):
    scene = Scene(tmp_path, heartbeat_timeout_seconds=2)
    scene.reports("worker 0", "train", 1)
    scene.reports("worker 1", "train", 1)
    assert "worker 1 on h2 has not been seen running for " in scene.until_it_fails(
        h1=Event(event="alive", names=["worker 0"])
    )


def test_a_gang_that_does_not_meet_is_told_with_everybodys_state(tmp_path):
    scene = Scene(tmp_path, start_timeout_seconds=1)
    scene.reports("worker 0", "joining")
    time.sleep(1.1)
    assert (
        "the workers have not met within 1 s (train.start_timeout_seconds): "
        "worker 0 on h1 is joining, worker 1 on h2 has not started"
    ) in str(scene.monitor.find_failure())


def test_a_gang_that_has_met_may_build_and_compile_for_longer_than_the_start(tmp_path):
    scene = Scene(tmp_path, start_timeout_seconds=1)
    for name in ("worker 0", "worker 1"):
        for phase in ("joining", "building", "input", "compiling"):
            scene.reports(name, phase)
    time.sleep(1.1)
    assert scene.monitor.find_failure() is None


def test_one_worker_that_validates_keeps_the_waiting_ones_alive(tmp_path):
    """Longer than a step, and than the limit of a phase without progress."""
    scene = Scene(tmp_path, step_timeout_seconds=1, steps_per_call=1, phase_timeout_seconds=1)
    scene.reports("worker 1", "train", 22)
    began = time.monotonic()
    while time.monotonic() < began + 2.5:
        scene.reports("worker 0", "validate", int(time.monotonic() - began))
        assert scene.monitor.find_failure() is None
        time.sleep(0.2)
    scene.reports("worker 0", "train", 22)
    assert scene.monitor.find_failure() is None, "the other one has just been released"


@pytest.mark.parametrize("phase", ["callbacks", "validate", "input", "compiling", "finishing"])
@pytest.mark.hosts
def test_the_worker_that_is_silent_in_a_phase_is_named_and_not_those_who_wait(tmp_path, phase):
    scene = Scene(tmp_path, step_timeout_seconds=1, steps_per_call=1, phase_timeout_seconds=2)
    scene.reports("worker 1", phase)
    scene.reports("worker 0", "train", 22)
    time.sleep(1.2)
    assert scene.monitor.find_failure() is None, "that is no step"
    expected = f"worker 1 on h2 has reported no progress for 2 s in the phase {phase} (train.phase"
    assert expected in scene.until_it_fails()


@pytest.mark.parametrize("phase", ["validate", "tracing", "input", "callbacks"])
def test_a_worker_that_waits_for_longer_is_not_the_one_that_hangs(tmp_path, phase):
    scene = Scene(tmp_path, phase_timeout_seconds=1)
    scene.reports("worker 0", "compiling" if phase == "tracing" else "waiting")
    time.sleep(0.2)
    scene.reports("worker 1", phase)
    assert f"worker 1 on h2 has reported no progress for 1 s in the phase {phase}" in (
        scene.until_it_fails()
    )


@pytest.mark.parametrize(("rate", "seconds"), [(None, 3), (3.0, 3), (100.0, 1)])
def test_a_call_of_several_steps_may_take_longer_than_a_step(tmp_path, rate, seconds):
    """The limit is that of a step for each step, and lower once the rate is known."""
    scene = Scene(tmp_path, step_timeout_seconds=1, steps_per_call=3)
    for name in ("worker 0", "worker 1"):
        with open(scene.attempt.worker_progress(name), "a") as file:
            event = ProgressEvent(time=time.time(), phase="train", done=22, rate=rate)
            file.write(event.model_dump_json() + "\n")
    scene.monitor.read_progress()
    time.sleep(seconds - 0.3)
    assert scene.monitor.find_failure() is None
    expected = f"for {seconds} s in the phase train (train.step_timeout_seconds is 1)"
    message = scene.until_it_fails()
    assert expected in message and "Raise the limit if this may take longer. " in message


def test_a_warning_is_no_phase(tmp_path):
    """One comes before the workers have met."""
    scene = Scene(tmp_path, start_timeout_seconds=1)
    for name in ("worker 0", "worker 1"):
        scene.reports(name, "joining")
        scene.reports(name, "warning")
    time.sleep(1.1)
    assert "worker 0 on h1 is joining" in str(scene.monitor.find_failure())


@pytest.mark.parametrize(
    ("name", "code", "fails"),
    [("chief", 0, False), ("ps 0", 0, True), ("ps 0", -9, True), ("worker 1", -9, True)],
)
def test_servers_must_outlive_their_chief(tmp_path, name, code, fails):
    scene = Scene(tmp_path, strategy="parameter_server", parameter_servers=1)
    scene.ends(name, code)
    assert bool(scene.monitor.find_failure()) == fails
    assert scene.monitor.unfinished == ([] if name == "chief" else ["chief"])
