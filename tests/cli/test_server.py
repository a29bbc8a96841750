"""The processes of the embedded Airflow: start, sharing, and the end of all after any kill.

The processes are real. Only Airflow itself is a stand-in, so that a start takes a fraction of a
second.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import stat
import time
from pathlib import Path

import pytest
from cli.holder_command import END_SECONDS, Command
from processes import Stopwatch, kill, read_command_line

from pipeline_ops.cli.embedded_airflow import (
    AirflowHome,
    AirflowServer,
    Secrets,
    _choose_port,
    build_airflow_environment,
)

pytestmark = pytest.mark.airflow


@pytest.fixture
def start(survivors, tmp_path):
    """Starts a command that holds the embedded Airflow of this test."""

    def start(*configs: str, deeds: str = "") -> Command:
        return Command(survivors, tmp_path / "home", configs or ("/configs/a.yaml",), deeds)

    return start


@pytest.fixture
def home(tmp_path) -> AirflowHome:
    return AirflowHome(tmp_path / "home")


def test_four_programs_run_while_a_command_holds_them_and_none_after(start, survivors, home):
    command = start().wait_until_up()
    survivors.wait_for(5)  # the command, four programs
    watch = Stopwatch()
    assert command.end() == 0
    assert watch.seconds < END_SECONDS
    assert survivors.look() == []
    assert not home.server.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_command_ends_everything_before_the_command_ends(start, survivors, number):
    command = start(deeds="scheduler:escapes triggerer:stubborn").wait_until_up()
    survivors.wait_for(6)
    command.process.send_signal(number)
    assert command.wait_for_end() == 128 + number
    assert survivors.look() == []


def test_a_signal_during_the_start_leaves_nothing(start, survivors, home):
    command = start(deeds="api-server:deaf")
    while not home.log("triggerer").exists():
        time.sleep(0.02)
    command.process.send_signal(signal.SIGINT)
    assert command.wait_for_end() == 130
    assert survivors.look() == []


@pytest.mark.parametrize("delay_seconds", [0.0, 0.1, 0.2, 0.4, None])
def test_a_command_killed_during_its_start_or_later_takes_the_programs_with_it(
    start, survivors, delay_seconds
):
    command = start()
    if delay_seconds is None:
        command.wait_until_up()
        survivors.wait_for(5)
    else:
        time.sleep(delay_seconds)
        survivors.look()
    command.process.kill()
    survivors.wait_for_none(END_SECONDS)


def test_a_program_that_dies_is_named_with_its_last_words(start, survivors):
    command = start(deeds="scheduler:dies api-server:deaf")
    error = command.process.stdout.read()
    assert "the scheduler of the embedded Airflow ended with exit status 3" in error
    assert "the scheduler's last words" in error
    assert command.wait_for_end() == 75
    assert survivors.look() == []


def test_a_program_that_is_killed_later_is_named_too(start, survivors):
    command = start().wait_until_up()
    survivors.wait_for(5)
    lines = {process: read_command_line(process) for process in survivors.look()}
    [victim] = [process for process, line in lines.items() if line[-2:-1] == ["triggerer"]]
    kill(victim)
    problem = "error the triggerer of the embedded Airflow was killed by signal 9"
    assert command.wait_for_error().startswith(problem)
    survivors.wait_for_none(END_SECONDS)


def test_a_port_that_somebody_else_took_is_an_error(start, survivors, home):
    command = start(deeds="api-server:deaf")
    while not (server := AirflowServer.find_running(home)):
        time.sleep(0.02)
    with socket.create_server(("127.0.0.1", server.port)):
        assert f"another process took port {server.port}" in command.process.stdout.read()
        assert command.wait_for_end() == 75
    assert survivors.look() == []


def test_a_second_command_uses_the_same_airflow_and_the_first_one_waits_for_it(start, survivors):
    first = start("/configs").wait_until_up()
    second = start("/configs/a.yaml").wait_until_up()
    assert second.up == first.up
    first.process.stdin.close()
    assert first.line() == "Another command uses this embedded Airflow. Waiting for its end."
    assert second.ask("there?") == "alive there?"
    assert second.end() == 0
    assert first.process.wait(timeout=60) == 0
    assert survivors.look() == []


def test_a_command_learns_that_the_one_which_runs_the_airflow_has_ended(start, survivors):
    first, second = start(), start()
    [(owner, _)] = {command.wait_until_up().up for command in (first, second)}
    joined = second if owner == first.process.pid else first
    (first if joined is second else second).process.send_signal(signal.SIGTERM)
    assert joined.wait_for_error().startswith("error the embedded Airflow has ended")
    survivors.wait_for_none(END_SECONDS)


def test_a_command_with_another_config_is_refused_and_told_which_are_served(start):
    first = start("/configs/a.yaml").wait_until_up()
    second = start("/elsewhere/b.yaml")
    error = second.process.stdout.read()
    assert second.wait_for_end() == 75
    assert "serves /configs/a.yaml, but not /elsewhere/b.yaml" in error
    assert first.ask("there?") == "alive there?"
    first.end()


def test_a_command_right_after_another_one_waits_for_its_end_and_starts_anew(start, survivors):
    first = start(deeds="scheduler:stubborn").wait_until_up()
    first.process.send_signal(signal.SIGTERM)
    second = start().wait_until_up()
    assert second.up[0] == second.process.pid
    second.end()
    survivors.wait_for_none(END_SECONDS)


def test_secrets_are_random_private_and_kept(start, home):
    passwords = []
    for _ in range(2):
        command = start().wait_until_up()
        assert stat.S_IMODE(home.server.stat().st_mode) == 0o600
        command.end()
        passwords.append(json.loads(home.passwords.read_text())["admin"])
    assert passwords[0] == passwords[1]
    assert len(passwords[0]) >= 16
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700
    for file in (home.passwords, home.folder / "secrets.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_home_that_others_may_write_is_refused(start, home, mode):
    """Whoever writes its secrets beforehand knows the password of the embedded Airflow."""
    home.folder.mkdir(parents=True)
    home.folder.chmod(mode)
    command = start()
    error = command.process.stdout.read()
    assert f"is open to other users (mode {mode & 0o022:03o}), so its content can't" in error
    assert "set TRAINYARD_HOME to another folder" in error
    assert command.wait_for_end() == 75
    assert not home.secrets.exists()


def test_the_database_is_migrated_once(start, home):
    start().wait_until_up().end()
    home.log("db-migrate").unlink()
    start().wait_until_up().end()
    assert not home.log("db-migrate").exists()


def test_the_address_stays_the_same_unless_somebody_else_has_it(start, home):
    ports = []
    for is_taken in (False, False, True):
        with contextlib.ExitStack() as others:
            if is_taken:
                others.enter_context(socket.create_server(("127.0.0.1", ports[0])))
            command = start().wait_until_up()
            ports.append(AirflowServer.find_running(home).port)
            command.end()
    assert ports[0] == ports[1] != ports[2]
    for text in ("", "0", "80", "99999", "x"):
        home.port.write_text(text)
        assert 1024 <= _choose_port(home) < 1 << 16


def build(home: AirflowHome, configs: list[str], **inherited: str) -> dict[str, str]:
    dags = Path("/dags")
    return build_airflow_environment(inherited, home, dags, configs, 1234, Secrets(), False)


@pytest.mark.parametrize(("pipelines", "seconds"), [(1, "10"), (33, "10"), (200, "60")])
def test_many_pipelines_are_read_less_often(home, tmp_path, pipelines, seconds):
    for index in range(pipelines):
        (tmp_path / f"{index}.yaml").touch()
    interval = "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"
    assert build(home, [str(tmp_path)])[interval] == seconds


def test_settings_for_another_airflow_do_not_reach_this_one(home):
    inherited = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://production",
        "AIRFLOW_CONN_X": "y",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/bin",
        "NO_PROXY": "example.org",
    }
    environment = build(home, ["/a.yaml", "/b"], **inherited)
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{home.database}"
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["AIRFLOW_CONN_X"] == "y"  # storage.connection may name it
    assert environment["PATH"] == "/bin"
    assert environment["NO_PROXY"] == "127.0.0.1,localhost,example.org"
    assert environment["TRAINYARD_CONFIGS"] == "/a.yaml:/b"
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert environment["AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE"] == "False"
