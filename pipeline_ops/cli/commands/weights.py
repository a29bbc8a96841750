"""`trainyard weights`: files of initial weights in the store, which `train.warm_start` names."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.registry.weights import (
    Bundle,
    BundleFigures,
    add_bundle,
    find_published,
    list_bundles,
    read_published,
)
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

_HELP = """\
Add, list and verify weights in the store, for `train.warm_start: weights NAME`.

Nothing is downloaded. Keras's source names the addresses of its files.

Examples:
  trainyard weights add vgg vgg.h5 --root s3://bucket/path --license CC-BY-4.0 \\
      --published vgg16_weights_tf_dim_ordering_tf_kernels_notop.h5
  trainyard weights list --config digits.yaml    list what the store has
  trainyard weights verify --config digits.yaml  compare it with the checksums
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, list_weights, "weights", _HELP)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    parser = add_command(actions, add)
    parser.add_argument("name", metavar="NAME", help="Name of the weights in the store.")
    parser.add_argument("file", metavar="FILE", type=Path, help="File: .npz, .h5 or .keras.")
    _add_root(parser)
    parser.add_argument(
        "--sha256", metavar="HEX", type=str.lower, help="SHA-256 that the file must have."
    )
    parser.add_argument(
        "--published",
        metavar="FILENAME",
        help="Name of the file in keras.applications, whose checksum it must have.",
    )
    parser.add_argument(
        "--license", metavar="TEXT", required=True, help="License of the weights, to record."
    )
    parser.add_argument("--source", metavar="TEXT", help="Origin of the file, to record.")
    parser = add_command(actions, list_weights, "list")
    _add_root(parser)
    parser = add_command(actions, verify)
    _add_root(parser)
    add_command(actions, list_published, "published")


def _add_root(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--config", metavar="YAML", type=Path, help="Pipeline that has the store.")
    group.add_argument("--root", metavar="URI", help="Storage root: a folder, or s3://bucket/path.")


def add(arguments: argparse.Namespace) -> int:
    """Copy a file of weights into the store, if it has the given checksum.

    The checksum is that of --sha256, of --published, or both.
    """
    published = find_published(arguments.published) if arguments.published else None
    if not arguments.sha256 and not (published and published.checksum):
        reason = f": Keras has no checksum for {published.name}" if published else " or --published"
        raise ConfigError(f"weights add: pass --sha256{reason}.")
    figures = BundleFigures(
        license=arguments.license,
        source=arguments.source or arguments.published or "",
        added=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        classes=published.classes if published else "",
    )
    root, sha256 = _open_root(arguments), arguments.sha256
    is_new = add_bundle(root, arguments.name, arguments.file, figures, sha256, published)
    print(f"{'added' if is_new else 'exists already'}: train.warm_start: weights {arguments.name}")
    return ExitCode.SUCCESS


def list_weights(arguments: argparse.Namespace) -> int:
    """List the weights in the store, with file, size, checksum, license and origin."""
    root = _open_root(arguments)
    bundles = [Bundle.read(place) for place in list_bundles(root)]
    for name, file, figures in ((each.place.name, each.file, each.figures) for each in bundles):
        print(f"{name}  {file.path}  {file.num_bytes / 2**20:,.1f} MiB  sha256 {file.sha256}")
        facts = (f"license {figures.license}", f"added {figures.added} UTC", figures.source)
        print(f"  {'  '.join(filter(None, (*facts, figures.classes)))}")
    if not bundles:
        print(f"{root}: no weights")
    return ExitCode.SUCCESS


def verify(arguments: argparse.Namespace) -> int:
    """Read all weights in the store, and compare them with their checksums."""
    status = ExitCode.SUCCESS
    for place in list_bundles(_open_root(arguments)):
        try:
            Bundle.read(place).check()
            print(f"{place.name}: unchanged")
        except DataError as error:
            status = error.exit_code
            print(error, file=sys.stderr)
    return status


def list_published(_arguments: argparse.Namespace) -> int:
    """List the files of keras.applications, with checksums and the classes of their heads."""
    for each in read_published():
        print(f"{each.name}  {each.checksum or 'no checksum'}  {each.classes or 'no top'}")
    return ExitCode.SUCCESS


def _open_root(arguments: argparse.Namespace) -> StorePath:
    return load_config(arguments.config).root if arguments.config else open_root(arguments.root)
