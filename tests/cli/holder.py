"""A command as short as can be: holds the embedded Airflow until its standard input ends.
Used by the tests beside it.

python holder.py [--schedules] <home> <config>...
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline_ops.cli.local_airflow.embedded import Home
from pipeline_ops.cli.local_airflow.server import check_alive, embedded_airflow
from pipeline_ops.cli.local_airflow.stopping import Stopped, stop_signals
from pipeline_ops.errors import TrainyardError


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    home, *configs = (Path(word) for word in sys.argv[1:] if word != "--schedules")
    home = Home(home)
    with (
        stop_signals(),
        embedded_airflow(
            home, configs, say, schedules="--schedules" in sys.argv, dags=home.folder
        ) as server,
    ):
        say(f"up {server.process.pid} {server.port}")
        for line in sys.stdin:
            check_alive(home, server)
            say(f"alive {line.strip()}")
    return 0


try:
    sys.exit(main())
except TrainyardError as error:
    say(f"error {error}")
    sys.exit(error.exit_code)
except Stopped as stopped:
    sys.exit(stopped.exit_status)
