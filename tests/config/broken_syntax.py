"""Texts that are not valid YAML."""

from __future__ import annotations

from config.broken_case import replace, with_schedule

SYNTAX = (
    replace(
        "tab", "  epochs: 3", "\tepochs: 3", 8, "a tab in the indentation", "Replace it by spaces"
    ),
    replace(
        "tab_after_spaces",
        "  epochs: 3",
        "  \tepochs: 3",
        8,
        "a tab in the indentation",
        "Replace it by spaces",
    ),
    replace(
        "indent_more",
        "  epochs: 3",
        "    epochs: 3",
        8,
        "this line has 4 spaces, the one above it 2",
        "same indentation",
    ),
    replace(
        "indent_less",
        "  epochs: 3",
        " epochs: 3",
        8,
        "this line has 1 spaces, the one above it 2",
        "same indentation",
    ),
    replace(
        "missing_space",
        "  epochs: 3",
        "  epochs:3",
        8,
        "a space is missing after the colon",
        "Write 'epochs: 3'",
    ),
    replace(
        "missing_space_first",
        "  model: digits_cnn",
        "  model:digits_cnn",
        7,
        "a space is missing",
        "Write 'model: digits_cnn'",
    ),
    replace(
        "missing_space_last",
        "export:\n  model: small",
        "export:\n  model:small",
        12,
        "export: ",
        "Is a space missing after the colon in 'model:small'",
    ),
    replace(
        "missing_colon", "  epochs: 3", "  epochs 3", 8, "without a colon", "Write 'key: value'"
    ),
    replace(
        "open_bracket",
        "stages: [decode]",
        "stages: [decode",
        4,
        "the bracket [",
        "Add ] or a comma",
    ),
    replace("open_brace", "test: 0.1}", "test: 0.1", 5, "the bracket {", "Add } or a comma"),
    replace(
        "open_quote",
        "model: digits_cnn",
        'model: "digits_cnn',
        7,
        "this quote is not closed",
        "Close it",
    ),
    replace(
        "open_single_quote",
        "model: digits_cnn",
        "model: 'digits_cnn",
        7,
        "this quote is not closed",
        "Close it",
    ),
    replace(
        "colon_in_value",
        "model: digits_cnn",
        "model: digits: cnn",
        7,
        "the value holds ': '",
        "Put it in quotes",
    ),
    replace(
        "at_sign",
        "model: digits_cnn",
        "model: @digits_cnn",
        7,
        "may not begin with '@'",
        "Put it in quotes",
    ),
    replace(
        "backtick",
        "model: digits_cnn",
        "model: `digits_cnn`",
        7,
        "may not begin with '`'",
        "Put it in quotes",
    ),
    replace(
        "percent",
        "model: digits_cnn",
        "model: %digits",
        7,
        "may not begin with '%'",
        "Put it in quotes",
    ),
    replace(
        "escape",
        "model: digits_cnn",
        'model: "C:\\data"',
        7,
        "a backslash in double quotes",
        "Use single quotes",
    ),
    replace(
        "windows_path", "path: raw", 'path: "\\xzz"', 3, "in double quotes", "Use single quotes"
    ),
    replace(
        "list_in_line",
        "model: digits_cnn",
        "model: - digits_cnn",
        7,
        "a list item '- '",
        "on a line of its own",
    ),
    replace(
        "not_in_list",
        "    - {metric: accuracy, at_least: 0.9}\n",
        "    - {metric: accuracy, at_least: 0.9}\n    metric: map\n",
        12,
        "does not begin with '- '",
        "Begin it with '- '",
    ),
    with_schedule("cron_unquoted", "* * * * *", "begins with *", "Put the value in quotes"),
    replace(
        "undefined_alias",
        "model: digits_cnn",
        "model: *digits",
        7,
        "refers to a value named with &",
        "in quotes",
    ),
    replace(
        "anchor_twice",
        "  epochs: 3",
        "  epochs: &x 3\n  seed: &x 3",
        9,
        "used twice",
        "Choose another",
    ),
    replace(
        "two_documents", "train:\n", "---\ntrain:\n", 6, "second document", "Remove the line '---'"
    ),
    replace(
        "twice",
        "  epochs: 3",
        "  epochs: 3\n  epochs: 4",
        9,
        "train.epochs stands twice, first in line 8",
        "Remove one",
    ),
    replace(
        "merge_of_text",
        "  epochs: 3",
        "  epochs: 3\n  <<: 5",
        9,
        "<< must be given a mapping",
        "Remove it",
    ),
    replace(
        "key_is_list", "  epochs: 3", "  [epochs]: 3", 8, "a key must be a plain name", "quotes"
    ),
    replace(
        "stray_bracket",
        "stages: [decode]",
        "stages: [decode]]",
        4,
        "']' closes a bracket that is not open",
        "Remove it",
    ),
)
