"""The command `trainyard serve`: its addresses, its start and its errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from export.serve_process import get_answer, serve_command


def test_it_needs_no_airflow():
    code = (
        "import sys, pipeline_ops.cli.main, pipeline_ops.served.http.server; "
        "sys.exit('airflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_address_is_listened_on_with_a_warning(tmp_path):
    more = ("--host", "0.0.0.0", "--allow-host", "models.example.org")
    command = serve_command("digits", tmp_path, 0, *more)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        port = process.stdout.readline().strip().rstrip("/").rpartition(":")[2]
        assert "the server has no login and no TLS" in process.stderr.readline()
        for name, code in (("models.example.org", 503), ("attacker.example", 400)):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/health", headers={"Host": name}
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=60)
            assert refused.value.code == code
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and "Traceback" not in process.stderr.read()


def test_before_anything_is_published_it_says_that_and_waits(tmp_path):
    with subprocess.Popen(
        serve_command("digits@canary", tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        address = process.stdout.readline().strip()
        deadline = time.monotonic() + 120
        while True:
            status, response = get_answer(f"{address}health")
            if "no version has the alias canary" in response["problem"]:
                break
            assert time.monotonic() < deadline, response
        assert status == 503 and response["status"] == "loading"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.models
def test_a_port_in_use_is_told(server, tmp_path):
    port = server.address.rpartition(":")[2]
    ended = subprocess.run(serve_command("digits", tmp_path, port), capture_output=True, text=True)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr


def test_a_name_needs_a_registry():
    ended = subprocess.run(
        [sys.executable, "-m", "pipeline_ops.cli.main", "serve", "digits"],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 78 and "For a model name, also pass --registry." in ended.stderr
