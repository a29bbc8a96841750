"""`trainyard tensorboard`: TensorBoard over the trainings of pipelines.

It reads a folder of links, one for each training, which is updated while it runs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import NAME, fetch_file, locate_file, read_manifest
from pipeline_ops.artifacts.results import TENSORBOARD
from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.cli.arguments import (
    Commands,
    add_command,
    add_configs,
    list_config_files,
    make_int_parser,
)
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host import die_with_parent

_TRAINING = re.compile(r"([0-9a-f]{32})|\.([0-9a-f]{32})\.work")
"""The folder of a finished training, or of one that runs or was interrupted."""
_EVENTS = re.compile(r"events\.out\.tfevents\.([0-9]{1,10})\..*")
_UPDATE_SECONDS = 5.0


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, tensorboard)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="Address to listen on. Default: 127.0.0.1. TensorBoard asks nobody for a password.",
    )
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=make_int_parser(0, 65535),
        default=6006,
        help="Port to listen on. Default: 6006. 0 selects a free port.",
    )
    add_configs(parser, default=CODE_ROOT / "configs")


def tensorboard(arguments: argparse.Namespace) -> int:
    """Open TensorBoard over the trainings of pipelines, until Ctrl-C.

    A training is named by its pipeline, the time in UTC when it began, and its
    fingerprint. New ones appear by themselves. A training that still runs is shown
    if the storage root is a folder. From a bucket, finished ones are copied.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "TensorBoard is not installed. Install the extra `train`, or the package tensorboard."
        )
    configs = [load_config(file) for file in list_config_files(arguments.configs)]
    with tempfile.TemporaryDirectory(prefix="tensorboard-") as name:
        links = Path(name)
        if not update_links(links, configs):
            roots = sorted({str(config.root) for config in configs})
            print(f"No training yet below {', '.join(roots)}.", file=sys.stderr)
        address = ["--host", arguments.host, "--port", str(arguments.port)]
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", name, *address]
        with subprocess.Popen(command, preexec_fn=die_with_parent) as process:
            try:
                while (status := _wait(process)) is None:
                    try:
                        update_links(links, configs)
                    except MachineError as error:  # the next time may succeed
                        print(error, file=sys.stderr)
            finally:
                process.terminate()
    if status:
        raise MachineError(f"TensorBoard ended with {status}. Its message is above.")
    return 0


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_UPDATE_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def update_links(links: Path, configs: Sequence[PipelineConfig]) -> int:
    """Makes a link to the event files of each training, or a copy of those in a bucket.

    Removes the links of trainings that are gone. Returns the number of trainings.
    """
    for config in configs:
        layout = Layout(config.root, config.pipeline)
        known = {path.name.rpartition(" ")[2] for path in links.glob(f"{config.pipeline}/*")}
        for fingerprint, events in _find_events(layout):
            if not events.is_local and fingerprint[:8] in known:
                continue  # its files never change
            if (began := _find_beginning(events)) is None:
                continue
            link = links / config.pipeline / f"{began:%Y-%m-%d %H:%M} {fingerprint[:8]}"
            link.parent.mkdir(exist_ok=True)
            if not events.is_local:
                _copy_events(events, link)
            elif not link.is_symlink() or link.readlink() != events.local:
                new = links / ".new"
                new.symlink_to(events.local)
                new.replace(link)
    found = list(links.glob("*/*"))
    gone = [path for path in found if not path.exists()]
    for path in gone:
        path.unlink()
    return len(found) - len(gone)


def _find_events(layout: Layout) -> Iterator[tuple[str, StorePath]]:
    """Yields the fingerprint of each training and its folder of event files.

    A training that is finished comes after the same one in its work folder.
    """
    folder = layout.artifacts("train")
    for entry in sorted(folder.list_folder(), key=lambda entry: entry.name):
        match = _TRAINING.fullmatch(entry.name)
        if match and entry.is_folder and (match[1] or folder.is_local):
            yield match[1] or match[2], folder / entry.name / TENSORBOARD


def _find_beginning(events: StorePath) -> dt.datetime | None:
    """Returns the time in the name of the first file of events. None if there is none yet."""
    matches = (_EVENTS.fullmatch(entry.name) for entry in events.list_folder())
    seconds = [int(match[1]) for match in matches if match]
    return dt.datetime.fromtimestamp(min(seconds), dt.UTC) if seconds else None


def _copy_events(events: StorePath, target: Path) -> None:
    """Copies the event files of a training in a bucket: all of them, or none."""
    manifest = read_manifest(events.parent / NAME)
    with tempfile.TemporaryDirectory(prefix="tensorboard-copy-") as name:
        for file in manifest.files:
            if file.path.startswith(f"{TENSORBOARD}/"):
                copy = Path(name, file.path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                fetch_file(locate_file(events.parent / NAME, file), file, copy, "Retry.")
        Path(name, TENSORBOARD).rename(target)
