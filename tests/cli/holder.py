"""The shortest command that holds the embedded Airflow, until the end of its standard input.

python holder.py [--schedules] [--users=NAME:ROLE,...] [--port=PORT] <home> <config>...
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from pipeline_ops.cli.airflow_access import Access, parse_users
from pipeline_ops.cli.embedded_airflow import AirflowHome, embedded_airflow
from pipeline_ops.cli.stop_signals import Stopped, handle_stop_signals
from pipeline_ops.errors import TrainyardError


def print_line(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    options = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    access = Access(port=options.get("--port"), users=parse_users(options.get("--users", "")))
    home, *configs = map(Path, words)
    home = AirflowHome(home)
    with (
        handle_stop_signals(),
        embedded_airflow(
            home,
            configs,
            print_line,
            schedules="--schedules" in sys.argv,
            dags=home.folder,
            access=access,
        ) as server,
    ):
        print_line(f"up {server.process.pid} {server.port}")
        for line in sys.stdin:
            server.check_alive()
            print_line(f"alive {line.strip()}")
    return 0


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
try:
    sys.exit(main())
except TrainyardError as error:
    print_line(f"error {error}")
    sys.exit(error.exit_code)
except Stopped as stopped:
    sys.exit(stopped.exit_status)
