"""Values and schedules that no config can have."""

from __future__ import annotations

from config.broken_case import add_after, replace, with_schedule


def _nested_anchors(levels: int) -> str:
    lines = ["  model_parameters:", "    a0: &a0 [x, x]"]
    lines += [
        f"    a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, levels)
    ]
    return "\n".join(lines)


VALUES = (
    replace(
        "no_date",
        "pipeline: small\n",
        "pipeline: small\nowner: 2026-02-30\ndescription: [2026-02-30]\n",
        3,
        "description",
        "valid string",
    ),
    replace(
        "empty_binary", "epochs: 3", "epochs: 0b_", 8, "train.epochs", "valid integer, got '0b_'"
    ),
    replace("empty_hex", "epochs: 3", "epochs: 0x_", 8, "train.epochs", "valid integer, got '0x_'"),
    replace(
        "time", "epochs: 3", "epochs: 25:00:00", 8, "train.epochs", "valid integer, got '25:00:00'"
    ),
    replace("tagged_float", "epochs: 3", "epochs: !!float x", 8, "x cannot be read", "in quotes"),
    replace("tagged_int", "epochs: 3", "epochs: !!int {}", 8, "not valid YAML", "Check"),
    replace(
        "tagged_binary",
        "epochs: 3",
        "epochs: !!binary $$$",
        8,
        "the tag !!binary is not allowed",
        "Remove it",
    ),
    replace(
        "tagged_set",
        "epochs: 3",
        "epochs: !!set {a}",
        8,
        "the tag !!set is not allowed",
        "Remove it",
    ),
    replace(
        "tagged_timestamp",
        "epochs: 3",
        "epochs: !!timestamp x",
        8,
        "the tag !!timestamp is not allowed",
        "Remove it",
    ),
    replace(
        "python_object",
        "epochs: 3",
        "epochs: !!python/object/apply:os.getpid []",
        8,
        "is not allowed",
        "Remove it",
    ),
    replace(
        "own_tag", "epochs: 3", "epochs: !mine 3", 8, "the tag !mine is not allowed", "Remove it"
    ),
    replace(
        "digits_5000",
        "epochs: 3",
        f"epochs: {'9' * 5000}",
        8,
        "an integer of 5000 digits is too large",
        "The largest is",
    ),
    replace(
        "digits_400",
        "epochs: 3",
        f"epochs: 1{'0' * 400}",
        8,
        "an integer of 401 digits is too large",
        "The largest is",
    ),
    replace(
        "beyond_64_bits",
        "epochs: 3",
        "epochs: 9223372036854775808",
        8,
        "is too large",
        "The largest is 9223372036854775807",
    ),
    replace(
        "infinite", "epochs: 3", "epochs: .inf", 8, ".inf is not a finite number", "Write a number"
    ),
    replace(
        "overflow",
        "epochs: 3",
        "epochs: 1e400",
        8,
        "1e400 is not a finite number",
        "Write a number",
    ),
    replace(
        "zero_escape",
        "model: digits_cnn",
        'model: "digits\\0cnn"',
        7,
        "control character U+0000",
        "Remove it",
    ),
    replace(
        "bell_escape",
        "model: digits_cnn",
        'model: "digits\\a"',
        7,
        "control character U+0007",
        "Remove it",
    ),
    replace(
        "surrogate_escape", "model: digits_cnn", 'model: "\\ud800"', 7, "escape", "single quotes"
    ),
    replace(
        "alias_of_itself", "epochs: 3", "epochs: &a [*a]", 8, "stands inside the value", "Remove it"
    ),
    add_after("nested_anchors", _nested_anchors(12), 17, "more than 30000 values", "Remove some"),
    add_after(
        "deep_brackets",
        "  model_parameters: {a: " + "[" * 100 + "]" * 100 + "}",
        9,
        "nested more than 40 levels",
        "not closed",
    ),
    add_after(
        "deep_blocks",
        "\n".join("  " * (n + 1) + "a:" for n in range(60)),
        47,
        "nested more than 40 levels",
        "not closed",
    ),
    add_after(
        "alias_chain",
        "  model_parameters:\n    a0: &a0 [x]\n"
        + "\n".join(f"    a{n}: &a{n} [*a{n - 1}]" for n in range(1, 60)),
        10,
        "nested more than 40 levels deep through aliases",
    ),
)

_ALLOWED = ("is not valid", "or * for each")

SCHEDULES = (
    with_schedule(
        "cron_weekday",
        "'0 3 * * 8'",
        "schedule.cron",
        "the day of the week '8'",
        "0 to 7",
        *_ALLOWED,
    ),
    with_schedule(
        "cron_minute", "'60 * * * *'", "schedule.cron", "the minute '60'", "0 to 59", *_ALLOWED
    ),
    with_schedule(
        "cron_words", "every 5 minutes now ok", "schedule.cron", "the minute 'every'", *_ALLOWED
    ),
    with_schedule("cron_letters", "a b c d e", "schedule.cron", "the minute 'a'", *_ALLOWED),
    with_schedule("cron_random", "'R 3 * * *'", "schedule.cron", "the minute 'R'", *_ALLOWED),
    with_schedule(
        "cron_zero_step", "'*/0 3 * * *'", "schedule.cron", "the minute '*/0'", *_ALLOWED
    ),
    with_schedule(
        "cron_never",
        "'0 3 31 2 *'",
        "schedule.cron",
        "a day that does not exist",
        "Change the day or the month",
    ),
    with_schedule(
        "cron_four_fields",
        "'0 3 * *'",
        "schedule.cron",
        "Give five fields",
        "such as '0 3 * * *'",
    ),
    with_schedule(
        "cron_six_fields",
        "'0 0 3 * * *'",
        "schedule.cron",
        "Give five fields",
        "such as '0 3 * * *'",
    ),
    with_schedule(
        "cron_preset",
        "'@dayly'",
        "schedule.cron",
        "unknown preset '@dayly'",
        "the nearest valid name is '@daily'",
    ),
    with_schedule("cron_once", "'@once'", "schedule.cron", "unknown preset '@once'", "valid name"),
    with_schedule("cron_time", "03:30", "schedule.cron", "Give five fields", "such as '0 3 * * *'"),
    with_schedule(
        "zone",
        "{cron: '0 3 * * *', timezone: Europe/Berln}",
        "schedule.timezone",
        "no time zone 'Europe/Berln'",
        "'Europe/Berlin'",
    ),
    with_schedule(
        "zone_path",
        "{cron: '0 3 * * *', timezone: ../../etc/passwd}",
        "schedule.timezone",
        "there is no time zone",
        "Europe/Berlin",
    ),
    with_schedule(
        "zone_alone",
        "{timezone: Europe/Berlin}",
        "schedule.timezone",
        "is for a cron expression",
        "Give cron",
    ),
    with_schedule(
        "asset_blank",
        "{assets: ['  ']}",
        "schedule.assets.0.name",
        "cannot name an asset",
        "Choose another name",
    ),
    with_schedule(
        "asset_reserved",
        "{assets: [{name: a, uri: 'airflow://a'}]}",
        "schedule.assets.0.uri",
        "cannot name an asset",
        "Choose another",
    ),
    with_schedule(
        "asset_uri",
        "{assets: [{name: a, uri: 'http://[::1'}]}",
        "schedule.assets.0.uri",
        "Invalid IPv6 URL",
    ),
    with_schedule(
        "watch_too_often",
        "{watch_seconds: 0}",
        "schedule.watch_seconds",
        "greater than or equal to 1, got 0",
    ),
)
