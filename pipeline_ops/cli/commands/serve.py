"""`trainyard serve`: a small HTTP server for a published model.

    trainyard serve configs/digits.yaml                    the champion of the pipeline
    trainyard serve configs/digits.yaml@canary             the version of another alias, and its
                                                           successors
    trainyard serve digits@3 --registry s3://bucket/models a version by its number, without a config

It has TensorFlow Serving's REST form, and a page to try the model. It is for smoke tests and demos,
and listens on this machine alone unless --host says otherwise.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError
from pipeline_ops.registry.aliases import CHAMPION

_YAML = (".yaml", ".yml")


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a published model over HTTP, with a page to try it",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL[@ALIAS]",
        help="a pipeline's YAML file, or the name of a model in --registry",
    )
    parser.add_argument(
        "--registry", help="the place of the registry: a folder, or s3://bucket/models"
    )
    parser.add_argument(
        "--verify",
        metavar="KEY",
        type=Path,
        help="refuse a version that is not signed by this public key, a file of minisign",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0 lets everybody in"
    )
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help=(
            "a name by which clients address the server, "
            "for example behind a proxy; may be repeated"
        ),
    )
    parser.set_defaults(command=serve)


def serve(arguments: argparse.Namespace) -> int:
    """Replaces this process with the server."""
    if missing := [
        name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None
    ]:
        raise ConfigError(
            f"serve needs {' and '.join(missing)}; install Trainyard with its extra serving: "
            "pip install '.[serving]'"
        )
    wanted, _, alias = (
        arguments.model.rpartition("@")
        if "@" in arguments.model
        else (arguments.model, "", CHAMPION)
    )
    name, place = _find(wanted, arguments.registry)
    verify = ["--verify", str(arguments.verify.resolve())] if arguments.verify else []
    sys.stdout.flush()
    os.execv(  # noqa: S606
        sys.executable,
        [
            sys.executable,
            "-m",
            "pipeline_ops.export.serving.server",
            "--model",
            place,
            "--name",
            name,
            "--alias",
            alias,
            "--host",
            arguments.host,
            "--port",
            str(arguments.port),
            *(f"--allow-host={name}" for name in arguments.allow_host),
            *verify,
        ],
    )


def _find(wanted: str, registry: str | None) -> tuple[str, str]:
    """The model's name, and its place."""
    if Path(wanted).suffix in _YAML:
        config = load_config(Path(wanted))
        return config.export.model, config.registry
    if registry is None:
        raise ConfigError(
            f"serve: {wanted} is no YAML file; "
            "name the registry that has this model with --registry"
        )
    return wanted, f"{registry.rstrip('/')}/{wanted}"
