"""Reads a folder as a person would: `trainyard init`, and then the data set of its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from reports.pixels import Findings, check_config

from pipeline_ops.cli.main import main
from pipeline_ops.errors import TrainyardError

_SOURCES = "What each source needs"
"""The list of all sources at the end of an error says nothing about the data."""


@dataclass
class Result:
    """`output` is what `init` prints. `error` is its error or that of the reading, or empty.

    Runs of blanks in both are one blank, and DATA is the folder.
    """

    output: str
    error: str
    findings: Findings = field(default_factory=Findings)


def read_case(
    folder: Path,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    colours: Mapping[str, str] | None = None,
    *words: str,
) -> Result:
    """`words` are further words of the command."""

    def shorten(text: str) -> str:
        return " ".join(text.partition(_SOURCES)[0].replace(str(folder), "DATA").split())

    options = ("--output", str(config), "--no-measure", "--force", *words)
    status = main(["init", str(folder), *options])
    output, errors = map(shorten, capsys.readouterr())
    if status != 0:
        return Result(output, errors or f"exit status {status}")
    try:
        return Result(output, "", check_config(config, colours))
    except TrainyardError as error:
        return Result(output, shorten(str(error)))
