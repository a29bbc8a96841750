"""What only an object store needs: claims, and the fence between a slow publisher and one who took
it for dead."""

from __future__ import annotations

import multiprocessing
import os
import socket

import pytest
from publishers import publish, publish_and_say, running_s3, start

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.manifest import Manifest, list_files, write_manifest
from pipeline_ops.errors import MachineError
from pipeline_ops.registry.object_model_store import VersionLease
from pipeline_ops.registry.registry import Registry
from pipeline_ops.system.processes import ProcessIdentity

HERE = ProcessIdentity.of(os.getpid())
GONE = ProcessIdentity(socket.gethostname(), HERE.pid, HERE.start_ticks - 1)
ELSEWHERE = ProcessIdentity("another-host", 1, 1)


@pytest.mark.parametrize(
    "process, age_seconds, is_abandoned",
    [(HERE, 1e9, False), (GONE, 0.0, True), (ELSEWHERE, 60.0, False), (ELSEWHERE, 3601.0, True)],
)
def test_a_process_of_this_host_is_looked_for_and_one_elsewhere_is_given_an_hour(
    process, age_seconds, is_abandoned
):
    assert VersionLease("a", process).is_abandoned(age_seconds) is is_abandoned


FINGERPRINT = Fingerprint(config={}, inputs={}, code={}, versions={})


def test_a_slow_publisher_that_was_taken_for_dead_is_told_and_leaves_nothing_that_a_reader_sees(
    s3_place,
):
    registry = Registry(s3_place)

    def fill(folder, number: int) -> None:
        (folder / "saved_model.pb").write_bytes(b"late")
        write_manifest(
            folder,
            Manifest(
                job="export",
                pipeline="p",
                fingerprint=FINGERPRINT,
                fingerprint_digest="",
                files=list_files(folder),
            ),
        )
        registry.store._create(
            f"{number}/manifest.json", b""
        )  # what another publisher does after an hour

    with pytest.raises(
        MachineError,
        match="another publisher took this one for dead, and gave its number up; try again",
    ):
        registry.publish("a", fill)
    assert registry.versions() == []
    assert publish(registry, "a").number == 2
    assert not [
        name
        for name in registry.store._sizes()
        if name.startswith("1/") and name != "1/manifest.json"
    ]


def test_a_claim_of_a_living_publisher_of_the_same_model_is_respected(s3_place):
    registry = Registry(s3_place)
    registry.store._create("claims/1.json", VersionLease("a ", HERE).to_json())
    with pytest.raises(
        MachineError, match=f"process {HERE.pid} on .* is publishing the same model right now"
    ):
        publish(registry, "a")
    assert publish(registry, "b").number == 2


def test_a_store_that_ignores_conditions_is_refused_before_anything_is_published(s3_place):
    answers = multiprocessing.get_context("forkserver").Queue()
    with running_s3("unconditional") as address:
        start(
            publish_and_say,
            s3_place,
            "a",
            answers,
            environment=os.environ | {"AWS_ENDPOINT_URL": address},
        )
        said = answers.get(timeout=120)
    assert "this store ignores If-None-Match, so it can't hold a registry" in said


def test_a_version_stays_when_its_publisher_is_gone(s3_place):
    registry = Registry(s3_place)
    publish(registry, "a")
    registry.store._files.pipe_file(
        registry.store._path("claims/1.json"), VersionLease("a ", GONE).to_json()
    )
    assert publish(registry, "b").number == 2 and [
        version.number for version in registry.versions()
    ] == [1, 2]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"owner": "a"}',
        b'{"owner": "a", "process": {"pid": -1}}',
        b"[" * 100_000,
    ],
)
def test_a_claim_that_is_none_takes_its_number_and_stops_nobody(s3_place, content):
    """F16."""
    registry = Registry(s3_place)
    registry.store._files.pipe_file(f"{s3_place}/claims/1.json", content)
    registry.store._files.pipe_file(f"{s3_place}/claims/notes.txt", content)
    assert publish(registry, "a", num_bytes=100).number == 2
    assert VersionLease.parse(content).is_abandoned(3601) and not VersionLease.parse(
        content
    ).is_abandoned(60)
