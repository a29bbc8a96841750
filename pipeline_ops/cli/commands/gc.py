"""`trainyard gc [CONFIG...]`: removes what no version, run or next run needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from pipeline_ops.cli.arguments import list_config_files, make_configs_argument
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.retention.collector import Options, Report, collect, explain_path
from pipeline_ops.retention.host_leftovers import remove_host_leftovers
from pipeline_ops.retention.inventory import Total

_MAX_FOREIGN_SHOWN = 5
_UNITS = {"d": 86400, "h": 3600}
_GRACE_SECONDS = 86400.0
_DURATION = re.compile(r"([0-9]{1,6})([dh])")


def _parse_seconds(text: str) -> float:
    if found := _DURATION.fullmatch(text):
        return float(int(found[1]) * _UNITS[found[2]])
    raise typer.BadParameter(
        f"must be a whole number of days or hours, such as 30d or 12h, got {text!r}"
    )


def _parse_days(text: str) -> int:
    seconds = _parse_seconds(text)
    if seconds % 86400:
        raise typer.BadParameter(f"must be whole days, such as 30d, got {text!r}")
    return int(seconds // 86400)


def gc(
    config_paths: Annotated[list[Path], make_configs_argument(Path("configs"))],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed. Change nothing.")
    ] = False,
    older_than: Annotated[
        int | None,
        typer.Option(
            metavar="AGE",
            parser=_parse_days,
            help="Keep the runs that were active within this time, for example 30d. Replaces "
            "storage.keep.days.",
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="AGE",
            parser=_parse_seconds,
            help="Leave what was written or used within this time, for example 12h. Default: 1d. A "
            "shorter one is safe while no run is active.",
        ),
    ] = None,
    why: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Print why one path stays, or from when on it is removed."
        ),
    ] = None,
) -> int:
    """Remove runs and artifacts that nothing needs.

    What storage.keep does not ask for and nothing needs is removed, if it was neither
    written nor used within the grace period. Without storage.keep and --older-than, only
    leftovers of killed jobs are removed.

    \b
    Examples:
      trainyard gc                             remove it, for all configs
      trainyard gc digits.yaml --dry-run       show it, and change nothing
      trainyard gc digits.yaml --older-than 30d
                                               keep the runs of the last 30 days
      trainyard gc digits.yaml --why runs/digits/manual__2026-11-23T03:00:00+00:00
    """
    options = Options(dry_run, older_than, _GRACE_SECONDS if grace is None else grace)
    configs = [load_config(file) for file in list_config_files(config_paths)]
    if why:
        owners = [config for config in configs if f"/{config.pipeline}/" in f"/{why}/"]
        print(explain_path((owners or configs)[0], why, options))
        return ExitCode.SUCCESS
    failed, kept, num_removed, empty = None, Total(), 0, list[str]()
    for config in configs:
        try:
            report = collect(config, options)
        except DataError as error:  # another pipeline may have none
            failed = error
            print(f"{config.pipeline}: {config.root}\n  nothing is removed, because {error}")
            continue
        text = format_report(config, report, dry_run)
        kept.add(report.kept)
        num_removed += sum(total.num_files for total in report.removed.values())
        has_run = Layout(config.root, config.pipeline).runs.list_folder()
        if text.count("\n") == 1 and not has_run and len(configs) > 1:
            empty.append(config.pipeline)
        else:
            print(text)
    if empty:
        print(f"{len(empty)} pipelines have not run yet: {', '.join(empty)}")
    if len(configs) > 1:
        print(f"All together stays: {_format_total(kept)}")
    if not num_removed and not failed:
        print(_explain_nothing(configs, options))
    inputs = {each.train.input.model_dump_json(): each.train.input for each in configs}
    for options_of_host in inputs.values():
        removed = remove_host_leftovers(options_of_host, dry_run)
        for line in _format_totals("would remove" if dry_run else "removed", removed):
            print(line)
    return failed.exit_code if failed else ExitCode.SUCCESS


def _explain_nothing(configs: Iterable[PipelineConfig], options: Options) -> str:
    if options.older_than_days is None and not any(config.storage.keep for config in configs):
        return (
            "Nothing to remove: without storage.keep and --older-than, only the leftovers of "
            "killed jobs are removed."
        )
    return "Nothing to remove."


def format_report(config: PipelineConfig, report: Report, is_dry_run: bool = False) -> str:
    """The result of one call in lines: bytes and files by kind, and in a dry run each path."""
    lines = [
        f"{config.pipeline}: {config.root}",
        f"  stays: {_format_total(report.kept)}",
        *_format_totals("too young, or in use", report.waiting),
        *_format_totals("would be removed" if is_dry_run else "removed", report.removed),
        *(f"  no artifact is removed, because {problem}" for problem in report.problems),
        *(f"  a problem of others: {problem}" for problem in report.others),
    ]
    if report.foreign:
        shown = ", ".join(report.foreign[:_MAX_FOREIGN_SHOWN])
        more = len(report.foreign) - _MAX_FOREIGN_SHOWN
        lines.append(f"  not ours, stays: {shown}" + (f" and {more} more" if more > 0 else ""))
    if is_dry_run:
        lines += [f"  {path}: {rule}" for path, rule in report.paths]
    return "\n".join(lines)


def _format_totals(verb: str, totals: dict[str, Total]) -> list[str]:
    return [
        f"  {verb}: {kind}: {_format_total(total)}"
        for kind, total in totals.items()
        if total.num_files
    ]


def _format_total(total: Total) -> str:
    return f"{total.num_files} files, {total.num_bytes / 2**20:,.1f} MiB"
