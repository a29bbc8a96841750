"""Messages for a text that is not valid YAML, with line, cause and cure in plain words.

They replace the parser's terms. Used only by `yaml_reading.py`.
"""

from __future__ import annotations

import re

import yaml

from pipeline_ops.errors import ConfigError


class YamlProblem(ConfigError):
    """A defect of a YAML text, at a line that counts from 1."""

    def __init__(self, line: int, rule: str):
        super().__init__(rule)
        self.line, self.rule = line, rule


_MISSING_SPACE = re.compile(r"""^\s*(?:-\s+)*([A-Za-z_][\w.-]*):([^\s/\\:'"][^:]*)$""")

_COLON_IN_VALUE = re.compile(r"^\s*(?:-\s+)*[A-Za-z_][\w.-]*:\s+[^\s'\"{\[|>].*:(\s|$)")
_SPECIAL = re.compile(r"[^\t\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_DEFECTS_AT_START = (
    ("found unexpected end of stream", "this quote is not closed. Close it."),
    (
        "did not find expected ',' or ']'",
        "the bracket [ is not closed, or a comma is missing. Add ] or a comma.",
    ),
    (
        "did not find expected ',' or '}'",
        "the bracket { is not closed, or a comma is missing. Add } or a comma.",
    ),
    (
        "could not find expected ':'",
        "a key without a colon. Write 'key: value', with a space after the colon.",
    ),
)
"""The parser's words with their meaning for a person. The line to look at is the one where the
construct begins."""

_DEFECTS_AT_LINE = (
    (
        "did not find expected '-' indicator",
        "this line follows a list, but does not begin with '- '. Begin it with '- ', "
        "or indent it as the other keys of its section.",
    ),
    (
        "block sequence entries are not allowed",
        "a list item '- ' may not stand here. Put it on a line of its own.",
    ),
    (
        "did not find expected node content",
        "a value is missing between brackets or commas. Remove a comma, or add it.",
    ),
    (
        "found undefined alias",
        "a value that begins with * refers to a value named with &, and none has that name. "
        "Put the value in quotes if a text is meant.",
    ),
    (
        "while scanning an alias",
        'a value that begins with * is not a text. Put the value in quotes, as in "* * * * *".',
    ),
    (
        "while scanning an anchor",
        "a value that begins with & is not a text. Put the value in quotes.",
    ),
    ("duplicate anchor", "the name after & is used twice. Choose another one."),
    (
        "while parsing a quoted scalar",
        "a backslash in double quotes begins an escape. Use single quotes, or write it twice.",
    ),
    (
        "expected a single document",
        "a second document begins here. Remove the line '---' or '...'.",
    ),
    (
        "expected <document start>",
        "the document ends before this line. Check brackets, quotes and indentation above it.",
    ),
    ("mappings for merging", "<< must be given a mapping, such as *name. Remove it."),
)
"""The same for defects whose line is the one that the parser names."""


def explain(error: yaml.YAMLError, text: str) -> YamlProblem:
    """Returns the problem of a text that the parser has refused."""
    lines = text.splitlines() or [""]
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return _locate_control_character(error, lines)
    problem = " ".join(filter(None, [error.context, error.problem]))
    at, column = min(error.problem_mark.line, len(lines) - 1), error.problem_mark.column
    start = min(error.context_mark.line, at) if error.context_mark else at
    line, rule = (
        _find_tab(lines, at)
        or _find_missing_space(lines, start, at)
        or _find_known_defect(problem, start, at)
        or (at, _describe_character(problem, lines, at, column))
    )
    return YamlProblem(line + 1, f"not valid YAML: {rule}")


def _locate_control_character(error: yaml.YAMLError, lines: list[str]) -> YamlProblem:
    """Finds the line of a character that YAML does not allow. The parser does not name it."""
    for number, line in enumerate(lines, 1):
        if found := _SPECIAL.search(line):
            return YamlProblem(
                number, f"not valid YAML: the control character U+{ord(found[0]):04X}. Remove it."
            )
    return YamlProblem(1, f"not valid YAML: {error}. Check the characters of the text.")


def _find_known_defect(problem: str, start: int, at: int) -> tuple[int, str] | None:
    for line, defects in ((start, _DEFECTS_AT_START), (at, _DEFECTS_AT_LINE)):
        for words, advice in defects:
            if words in problem:
                return line, advice
    return None


def _describe_character(problem: str, lines: list[str], at: int, column: int) -> str:
    """The defect of a line where the parser only says that something else was expected."""
    character = lines[at][column : column + 1]
    if "cannot start any token" in problem:
        return f"a value may not begin with {character!r}. Put it in quotes."
    if character and character in "]}":
        return f"{character!r} closes a bracket that is not open. Remove it."
    if "mapping values are not allowed" in problem or "did not find expected key" in problem:
        return _describe_indentation(lines, at)
    return f"{problem}. Check quotes, brackets and indentation here."


def _find_tab(lines: list[str], at: int) -> tuple[int, str] | None:
    """The first line up to the given one that is indented with a tab, counted from 0."""
    for number in range(at + 1):
        if "\t" in lines[number][: len(lines[number]) - len(lines[number].lstrip())]:
            return number, "a tab in the indentation. Replace it by spaces."
    return None


def _find_missing_space(lines: list[str], start: int, at: int) -> tuple[int, str] | None:
    for number in range(max(0, start - 1), at + 1):
        if found := _MISSING_SPACE.match(lines[number]):
            key, value = found.groups()
            return number, (
                f"a space is missing after the colon in '{key}:{value.strip():.40}'. "
                f"Write '{key}: {value.strip():.40}'."
            )
    return None


def _describe_indentation(lines: list[str], at: int) -> str:
    if _COLON_IN_VALUE.match(lines[at]):
        return "the value holds ': '. Put it in quotes."
    above = [line for line in lines[:at] if line.strip() and not line.lstrip().startswith("#")]
    here, there = (
        len(line) - len(line.lstrip()) for line in (lines[at], above[-1] if above else "")
    )
    if here != there:
        return (
            f"the indentation does not fit: this line has {here} spaces, the one above it {there}. "
            "Give all keys of a section the same indentation."
        )
    return "a colon where none may stand. Give each key a line of its own."
