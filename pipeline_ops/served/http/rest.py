"""TensorFlow Serving's REST form: parses requests into arrays, and turns arrays into JSON.

No server and no TensorFlow here. A request has `instances`, a list of rows, or `inputs`, columns by
name. Either may leave the name out if a signature has one input. Bytes are `{"b64": "..."}`. The
form is that of www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

DEFAULT_SIGNATURE = "serving_default"
MAX_VALUES = 4_000_000
"""The maximum of lists, objects and texts in a request.

Each takes twenty times the memory that it takes in the body.
"""


class BadRequest(Exception):
    """A refused request, with a message for the client. `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


class TensorSpec(NamedTuple):
    """A tensor of a signature: its NumPy dtype (object for strings) and its shape (None: any)."""

    dtype: np.dtype
    shape: tuple[int | None, ...]


class PredictRequest(NamedTuple):
    """A predict request. `is_row` selects the form of the answer."""

    signature: str
    inputs: dict[str, np.ndarray]
    is_row: bool


def parse_predict_request(
    body: bytes | bytearray, signatures: Mapping[str, Mapping[str, TensorSpec]]
) -> PredictRequest:
    """Parses a predict request. `signatures` has the inputs of each signature by name.

    Raises BadRequest if the request does not match a signature.
    """
    value = _parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object with instances or inputs")
    name = value.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str) or name not in signatures:
        raise BadRequest(
            f"there is no signature {name!r}. Existing signatures: {', '.join(sorted(signatures))}"
        )
    if ("instances" in value) == ("inputs" in value):
        raise BadRequest("give either instances (rows) or inputs (columns)")
    specs, is_row = signatures[name], "instances" in value
    if is_row:
        columns = _parse_rows(value["instances"], specs)
    elif isinstance(value["inputs"], dict) and not _is_encoded(value["inputs"]):
        columns = value["inputs"]
    else:
        columns = {_require_single_input(specs): value["inputs"]}
    if unknown := sorted(columns.keys() ^ specs.keys()):
        raise BadRequest(
            f"the signature {name} has the inputs {', '.join(sorted(specs))}. "
            f"Unknown or missing: {', '.join(unknown)}"
        )
    inputs = {key: _to_array(key, column, specs[key]) for key, column in columns.items()}
    if len({array.shape[:1] for array in inputs.values()}) > 1:
        raise BadRequest("all inputs must have the same number of rows")
    return PredictRequest(name, inputs, is_row)


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


def format_response(outputs: Mapping[str, np.ndarray], is_row: bool) -> dict[str, Any]:
    """Returns `predictions`, a row for each instance, or `outputs`, a column for each name.

    A single output has no name.
    """
    columns = {name: _to_json(name, array) for name, array in outputs.items()}
    key = "predictions" if is_row else "outputs"
    if len(columns) == 1:
        return {key: next(iter(columns.values()))}
    if not is_row:
        return {key: columns}
    rows = zip(*columns.values(), strict=True)
    return {key: [dict(zip(columns, row, strict=True)) for row in rows]}


def _parse_rows(rows: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise BadRequest("instances must be a list with at least one row")
    named = [isinstance(row, dict) and not _is_encoded(row) for row in rows]
    if not any(named):
        return {_require_single_input(specs): rows}
    if not all(named) or any(row.keys() != rows[0].keys() for row in rows):
        raise BadRequest("all instances must name the same inputs")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _require_single_input(specs: Mapping[str, TensorSpec]) -> str:
    if len(specs) != 1:
        raise BadRequest(
            f"the signature has several inputs, so they must be named: {', '.join(sorted(specs))}"
        )
    return next(iter(specs))


def _to_array(name: str, value: Any, spec: TensorSpec) -> np.ndarray:
    try:
        if spec.dtype != object:
            array = np.array(value, spec.dtype)
        elif isinstance(value, list):
            array = np.array([_to_bytes(name, item) for item in value], object)
        else:
            raise ValueError("a list is needed")
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"{name} must be {_describe_spec(spec)}: {error}") from None
    has_valid_shape = array.ndim == len(spec.shape) and all(
        expected in (None, size) for size, expected in zip(array.shape, spec.shape, strict=True)
    )
    if not has_valid_shape:
        raise BadRequest(
            f"{name} must be {_describe_spec(spec)}, got the shape {list(array.shape)}"
        )
    return array


def _to_bytes(name: str, item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if not _is_encoded(item):
        raise ValueError(
            f'each item must be text, or bytes as {{"b64": "..."}}, got {type(item).__name__}'
        )
    try:
        return base64.b64decode(item["b64"], validate=True)
    except (binascii.Error, TypeError) as error:
        raise BadRequest(f"{name}: b64 is not base64: {error}") from None


def _is_encoded(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def _describe_spec(spec: TensorSpec) -> str:
    kind = "bytes" if spec.dtype == object else spec.dtype.name
    return (
        f"{kind} of the shape "
        f"[{', '.join('any' if size is None else str(size) for size in spec.shape)}]"
    )


def _to_json(name: str, array: np.ndarray) -> Any:
    if array.dtype != object:
        return array.tolist()
    if name.endswith("_bytes"):
        return [{"b64": base64.b64encode(item).decode()} for item in array.ravel()]
    return [item.decode("utf-8", "replace") for item in array.ravel()]
