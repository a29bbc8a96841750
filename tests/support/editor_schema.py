"""The JSON schema that editors check the YAML of a pipeline with, for tests."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match

from pipeline_ops.cli.commands.schema import render_hosts_schema, render_schema
from pipeline_ops.config.reading import ConfigText


@functools.cache
def _make_validator(is_for_hosts: bool) -> Draft7Validator:
    schema = json.loads(render_hosts_schema() if is_for_hosts else render_schema())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def find_problems(file: Path, is_for_hosts: bool = False) -> list[str]:
    """Returns what an editor flags in a file: the place of each problem and what it is."""
    return list_problems(ConfigText.read(file).values, is_for_hosts)


def list_problems(values: Any, is_for_hosts: bool = False) -> list[str]:
    """Returns what an editor flags in the values of a file."""
    found = [best_match([each]) for each in _make_validator(is_for_hosts).iter_errors(values)]
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found if each]
