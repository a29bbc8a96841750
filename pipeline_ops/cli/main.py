"""The entry point of the `trainyard` command.

It finds the command, and turns an error into a message and an exit status.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pipeline_ops.cli.commands import (
    compare,
    explain,
    import_od_api,
    models,
    new_stage,
    plan,
    preview,
    reference,
    run,
    serve,
    stages,
    ui,
    validate,
)
from pipeline_ops.cli.local_airflow.stopping import Stopped
from pipeline_ops.errors import TrainyardError
from pipeline_ops.system.temp_dirs import own_temporary_folder

_INTERRUPTED, _BROKEN_PIPE = 130, 141


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status.

    `words` are the command line without the program's name.
    """
    words = models.with_default_action(list(sys.argv[1:] if words is None else words))
    arguments = make_parser().parse_args(words)
    try:
        with own_temporary_folder("command"):
            return int(arguments.command(arguments))
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Stopped as stopped:
        return stopped.exit_status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `trainyard ... | head`: the reader has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainyard", description="Retrains a TensorFlow model, as one YAML file says."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (
        run,
        ui,
        validate,
        explain,
        plan,
        models,
        serve,
        stages,
        new_stage,
        preview,
        compare,
        reference,
        import_od_api,
    ):
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
