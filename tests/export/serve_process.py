"""`trainyard serve` as a process, and requests to it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from linear_models import read_examples
from sandbox import Sandbox

from pipeline_ops.contract.dataset import list_shard_paths
from pipeline_ops.contract.manifest import read_manifest

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


NAMES = [HOSTILE, *"123456789"]


def serve_command(model: str, registry: Path | str, port: int | str = 0, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pipeline_ops.cli.main", "serve", model),
        *("--registry", str(registry), "--port", str(port), *more),
    ]


def get_answer(request: urllib.request.Request | str) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


class Server:
    """The command, its address, and the images for its predictions."""

    def __init__(self, process: subprocess.Popen, sandbox: Sandbox, dataset: str):
        self.process, self.sandbox = process, sandbox
        self.address = process.stdout.readline().strip().rstrip("/")
        records, images, labels = read_examples(
            list_shard_paths(dataset, read_manifest(dataset), "test")
        )
        self.records, self.labels = records, labels
        self.images = (255 * images).reshape(-1, 16, 16, 1)
        import tensorflow as tf

        self.encoded = [
            tf.train.Example.FromString(record)
            .features.feature["image/encoded"]
            .bytes_list.value[0]
            for record in records
        ]

    def get(self, path: str) -> tuple[int, dict]:
        return get_answer(self.address + path)

    def post(self, path: str, body: bytes) -> tuple[int, dict]:
        return get_answer(urllib.request.Request(self.address + path, body))

    def predict(self, **body) -> dict:
        status, response = self.post("/v1/models/digits:predict", json.dumps(body).encode())
        assert status == 200, response
        return response

    def wait_for_version(self, number: int) -> None:
        deadline = time.monotonic() + 120
        while (response := self.get("/health")[1])["version"] != number:
            assert time.monotonic() < deadline and self.process.poll() is None, response
            time.sleep(0.05)


def as_b64(content: bytes) -> dict:
    return {"b64": base64.b64encode(content).decode()}
