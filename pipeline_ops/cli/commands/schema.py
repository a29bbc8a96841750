"""`trainyard schema`: the JSON Schema of the YAML files, for editors.

trainyard schema > configs/trainyard.schema.json
trainyard schema --hosts > configs/hosts/hosts.schema.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from pipeline_ops.cli.commands.reference import get_docstring
from pipeline_ops.config.fields import JsonSchema
from pipeline_ops.config.hosts import find_sections
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import make_stage_schema
from pipeline_ops.config.schema import DIALECT, make_schemas, make_switch, refer_to
from pipeline_ops.errors import ConfigError

FILE_NAME = "trainyard.schema.json"
"""The name of the schema beside pipelines. Their first line names it."""


def schema(
    hosts: Annotated[bool, typer.Option("--hosts", help="Print that of a hosts file.")] = False,
) -> int:
    """Print the JSON Schema of a pipeline's YAML, for editors.

    An editor with YAML support completes, explains and checks the keys of a file
    that begins with `# yaml-language-server: $schema=FILE`. The schema knows the
    stages and the sources of the packages that are installed.
    """
    print(render_hosts_schema() if hosts else render_schema(), end="")
    return 0


def render_schema() -> str:
    """Renders the schema of a pipeline."""
    from beam_jobs.stages import CATALOGUE, find_stage
    from pipeline_ops.user_code.stages import list_published_names

    found: dict[str, Any] = {}
    stages: dict[str, JsonSchema] = {}
    for name in [*CATALOGUE, *list_published_names()]:
        try:
            found[name] = find_stage(name)
        except ConfigError:  # in one package. `trainyard stages` says what it is.
            stages[name] = {"type": ["object", "null"]}
    classes = [stage.parameters for stage in found.values()]
    [root, *names], definitions = make_schemas([PipelineConfig, *classes])
    for (stage, known), name in zip(found.items(), names, strict=True):
        text = " ".join(get_docstring(known).partition("\n\n")[0].split())
        kinds = ["object"] if "required" in definitions[name] else ["object", "null"]
        definitions[name]["type"] = kinds
        stages[stage] = {"description": text, "type": kinds, "allOf": [refer_to(name)]}
    alone = [stage for stage, each in stages.items() if "null" in each["type"]]
    definitions["StageConfig"] = make_stage_schema(definitions["StageConfig"], stages, alone)
    return _render(definitions.pop(root), definitions)


def render_hosts_schema() -> str:
    """Renders the schema of a hosts file."""
    launchers, problems = find_sections()
    names, definitions = make_schemas(launchers.values())
    kinds: dict[str, JsonSchema] = dict(zip(launchers, map(refer_to, names), strict=True))
    texts = [definitions[name].get("description", "") for name in names]
    for launcher, problem in problems.items():  # an editor knows the name, and no keys
        print(problem, file=sys.stderr)
        kinds[launcher] = {}
        texts.append(problem)
    return _render(make_switch("launcher", kinds, texts), definitions)


def _render(root: JsonSchema, definitions: Mapping[str, JsonSchema]) -> str:
    whole = {"$schema": DIALECT, **root, "definitions": definitions}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
