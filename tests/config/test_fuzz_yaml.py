"""Random YAML files: reading one raises ConfigError or nothing,
and takes no time to speak of (F11).

TRAINYARD_FUZZ_CASES says how many there are. A case that fails is printed;
it belongs into the corpus, `broken_yamls.py`.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import yaml
from config.broken_case import GOOD
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.reading import parse_value
from pipeline_ops.errors import ConfigError

CASES = int(os.environ.get("TRAINYARD_FUZZ_CASES", 300))
_MAX_SECONDS = 5.0
"""Of the CPU, with the garbage collection of all tests before. A case takes milliseconds,
the dearest file of the corpus half a second."""
_often = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))

_WORDS = r"""
    [ ] { } : , # *a | > ' " --- ... 0b_ 0x_ 0o8 1_000 1e5 1e400 .nan .inf -.inf ~ null true no
    2026-02-30 25:00:00 = \ud800 😀 @daily train: pipeline: gate: schedule: per_run: ../..
"""
_BEFORE_A_SPACE = "- ? : &a <<: !!int !!float !!set !!binary !x"
_PHRASES = "%YAML 1.1|%TAG ! x|* * * * *|0 3 31 2 *|path: s3://|model: a:b|  |    "
WORDS = st.sampled_from(
    [
        *_WORDS.split(),
        *(f"{word} " for word in _BEFORE_A_SPACE.split()),
        *_PHRASES.split("|"),
        *"\t\n\0\x07\x85\u2028\ufeff",
        "9" * 30,
        "-" + "9" * 30,
    ]
)
PIECES = st.lists(
    st.one_of(WORDS, st.text(max_size=8), st.sampled_from(GOOD.split())), max_size=12
).map("".join)
LINES = GOOD.splitlines()
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.dates(),
        st.datetimes(),
        st.binary(max_size=8),
        WORDS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.integers(), st.booleans()), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


@st.composite
def mutated(draw) -> str:
    """The good config with some lines changed, cut, repeated or joined."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        cut = draw(st.integers(0, len(lines[at])))
        lines[at] = draw(
            st.sampled_from(
                [
                    lines[at][:cut] + draw(PIECES) + lines[at][cut:],
                    lines[at][:cut],
                    lines[at] + "\n" + lines[at],
                    " " + lines[at],
                    lines[at].strip(),
                    lines[at].replace(": ", ":"),
                ]
            )
        )
    return "\n".join(lines)


@st.composite
def with_a_value(draw) -> str:
    """The good config with any value in any place."""
    values = yaml.safe_load(GOOD)
    where = values
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = draw(st.sampled_from(keys))
        if not (isinstance(where[key], (dict, list)) and where[key]) or draw(st.booleans()):
            break
        where = where[key]
    where[key] = draw(VALUES)
    return yaml.safe_dump(values, allow_unicode=draw(st.booleans()))


def read(content: bytes, folder: Path) -> None:
    file, begin = folder / "any.yaml", time.process_time()
    file.write_bytes(content)
    try:
        load_config(file)
    except ConfigError as error:
        assert str(error).startswith(f"{file}:"), error
        str(error).encode()
    assert time.process_time() - begin < _MAX_SECONDS


@_often
@given(
    content=st.one_of(
        st.binary(max_size=300),
        PIECES.map(lambda text: text.encode("utf-8", "replace")),
        mutated().map(lambda text: text.encode("utf-8", "replace")),
        with_a_value().map(str.encode),
    )
)
@example(content=b"? [a]: b")
@example(content=b"a: &a\n  b: *a")
def test_any_file_is_a_config_or_a_config_error(content, tmp_path_factory):
    read(content, tmp_path_factory.getbasetemp())


@_often
@given(
    text=st.one_of(
        PIECES,
        st.text(max_size=100),
        st.text(alphabet=st.characters(categories=["Cs", "Cc", "Zs"]), max_size=10),
    )
)
@example(text="\ud800")
def test_any_value_of_a_command_line_is_a_value_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        parse_value(text)
