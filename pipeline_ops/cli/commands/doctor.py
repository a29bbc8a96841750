"""`trainyard doctor [CONFIG]`: what keeps jobs from running here, and what to do about it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.cli.arguments import Commands, add_command, add_config
from pipeline_ops.cli.checks import check_all, make_finding
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.jobs.workspace import find_jobs_folder
from pipeline_ops.system.host import Finding, check_host


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "doctor",
        doctor,
        "Check this machine, and all that a pipeline needs.",
        "Checks Python, disks, limits and GPUs. With a config, also the packages of the\n"
        "jobs, the store, the raw data, the keys, and the hosts, images and clusters that it\n"
        "names. Prints each problem with its cure. The exit status is 0 if there is none,\n"
        "and 75 if there is one. Warnings do not count. Writes files to the store and\n"
        "removes them, and runs a small job on Flink or Spark. Pulls no image.",
    )
    add_config(parser, nargs="?")
    parser.add_argument("--json", action="store_true", help="Print the findings as JSON.")


def doctor(arguments: argparse.Namespace) -> int:
    findings = list(find_all(arguments.config))
    problems = [each for each in findings if each.problem and not each.is_warning]
    if arguments.json:
        values = [each.model_dump(mode="json") for each in findings]
        print(json.dumps({"is_healthy": not problems, "findings": values}, indent=2))
    else:
        for finding in findings:
            if not finding.problem:
                print(f"ok       {finding.check}")
                continue
            kind = "warning" if finding.is_warning else "PROBLEM"
            text = f"{finding.problem}\n{finding.cure}".strip().replace("\n", "\n         ")
            print(f"{kind:<9}{finding.check}: {text}")
        num_passed = sum(not each.problem for each in findings)
        print(
            f"{len(findings)} checks: {num_passed} passed, {len(problems)} with a problem, "
            f"{len(findings) - num_passed - len(problems)} with a warning."
        )
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
    folders = {"the local folder of jobs": find_jobs_folder()}
    if config and config.root.is_local:
        folders["storage.root"] = config.root.local
    yield from check_host(folders)
    if config:
        yield from check_all(config)
