"""`trainyard tensorboard`: TensorBoard over the folder with the trainings of pipelines."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline_ops.cli.arguments import list_config_files, make_configs_argument
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.system.host import die_with_parent


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

    A training is named by its fingerprint, and one that still runs by its work folder.
    New ones appear by themselves. The storage root must be a folder.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "TensorBoard is not installed. Install the extra `train`, or the package tensorboard."
        )
    configs = [load_config(file) for file in list_config_files(config_paths)]
    roots = {str(config.root): config.root for config in configs}
    if len(roots) > 1 or not all(root.is_local for root in roots.values()):
        raise ConfigError(
            f"TensorBoard reads one folder, and the storage is {', '.join(sorted(roots))}. Name a "
            "config whose storage.root is a folder. From a bucket, copy the folder artifacts first."
        )
    layout = Layout(configs[0].root, configs[0].pipeline)
    folder = layout.artifacts("train").local
    folder = folder if len(configs) == 1 else folder.parent.parent
    if not folder.exists():
        print(f"No training yet below {folder}.", file=sys.stderr)
    module = "pipeline_ops.cli.tensorboard_server"
    address = ["--host", host, "--port", str(port)]
    command = [sys.executable, "-m", module, "--logdir", str(folder), *address]
    if status := subprocess.run(command, preexec_fn=die_with_parent).returncode:
        raise MachineError(f"TensorBoard ended with {status}. Its message is above.")
    return 0
