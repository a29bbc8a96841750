"""`trainyard models`: the published versions of a model, and their aliases."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from pipeline_ops.cli.arguments import ConfigFile, OptionalConfigFile
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.manifest import Manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.aliases import CHAMPION
from pipeline_ops.registry.polled_folder import PolledFolder
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import read_manifests

_NUM_METRICS = 4
"""`--json` and the page of the model have all metrics of a version."""
_COLUMNS = 100


class _Actions(TyperGroup):
    """The actions. `models CONFIG` is `models list CONFIG`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if known & {*args[:1]} else ["list", *args])


models = typer.Typer(
    cls=_Actions,
    add_completion=False,
    rich_markup_mode=None,
    help="""List, promote, roll back, alias, retire and fetch published models.

    `trainyard models CONFIG` stands for `trainyard models list CONFIG`.

    \b
    Examples:
      trainyard models digits.yaml                   list the versions
      trainyard models promote digits.yaml 3         put version 3 in service
      trainyard models rollback digits.yaml          return to the previous champion
      trainyard models alias digits.yaml canary 4    point @canary at version 4
      trainyard models retire digits.yaml --keep 5   remove old versions
      trainyard models fetch digits.yaml champion /srv/models
                                                     make a server of /srv/models
                                                     serve the champion
    """,
)
_Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="Reason to record in the history of the model.")
]
_BY_HAND = "by hand"


@models.command("list")
def list_versions(
    config_file: OptionalConfigFile = None,
    registry_uri: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URI",
            help="Registry to use instead of CONFIG: a folder, or s3://bucket/models.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model in --registry.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """List the versions with date, size and run, the aliases, and their history."""
    if config_file:
        registry = _open_registry(config_file)
    elif registry_uri and model:
        registry = Registry(f"{registry_uri.rstrip('/')}/{model}")
    else:
        raise ConfigError("models: pass CONFIG, or both --registry and --model.")
    versions, aliases = registry.list_versions(), registry.read_aliases()
    history, manifests = registry.read_history(), read_manifests(versions)
    if as_json:
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
                        else {
                            "digest": manifest.digest,
                            "num_bytes": manifest.num_bytes,
                            "made_by": manifest.made_by.model_dump(mode="json")
                            if manifest.made_by
                            else None,
                            "figures": manifest.figures,
                        }
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
        names = [f"@{name}" for name in aliases.find_names(version.number) if name != CHAMPION]
        for line in _format_version(version.number, manifest, names, version.number == champion):
            print(line)
    print(f"* in service: version {champion}" if champion else "no version is in service")
    print(f"  the folder of version N is {registry.location}/N")
    for move in history.moves:
        when = _format_time(dt.datetime.fromtimestamp(move.time, dt.UTC))
        target = f"version {move.version}" if move.version else "no version"
        if move.retired:
            target = f"retired {', '.join(map(str, move.retired))}"
        elif move.alias != CHAMPION:
            target = f"@{move.alias} {target}"
        print(_wrap(f"  {when}  {target}: {move.reason}"))
    return 0


@models.command()
def promote(
    config_file: ConfigFile,
    number: Annotated[int, typer.Argument(metavar="VERSION", help="Version number.")],
    reason: _Reason = _BY_HAND,
) -> int:
    """Put a version in service."""
    registry = _open_registry(config_file)
    registry.promote(number, reason)
    version = registry.get_version(number)
    print(f"version {number} is in service: {version.folder}")
    return 0


@models.command("rollback")
def roll_back(config_file: ConfigFile, reason: _Reason = _BY_HAND) -> int:
    """Put the previous champion back in service."""
    version = _open_registry(config_file).roll_back(reason)
    print(f"version {version.number} is in service again: {version.folder}")
    return 0


@models.command("alias")
def set_alias(
    config_file: ConfigFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the alias.")],
    version: Annotated[
        int | None,
        typer.Argument(metavar="VERSION", help="Version number. Without it, the alias is removed."),
    ] = None,
    reason: _Reason = _BY_HAND,
) -> int:
    """Point an alias at a version, or remove it."""
    _open_registry(config_file).set_alias(name, version, reason)
    print(f"@{name} points to version {version}" if version else f"@{name} is removed")
    return 0


@models.command()
def retire(
    config_file: ConfigFile,
    keep: Annotated[int, typer.Option(metavar="N", help="Number of newest versions to keep.")],
    reason: _Reason = _BY_HAND,
) -> int:
    """Remove old versions that have no alias."""
    if keep < 1:
        raise ConfigError(f"--keep {keep}: must be at least 1.")
    removed = _open_registry(config_file).retire(keep, reason)
    names = ", ".join(f"version {number}" for number in removed)
    print(f"retired: {names}" if removed else "nothing to retire")
    return 0


@models.command()
def fetch(
    config_file: ConfigFile,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Version number or alias.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to copy into.")],
) -> int:
    """Copy a version to FOLDER/<number>, for a model server.

    Of an alias, the copy becomes the highest number in FOLDER, which a server that
    polls FOLDER serves: higher numbers are withdrawn, and copies of versions that the
    registry no longer has are removed. A version number is only copied.

    Prints the path of the copy, and a line for each other change.
    """
    target = PolledFolder(folder.resolve(), _open_registry(config_file))
    lines = target.add(int(version)) if version.isdecimal() else target.follow(version)
    print("\n".join(lines))
    return 0


def _open_registry(file: Path) -> Registry:
    return Registry(load_config(file).registry)


def _format_version(
    number: int, manifest: Manifest | DataError, names: list[str], is_champion: bool
) -> Iterator[str]:
    """Yields a line with date, size, metrics and aliases, and a line with the run if it is known.

    Of the metrics, the line has as many as fit.
    """
    start = f"{'*' if is_champion else ' '} {number:>4}  "
    if isinstance(manifest, DataError):
        yield _wrap(f"{start}{'  '.join([*names, f'cannot be read: {manifest}'])}")
        return
    made_by = manifest.made_by
    made = _format_time(made_by.time) if made_by else " " * len(_NO_TIME)
    start += f"{made}  {manifest.num_bytes / 2**20:>7,.1f} MiB"
    end = "".join(f"  {name}" for name in names)
    for metric in _list_metrics(manifest):
        if len(start) + len(metric) + len(end) + 2 > _COLUMNS:
            break
        start += f"  {metric}"
    yield _wrap(start + end)
    if made_by:
        yield _wrap(f"{_INDENT}run {made_by.run_id} of {manifest.pipeline}")


_NO_TIME, _INDENT = "2026-12-31 23:59 UTC", " " * 8


def _format_time(time: dt.datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _wrap(line: str) -> str:
    """Breaks a long line at spaces, or within a word that is longer than a line."""
    if len(line) <= _COLUMNS:
        return line
    text = line.lstrip()
    return textwrap.fill(
        text,
        _COLUMNS,
        initial_indent=" " * (len(line) - len(text)),
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
    )


def _list_metrics(manifest: Manifest) -> list[str]:
    try:
        metrics = ModelFigures.model_validate(manifest.figures).metrics
    except ValidationError:
        return ["not published by an export"]
    shown = itertools.islice(metrics.items(), _NUM_METRICS)
    return [f"{name} {value:.4f}" for name, value in shown]
