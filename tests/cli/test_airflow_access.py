"""Who may use the UI of an embedded Airflow, and at which address."""

from __future__ import annotations

import json
import socket

import pytest

from pipeline_ops.cli.airflow_access import Access, parse_host, parse_users
from pipeline_ops.cli.embedded_airflow import (
    AirflowHome,
    Secrets,
    _choose_port,
    build_airflow_environment,
)
from pipeline_ops.cli.main import main
from pipeline_ops.errors import ConfigError, ExitCode, MachineError


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("", {}),
        ("vera:viewer", {"vera": "viewer"}),
        ("anna:op, vera:viewer,", {"anna": "op", "vera": "viewer"}),
        ("a.b-c_1:admin", {"a.b-c_1": "admin"}),
    ],
)
def test_users_are_names_with_roles(text, users):
    assert parse_users(text) == users


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("anna", "such as anna:op,vera:viewer, got 'anna'"),
        ("anna:boss", "Roles are viewer, user, op, admin"),
        ("anna:OP", "Roles are viewer, user, op, admin"),
        ("anna:op:viewer", "got 'anna:op:viewer'"),
        ("a b:op", "letters, digits, dots and dashes"),
        ("../x:op", "letters, digits, dots and dashes"),
        ("anna:op,anna:viewer", "anna is named twice"),
        ("admin:viewer", "admin is there anyway"),
    ],
)
def test_what_is_no_user_is_refused_with_what_is_one(text, message, capsys):
    with pytest.raises(ConfigError, match=message):
        parse_users(text)
    assert main(["ui", "--users", text]) == ExitCode.CONFIG
    assert message.partition(",")[0] in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("text", ["localhost", "::1", "", "1.2.3", "127.0.0.1:80"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="--host must be an IPv4 address of this machine"):
        parse_host(text)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")],
)
def test_airflow_gets_the_address_and_the_users(tmp_path, host, url):
    home, access = AirflowHome(tmp_path), Access(host=host, port=1234, users={"vera": "viewer"})
    arguments = ({}, home, tmp_path, [], 1234, Secrets(), False, access)
    found = build_airflow_environment(*arguments)
    assert found["AIRFLOW__API__HOST"] == host
    assert found["AIRFLOW__API__BASE_URL"] == f"http://{url}:1234"
    assert found["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"http://{url}:1234/execution/"
    assert found["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin,vera:viewer"


def test_a_port_that_is_taken_and_an_address_of_another_machine_are_named(tmp_path):
    home = AirflowHome(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1:{port} .*--port"):
            _choose_port(home, Access(port=port))
    assert _choose_port(home, Access(port=port)) == port
    with pytest.raises(MachineError, match=r"192\.0\.2\.1:8080 .*--host"):
        _choose_port(home, Access(host="192.0.2.1", port=8080))


def test_a_users_password_is_made_once_and_one_who_left_can_not_log_in(tmp_path):
    home = AirflowHome(tmp_path)
    first = Secrets.load_or_create(home, ["anna", "vera"])
    assert first.passwords["anna"] != first.passwords["vera"] != first.password
    assert set(read_passwords(home)) == {"admin", "anna", "vera"}
    again = Secrets.load_or_create(home, ["vera"])
    assert again.passwords["vera"] == first.passwords["vera"]
    assert set(read_passwords(home)) == {"admin", "vera"}
    assert home.passwords.stat().st_mode & 0o077 == 0


def read_passwords(home: AirflowHome) -> dict[str, str]:
    return json.loads(home.passwords.read_text())
