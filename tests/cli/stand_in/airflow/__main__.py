"""`python -m airflow <program>`. The variable STAND_IN has its behaviour:
`<program>:<deed>`, separated by spaces.

api-server:deaf        doesn't listen
scheduler:dies         ends with status 3 after its last words
scheduler:stubborn     ignores SIGTERM
scheduler:escapes      starts a process that ignores SIGTERM, in a session of its own,
                       whose parent is dead
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main() -> None:
    program = sys.argv[1]
    deeds = {
        deed.partition(":")[2]
        for deed in os.environ.get("STAND_IN", "").split()
        if deed.startswith(f"{program}:")
    }
    if program == "db":
        open("airflow.db", "a").close()
        sys.exit(0)
    if "dies" in deeds:
        print("the scheduler's \x1b[31mlast words\x1b[0m")
        sys.exit(3)
    if "stubborn" in deeds:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "escapes" in deeds:
        escape()
    if program == "api-server" and "deaf" not in deeds:
        listen()
    time.sleep(600)


def escape() -> None:
    middle = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_STUBBORN!r}], "
        "start_new_session=True)"
    )
    subprocess.run([sys.executable, "-c", middle], check=True, start_new_session=True)


def listen() -> None:
    server = socket.create_server(("127.0.0.1", int(os.environ["AIRFLOW__API__PORT"])))
    globals()["server"] = server  # for as long as the process lives


main()
