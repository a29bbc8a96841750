"""`trainyard serve`: replaces this process with an HTTP server for a published model."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError
from pipeline_ops.registry.aliases import CHAMPION
from pipeline_ops.storage.open_store import make_store_environment, open_path


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[@ALIAS]",
            help="YAML file of a pipeline, or the name of a model in --registry. "
            "Default alias: champion.",
        ),
    ],
    registry: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Registry of the model: a folder, or s3://bucket/models."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="Address to listen on. 0.0.0.0 accepts remote connections."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port to listen on. 0 selects a free port.")
    ] = 8501,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that clients may use for the server, for example behind a proxy. "
            "Can be repeated.",
        ),
    ] = None,
    no_statistics: Annotated[
        bool,
        typer.Option(
            "--no-statistics", help="Do not count the requests for evaluate.serving_skew."
        ),
    ] = False,
) -> int:
    """Serve a published model over HTTP.

    The server has the REST API of TensorFlow Serving, and a page to try the model.
    It is for smoke tests and demos, and listens only on this machine unless --host
    is set.

    \b
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
    name, _, alias = (model if "@" in model else f"{model}@{CHAMPION}").rpartition("@")
    if Path(name).suffix in (".yaml", ".yml"):
        config = load_config(Path(name))
        name, versions = config.export.model, config.registry
    elif registry:
        versions = open_path(f"{registry.rstrip('/')}/{name}")
    else:
        raise ConfigError(
            f"serve: {name} is not a YAML file. For a model name, also pass --registry."
        )
    options = {"model": str(versions), "name": name, "alias": alias, "host": host}
    argv = [
        sys.executable,
        "-m",
        "pipeline_ops.served.http.server",
        *(f"--{option}={value}" for option, value in options.items()),
        f"--port={port}",
        *(f"--allow-host={name}" for name in allow_host or ()),
        *(["--no-statistics"] if no_statistics else []),
    ]
    sys.stdout.flush()
    # The statistics of requests are beside the versions.
    environment = make_store_environment(versions.parent)
    os.execve(argv[0], argv, os.environ | environment)  # noqa: S606
