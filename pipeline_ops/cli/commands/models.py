"""`trainyard models`: the published versions of a model, and their aliases."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from pipeline_ops.cli.arguments import Commands, add_command, add_config
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.manifest import Manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.aliases import CHAMPION
from pipeline_ops.registry.polled_folder import PolledFolder
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import read_manifests

_NUM_METRICS = 4
"""A version is one line. `--json` and the page of the model have all of its metrics."""
_ACTIONS = ("list", "promote", "rollback", "alias", "retire", "fetch")
_HELP = """\
List, promote, roll back, alias, retire and fetch published models.

`trainyard models CONFIG` stands for `trainyard models list CONFIG`.

Examples:
  trainyard models digits.yaml                   list the versions
  trainyard models promote digits.yaml 3         put version 3 in service
  trainyard models rollback digits.yaml          return to the previous champion
  trainyard models alias digits.yaml canary 4    point @canary at version 4
  trainyard models retire digits.yaml --keep 5   remove old versions
  trainyard models fetch digits.yaml champion /srv/models
                                                 make a server of /srv/models
                                                 serve the champion
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, list_versions, "models", _HELP)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = add_command(actions, list_versions, "list")
    add_config(parser, nargs="?")
    parser.add_argument(
        "--registry",
        metavar="URI",
        help="Registry to use instead of CONFIG: a folder, or s3://bucket/models.",
    )
    parser.add_argument("--model", metavar="NAME", help="Name of the model in --registry.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser = _add_move(actions, promote)
    parser.add_argument("version", metavar="VERSION", type=int, help="Version number.")
    _add_move(actions, roll_back, "rollback")
    parser = _add_move(actions, set_alias, "alias")
    parser.add_argument("name", metavar="NAME", help="Name of the alias.")
    parser.add_argument(
        "version",
        metavar="VERSION",
        type=int,
        nargs="?",
        help="Version number. Without it, the alias is removed.",
    )
    parser = _add_move(actions, retire)
    parser.add_argument(
        "--keep", metavar="N", type=int, required=True, help="Number of newest versions to keep."
    )
    parser = add_command(actions, fetch)
    add_config(parser)
    parser.add_argument("version", metavar="VERSION", help="Version number or alias.")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Folder to copy into.")


def _add_move(
    actions: Commands, command: Callable[[argparse.Namespace], int], name: str = ""
) -> argparse.ArgumentParser:
    """Adds an action that changes the registry and its history."""
    parser = add_command(actions, command, name)
    add_config(parser)
    parser.add_argument(
        "--reason",
        default="by hand",
        metavar="TEXT",
        help="Reason to record in the history of the model.",
    )
    return parser


def insert_default_action(command_line: list[str]) -> list[str]:
    """Reads `models CONFIG` as `models list CONFIG`."""
    if command_line[:1] == ["models"] and not {*command_line[1:2]} & {*_ACTIONS, "-h", "--help"}:
        return ["models", "list", *command_line[1:]]
    return command_line


def list_versions(arguments: argparse.Namespace) -> int:
    """List the versions, aliases and their history."""
    if arguments.config:
        registry = _open_registry(arguments.config)
    elif arguments.registry and arguments.model:
        registry = Registry(f"{arguments.registry.rstrip('/')}/{arguments.model}")
    else:
        raise ConfigError("models: pass CONFIG, or both --registry and --model.")
    versions, aliases = registry.list_versions(), registry.read_aliases()
    history, manifests = registry.read_history(), read_manifests(versions)
    if arguments.json:
        value = {
            "registry": str(registry.location),
            "aliases": aliases.names,
            "moves": [move.model_dump(mode="json") for move in history.moves],
            "problems": history.problems,
            "versions": [
                {
                    "version": version.number,
                    "folder": version.folder,
                    "aliases": aliases.find_names(version.number),
                    **(
                        {"problem": str(manifest)}
                        if isinstance(manifest, DataError)
                        else {"digest": manifest.digest, "figures": manifest.figures}
                    ),
                }
                for version, manifest in zip(versions, manifests, strict=True)
            ],
        }
        print(json.dumps(value, indent=2))
        return 0
    for problem in history.problems:
        print(problem)
    if not versions:
        print(f"{registry.location}: no published versions")
        return 0
    champion = aliases.names.get(CHAMPION)
    for version, manifest in zip(versions, manifests, strict=True):
        marker = "*" if version.number == champion else " "
        names = [f"@{name}" for name in aliases.find_names(version.number) if name != CHAMPION]
        number, metrics = f"{marker} {version.number:>4}", _format_metrics(manifest)
        print("  ".join(filter(None, [number, metrics, *names])))
    print(f"* in service: version {champion}" if champion else "no version is in service")
    print(f"  the folder of version N is {registry.location}/N")
    for move in history.moves:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(move.time))
        target = f"version {move.version}" if move.version else "no version"
        if move.retired:
            target = f"retired {', '.join(map(str, move.retired))}"
        elif move.alias != CHAMPION:
            target = f"@{move.alias} {target}"
        print(f"  {when}  {target}: {move.reason}")
    return 0


def promote(arguments: argparse.Namespace) -> int:
    """Put a version in service."""
    registry = _open_registry(arguments.config)
    registry.promote(arguments.version, arguments.reason)
    version = registry.get_version(arguments.version)
    print(f"version {arguments.version} is in service: {version.folder}")
    return 0


def roll_back(arguments: argparse.Namespace) -> int:
    """Put the previous champion back in service."""
    version = _open_registry(arguments.config).roll_back(arguments.reason)
    print(f"version {version.number} is in service again: {version.folder}")
    return 0


def set_alias(arguments: argparse.Namespace) -> int:
    """Point an alias at a version, or remove it."""
    _open_registry(arguments.config).set_alias(arguments.name, arguments.version, arguments.reason)
    print(
        f"@{arguments.name} points to version {arguments.version}"
        if arguments.version
        else f"@{arguments.name} is removed"
    )
    return 0


def retire(arguments: argparse.Namespace) -> int:
    """Remove old versions that have no alias."""
    if arguments.keep < 1:
        raise ConfigError(f"--keep {arguments.keep}: must be at least 1.")
    removed = _open_registry(arguments.config).retire(arguments.keep, arguments.reason)
    names = ", ".join(f"version {number}" for number in removed)
    print(f"retired: {names}" if removed else "nothing to retire")
    return 0


def fetch(arguments: argparse.Namespace) -> int:
    """Copy a version to FOLDER/<number>, for a model server.

    Of an alias, the copy becomes the highest number in FOLDER, which a server that
    polls FOLDER serves: higher numbers are withdrawn, and copies of versions that the
    registry no longer has are removed. A version number is only copied.

    Prints the path of the copy, and a line for each other change.
    """
    given = arguments.version
    target = PolledFolder(arguments.folder.resolve(), _open_registry(arguments.config))
    lines = target.add(int(given)) if given.isdecimal() else target.follow(given)
    print("\n".join(lines))
    return 0


def _open_registry(file: Path) -> Registry:
    return Registry(load_config(file).registry)


def _format_metrics(manifest: Manifest | DataError) -> str:
    if isinstance(manifest, DataError):
        return f"cannot be read: {manifest}"
    try:
        metrics = ModelFigures.model_validate(manifest.figures).metrics
    except ValidationError:
        return "not published by an export"
    shown = itertools.islice(metrics.items(), _NUM_METRICS)
    return "  ".join(f"{name} {value:.4f}" for name, value in shown)
