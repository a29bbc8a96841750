"""The server of the last check is for its own process alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from listeners import find_listeners

from pipeline_ops.errors import DataError
from pipeline_ops.export.serving_check import _predict, _run_server


@pytest.fixture
def long_temporary(temporary, monkeypatch) -> Path:
    """A temporary folder whose path is longer than that of any socket."""
    folder = temporary / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_it_opens_no_port_and_its_socket_is_in_a_private_folder_that_goes(long_temporary):
    before = find_listeners([os.getpid()])
    with _run_server(SimpleNamespace(number=1), "digits") as socket_path:
        [folder] = long_temporary.iterdir()
        assert (folder / "socket").is_socket()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert find_listeners([os.getpid()]) == before
        with pytest.raises(DataError, match="a server refuses the reference examples"):
            _predict(socket_path, "/nowhere", {})
    assert list(long_temporary.iterdir()) == []
