"""`trainyard tensorboard`: TensorBoard over the trainings of pipelines.

It reads a folder of links, a folder for each training, which is updated while it runs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipeline_ops.cli.arguments import list_config_files, make_configs_argument
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import NAME, Input
from pipeline_ops.contract.results import TENSORBOARD
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.job.local_inputs import fetch_input
from pipeline_ops.storage.local_files import remove_own_folder
from pipeline_ops.system.host import die_with_parent

_EVENTS = re.compile(r"events\.out\.tfevents\.([0-9]{1,10})\..*")
_SHOWN_DIGITS = 8
_UPDATE_SECONDS = 5.0


def tensorboard(
    config_paths: Annotated[list[Path], make_configs_argument(CODE_ROOT / "configs")],
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen on. TensorBoard asks nobody for a password. With another "
            "address, it also answers to any host name, so pages of other sites that a browser has "
            "open can read it (DNS rebinding).",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Port to listen on. 0 selects a free port.",
        ),
    ] = 6006,
) -> int:
    """Open TensorBoard over the trainings of pipelines, until Ctrl-C.

    A training is named by its pipeline, the time in UTC when it began, and its
    fingerprint. New ones appear by themselves. A training that still runs is shown
    if the storage root is a folder. From a bucket, finished ones are copied.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "TensorBoard is not installed. Install the extra `train`, or the package tensorboard."
        )
    configs = [load_config(file) for file in list_config_files(config_paths)]
    with tempfile.TemporaryDirectory(prefix="tensorboard-") as name:
        links = Path(name)
        if not update_links(links, configs):
            roots = sorted({str(config.root) for config in configs})
            print(f"No training yet below {', '.join(roots)}.", file=sys.stderr)
        address = ["--host", host, "--port", str(port)]
        module = "pipeline_ops.cli.tensorboard_server"
        command = [sys.executable, "-m", module, "--logdir", name, *address]
        with subprocess.Popen(command, preexec_fn=die_with_parent) as process:
            try:
                while (status := process.poll()) is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_UPDATE_SECONDS)
                    try:
                        update_links(links, configs)
                    except MachineError as error:  # the next time may succeed
                        print(error, file=sys.stderr)
            finally:
                process.terminate()
    if status:
        raise MachineError(f"TensorBoard ended with {status}. Its message is above.")
    return 0


def update_links(links: Path, configs: Sequence[PipelineConfig]) -> int:
    """Makes links to the event files of each training, and removes those that lead nowhere.

    Returns the number of trainings.
    """
    for config in configs:
        folder = links / config.pipeline
        folder.mkdir(exist_ok=True)
        known = {link.name.rpartition(" ")[2] for link in folder.iterdir()}
        for fingerprint, events in _find_events(Layout(config.root, config.pipeline), known):
            times = [_EVENTS.fullmatch(file.name) for file in events.glob("events.out.tfevents.*")]
            seconds = [int(match[1]) for match in times if match]
            if not seconds:
                continue  # it has not begun
            began = dt.datetime.fromtimestamp(min(seconds), dt.UTC)
            _link_files(events, folder / f"{began:%Y-%m-%d %H:%M} {fingerprint}", links / ".new")
    found = list(links.glob("*/*"))
    gone = [run for run in found if not any(map(Path.exists, run.glob("events.out.tfevents.*")))]
    for run in gone:
        remove_own_folder(run)
    return len(found) - len(gone)


def _link_files(events: Path, run: Path, new: Path) -> None:
    """Links to all files of a training. The Profile tab finds nothing below a linked folder."""
    for file in filter(Path.is_file, events.rglob("*")):
        link = run / file.relative_to(events)
        if not link.is_symlink() or link.readlink() != file:
            link.parent.mkdir(parents=True, exist_ok=True)
            new.symlink_to(file)
            new.replace(link)


def _find_events(layout: Layout, known: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Yields the short fingerprint of each training and the folder of its event files.

    Of a bucket, those that are not `known` are fetched into this host's cache.
    """
    folder = layout.artifacts("train")
    if folder.is_local:
        for work in folder.local.glob(".*.work"):
            yield work.name[1 : 1 + _SHOWN_DIGITS], work / TENSORBOARD
    for entry in folder.find_in_folders(NAME):
        fingerprint = entry.name[:_SHOWN_DIGITS]
        if folder.is_local or fingerprint not in known:
            manifest = Input(uri=str(folder / entry.name), digest="")
            fetched = fetch_input(manifest, lambda path: path.startswith(f"{TENSORBOARD}/"))
            yield fingerprint, Path(fetched.uri).parent / TENSORBOARD
