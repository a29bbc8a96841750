"""Protobuf's text format without definitions: against tables, against protobuf's own printer, and
against noise."""

from __future__ import annotations

import contextlib
import math
import os
import time

import pytest
from google.protobuf import descriptor_pb2, text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.od_api.convert import convert
from pipeline_ops.od_api.text_proto import (
    ConfigReader,
    EnumName,
    TextMessage,
    parse_text_proto,
)


def plain(message: TextMessage) -> list:
    """(name, value) of all fields, messages as lists."""
    return [
        (field.name, plain(field.value) if isinstance(field.value, TextMessage) else field.value)
        for field in message.fields
    ]


def parsed(text: str) -> list:
    return plain(parse_text_proto(text, "it.config"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("# nothing but a comment", []),
        (
            "a: 1 b: -2 c: 0x1F d: 017 e: -0X10",
            [("a", 1), ("b", -2), ("c", 31), ("d", 15), ("e", -16)],
        ),
        (
            "a: 1.5 b: .5 c: 2. d: 1e-3 e: -4E2 f: 3f g: 1.5F",
            [
                ("a", 1.5),
                ("b", 0.5),
                ("c", 2.0),
                ("d", 0.001),
                ("e", -400.0),
                ("f", 3.0),
                ("g", 1.5),
            ],
        ),
        ("a: inf b: -inf c: -Infinity", [("a", math.inf), ("b", -math.inf), ("c", -math.inf)]),
        ("a: true b: False c: t d: f", [("a", True), ("b", False), ("c", True), ("d", False)]),
        ("a: RELU_6", [("a", EnumName("RELU_6"))]),
        (
            "a { b: 1 } c: { d: 2 } e < f: 3 > g: <>",
            [("a", [("b", 1)]), ("c", [("d", 2)]), ("e", [("f", 3)]), ("g", [])],
        ),
        ("a{b{c{}}}", [("a", [("b", [("c", [])])])]),
        (
            "a: [1, 2, 3] b: [] c [{d: 1}, <d: 2>]",
            [("a", 1), ("a", 2), ("a", 3), ("c", [("d", 1)]), ("c", [("d", 2)])],
        ),
        ("a: 1, b: 2; c: 3", [("a", 1), ("b", 2), ("c", 3)]),
        ("a: 1 # one\nb: 2 # two", [("a", 1), ("b", 2)]),
        ('a: "x # y" b: \'it"s\' c: "it\'s"', [("a", "x # y"), ("b", 'it"s'), ("c", "it's")]),
        ("a: 'one' \" two\"\n 'three'", [("a", "one twothree")]),
        (r"a: '\n\t\\\'\"\x41\101\u00e9\U0001F600\?'", [("a", "\n\t\\'\"AA\u00e9\U0001f600?")]),
        (r"a: '\303\251'", [("a", "\u00e9")]),
        ("a: 'C:\\\\data'", [("a", "C:\\data")]),
        (
            "[ext.of.another] { a: 1 } [type.googleapis.com/x.Y] { }",
            [("[ext.of.another]", [("a", 1)]), ("[type.googleapis.com/x.Y]", [])],
        ),
    ],
)
def test_a_text_says(text, wanted):
    found = parsed(text)
    assert found == wanted
    assert [type(value) for _, value in found] == [type(value) for _, value in wanted]


def test_not_a_number_is_one():
    [(_, value)] = parsed("a: nan")
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb 2", "2:3: expected a colon or a bracket after b, got '2'"),
        ("a {\n  b: 1\n", "3:1: the file ends inside of a message. Add the missing bracket."),
        ("a { b: 1 >", "1:10: expected the name of a field, got '>'"),
        ("a: 1 }", "1:6: expected the name of a field, got '}'"),
        ("a:", "1:3: expected a value, got 'the end of the file'"),
        ("\n  a: 'never ends\n", "2:6: 'never ends does not end in its line"),
        ("a: [1, 2", "1:9: expected ',', got 'the end of the file'"),
        ("a: [1,]", "1:7: expected a value, got ']'"),
        ("a: [1 2]", "1:7: expected ',', got '2'"),
        ("a: -true", "1:4: expected a value, got '-true'"),
        ("a: 1 @", "1:6: expected the name of a field, got '@'"),
        ("a: 12abc", "1:4: expected a value, got '12abc'"),
        (r"a: 'x\q'", r"1:4: 'x\q' does not end in its line, or has a wrong escape"),
        (r"a: '\777'", "has a wrong escape"),
        ("[a.b { }", "1:6: expected the end of [a.b], got '{'"),
        (r"a: '\xg'", "has a wrong escape"),
        (r"a: 'x\'", "1:4: 'x\\' does not end in its line, or"),
        ("a {" * 200, "messages are nested more than 100 deep"),
    ],
)
def test_what_is_no_text_proto_is_refused_with_its_place(text, problem):
    with pytest.raises(ConfigError) as error:
        parsed(text)
    assert str(error.value).startswith("it.config:") and problem in str(error.value)


def test_a_field_knows_where_it_stands():
    message = parse_text_proto("a: 1\n  b { c:\n 'x' }", "it")
    [a, b] = message.fields
    assert [(each.line, each.column) for each in (a, b, b.value.fields[0])] == [
        (1, 1),
        (2, 3),
        (2, 7),
    ]


def to_expected_fields(message) -> list:
    """The fields of a protobuf message, in the form of `plain`."""
    found = []
    for field, value in message.ListFields():
        for each in value if field.is_repeated else [value]:
            if field.message_type:
                found.append((field.name, to_expected_fields(each)))
            else:
                found.append(
                    (
                        field.name,
                        field.enum_type.values_by_number[each].name if field.enum_type else each,
                    )
                )
    return found


ANY_MACHINE = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
FIELDS = st.builds(
    descriptor_pb2.FieldDescriptorProto,
    name=st.text(max_size=8),
    number=st.integers(-(2**31), 2**31 - 1),
    default_value=st.text(max_size=12),
    label=st.sampled_from([1, 2, 3]),
    proto3_optional=st.booleans(),
)
MESSAGES = st.builds(
    descriptor_pb2.DescriptorProto,
    name=st.text(max_size=8),
    field=st.lists(FIELDS, max_size=3),
    reserved_name=st.lists(st.text(max_size=5), max_size=3),
)
FILES = st.builds(
    descriptor_pb2.FileDescriptorProto,
    name=st.text(max_size=8),
    message_type=st.lists(MESSAGES, max_size=3),
    public_dependency=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
)


@settings(ANY_MACHINE, max_examples=100)
@given(FILES, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_what_protobuf_prints_is_read_as_it_was_meant(
    message, as_utf8, one_line, pointy_brackets, short_lists
):
    text = text_format.MessageToString(
        message,
        as_utf8=as_utf8,
        as_one_line=one_line,
        pointy_brackets=pointy_brackets,
        use_short_repeated_primitives=short_lists,
    )
    assert parsed(text) == to_expected_fields(message)


@settings(ANY_MACHINE, max_examples=int(os.environ.get("TRAINYARD_FUZZ_CASES", "300")))
@given(
    st.one_of(
        st.text(),
        st.text("ab:{}<>[],;'\"\\#-.0x19eE \n"),
        st.lists(
            st.sampled_from(
                [
                    "a",
                    ":",
                    "{",
                    "}",
                    "<",
                    ">",
                    "[",
                    "]",
                    ",",
                    "1",
                    "-",
                    "'s'",
                    "\n",
                    "#c\n",
                    "1.5",
                    "true",
                    " ",
                ]
            )
        ).map("".join),
    )
)
def test_noise_is_read_or_refused_with_a_place_and_nothing_else(text):
    try:
        message = parse_text_proto(text, "it.config")
    except ConfigError as error:
        line, column = map(int, str(error).split(":")[1:3])
        assert 1 <= line <= text.count("\n") + 1 and column >= 1
    else:
        assert isinstance(message, TextMessage)


COSTLY = {
    "digits and a letter": "a: " + 10_000 * "1" + "x",
    "digits, a dot and digits": "a: " + 5_000 * "1" + "." + 5_000 * "1" + "x",
    "lines": 100_000 * "a: 1\n",
    "a number": "a: " + 5_000 * "1",
    "a hexadecimal number": "a: 0x" + 5_000 * "f",
    "open messages": 100_000 * "a {",
    "strings": "a: " + 50_000 * "'x' ",
    "escapes": 'a: "' + 100_000 * "\\x41" + '"',
    "values": "a: [" + 100_000 * "1," + "1]",
}


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_a_text_costs_time_in_proportion_to_its_length(text):
    """M6: digits with a letter behind them took the cube of their number, 18 minutes for 10 kB."""
    begun = time.process_time()
    with contextlib.suppress(ConfigError):
        reader = ConfigReader(parse_text_proto(text, "costly.config"), "costly.config")
        list(reader.iterate_leaves())
        reader.take("a", int, 0)
    assert time.process_time() - begun < 20


def test_a_file_that_is_too_large_for_a_config_is_not_read(tmp_path):
    file = tmp_path / "pipeline.config"
    file.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(DataError, match="pipeline.config: has 1048577 bytes, allowed are 1048576"):
        convert(file)
