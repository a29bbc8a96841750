"""What the tests of the registry share: small versions, publishers that are processes of their own,
and a real S3 server."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import fsspec
import pytest

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.manifest import Input, Manifest, list_files, write_manifest
from pipeline_ops.artifacts.results import ModelFigures
from pipeline_ops.registry.registry import Registry, Version

BUCKET = "trainyard"
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_SERVER = """
import sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
moto = DomainDispatcherApplication(create_backend_app)
def app(environ, respond):
    if sys.argv[1:] == ["unconditional"]:
        environ.pop("HTTP_IF_NONE_MATCH", None)
    return moto(environ, respond)
server = make_server("127.0.0.1", 0, app, threaded=False)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""Without threads, because moto looks and writes in two steps: a conditional put has to be one."""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server with an empty bucket."""
    with running_s3() as address:
        yield address


@contextlib.contextmanager
def running_s3(*arguments: str) -> Iterator[str]:
    """As `s3_server`; with the argument `unconditional`, it accepts conditional puts and ignores
    the condition, as some servers do."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        urllib.request.urlopen(
            urllib.request.Request(
                f"{address}/{BUCKET}",
                method="PUT",
                headers={
                    "Authorization": (
                        "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, "
                        "SignedHeaders=host, Signature=0"
                    )
                },
            )
        )
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3_place(s3_server, monkeypatch, tmp_path) -> str:
    """A place in the bucket that nobody else uses; what this process and its children need to reach
    it is in the environment."""
    for name, value in _CREDENTIALS.items() | {("AWS_ENDPOINT_URL", s3_server)}:
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class(
        "s3"
    ).clear_instance_cache()  # one that was made for another server would go on to reach that one
    return f"s3://{BUCKET}/{tmp_path.name}/models/digits"


def publish(registry: Registry, digest: str, num_bytes: int = 200_000) -> Version:
    """Publishes a version of three files and a manifest, as export does."""

    def fill(folder: Path, number: int) -> None:
        (folder / "variables").mkdir()
        for name in ("saved_model.pb", "variables/variables.index", "variables/variables.data"):
            (folder / name).write_bytes(digest.encode() * (num_bytes // len(digest)))
        fingerprint = Fingerprint(config={"number": number}, inputs={}, code={}, versions={})
        write_manifest(
            folder,
            Manifest(
                job="export",
                pipeline="p",
                fingerprint=fingerprint,
                fingerprint_digest=fingerprint.digest,
                inputs={"train": Input(uri="", digest=digest)},
                files=list_files(folder),
                figures=figures_of(number).model_dump(mode="json"),
            ),
        )

    return registry.publish(digest, fill)


def figures_of(number: int) -> ModelFigures:
    return ModelFigures(
        name="digits",
        version=number,
        compared_with=None,
        metrics={},
        num_checked=1,
        max_difference=0.0,
        top1_agreement=1.0,
        class_names=["0", "1"],
    )


def start(target, *arguments, environment: dict[str, str] | None = None) -> BaseProcess:
    """A process of its own, forked from a clean one that has imported what takes long."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["publishers", "s3fs", "aiobotocore.session", "pipeline_ops.registry.object_model_store"]
    )
    process = context.Process(
        target=_run,
        args=(target, arguments, dict(os.environ if environment is None else environment)),
        daemon=True,
    )
    process.start()
    return process


def _run(target, arguments, environment) -> None:
    os.environ.update(environment)  # the clean process was started before the test had set it
    target(*arguments)


def publish_many(
    place: str, tag: str, count: int, promote: bool = False, at_work=None, go_on=None
) -> None:
    """`at_work` is an event that says that the first version is there, and `go_on` a semaphore that
    is taken before each of them."""
    registry = Registry(place)
    for index in range(count):
        if go_on:
            go_on.acquire()
        version = publish(registry, f"{tag} {index} ")
        if promote:
            registry.promote(version.number, "newest")
        if at_work:
            at_work.set()


def publish_and_say(place: str, digest: str, answers) -> None:
    """Puts the number, or what it was told, into a queue."""
    try:
        answers.put(publish(Registry(place), digest).number)
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
