"""Values and schedules that no config can have."""

from __future__ import annotations

from config.broken_case import replace, with_schedule
from config.cases import parse_cases

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
    replace("tagged_float", "epochs: 3", "epochs: !!float x", 1, "cannot be read", "in quotes"),
    replace("tagged_int", "epochs: 3", "epochs: !!int {}", 8, "not valid YAML", "Correct"),
    replace("tagged_binary", "epochs: 3", "epochs: !!binary $$$", 8, "valid integer"),
    replace("tagged_set", "epochs: 3", "epochs: !!set {a}", 8, "valid integer, got {'a'}"),
    replace("tagged_timestamp", "epochs: 3", "epochs: !!timestamp x", 1, "cannot be read"),
    replace(
        "python_object",
        "epochs: 3",
        "epochs: !!python/object/apply:os.getpid []",
        8,
        "could not determine a constructor",
    ),
    replace("own_tag", "epochs: 3", "epochs: !mine 3", 8, "a constructor for the tag '!mine'"),
    replace("digits_5000", "epochs: 3", f"epochs: {'9' * 5000}", 8, "valid integer, got '99"),
    replace("beyond_64_bits", "epochs: 3", f"epochs: {2**63}", 8, "less than or equal to 100000"),
    replace("infinite", "epochs: 3", "epochs: .inf", 8, "valid integer, got '.inf'"),
    replace("overflow", "epochs: 3", "epochs: 1e400", 8, "valid integer, got inf"),
    replace("zero_escape", "model: digits_cnn", 'model: "digits\\0cnn"', 7, "there is no model"),
    replace("surrogate_escape", "model: digits_cnn", 'model: "\\ud800"', 7, "escape"),
    replace("alias_of_itself", "epochs: 3", "epochs: &a [*a]", 1, "recursion"),
)

_FORM = "Give five fields (minute hour day month weekday), such as '0 3 * * *', or @hourly"

_CRONS = """
0 3 * * 8
60 * * * *
every 5 minutes now ok
a b c d e
R 3 * * *
*/0 3 * * *
0 3 31 2 *
0 3 * *
0 0 3 * * *
@dayly
@once
"""
_SCHEDULES = """
zone: {cron: '0 3 * * *', timezone: Europe/Berln}
    schedule.timezone | no time zone 'Europe/Berln' | 'Europe/Berlin'
zone_path: {cron: '0 3 * * *', timezone: ../../etc/passwd}
    schedule.timezone | there is no time zone | Europe/Berlin
zone_alone: {timezone: Europe/Berlin}
    schedule.timezone | is for a cron expression | Give cron
asset_blank: {assets: ['  ']}
    schedule.assets.0.name | cannot name an asset | Choose another name
asset_reserved: {assets: [{name: a, uri: 'airflow://a'}]}
    schedule.assets.0.uri | cannot name an asset | Choose another
asset_uri: {assets: [{name: a, uri: 'http://[::1'}]}
    schedule.assets.0.uri | Invalid IPv6 URL
watch_too_often: {watch_seconds: 0}
    schedule.watch_seconds | greater than or equal to 1, got 0
"""

SCHEDULES = (
    *(
        with_schedule(f"cron_{number}", f"'{value}'", "schedule.cron: ", _FORM)
        for number, value in enumerate(_CRONS.strip().splitlines())
    ),
    with_schedule("cron_time", "03:30", "schedule.cron: ", _FORM),
    with_schedule("cron_word", "hourly", f"schedule.cron: got 'hourly'. {_FORM}"),
    *(
        with_schedule(*given.split(": ", 1), *says.split(" | "))
        for given, says in parse_cases(_SCHEDULES)
    ),
)
