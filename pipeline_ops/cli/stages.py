"""`trainyard stages`: the preprocessing stages that a config may list, with their parameters."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("stages", help="list the preprocessing stages", description="Lists the stages that preprocess.stages may name.")
    parser.set_defaults(command=stages)


def stages(_arguments: argparse.Namespace) -> int:
    from beam_jobs.stages import CATALOGUE

    for name, stage in CATALOGUE.items():
        print(f"{name:<12}{_first_line(inspect.getmodule(stage.function))}")
        for field in dataclasses.fields(stage.parameters):
            print(f"    {field.name}: {field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)}{_default(field.default)}")
    return 0


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _default(value: Any) -> str:
    """Of a plain field, or of one that has rules for its value."""
    if hasattr(value, "is_required"):
        value = dataclasses.MISSING if value.is_required() else value.default
    return ", required" if value is dataclasses.MISSING else f" = {value!r}"
