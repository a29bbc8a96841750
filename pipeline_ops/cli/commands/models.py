"""`trainyard models`: the published versions of a model, and their aliases.

trainyard models CONFIG                       lists the versions; so does
                                              `--registry PLACE --model NAME`
trainyard models promote CONFIG VERSION       puts a version in service
trainyard models rollback CONFIG              puts the previous champion back in service
trainyard models alias CONFIG NAME [VERSION]  sets another alias; without VERSION, removes it
trainyard models retire CONFIG --keep N       removes all versions but the newest N and those
                                              that an alias names
trainyard models fetch CONFIG VERSION FOLDER  copies a version, by number or alias, into
                                              FOLDER/<number>, for a server
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline_ops.artifacts.manifest import (
    NAME,
    SIGNATURE,
    read_manifest,
    read_manifest_bytes,
    refuse_damage,
)
from pipeline_ops.artifacts.results import ModelFigures
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.aliases import CHAMPION, Move
from pipeline_ops.registry.minisign import read_public_key
from pipeline_ops.registry.registry import Registry, Version
from pipeline_ops.storage.atomic import exclusive_lock, staging_folder

ACTIONS = ("list", "promote", "rollback", "alias", "retire", "fetch")
_BY_HAND = "by hand"


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "models",
        help="list, promote, roll back, name, retire and fetch published models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _add_action(
        actions,
        "list",
        list_versions,
        "list the versions; what is done where no action is named",
        config_nargs="?",
    )
    listing.add_argument(
        "--registry",
        help="the place of the registry, instead of CONFIG: a folder, or s3://bucket/models",
    )
    listing.add_argument("--model", help="the model's name, instead of CONFIG")
    listing.add_argument(
        "--json",
        action="store_true",
        help="for programs: versions, aliases and moves as one JSON object",
    )
    promotion = _add_action(actions, "promote", promote, "put a version in service")
    promotion.add_argument("version", metavar="VERSION", type=int)
    rollback = _add_action(actions, "rollback", roll_back, "go back to the champion before")
    naming = _add_action(actions, "alias", set_alias, "let an alias name a version, or none")
    naming.add_argument("name", metavar="NAME")
    naming.add_argument("version", metavar="VERSION", type=int, nargs="?")
    retirement = _add_action(actions, "retire", retire, "remove old versions that no alias names")
    retirement.add_argument(
        "--keep",
        metavar="N",
        type=int,
        required=True,
        help="how many of the newest versions stay in any case",
    )
    for changing in (promotion, rollback, naming, retirement):
        changing.add_argument("--reason", default=_BY_HAND, help="is kept with the move")
    fetching = _add_action(actions, "fetch", fetch, "copy a version into a local folder")
    fetching.add_argument("version", metavar="VERSION", help="a number or an alias")
    fetching.add_argument("folder", metavar="FOLDER", type=Path)
    fetching.add_argument(
        "--verify",
        metavar="KEY",
        type=Path,
        help="refuse a version that is not signed by this public key, a file of minisign",
    )


def _add_action(
    actions: argparse._SubParsersAction,
    name: str,
    command,
    text: str,
    config_nargs: str | None = None,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text)
    parser.add_argument(
        "config", metavar="CONFIG", nargs=config_nargs, type=Path, help="the pipeline's YAML file"
    )
    parser.set_defaults(command=command)
    return parser


def with_default_action(words: list[str]) -> list[str]:
    """Reads `models CONFIG` as `models list CONFIG`."""
    if words[:1] == ["models"] and not {*words[1:2]} & {*ACTIONS, "-h", "--help"}:
        return ["models", "list", *words[1:]]
    return words


def list_versions(arguments: argparse.Namespace) -> int:
    registry = _registry_of(arguments)
    versions, aliases, records = registry.versions(), registry.aliases(), registry.records()
    if arguments.json:
        print(
            json.dumps(
                {
                    "place": str(registry.place),
                    "aliases": aliases.names,
                    "moves": [move.model_dump(mode="json") for move in records.moves],
                    "problems": records.problems,
                    "versions": [
                        _as_json(version, aliases.named(version.number)) for version in versions
                    ],
                },
                indent=2,
            )
        )
        return 0
    for problem in records.problems:
        print(problem)
    if not versions:
        print(f"{registry.place}: nothing published yet")
        return 0
    champion = aliases.names.get(CHAMPION)
    for version in versions:
        mark = "*" if version.number == champion else " "
        names = " ".join(f"@{name}" for name in aliases.named(version.number) if name != CHAMPION)
        print(
            "  ".join(
                part
                for part in (
                    f"{mark} {version.number:>4}",
                    _metrics(version),
                    version.folder,
                    names,
                )
                if part
            )
        )
    print(f"* in service: version {champion}" if champion else "no version is in service")
    for move in records.moves:
        print(
            f"  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(move.time))}  "
            f"{_describe(move)}: {move.reason}"
        )
    return 0


def promote(arguments: argparse.Namespace) -> int:
    registry = _registry(arguments.config)
    registry.promote(arguments.version, arguments.reason)
    print(
        f"version {arguments.version} is in service: {registry.version(arguments.version).folder}"
    )
    return 0


def roll_back(arguments: argparse.Namespace) -> int:
    version = _registry(arguments.config).roll_back(arguments.reason)
    print(f"version {version.number} is in service again: {version.folder}")
    return 0


def set_alias(arguments: argparse.Namespace) -> int:
    _registry(arguments.config).set_alias(arguments.name, arguments.version, arguments.reason)
    print(
        f"@{arguments.name} is version {arguments.version}"
        if arguments.version
        else f"@{arguments.name} names no version"
    )
    return 0


def retire(arguments: argparse.Namespace) -> int:
    if arguments.keep < 1:
        raise ConfigError(f"--keep must be at least 1, got {arguments.keep}")
    removed = _registry(arguments.config).retire(arguments.keep, arguments.reason)
    print(
        f"retired: {', '.join(f'version {number}' for number in removed)}"
        if removed
        else "nothing to retire"
    )
    return 0


def fetch(arguments: argparse.Namespace) -> int:
    version = _find(_registry(arguments.config), arguments.version)
    key = arguments.verify and read_public_key(arguments.verify)
    target = arguments.folder.resolve() / str(version.number)
    if not target.exists():
        with (
            exclusive_lock(
                target.with_name(".fetch.lock"),
                f"the right to copy into {target.parent}",
                wait_seconds=60.0,
            ),
            tempfile.TemporaryDirectory(prefix="trainyard-fetch-") as cache,
            staging_folder(target) as staging,
        ):
            version.copy(staging, Path(cache), key)
    elif key:
        key.verify(read_manifest_bytes(target / NAME), _signature_of(target), str(target))
        manifest = read_manifest(target / NAME)
        refuse_damage(target / NAME, manifest, manifest.files)
    print(target)
    return 0


def _signature_of(folder: Path) -> bytes | None:
    file = folder / SIGNATURE
    return file.read_bytes() if file.is_file() else None


def _find(registry: Registry, wanted: str) -> Version:
    if wanted.isdecimal():
        return registry.version(int(wanted))
    if version := registry.aliased(wanted):
        return version
    raise ConfigError(
        f"{registry.place}: no version has the alias {wanted}; "
        f"there are {', '.join(registry.aliases().names) or 'none'}"
    )


def _registry_of(arguments: argparse.Namespace) -> Registry:
    if arguments.config:
        return _registry(arguments.config)
    if not (arguments.registry and arguments.model):
        raise ConfigError("models: name a CONFIG, or both --registry and --model")
    return Registry(f"{arguments.registry.rstrip('/')}/{arguments.model}")


def _registry(file: Path) -> Registry:
    return Registry(load_config(file).registry)


def _describe(move: Move) -> str:
    if move.retired:
        return f"retired {', '.join(map(str, move.retired))}"
    what = f"version {move.version}" if move.version else "no version"
    return what if move.alias == CHAMPION else f"@{move.alias} {what}"


def _as_json(version: Version, names: list[str]) -> dict[str, Any]:
    value: dict[str, Any] = {"version": version.number, "folder": version.folder, "aliases": names}
    try:
        manifest = version.manifest()
    except DataError as error:
        return value | {"problem": str(error)}
    return value | {"digest": manifest.digest, "figures": manifest.figures}


def _metrics(version: Version) -> str:
    try:
        metrics = ModelFigures.model_validate(version.manifest().figures).metrics
    except (DataError, ValidationError) as error:
        return (
            f"can't be read: {error}"
            if isinstance(error, DataError)
            else "was not published by an export"
        )
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
