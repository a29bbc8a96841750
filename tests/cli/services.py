"""PostgreSQL and Redis for tests, on free loopback ports, with random passwords.

Their data are in a temporary folder and need not survive a crash of the machine (no fsync). They
need Debian's packages postgresql and redis-server, or similar ones.
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

from processes import allow_other_users, find_remaining_processes

from pipeline_ops.cli.embedded_airflow import find_free_port

_START_SECONDS = 60
_PACKAGES = {"celery", "psycopg2-binary", "asyncpg", "redis", "apache-airflow-providers-celery"}


def why_not() -> str | None:
    """The reason why Airflow cannot use both here. None if it can."""
    if _postgres_programs() is None:
        return "no PostgreSQL server here: install the package postgresql"
    if shutil.which("redis-server") is None:
        return "no Redis here: install the package redis-server"
    missing = _PACKAGES - {installed.name for installed in importlib.metadata.distributions()}
    return f"{', '.join(sorted(missing))} not installed: make install-dev" if missing else None


@contextlib.contextmanager
def celery_settings(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of an Airflow with CeleryExecutor.

    PostgreSQL and Redis run in a new folder during the block.
    """
    folder.mkdir()
    with postgres(folder) as database, redis(folder) as broker:
        yield {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
            # The scheduler counts the tasks of a killed worker as running until it restarts.
            "AIRFLOW__CORE__PARALLELISM": "64",
        }
    assert not (left := find_remaining_processes(folder)), left


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Runs an empty database. Yields user, password, host, port and name as in a URL."""
    port, password = find_free_port(), secrets.token_hex(16)
    settings = (
        f"port={port}",
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "max_connections=200",
    )
    argv = _initialize_postgres(folder, password)
    argv += [word for setting in settings for word in ("-c", setting)]
    environment = os.environ | {"PGPASSWORD": password}
    login = ["-h", "127.0.0.1", "-p", str(port), "-U", "airflow", "-d", "postgres"]
    command = [_postgres_programs() / "psql", "-q", *login, "-c", "CREATE DATABASE airflow"]
    with _server(argv, folder / "postgres.log", signal.SIGINT) as server:
        _wait_until(
            lambda: subprocess.run(command, env=environment, capture_output=True).returncode == 0,
            server,
        )
        yield f"airflow:{password}@127.0.0.1:{port}/airflow"


def _initialize_postgres(folder: Path, password: str) -> list:
    """Makes the folder of the data. Returns the command of the server, which refuses to be root."""
    programs, is_root = _postgres_programs(), os.geteuid() == 0
    allow_other_users(folder)
    data, password_file = folder / "postgres", folder / "postgres-password"
    data.mkdir(mode=0o700)
    password_file.write_text(password)
    user = []
    if is_root:
        shutil.chown(data, "postgres", "postgres")
        shutil.chown(password_file, "postgres", "postgres")
        user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    options = ["-A", "scram-sha-256", f"--pwfile={password_file}", "-U", "airflow"]
    subprocess.run(
        [*user, programs / "initdb", "-D", data, *options, "-E", "UTF8", "--no-sync"],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    return [*user, programs / "postgres", "-D", data]


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Runs Redis. Yields its URL."""
    port, password = find_free_port(), secrets.token_hex(16)
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
    """The folder of PostgreSQL's programs. Debian has one per version, outside PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    return folders[-1] if folders else found and Path(found).parent
