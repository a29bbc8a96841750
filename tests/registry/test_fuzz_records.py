"""Manifests, alias records and indexes of listings of any content: only documented errors.

TRAINYARD_FUZZ_CASES is the number of cases. A case that fails is printed. Add it to the examples
below.
"""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline_ops.contract.manifest import parse_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing_index import parse_index
from pipeline_ops.registry.aliases import Aliases, parse_record

CASES = int(os.environ.get("TRAINYARD_FUZZ_CASES", 300))
ANY_MACHINE = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))

_FILE = {
    "path": "variables/variables.index",
    "num_bytes": 12,
    "crc32c": "0123abcd",
    "sha256": "0" * 64,
    "num_examples": 3,
}
_FINGERPRINT = {
    "config": {"epochs": 3},
    "inputs": {"preprocess": "0" * 32},
    "code": {},
    "versions": {"numpy": "2.0"},
}
MANIFEST = {
    "job": "train",
    "pipeline": "p",
    "fingerprint": _FINGERPRINT,
    "fingerprint_digest": "0" * 32,
    "seeds": {"train": 1},
    "inputs": {"preprocess": {"uri": "/a/manifest.json", "digest": "0" * 32}},
    "figures": {"loss": 0.1},
    "files": [_FILE, _FILE | {"path": "saved_model.pb"}],
}
RECORD = {
    "names": {"champion": 3, "canary": 2},
    "succession": [1, 3],
    "retired": [4],
    "last": {"alias": "champion", "version": 3, "time": 1.7e9, "reason": "better", "retired": []},
}
INDEX = (
    b'"a/1.png"\t12 1700000000000000000 1700000000000000000 '
    + b"0" * 32
    + b'\n"b%E9"\t0 1 2 '
    + b"f" * 32
    + b"\n"
)

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from(
        [
            "../x",
            "/etc/passwd",
            "a/./b",
            "\ud800",
            "\0",
            "a\\b",
            1 << 80,
            -(1 << 63),
            1e308,
            "9" * 5000,
            [],
            {},
            "a" * 5000,
        ]
    )
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw, valid: bytes) -> bytes:
    """A valid content of which some bytes were changed, cut out or repeated."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 20)))
        content[start:end] = draw(st.binary(max_size=20) | st.just(bytes(content[start:end]) * 3))
    return bytes(content)


@st.composite
def changed(draw, valid: dict) -> bytes:
    """A valid value in which some places hold another value."""
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 3))):
        place = value
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            place[key] = draw(VALUES)
            break
    return json.dumps(value).encode()


def contents(valid: dict) -> st.SearchStrategy[bytes]:
    return (
        st.binary(max_size=200)
        | VALUES.map(lambda value: json.dumps(value).encode())
        | changed(valid)
        | damaged(json.dumps(valid).encode())
    )


@pytest.mark.parametrize(
    "valid, parse", [(MANIFEST, parse_manifest), (RECORD, parse_record)], ids=["manifest", "record"]
)
def test_what_is_changed_here_is_valid_before(valid, parse):
    """Proves that the tests below reach beyond the first check."""
    assert parse(json.dumps(valid).encode(), "there")


@example(b"[" * 100_000)
@example(b'{"files":' * 10_000)
@example(b'{"a": 1' + b"0" * 5000 + b"}")
@example(b"NaN")
@ANY_MACHINE
@given(contents(MANIFEST))
def test_a_manifest_of_any_content_is_one_or_a_data_error(content):
    """F7."""
    try:
        manifest = parse_manifest(content, "there")
    except DataError as error:
        assert str(error).startswith("there: not a manifest") and len(str(error)) < 20_000
        return
    root = Path("/root/artifact")
    for file in manifest.files:
        assert (
            Path(os.path.normpath(root / file.path)).is_relative_to(root)
            and os.path.normpath(file.path) == file.path
        )
        assert file.num_bytes >= 0
    assert len(manifest.digest) == 32


@example(b"[" * 100_000)
@example(b'{"last": {"alias": null, "version": null, "time": NaN, "reason": ""}}')
@ANY_MACHINE
@given(contents(RECORD))
def test_an_alias_record_of_any_content_is_one_or_a_data_error(content):
    """F16."""
    try:
        aliases = parse_record(content, "there")
    except DataError as error:
        assert str(error).startswith("there: not a valid Aliases: ") and len(str(error)) < 2_000
        return
    assert all(
        number > 0 for number in [*aliases.names.values(), *aliases.succession, *aliases.retired]
    )
    assert aliases.last is None or math.isfinite(aliases.last.time)
    assert Aliases.model_validate_json(aliases.model_dump_json()) == aliases


@example(b'["a"]\t1 2 3 ' + b"0" * 32)
@example(b"[" * 100_000 + b"\t1 2 3 " + b"0" * 32)
@ANY_MACHINE
@given(st.binary(max_size=300) | damaged(INDEX))
def test_an_index_of_any_content_is_one_or_a_data_error(content):
    """F16."""
    try:
        found = parse_index(io.BytesIO(content), "there")
    except DataError as error:
        assert "not an index of raw files" in str(error) and len(str(error)) < 200
        return
    assert all(isinstance(key, str) and entry.count(" ") == 3 for key, entry in found.items())
