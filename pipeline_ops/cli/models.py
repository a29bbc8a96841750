"""`trainyard models`: the published versions of a model, and which of them is in service.

    trainyard models CONFIG                     lists; so does `--root DIR --model NAME`
    trainyard models promote CONFIG VERSION     puts a version in service
    trainyard models rollback CONFIG            puts the champion before the present one back in service
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pipeline_ops.contracts.config import load_config
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.figures import ModelFigures
from pipeline_ops.contracts.layout import Layout
from pipeline_ops.contracts.registry import Registry, Version

ACTIONS = ("list", "promote", "rollback")


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("models", help="list, promote and roll back published models", description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _add_action(actions, "list", list_versions, "list the versions; what is done where no action is named")
    promotion = _add_action(actions, "promote", promote, "put a version in service")
    promotion.add_argument("version", metavar="VERSION", type=int)
    _add_action(actions, "rollback", roll_back, "go back to the champion before")
    listing.set_defaults(command=list_versions)


def _add_action(actions: argparse._SubParsersAction, name: str, command, text: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text)
    parser.add_argument("config", metavar="CONFIG", nargs="?" if name == "list" else None, type=Path, help="the pipeline's YAML file")
    if name == "list":
        parser.add_argument("--root", type=Path, help="the storage root, instead of CONFIG")
        parser.add_argument("--model", help="the model's name, instead of CONFIG")
    parser.set_defaults(command=command)
    return parser


def with_default_action(words: list[str]) -> list[str]:
    """`models CONFIG` means `models list CONFIG`."""
    if words[:1] == ["models"] and not {*words[1:2]} & {*ACTIONS, "-h", "--help"}:
        return ["models", "list", *words[1:]]
    return words


def list_versions(arguments: argparse.Namespace) -> int:
    registry = _registry_of(arguments)
    versions = registry.versions()
    if not versions:
        print(f"{registry.folder}: nothing published yet")
        return 0
    champion = registry.champion()
    for version in versions:
        mark = "*" if champion and version.number == champion.number else " "
        print(f"{mark} {version.number:>4}  {_metrics(version)}  {version.folder}")
    print(f"* in service: version {champion.number}" if champion else "no version is in service")
    for move in registry.history():
        print(f"  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(move['time']))}  version {move['version']}: {move['reason']}")
    return 0


def promote(arguments: argparse.Namespace) -> int:
    registry = _registry(arguments.config)
    registry.promote(arguments.version, reason="promoted by hand")
    print(f"version {arguments.version} is in service: {registry.version(arguments.version).folder}")
    return 0


def roll_back(arguments: argparse.Namespace) -> int:
    version = _registry(arguments.config).roll_back()
    print(f"version {version.number} is in service again: {version.folder}")
    return 0


def _registry_of(arguments: argparse.Namespace) -> Registry:
    if arguments.config:
        return _registry(arguments.config)
    if not (arguments.root and arguments.model):
        raise ConfigError("models: name a CONFIG, or both --root and --model")
    return Registry(Layout(arguments.root.resolve(), "").models(arguments.model))


def _registry(file: Path) -> Registry:
    config = load_config(file)
    return Registry(Layout(config.root, config.pipeline).models(config.export.model))


def _metrics(version: Version) -> str:
    metrics = ModelFigures.model_validate(version.manifest().figures).metrics
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
