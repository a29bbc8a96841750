"""`trainyard serve`: replaces this process with an HTTP server for a published model."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError
from pipeline_ops.registry.aliases import CHAMPION
from pipeline_ops.storage.open_store import make_store_environment, open_path


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, serve)
    parser.add_argument(
        "model",
        metavar="MODEL[@ALIAS]",
        help="YAML file of a pipeline, or the name of a model in --registry. "
        "Default alias: champion.",
    )
    parser.add_argument(
        "--registry", metavar="URI", help="Registry of the model: a folder, or s3://bucket/models."
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="Address to listen on. Default: 127.0.0.1. 0.0.0.0 accepts remote connections.",
    )
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=int,
        default=8501,
        help="Port to listen on. Default: 8501. 0 selects a free port.",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="Host name that clients may use for the server, for example behind a proxy. "
        "Can be repeated.",
    )
    parser.add_argument(
        "--no-statistics",
        action="store_true",
        help="Do not count the requests for evaluate.serving_skew.",
    )


def serve(arguments: argparse.Namespace) -> int:
    """Serve a published model over HTTP.

    The server has the REST API of TensorFlow Serving, and a page to try the model.
    It is for smoke tests and demos, and listens only on this machine unless --host
    is set.

    Examples:
      trainyard serve configs/digits.yaml          serve the champion of the pipeline
      trainyard serve configs/digits.yaml@canary   serve and follow another alias
      trainyard serve digits@3 --registry s3://bucket/models
                                                   serve one version, without config
    """
    if missing := [
        name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None
    ]:
        raise ConfigError(
            f"serve: {' and '.join(missing)} not installed. "
            "Install the extra serving: pip install '.[serving]' in a clone of Trainyard"
        )
    model = arguments.model if "@" in arguments.model else f"{arguments.model}@{CHAMPION}"
    name, _, alias = model.rpartition("@")
    if Path(name).suffix in (".yaml", ".yml"):
        config = load_config(Path(name))
        name, versions = config.export.model, config.registry
    elif arguments.registry:
        versions = open_path(f"{arguments.registry.rstrip('/')}/{name}")
    else:
        raise ConfigError(
            f"serve: {name} is not a YAML file. For a model name, also pass --registry."
        )
    options = {"model": str(versions), "name": name, "alias": alias, "host": arguments.host}
    argv = [
        sys.executable,
        "-m",
        "pipeline_ops.served.http.server",
        *(f"--{option}={value}" for option, value in options.items()),
        f"--port={arguments.port}",
        *(f"--allow-host={host}" for host in arguments.allow_host),
        *(["--no-statistics"] if arguments.no_statistics else []),
    ]
    sys.stdout.flush()
    # The statistics of requests are beside the versions.
    environment = make_store_environment(versions.parent)
    os.execve(argv[0], argv, os.environ | environment)  # noqa: S606
