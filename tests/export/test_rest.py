"""TensorFlow Serving's REST form, without a server."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from pipeline_ops.served.http.rest import (
    BadRequest,
    TensorSpec,
    format_response,
    parse_predict_request,
)

IMAGES = TensorSpec(np.dtype(np.float32), (None, 2, 1))
BYTES = TensorSpec(np.dtype(object), (None,))
SIGNATURES = {
    "serving_default": {"image_bytes": BYTES},
    "images": {"images": IMAGES},
    "two": {"a": IMAGES, "b": BYTES},
}
B64 = {"b64": base64.b64encode(b"\x00png").decode()}


def parse(**value):
    return parse_predict_request(json.dumps(value).encode(), SIGNATURES)


@pytest.mark.parametrize(
    "asked, is_row",
    [
        ({"instances": [B64, B64]}, True),
        ({"instances": [{"image_bytes": B64}, {"image_bytes": B64}]}, True),
        ({"inputs": [B64, B64]}, False),
        ({"inputs": {"image_bytes": [B64, B64]}}, False),
    ],
)
def test_rows_and_columns_with_and_without_the_name_are_the_same_question(asked, is_row):
    question = parse(**asked)
    assert (question.signature, question.is_row) == ("serving_default", is_row)
    assert question.inputs["image_bytes"].tolist() == [b"\x00png", b"\x00png"]


def test_numbers_get_the_type_and_text_becomes_bytes():
    assert (
        parse(signature_name="images", instances=[[[1], [2]]]).inputs["images"].dtype == np.float32
    )
    assert parse(instances=["é"]).inputs["image_bytes"].tolist() == ["é".encode()]
    two = parse(signature_name="two", instances=[{"a": [[1], [2]], "b": "x"}]).inputs
    assert two["a"].shape == (1, 2, 1) and two["b"].tolist() == [b"x"]


@pytest.mark.parametrize(
    "body, complaint",
    [
        (b"{", "JSON Parse error"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "JSON Parse error"),
        (b"{}", "give either instances .rows. or inputs"),
        (b'{"instances": [], "inputs": []}', "give either"),
        (b'{"instances": []}', "at least one row"),
        (b'{"instances": 3}', "at least one row"),
        (
            b'{"signature_name": "no", "instances": ["x"]}',
            "there is no signature 'no'. Existing signatures: images, serving_default, two",
        ),
        (b'{"signature_name": 3, "instances": ["x"]}', "there is no signature 3"),
        (b'{"instances": [{"b64": "***"}]}', "image_bytes: b64 is not base64"),
        (b'{"instances": [{"b64": 3}]}', "b64 is not base64"),
        (
            b'{"instances": [3]}',
            "image_bytes must be bytes of the shape .any.: each item must be text, or bytes",
        ),
        (b'{"inputs": "x"}', "a list is needed"),
        (
            b'{"instances": [{"image_bytes": "x"}, {"other": "x"}]}',
            "all instances must name the same inputs",
        ),
        (
            b'{"instances": [{"other": "x"}]}',
            "has the inputs image_bytes. Unknown or missing: image_bytes, other",
        ),
        (
            b'{"signature_name": "images", "instances": [[[1], [2], [3]]]}',
            r"must be float32 of the shape \[any, 2, 1\], got the shape \[1, 3, 1\]",
        ),
        (
            b'{"signature_name": "images", "instances": [[[1], [2]], [[1]]]}',
            "images must be float32",
        ),
        (b'{"signature_name": "images", "instances": [[["x"], [2]]]}', "images must be float32"),
        (
            b'{"signature_name": "two", "instances": ["x"]}',
            "several inputs, so they must be named: a, b",
        ),
        (
            b'{"signature_name": "two", "inputs": {"a": [[[1],[2]]], "b": ["x", "y"]}}',
            "the same number of rows",
        ),
    ],
)
def test_a_bad_question_is_told_what_is_wrong_with_it(body, complaint):
    with pytest.raises(BadRequest, match=complaint):
        parse_predict_request(body, SIGNATURES)


def test_answers_are_rows_or_columns_and_a_single_output_goes_without_its_name():
    outputs = {"classes": np.array([1, 2]), "probabilities": np.array([[0.5, 0.5], [1.0, 0.0]])}
    assert format_response(outputs, True) == {
        "predictions": [
            {"classes": 1, "probabilities": [0.5, 0.5]},
            {"classes": 2, "probabilities": [1.0, 0.0]},
        ]
    }
    assert format_response(outputs, False) == {
        "outputs": {"classes": [1, 2], "probabilities": [[0.5, 0.5], [1.0, 0.0]]}
    }
    assert format_response({"classes": np.array([1, 2])}, True) == {"predictions": [1, 2]}
    assert format_response({"classes": np.array([1, 2])}, False) == {"outputs": [1, 2]}


def test_strings_go_back_as_text_and_bytes_as_base64():
    outputs = {"names": np.array([b"\xc3\xa9"], object), "thumb_bytes": np.array([b"\x00"], object)}
    assert format_response(outputs, False) == {
        "outputs": {"names": ["é"], "thumb_bytes": [{"b64": "AA=="}]}
    }
