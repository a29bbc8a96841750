"""Broken pipeline configs, one per mistake: what is in the file,
the line that the message must name, and words of its cure.

`write_all` puts them into a folder. Each is `GOOD` with one defect,
so that a message about anything else is wrong.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

GOOD = """\
pipeline: small
preprocess:
  source: {type: image_folder, path: raw}
  stages: [decode]
  split: {train: 0.8, validation: 0.1, test: 0.1}
train:
  model: digits_cnn
  epochs: 3
evaluate:
  gate:
    - {metric: accuracy, at_least: 0.9}
export:
  model: small
"""


@dataclasses.dataclass(frozen=True)
class Broken:
    """A defect. `line` is None where no line can be named, such as for a folder."""

    name: str
    content: bytes | Callable[[Path], None]
    line: int | None
    says: tuple[str, ...]

    def write(self, folder: Path) -> Path:
        file = folder / f"{self.name}.yaml"
        if callable(self.content):
            self.content(file)
        else:
            file.write_bytes(self.content)
        return file


def _in(name: str, old: str, new: str, line: int | None, *says: str) -> Broken:
    """GOOD with a replacement. Its pipeline is named after the file,
    unless that is what is replaced."""
    assert GOOD.count(old) == 1, name
    text = GOOD.replace(old, new).replace("pipeline: small", f"pipeline: {name}")
    return Broken(name, text.encode(), line, says)


def _after(name: str, added: str, line: int | None, *says: str) -> Broken:
    """GOOD with a line in `train`, which is the ninth."""
    return _in(name, "  epochs: 3\n", f"  epochs: 3\n{added}\n", line, *says)


def _schedule(name: str, value: str, *says: str) -> Broken:
    return _in(name, "pipeline: small\n", f"pipeline: small\nschedule: {value}\n", 2, *says)


def _file(
    name: str, content: bytes | Callable[[Path], None], line: int | None, *says: str
) -> Broken:
    return Broken(name, content, line, says)


def _nested_anchors(levels: int) -> str:
    lines = ["  model_parameters:", "    a0: &a0 [x, x]"]
    lines += [
        f"    a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, levels)
    ]
    return "\n".join(lines)


def _unreadable(file: Path) -> None:
    """A file without the right to read. Root may read it all the same,
    so its content is broken, too."""
    file.write_text("[")
    file.chmod(0)


SYNTAX = (
    _in("tab", "  epochs: 3", "\tepochs: 3", 8, "a tab in the indentation", "replace it by spaces"),
    _in(
        "tab_after_spaces",
        "  epochs: 3",
        "  \tepochs: 3",
        8,
        "a tab in the indentation",
        "replace it by spaces",
    ),
    _in(
        "indent_more",
        "  epochs: 3",
        "    epochs: 3",
        8,
        "this line has 4 spaces, the one above it 2",
        "same indentation",
    ),
    _in(
        "indent_less",
        "  epochs: 3",
        " epochs: 3",
        8,
        "this line has 1 spaces, the one above it 2",
        "same indentation",
    ),
    _in(
        "missing_space",
        "  epochs: 3",
        "  epochs:3",
        8,
        "a space is missing after the colon",
        "write 'epochs: 3'",
    ),
    _in(
        "missing_space_first",
        "  model: digits_cnn",
        "  model:digits_cnn",
        7,
        "a space is missing",
        "write 'model: digits_cnn'",
    ),
    _in(
        "missing_space_last",
        "export:\n  model: small",
        "export:\n  model:small",
        12,
        "export: ",
        "is a space missing after the colon in 'model:small'",
    ),
    _in("missing_colon", "  epochs: 3", "  epochs 3", 8, "without a colon", "write 'key: value'"),
    _in(
        "open_bracket",
        "stages: [decode]",
        "stages: [decode",
        4,
        "the bracket [",
        "add ] or a comma",
    ),
    _in("open_brace", "test: 0.1}", "test: 0.1", 5, "the bracket {", "add } or a comma"),
    _in(
        "open_quote",
        "model: digits_cnn",
        'model: "digits_cnn',
        7,
        "this quote is not closed",
        "close it",
    ),
    _in(
        "open_single_quote",
        "model: digits_cnn",
        "model: 'digits_cnn",
        7,
        "this quote is not closed",
        "close it",
    ),
    _in(
        "colon_in_value",
        "model: digits_cnn",
        "model: digits: cnn",
        7,
        "the value holds ': '",
        "put it in quotes",
    ),
    _in(
        "at_sign",
        "model: digits_cnn",
        "model: @digits_cnn",
        7,
        "may not begin with '@'",
        "put it in quotes",
    ),
    _in(
        "backtick",
        "model: digits_cnn",
        "model: `digits_cnn`",
        7,
        "may not begin with '`'",
        "put it in quotes",
    ),
    _in(
        "percent",
        "model: digits_cnn",
        "model: %digits",
        7,
        "may not begin with '%'",
        "put it in quotes",
    ),
    _in(
        "escape",
        "model: digits_cnn",
        'model: "C:\\data"',
        7,
        "a backslash in double quotes",
        "use single quotes",
    ),
    _in("windows_path", "path: raw", 'path: "\\xzz"', 3, "in double quotes", "use single quotes"),
    _in(
        "list_in_line",
        "model: digits_cnn",
        "model: - digits_cnn",
        7,
        "a list item '- '",
        "on a line of its own",
    ),
    _in(
        "not_in_list",
        "    - {metric: accuracy, at_least: 0.9}\n",
        "    - {metric: accuracy, at_least: 0.9}\n    metric: map\n",
        12,
        "does not begin with '- '",
        "begin it with '- '",
    ),
    _schedule("cron_unquoted", "* * * * *", "begins with *", "put the value in quotes"),
    _in(
        "undefined_alias",
        "model: digits_cnn",
        "model: *digits",
        7,
        "refers to a value named with &",
        "in quotes",
    ),
    _in(
        "anchor_twice",
        "  epochs: 3",
        "  epochs: &x 3\n  seed: &x 3",
        9,
        "used twice",
        "choose another",
    ),
    _in(
        "two_documents", "train:\n", "---\ntrain:\n", 6, "second document", "remove the line '---'"
    ),
    _in(
        "twice",
        "  epochs: 3",
        "  epochs: 3\n  epochs: 4",
        9,
        "train.epochs stands twice, first in line 8",
        "remove one",
    ),
    _in(
        "merge_of_text",
        "  epochs: 3",
        "  epochs: 3\n  <<: 5",
        9,
        "<< must be given a mapping",
        "remove it",
    ),
    _in("key_is_list", "  epochs: 3", "  [epochs]: 3", 8, "a key must be a plain name", "quotes"),
    _in(
        "stray_bracket",
        "stages: [decode]",
        "stages: [decode]]",
        4,
        "']' closes a bracket that is not open",
        "remove it",
    ),
)

VALUES = (
    _in(
        "no_date",
        "pipeline: small\n",
        "pipeline: small\nowner: 2026-02-30\ndescription: [2026-02-30]\n",
        3,
        "description",
        "valid string",
    ),
    _in("empty_binary", "epochs: 3", "epochs: 0b_", 8, "train.epochs", "valid integer, got '0b_'"),
    _in("empty_hex", "epochs: 3", "epochs: 0x_", 8, "train.epochs", "valid integer, got '0x_'"),
    _in(
        "time", "epochs: 3", "epochs: 25:00:00", 8, "train.epochs", "valid integer, got '25:00:00'"
    ),
    _in("tagged_float", "epochs: 3", "epochs: !!float x", 8, "x cannot be read", "in quotes"),
    _in("tagged_int", "epochs: 3", "epochs: !!int {}", 8, "not valid YAML", "check"),
    _in(
        "tagged_binary",
        "epochs: 3",
        "epochs: !!binary $$$",
        8,
        "the tag !!binary is not allowed",
        "remove it",
    ),
    _in(
        "tagged_set",
        "epochs: 3",
        "epochs: !!set {a}",
        8,
        "the tag !!set is not allowed",
        "remove it",
    ),
    _in(
        "tagged_timestamp",
        "epochs: 3",
        "epochs: !!timestamp x",
        8,
        "the tag !!timestamp is not allowed",
        "remove it",
    ),
    _in(
        "python_object",
        "epochs: 3",
        "epochs: !!python/object/apply:os.getpid []",
        8,
        "is not allowed",
        "remove it",
    ),
    _in("own_tag", "epochs: 3", "epochs: !mine 3", 8, "the tag !mine is not allowed", "remove it"),
    _in(
        "digits_5000",
        "epochs: 3",
        f"epochs: {'9' * 5000}",
        8,
        "an integer of 5000 digits is too large",
        "at most",
    ),
    _in(
        "digits_400",
        "epochs: 3",
        f"epochs: 1{'0' * 400}",
        8,
        "an integer of 401 digits is too large",
        "at most",
    ),
    _in(
        "beyond_64_bits",
        "epochs: 3",
        "epochs: 9223372036854775808",
        8,
        "is too large",
        "at most 9223372036854775807",
    ),
    _in(
        "infinite", "epochs: 3", "epochs: .inf", 8, ".inf is not a finite number", "write a number"
    ),
    _in(
        "overflow",
        "epochs: 3",
        "epochs: 1e400",
        8,
        "1e400 is not a finite number",
        "write a number",
    ),
    _in(
        "zero_escape",
        "model: digits_cnn",
        'model: "digits\\0cnn"',
        7,
        "control character U+0000",
        "remove it",
    ),
    _in(
        "bell_escape",
        "model: digits_cnn",
        'model: "digits\\a"',
        7,
        "control character U+0007",
        "remove it",
    ),
    _in("surrogate_escape", "model: digits_cnn", 'model: "\\ud800"', 7, "escape", "single quotes"),
    _in(
        "alias_of_itself", "epochs: 3", "epochs: &a [*a]", 8, "stands inside the value", "remove it"
    ),
    _after(
        "nested_anchors", _nested_anchors(12), 17, "more than 30000 values", "may not be larger"
    ),
    _after(
        "deep_brackets",
        "  model_parameters: {a: " + "[" * 100 + "]" * 100 + "}",
        9,
        "nested more than 40 levels",
        "not closed",
    ),
    _after(
        "deep_blocks",
        "\n".join("  " * (n + 1) + "a:" for n in range(60)),
        47,
        "nested more than 40 levels",
        "not closed",
    ),
    _after(
        "alias_chain",
        "  model_parameters:\n    a0: &a0 [x]\n"
        + "\n".join(f"    a{n}: &a{n} [*a{n - 1}]" for n in range(1, 60)),
        10,
        "nested more than 40 levels deep through aliases",
    ),
)

_ALLOWED = ("is not valid", "or * for each")

SCHEDULES = (
    _schedule(
        "cron_weekday",
        "'0 3 * * 8'",
        "schedule.cron",
        "the day of the week '8'",
        "0 to 7",
        *_ALLOWED,
    ),
    _schedule(
        "cron_minute", "'60 * * * *'", "schedule.cron", "the minute '60'", "0 to 59", *_ALLOWED
    ),
    _schedule(
        "cron_words", "every 5 minutes now ok", "schedule.cron", "the minute 'every'", *_ALLOWED
    ),
    _schedule("cron_letters", "a b c d e", "schedule.cron", "the minute 'a'", *_ALLOWED),
    _schedule("cron_random", "'R 3 * * *'", "schedule.cron", "the minute 'R'", *_ALLOWED),
    _schedule("cron_zero_step", "'*/0 3 * * *'", "schedule.cron", "the minute '*/0'", *_ALLOWED),
    _schedule(
        "cron_never",
        "'0 3 31 2 *'",
        "schedule.cron",
        "a day that never comes",
        "change the day or the month",
    ),
    _schedule(
        "cron_four_fields",
        "'0 3 * *'",
        "schedule.cron",
        "must be five fields",
        "such as '0 3 * * *'",
    ),
    _schedule(
        "cron_six_fields",
        "'0 0 3 * * *'",
        "schedule.cron",
        "must be five fields",
        "such as '0 3 * * *'",
    ),
    _schedule(
        "cron_preset",
        "'@dayly'",
        "schedule.cron",
        "unknown preset '@dayly'",
        "the nearest valid name is '@daily'",
    ),
    _schedule("cron_once", "'@once'", "schedule.cron", "unknown preset '@once'", "valid name"),
    _schedule("cron_time", "03:30", "schedule.cron", "must be five fields", "such as '0 3 * * *'"),
    _schedule(
        "zone",
        "{cron: '0 3 * * *', timezone: Europe/Berln}",
        "schedule.timezone",
        "no time zone 'Europe/Berln'",
        "'Europe/Berlin'",
    ),
    _schedule(
        "zone_path",
        "{cron: '0 3 * * *', timezone: ../../etc/passwd}",
        "schedule.timezone",
        "there is no time zone",
        "Europe/Berlin",
    ),
    _schedule(
        "zone_alone",
        "{timezone: Europe/Berlin}",
        "schedule.timezone",
        "is for a cron expression",
        "give cron",
    ),
    _schedule(
        "asset_blank",
        "{assets: ['  ']}",
        "schedule.assets.0.name",
        "cannot name an asset",
        "choose another name",
    ),
    _schedule(
        "asset_reserved",
        "{assets: [{name: a, uri: 'airflow://a'}]}",
        "schedule.assets.0.uri",
        "cannot name an asset",
        "choose another",
    ),
    _schedule(
        "asset_uri",
        "{assets: [{name: a, uri: 'http://[::1'}]}",
        "schedule.assets.0.uri",
        "Invalid IPv6 URL",
    ),
    _schedule(
        "watch_too_often",
        "{watch_seconds: 0}",
        "schedule.watch_seconds",
        "greater than or equal to 1, got 0",
    ),
)

MEANINGS = (
    _after("typo", "  learnin_rate: 1", 9, "train.learnin_rate: unknown key"),
    _after(
        "typo_in_section",
        "  optimizer: {learnin_rate: 1}",
        9,
        "train.optimizer.learnin_rate: unknown key",
        "'learning_rate'",
    ),
    _after(
        "key_of_optimizer",
        "  learning_rate: 0.1",
        9,
        "train.learning_rate: unknown key; did you mean train.optimizer.learning_rate?",
    ),
    _in(
        "key_of_train",
        "pipeline: small\n",
        "pipeline: small\nepochs: 3\n",
        2,
        "epochs: unknown key; did you mean train.epochs?",
    ),
    _in(
        "wrong_type",
        "epochs: 3",
        "epochs: twenty",
        8,
        "train.epochs",
        "valid integer, got 'twenty'",
    ),
    _in(
        "metric",
        "metric: accuracy",
        "metric: acuracy",
        11,
        "unknown name 'acuracy'",
        "the nearest valid name is 'accuracy'",
    ),
    _after(
        "val_loss",
        "  early_stopping: {monitor: val_loss}",
        9,
        "train.early_stopping.monitor",
        "'validation_loss'",
    ),
    _after(
        "few_shards",
        "  workers: 16",
        2,
        "preprocess.shards: must be at least the number of training workers (16), got 8",
    ),
    _in("unknown_model", "model: digits_cnn", "model: digits_cn", 7, "train.model", "digits_cnn"),
    _in(
        "unknown_source",
        "type: image_folder",
        "type: image_foldr",
        3,
        "unknown type 'image_foldr'",
        "'image_folder'",
    ),
    _in(
        "wrong_split", "train: 0.8", "train: 0.7", 5, "train + validation + test must be 1, got 0.9"
    ),
    _in("no_model", "  model: digits_cnn\n", "", 6, "train.model: required, but not given"),
    _in("no_name", "pipeline: small\n", "", 1, "pipeline: required, but not given"),
    _in(
        "capitals",
        "pipeline: small",
        "pipeline: Small Model",
        1,
        "pipeline: must match the pattern",
        "for example 'small_model'",
    ),
    _in(
        "text_for_section",
        "source: {type: image_folder, path: raw}",
        "source: image_folder",
        3,
        "preprocess.source",
        "image_folder",
    ),
    _in(
        "list_for_section",
        "train:\n",
        "train: []\nnotes:\n",
        6,
        "train: must be a section ('key: value'), got []",
    ),
)

FILES = (
    _file("brackets", b"[" * 200_000, 1, "nested more than 40 levels", "not closed"),
    _file("braces", b"{a: " * 50_000, 1, "nested more than 40 levels", "not closed"),
    _file("dashes", b"- " * 100_000, 1, "nested more than 40 levels", "not closed"),
    _file("question_marks", b"? " * 100_000, 1, "nested more than 40 levels", "not closed"),
    _file(
        "many_values",
        b"a: [" + b"1," * 200_000 + b"]",
        1,
        "more than 30000 values",
        "may not be larger",
    ),
    _file("large", b"# " + b"x" * 2_000_000, None, "has 2000002 bytes", "at most 1048576"),
    _file("empty", b"", 1, "is empty", "mapping of keys to values"),
    _file("only_comments", b"# nothing\n", 1, "is empty", "mapping of keys to values"),
    _file("only_text", b"hello\n", 1, "must be a mapping", "key: value"),
    _file("only_list", b"- a\n- b\n", 1, "must be a mapping", "got a list"),
    _file("utf16", GOOD.encode("utf-16"), 1, "is UTF-16", "save it as UTF-8"),
    _file(
        "latin1",
        GOOD.replace("digits_cnn", "zähler").encode("latin-1"),
        7,
        "is not UTF-8",
        "save it as UTF-8",
    ),
    _file(
        "zero_byte",
        GOOD.replace("digits_cnn", "digits\0cnn").encode(),
        7,
        "zero byte",
        "must be UTF-8 text",
    ),
    _file("binary", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 3, "zero byte", "must be UTF-8 text"),
    _file(
        "control_byte",
        GOOD.replace(": small", ": control_byte").replace("s_cnn", "s\x07cnn").encode(),
        7,
        "control character",
        "remove it",
    ),
    _file(
        "cut_off",
        GOOD[: GOOD.index("decode]") + 3].replace(": small", ": cut_off").encode(),
        4,
        "the bracket [",
        "add ]",
    ),
    _file(
        "dangling_link",
        lambda file: file.symlink_to("nowhere.yaml"),
        None,
        "a link to nowhere.yaml",
        "mend or remove the link",
    ),
    _file("link_to_itself", lambda file: file.symlink_to(file.name), None, "symbolic links"),
    _file("folder", lambda file: file.mkdir(), None, "is a folder", "name one of its YAML files"),
    _file(
        "pipe",
        lambda file: os.mkfifo(file),
        None,
        "is a pipe or a device",
        "must be a regular file",
    ),
    _file(
        "device",
        lambda file: file.symlink_to("/dev/zero"),
        None,
        "is a pipe or a device",
        "must be a regular file",
    ),
    _file("unreadable", _unreadable, None),
)

ALL = (*SYNTAX, *VALUES, *SCHEDULES, *MEANINGS, *FILES)
