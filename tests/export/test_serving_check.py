"""The last check before a publication: requests to a server that is for its own process alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from listeners import find_listeners

from pipeline_ops.artifacts.results import SAVED_MODEL
from pipeline_ops.config.export import Export
from pipeline_ops.errors import DataError
from pipeline_ops.export.check import References
from pipeline_ops.export.serving_check import check_serving

CONFIG = Export(model="digits")


@pytest.fixture
def long_temporary(temporary, monkeypatch) -> Path:
    """A temporary folder whose path is longer than that of any socket."""
    folder = temporary / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


class ObservedFunction:
    """A signature that calls `observe` before each answer."""

    def __init__(self, signature, observe):
        self.signature, self.observe = signature, observe
        self.structured_input_signature = signature.structured_input_signature

    def __call__(self, **inputs):
        self.observe()
        return self.signature(**inputs)


def replace_signature(references: References, signature) -> None:
    references.model.loaded = SimpleNamespace(signatures={"serving_default": signature})


def test_it_opens_no_port_and_its_socket_is_in_a_private_folder_that_goes(
    saved_models, long_temporary
):
    folder = saved_models["good"] / SAVED_MODEL
    references = References(saved_models["good"], folder, 10)
    before, observed = find_listeners([os.getpid()]), []

    def observe():
        [private] = long_temporary.glob("serving-check-*")
        assert (private / "socket").is_socket() and private.stat().st_mode & 0o777 == 0o700
        observed.append(find_listeners([os.getpid()]))

    signature = references.model.loaded.signatures["serving_default"]
    replace_signature(references, ObservedFunction(signature, observe))
    check_serving(folder, references, CONFIG)
    assert observed == [before, before]  # rows and columns
    assert list(long_temporary.glob("serving-check-*")) == []


def test_a_server_that_answers_otherwise_than_the_trained_model_is_refused(saved_models):
    """The SavedModel of another training, in the place of the trained one."""
    folder = saved_models["fair"] / SAVED_MODEL
    references = References(saved_models["good"], folder, 10)
    with pytest.raises(
        DataError, match="the model behind a server is not the model that was trained: on 16 test"
    ):
        check_serving(folder, references, CONFIG)


def test_a_server_that_refuses_the_references_is_refused_with_its_reason(saved_models):
    """The server has a signature that takes decoded images only."""
    folder = saved_models["good"] / SAVED_MODEL
    references = References(saved_models["good"], folder, 10)
    replace_signature(references, references.model.loaded.signatures["images"])
    with pytest.raises(
        DataError, match="a server refuses the reference examples: .*images must be float32"
    ):
        check_serving(folder, references, CONFIG)
