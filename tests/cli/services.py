"""PostgreSQL and Redis for tests: both on loopback, on free ports, with a random password,
in a folder that goes with them.

Nothing is kept for a crash of the machine (no fsync).
Needs Debian's packages postgresql and redis-server, or the like.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from processes import left_below, let_other_users_pass

from pipeline_ops.cli.local_airflow.ports import free_port

_START_SECONDS = 60
_PACKAGES = {"celery", "psycopg2-binary", "asyncpg", "redis", "apache-airflow-providers-celery"}


def why_not() -> str | None:
    """Why an Airflow can't be run with them here; None where it can."""
    if _postgres_programs() is None:
        return "no PostgreSQL server here: install the package postgresql"
    if shutil.which("redis-server") is None:
        return "no Redis here: install the package redis-server"
    missing = _PACKAGES - {installed.name for installed in importlib.metadata.distributions()}
    return f"{', '.join(sorted(missing))} not installed: make install-dev" if missing else None


@contextlib.contextmanager
def celery_settings(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of an Airflow with CeleryExecutor on both of them,
    which run in a new folder for as long as the block does."""
    folder.mkdir()
    with postgres(folder) as database, redis(folder) as broker:
        yield {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
        }
    assert not (left := left_below(folder)), left


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """An empty database: user, password, host, port and name, as they stand in an address."""
    programs, port, password = _postgres_programs(), free_port(), secrets.token_hex(16)
    let_other_users_pass(folder)  # the server refuses to be root
    data, password_file = folder / "postgres", folder / "postgres-password"
    data.mkdir(mode=0o700)
    password_file.write_text(password)
    if os.geteuid() == 0:
        shutil.chown(data, "postgres", "postgres")
        shutil.chown(password_file, "postgres", "postgres")
    as_its_user = (
        ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        if os.geteuid() == 0
        else []
    )
    subprocess.run(
        [
            *as_its_user,
            programs / "initdb",
            "-D",
            data,
            "-A",
            "scram-sha-256",
            f"--pwfile={password_file}",
            "-U",
            "airflow",
            "-E",
            "UTF8",
            "--no-sync",
        ],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    settings = [
        f"port={port}",
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "max_connections=200",
    ]
    argv = [
        *as_its_user,
        programs / "postgres",
        "-D",
        data,
        *(word for setting in settings for word in ("-c", setting)),
    ]
    environment = os.environ | {"PGPASSWORD": password}
    command = [
        programs / "psql",
        "-qh",
        "127.0.0.1",
        "-p",
        str(port),
        "-U",
        "airflow",
        "-d",
        "postgres",
        "-c",
    ]
    with _server(argv, folder / "postgres.log", signal.SIGINT) as server:
        _wait_until(
            lambda: (
                subprocess.run(
                    [*command, "CREATE DATABASE airflow"], env=environment, capture_output=True
                ).returncode
                == 0
            ),
            server,
        )
        yield f"airflow:{password}@127.0.0.1:{port}/airflow"


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Its address."""
    port, password = free_port(), secrets.token_hex(16)
    settings = folder / "redis.conf"
    settings.write_text(
        f'port {port}\nbind 127.0.0.1\nrequirepass {password}\ndir {folder}\nsave ""\n'
    )
    with _server(["redis-server", settings], folder / "redis.log", signal.SIGTERM) as server:
        ping = ["redis-cli", "-p", str(port), "--no-auth-warning", "-a", password, "ping"]
        _wait_until(lambda: b"PONG" in subprocess.run(ping, capture_output=True).stdout, server)
        yield f"redis://:{password}@127.0.0.1:{port}/0"


@contextlib.contextmanager
def _server(argv: list, log: Path, stop: signal.Signals) -> Iterator[subprocess.Popen]:
    with open(log, "wb") as output:
        server = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield server
    finally:
        server.send_signal(stop)
        server.wait(_START_SECONDS)


def _wait_until(is_up: Callable[[], bool], server: subprocess.Popen) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not is_up():
        assert server.poll() is None, f"{server.args[0]} has ended with {server.returncode}"
        assert time.monotonic() < deadline, f"{server.args} is not up"
        time.sleep(0.1)


def _postgres_programs() -> Path | None:
    """Debian keeps them out of the PATH, a folder for each version."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    return places[-1] if places else found and Path(found).parent
