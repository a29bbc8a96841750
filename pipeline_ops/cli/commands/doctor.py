"""`trainyard doctor [CONFIG]`: what keeps jobs from running here, and what to do about it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pipeline_ops.cli.arguments import Commands, add_command, add_config
from pipeline_ops.cli.checks import (
    check_engine,
    check_executor,
    check_gang_ports,
    check_packages,
    check_places,
    check_raw_data,
    check_signing_key,
    check_store,
    check_this_host,
    make_finding,
)
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.system.host import Finding

_CHECKS: tuple[Callable[[PipelineConfig], Iterable[Finding]], ...] = (
    check_executor,
    check_store,
    check_raw_data,
    check_engine,
    check_signing_key,
    check_places,
    check_gang_ports,
)


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "doctor",
        doctor,
        "Check this machine, and all that a pipeline needs.",
        "Checks Python, packages, disks, limits and GPUs. With a config, also the store,\n"
        "the raw data, the keys, and the hosts, images and clusters that it names. Prints\n"
        "each problem with its cure. The exit status is 0 if there is none, and 75 if\n"
        "there is one. Warnings do not count. Writes files to the store and removes them,\n"
        "lets the hosts of a gang listen on a port for a moment, and runs a small job on\n"
        "Flink or Spark. Pulls no image.",
    )
    add_config(parser, nargs="?")
    parser.add_argument("--json", action="store_true", help="Print the findings as JSON.")


def doctor(arguments: argparse.Namespace) -> int:
    """Prints the findings. Returns the exit status."""
    findings = list(find_all(arguments.config))
    problems = [each for each in findings if each.problem and not each.is_warning]
    if arguments.json:
        values = [each.model_dump(mode="json") for each in findings]
        print(json.dumps({"is_healthy": not problems, "findings": values}, indent=2))
    else:
        for finding in findings:
            print(_format(finding))
        print(_summarize(findings, len(problems)))
    return ExitCode.RETRY if problems else ExitCode.SUCCESS


def find_all(file: Path | None) -> Iterator[Finding]:
    """Yields the findings of all checks."""
    config = None
    if file is not None:
        try:
            config = load_config(file)
            yield Finding(check=str(file))
        except ConfigError as error:
            cure = f"Correct {file}. `trainyard validate {file}` shows whether it is right."
            yield make_finding(str(file), error, cure)
    yield from check_this_host(config)
    yield from check_packages(config)
    if config:
        for check in _CHECKS:
            yield from check(config)


def _format(finding: Finding) -> str:
    if not finding.problem:
        return f"ok       {finding.check}"
    kind = "warning" if finding.is_warning else "PROBLEM"
    text = f"{finding.problem}\n{finding.cure}".strip().replace("\n", "\n         ")
    return f"{kind:<9}{finding.check}: {text}"


def _summarize(findings: list[Finding], num_problems: int) -> str:
    num_warnings = sum(bool(each.problem) for each in findings) - num_problems
    num_passed = len(findings) - num_problems - num_warnings
    return (
        f"{len(findings)} checks: {num_passed} passed, {num_problems} with a problem, "
        f"{num_warnings} with a warning."
    )
