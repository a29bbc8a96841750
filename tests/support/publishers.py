"""Small versions, publishers in their own processes, and a place on an S3 server."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from failing_syscalls import fail_syscalls
from manifests import make_manifest

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import Input, list_files, write_manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.registry.polled_folder import PolledFolder
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import Version, VersionWriter
from pipeline_ops.storage.object_store import _make_client
from pipeline_ops.system import lease


@pytest.fixture
def s3_uri(make_root, monkeypatch, tmp_path) -> str:
    """A unique URI in a bucket; what this process and its children need to reach it is in the
    environment. What they fetch is kept in this test's folder."""
    root = make_root("s3")
    forget_clients()
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))
    return f"{root.uri}/models/digits"


def forget_clients() -> None:
    """Ends the use of clients that were made for another server than the environment names."""
    _make_client.cache_clear()


def publish(registry: Registry, digest: str, num_bytes: int = 200_000) -> Version:
    """Publishes a version of three files and a manifest, as export does."""
    return registry.publish(digest, make_version_writer(digest, num_bytes))


def make_version_writer(digest: str, num_bytes: int) -> VersionWriter:
    def fill(folder: Path, number: int) -> None:
        (folder / "variables").mkdir()
        for name in ("saved_model.pb", "variables/variables.index", "variables/variables.data"):
            (folder / name).write_bytes(digest.encode() * (num_bytes // len(digest)))
        fingerprint = Fingerprint(config={"number": number}, inputs={}, code={}, versions={})
        inputs, figures = {"train": Input(uri="", digest=digest)}, make_model_figures(number)
        manifest = make_manifest(
            "export", fingerprint, figures, pipeline="p", inputs=inputs, files=list_files(folder)
        )
        write_manifest(folder, manifest)

    return fill


def make_model_figures(number: int) -> ModelFigures:
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
    """Starts a process, forked from a clean one that has imported the slow packages."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["publishers"])
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
    location: str, tag: str, count: int, promote: bool = False, at_work=None, go_on=None
) -> None:
    """Publishes several versions.

    Args:
      at_work: an event that is set after the first version.
      go_on: a semaphore that is acquired before each version.
    """
    registry = Registry(location)
    for index in range(count):
        if go_on:
            go_on.acquire()
        version = publish(registry, f"{tag} {index} ")
        if promote:
            registry.promote(version.number, "newest")
        if at_work:
            at_work.set()


def publish_from_elsewhere(location: str, digest: str, answers) -> None:
    """Publishes like a process of another host, which counts a holder as lost after a moment."""
    lease.get_pid_space = lambda: "elsewhere"
    lease.LEASE_SECONDS = 0.1
    publish_and_report(location, digest, answers)


def publish_and_report(location: str, digest: str, answers) -> None:
    """Puts the number, or the error, into a queue."""
    try:
        answers.put(publish(Registry(location), digest).number)
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


_CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}


def follow(location: str, folder: str, alias: str, killed_before: int | None = None) -> None:
    """Fetches the version of an alias. Is killed before a change of the disk, by its number."""
    changes = 0

    def kill(event: str, arguments: tuple) -> None:
        nonlocal changes
        is_writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if event in _CHANGES or is_writing:
            if changes == killed_before:
                os.kill(os.getpid(), signal.SIGKILL)
            changes += 1

    if killed_before is not None:
        sys.addaudithook(kill)
    PolledFolder(Path(folder), Registry(location)).follow(alias)


def follow_without_exchange(location: str, folder: str) -> None:
    """Fetches the champion on a file system that cannot exchange two names."""
    fail_syscalls({"renameat2": errno.EINVAL})
    follow(location, folder, "champion")


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
