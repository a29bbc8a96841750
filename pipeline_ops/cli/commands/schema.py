"""`trainyard schema`: the JSON Schema of the YAML files, for editors.

trainyard schema > configs/trainyard.schema.json
trainyard schema --hosts > configs/hosts/hosts.schema.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.config.hosts import LAUNCHERS
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import make_stage_schema
from pipeline_ops.config.schema import DIALECT, JsonSchema, make_schemas, make_switch, refer_to
from pipeline_ops.errors import ConfigError

FILE_NAME = "trainyard.schema.json"
"""The name of the schema beside pipelines. Their first line names it."""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, schema)
    parser.add_argument("--hosts", action="store_true", help="Print that of a hosts file.")


def schema(arguments: argparse.Namespace) -> int:
    """Print the JSON Schema of a pipeline's YAML, for editors.

    An editor with YAML support completes, explains and checks the keys of a file
    that begins with `# yaml-language-server: $schema=FILE`. The schema knows the
    stages and the sources of the packages that are installed.
    """
    print(render_hosts_schema() if arguments.hosts else render_schema(), end="")
    return 0


def render_schema() -> str:
    """Renders the schema of a pipeline."""
    from beam_jobs.stages import CATALOGUE, find_stage
    from pipeline_ops.user_code.stages import list_published_names

    parameters: dict[str, Any] = {}
    stages: dict[str, JsonSchema] = {}
    alone: list[str] = []
    for name in [*CATALOGUE, *list_published_names()]:
        try:
            parameters[name] = find_stage(name).parameters
        except ConfigError:  # in one package. `trainyard stages` says what it is.
            stages[name] = {"type": ["object", "null"]}
            alone.append(name)
    [root, *names], definitions = make_schemas([PipelineConfig, *parameters.values()])
    for stage, name in zip(parameters, names, strict=True):
        stages[stage] = refer_to(name)
        if "required" not in definitions[name]:
            definitions[name]["type"] = ["object", "null"]
            alone.append(stage)
    definitions["StageConfig"] = make_stage_schema(definitions["StageConfig"], stages, alone)
    return _render(definitions.pop(root), definitions)


def render_hosts_schema() -> str:
    """Renders the schema of a hosts file."""
    names, definitions = make_schemas(LAUNCHERS.values())
    kinds = dict(zip(LAUNCHERS, map(refer_to, names), strict=True))
    return _render(make_switch("launcher", kinds), definitions)


def _render(root: JsonSchema, definitions: Mapping[str, JsonSchema]) -> str:
    whole = {"$schema": DIALECT, **root, "definitions": definitions}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
