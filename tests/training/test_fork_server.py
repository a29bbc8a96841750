"""What the fork server says of a process that an error has ended."""

from __future__ import annotations

import sys

import pytest
import tensorflow as tf

from pipeline_ops.errors import ExitCode
from pipeline_ops.training.fork_server import run_entry


def test_a_full_disk_names_the_file_as_it_would_be_called(tmp_path):
    def run(text: str) -> str:
        def fail() -> None:
            raise RuntimeError(text)

        return run_entry(fail, tmp_path / "status.json")[0].message

    text = "/x/variables/variables_temp/part-00000-of-00001.data-00000-of-00001; No space left"
    assert run(text) == (
        "RuntimeError: /x/variables/variables_temp/part-00000-of-00001.data-00000-of-00001 (to "
        "become variables.data-00000-of-00001); No space left"
    )
    assert run("/x/_temp/a; No space left") == "RuntimeError: /x/_temp/a; No space left"


def test_an_error_is_reported_also_if_the_log_is_on_the_full_disk(tmp_path, monkeypatch):
    """N9."""

    def fill_disk() -> None:
        raise OSError(28, "No space left on device", "/disk/file")

    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        status, _ = run_entry(fill_disk, tmp_path / "status.json")
    assert status.exit_code is ExitCode.RETRY and "No space left on device" in status.message
    assert (tmp_path / "status.json").exists()


@pytest.mark.parametrize(
    ("text", "is_out_of_memory"),
    [
        ("Graph execution error:\nOOM when allocating tensor with shape[8,9]", True),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes", True),
        ("/x/part-00000; No space left on device", False),
        ("Received message larger than max (5 vs. 4)", False),
    ],
)
def test_only_a_lack_of_memory_divides_the_batch(tmp_path, text, is_out_of_memory):
    """A message that is too large, or a full disk, is tried again as it was."""

    def fail() -> None:
        raise tf.errors.ResourceExhaustedError(None, None, text)

    status, _ = run_entry(fail, tmp_path / "status.json")
    assert status.exit_code is ExitCode.RETRY and status.is_out_of_memory is is_out_of_memory
