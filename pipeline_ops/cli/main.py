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
    doctor,
    explain,
    gc,
    import_od_api,
    init,
    models,
    preview,
    reference,
    run,
    scaffold,
    schema,
    serve,
    tensorboard,
    ui,
    validate,
)
from pipeline_ops.cli.commands.run import Stopped
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.airflow_connections import use_airflow_connections
from pipeline_ops.storage.store_options import fail_soon
from pipeline_ops.system.temp_dirs import use_temporary_folder

_COMMANDS = (
    init,
    run,
    ui,
    validate,
    doctor,
    explain,
    models,
    gc,
    serve,
    tensorboard,
    reference,
    schema,
    scaffold,
    preview,
    compare,
    import_od_api,
)
_INTERRUPTED_EXIT_STATUS, _BROKEN_PIPE_EXIT_STATUS = 130, 141


def main(command_line: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of the process, and returns the exit status."""
    use_airflow_connections()
    words = list(sys.argv[1:] if command_line is None else command_line)
    arguments = make_parser().parse_args(models.insert_default_action(words))
    try:
        with use_temporary_folder("command"), fail_soon():
            return int(arguments.command(arguments))
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Stopped as stopped:
        return stopped.exit_status
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT_STATUS
    except BrokenPipeError:  # `trainyard ... | head`: the reader has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE_EXIT_STATUS


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainyard",
        description="Retrain TensorFlow models with Airflow. One YAML file describes a pipeline.",
        epilog="`trainyard COMMAND --help` describes a command.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
