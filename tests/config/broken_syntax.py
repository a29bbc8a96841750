"""Texts that are not valid YAML. The message has the parser's words, and the line to correct."""

from __future__ import annotations

from config.broken_case import Broken, replace, with_schedule

_CURE = "Correct the indentation, quotes, brackets or colons."
_QUOTES = "Put the value in quotes"
_MODEL, _EPOCHS = "model: digits_cnn", "  epochs: 3"
_METRIC = "    - {metric: accuracy, at_least: 0.9}\n"


def _refused(name: str, old: str, new: str, line: int, says: str) -> Broken:
    return replace(name, old, new, line, "not valid YAML: ", says, _CURE)


SYNTAX = (
    replace("tab", _EPOCHS, "\tepochs: 3", 8, "a tab in the indentation. Replace it by spaces"),
    replace("tab_after_spaces", _EPOCHS, "  \tepochs: 3", 8, "a tab in the indentation"),
    replace("missing_space", _EPOCHS, "  epochs:3", 8, "a space is missing", "Write 'epochs: 3'"),
    replace(
        "missing_space_first", _MODEL, "model:digits_cnn", 7, "a space is missing", f"'{_MODEL}'"
    ),
    replace(
        "missing_space_last",
        "export:\n  model: small",
        "export:\n  model:small",
        12,
        "export: ",
        "Is a space missing after the colon in 'model:small'",
    ),
    replace("twice", _EPOCHS, f"{_EPOCHS}\n  epochs: 4", 9, "epochs stands twice, first in line 8"),
    _refused("indent_more", _EPOCHS, "    epochs: 3", 8, "mapping values are not allowed"),
    _refused("indent_less", _EPOCHS, " epochs: 3", 8, "did not find expected key"),
    _refused("missing_colon", _EPOCHS, "  epochs 3", 8, "could not find expected ':'"),
    _refused("open_bracket", "stages: [decode]", "stages: [decode", 4, "expected ',' or ']'"),
    _refused("open_brace", "test: 0.1}", "test: 0.1", 5, "expected ',' or '}'"),
    _refused("open_quote", _MODEL, 'model: "digits_cnn', 7, "unexpected end of stream"),
    _refused("open_single_quote", _MODEL, "model: 'digits_cnn", 7, "unexpected end of stream"),
    _refused("colon_in_value", _MODEL, "model: digits: cnn", 7, "mapping values are not allowed"),
    replace("at_sign", _MODEL, "model: @digits_cnn", 7, "that cannot start", _QUOTES),
    replace("percent", _MODEL, "model: %digits", 7, "character that cannot start", _QUOTES),
    replace("escape", _MODEL, 'model: "C:\\data"', 7, "unknown escape", "Use single quotes"),
    replace("escape_of_digits", _MODEL, 'model: "C:\\Users"', 7, "Use single quotes"),
    replace("full_width_colon", _EPOCHS, "  epochs\uff1a3", 8, "fullwidth colon", "plain"),
    replace("dash_of_a_text", "    - {metric", "    \u2013 {metric", 11, "en dash", "hyphen"),
    replace("merged_twice", _EPOCHS, f"{_EPOCHS}\n  <<: {{}}\n  <<: {{}}", 10, "`<<: [*a, *b]`"),
    _refused("list_in_line", _MODEL, "model: - digits_cnn", 7, "entries are not allowed"),
    _refused("not_in_list", _METRIC, f"{_METRIC}    metric: map\n", 12, "expected '-' indicator"),
    with_schedule("cron_unquoted", "* * * * *", "alphabetic or numeric", _QUOTES),
    _refused("undefined_alias", _MODEL, "model: *digits", 7, "undefined alias"),
    _refused("anchor_twice", _EPOCHS, "  epochs: &x 3\n  seed: &x 3", 9, "duplicate anchor"),
    _refused("two_documents", "train:\n", "---\ntrain:\n", 6, "found another document"),
    _refused("merge_of_text", _EPOCHS, f"{_EPOCHS}\n  <<: 5", 9, "mappings for merging"),
    _refused("key_is_list", _EPOCHS, "  [epochs]: 3", 8, "unhashable key"),
    _refused("stray_bracket", "stages: [decode]", "stages: [decode]]", 4, "expected key"),
)
