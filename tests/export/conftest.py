"""A server of two versions, for the tests of its answers and of its page."""

from __future__ import annotations

import subprocess

import pytest
from export.serve_process import NAMES, Server, serve_command
from sandbox import Sandbox, copy_dataset


@pytest.fixture(scope="module")
def server(dataset, saved_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    sandbox = Sandbox(folder / "root", copy_dataset(dataset, folder / "data", NAMES), saved_models)
    for model in ("fair", "good"):
        sandbox.publish(model)
    command = serve_command("digits", sandbox.registry.location.parent)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            server = Server(process, sandbox, sandbox.dataset)
            server.wait_for_version(2)
            yield server
        finally:
            process.kill()
