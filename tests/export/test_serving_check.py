"""The last check before a publication: predictions as the server gives them."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from listeners import find_listeners

from pipeline_ops.config.export import Export
from pipeline_ops.contract.results import SAVED_MODEL
from pipeline_ops.errors import DataError
from pipeline_ops.export.check import check_serving
from pipeline_ops.served.references import References

CONFIG = Export(model="digits")


def test_a_server_that_answers_otherwise_than_the_checked_model_is_refused(saved_models):
    """The SavedModel of another training, in the place of the checked one."""
    folder = saved_models["good"] / SAVED_MODEL
    references = References(saved_models["good"], folder, 10)
    other = References(saved_models["fair"], saved_models["fair"] / SAVED_MODEL, 10)
    references.model.loaded = other.model.loaded
    references.answer_files = References(saved_models["good"], folder, 10).answer_files
    with pytest.raises(
        DataError, match="the model behind a server is not the model that was trained: on 16 test"
    ):
        check_serving(folder, references, CONFIG)


def test_a_server_that_refuses_the_references_is_refused_with_its_reason(saved_models):
    """The server has a signature that takes decoded images only."""
    folder = saved_models["good"] / SAVED_MODEL
    references = References(saved_models["good"], folder, 10)
    images = references.model.loaded.signatures["images"]
    references.answer_files = lambda files: references.outputs[: len(files)]
    references.model.loaded = SimpleNamespace(signatures={"serving_default": images})
    with pytest.raises(
        DataError, match="the signature serving_default takes images, and the server sends image_by"
    ):
        check_serving(folder, references, CONFIG)


class ObservedFunction:
    """A signature that notes the ports on which this process listens."""

    def __init__(self, signature):
        self.signature, self.observed = signature, []
        self.structured_input_signature = signature.structured_input_signature

    def __call__(self, **inputs):
        self.observed.append(find_listeners([os.getpid()]))
        return self.signature(**inputs)


def test_the_answers_of_training_are_accepted_and_no_port_is_opened(saved_models):
    folder = saved_models["good"] / SAVED_MODEL
    references = References(saved_models["good"], folder, 10)
    signature = ObservedFunction(references.model.loaded.signatures["serving_default"])
    references.model.loaded = SimpleNamespace(signatures={"serving_default": signature})
    before = find_listeners([os.getpid()])
    check_serving(folder, references, CONFIG)
    assert signature.observed == [before] * 2  # here, and as a server
