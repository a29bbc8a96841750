"""The errors of reading that are retried, and their messages."""

from __future__ import annotations

import errno
import os

import pytest
from pydantic import ValidationError

from pipeline_ops.contract.request import Status
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.storage.read_errors import (
    has_disk_error_message,
    make_read_error,
    summarize_error,
)

GRAPH = (
    "Graph execution error:\n\n"
    "Detected at node ReaderRead defined at (most recent call last):\n"
    "{reason}\n"
    "\t [[{{{{node ReaderRead}}}}]]"
)
EAGER = (
    "{{{{function_node __wrapped__RestoreV2_device_/job:localhost/device:CPU:0}}}} "
    "{reason} [Op:RestoreV2] name: "
)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EPERM, errno.ENOSYS])
@pytest.mark.parametrize("frame", ["{reason}", GRAPH, EAGER], ids=["plain", "graph", "eager"])
def test_an_error_of_the_disk_is_retried_and_names_the_file(number, frame):
    """The text decides, because TensorFlow's error type is not specific in restoring variables."""
    reason = f"/data/variables.index; {os.strerror(number)}"
    error = RuntimeError(frame.format(reason=reason))
    assert summarize_error(error) == reason
    assert has_disk_error_message(error)
    with pytest.raises(
        MachineError,
        match=rf"^a: {reason}\. Repair the disk or the file's permissions, then retry\.$",
    ):
        raise make_read_error("a", error, "; train again")


def test_an_error_of_the_disk_may_stand_in_another_line():
    assert has_disk_error_message(
        ValueError(
            "Could not create fingerprint in directory: /m\n"
            "UNIMPLEMENTED: /m/fingerprint.pb; Function not implemented"
        )
    )
    assert not has_disk_error_message(
        ValueError("Could not create fingerprint in directory: /m\nINVALID_ARGUMENT: no graph")
    )


def test_a_record_that_is_none_is_told_with_the_place_of_each_problem():
    with pytest.raises(ValidationError) as raised:
        Status.model_validate({"exit_code": "many"})
    with pytest.raises(DataError, match="^/a.json: can't be read: exit_code: .*; start a new run$"):
        raise make_read_error("/a.json: can't be read", raised.value, "; start a new run")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/data/x"),
        IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), "/data/x"),
        OSError("not a gzip file"),
        ValueError("Checksum does not match; no disk failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_wrong_content_is_not_retried_and_names_the_cure(error):
    with pytest.raises(DataError, match="; train again$"):
        raise make_read_error("a", error, "; train again")
