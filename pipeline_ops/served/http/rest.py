"""The part of TensorFlow Serving's REST form that `trainyard serve` speaks: rows of image files.

No server and no TensorFlow here. A request has `instances`, a list with a row for each image:
`{"b64": "..."}`, or `{"image_bytes": {"b64": "..."}}`. The form is that of
www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline_ops.served.contract import IMAGE_BYTES, SERVING_DEFAULT

MAX_VALUES = 4_000_000
"""The maximum of lists, objects and texts in a request.

Each takes twenty times the memory that it takes in the body.
"""
_KEYS = {"instances", "signature_name"}


class BadRequest(Exception):
    """A refused request, with a message for the client. `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def parse_files(body: bytes | bytearray) -> list[bytes]:
    """Returns the image files of a predict request. Raises BadRequest for anything else."""
    value = _parse_json(body)
    if not isinstance(value, dict) or not isinstance(rows := value.get("instances"), list):
        raise BadRequest("the body must be a JSON object with a list of instances")
    if value.keys() - _KEYS or value.get("signature_name", SERVING_DEFAULT) != SERVING_DEFAULT:
        raise BadRequest(
            f"only rows of the signature {SERVING_DEFAULT} are served here. TensorFlow Serving "
            "takes columns, and other signatures"
        )
    if not rows:
        raise BadRequest("instances must have at least one row")
    return [_parse_row(number, row) for number, row in enumerate(rows)]


def _parse_json(body: bytes | bytearray) -> Any:
    if body.count(b"[") + body.count(b"{") + body.count(b'"') // 2 > MAX_VALUES:
        raise BadRequest(
            f"the body may have {MAX_VALUES} lists, objects and texts. "
            "Send fewer instances at once."
        )
    try:
        return json.loads(body)
    except ValueError as error:
        raise BadRequest(f"JSON Parse error: {error}") from None
    except RecursionError:
        raise BadRequest("JSON Parse error: lists and objects are nested too deeply") from None


def _parse_row(number: int, row: Any) -> bytes:
    value = row[IMAGE_BYTES] if isinstance(row, dict) and row.keys() == {IMAGE_BYTES} else row
    if not isinstance(value, dict) or value.keys() != {"b64"}:
        raise BadRequest(
            f'the instance {number} must be the bytes of an image file as {{"b64": "..."}}'
        )
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadRequest(f"the instance {number} is not base64: {error}") from None


def format_predictions(outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns `predictions`, a row for each image with all outputs by name."""
    rows = zip(*(array.tolist() for array in outputs.values()), strict=True)
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in rows]}
