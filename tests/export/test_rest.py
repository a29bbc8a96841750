"""The rows of image files in TensorFlow Serving's REST form, without a server."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from pipeline_ops.served.http.rest import BadRequest, format_predictions, parse_files

B64 = {"b64": base64.b64encode(b"\x00png").decode()}


@pytest.mark.parametrize(
    "question",
    [
        {"instances": [B64, B64]},
        {"instances": [{"image_bytes": B64}, B64]},
        {"signature_name": "serving_default", "instances": [B64, B64]},
    ],
)
def test_files_with_and_without_their_name_are_the_same_question(question):
    assert parse_files(json.dumps(question).encode()) == [b"\x00png", b"\x00png"]


@pytest.mark.parametrize(
    "body, complaint",
    [
        (b"{", "JSON Parse error"),
        (b"[]", "must be a JSON object with a list of instances"),
        (b"\xff", "JSON Parse error"),
        (b"[" * 100_000, "JSON Parse error: lists and objects are nested too deeply"),
        (b"{}", "must be a JSON object with a list of instances"),
        (b'{"instances": 3}', "must be a JSON object with a list of instances"),
        (b'{"inputs": ["x"]}', "must be a JSON object with a list of instances"),
        (b'{"instances": []}', "at least one row"),
        (b'{"instances": [], "inputs": []}', "only rows of the signature serving_default"),
        (
            b'{"signature_name": "images", "instances": ["x"]}',
            "only rows of the signature serving_default are served here. TensorFlow Serving takes",
        ),
        (b'{"instances": [{"b64": "***"}]}', "the instance 0 is not base64"),
        (b'{"instances": [{"b64": 3}]}', "the instance 0 is not base64"),
        (b'{"instances": [{"b64": "\xc3\xa9"}]}', "the instance 0 is not base64"),
        (b'{"instances": [{"b64": ""}, "x"]}', "the instance 1 must be the bytes of an image"),
        (b'{"instances": [[[0, 255]]]}', "the instance 0 must be the bytes of an image file"),
        (b'{"instances": [{"other": {"b64": ""}}]}', "the instance 0 must be the bytes"),
    ],
)
def test_a_bad_question_is_told_what_is_wrong_with_it(body, complaint):
    with pytest.raises(BadRequest, match=complaint):
        parse_files(body)


def test_an_answer_is_a_row_for_each_image():
    outputs = {"classes": np.array([1, 2]), "probabilities": np.array([[0.5, 0.5], [1.0, 0.0]])}
    assert format_predictions(outputs) == {
        "predictions": [
            {"classes": 1, "probabilities": [0.5, 0.5]},
            {"classes": 2, "probabilities": [1.0, 0.0]},
        ]
    }
