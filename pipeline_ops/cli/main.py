"""The entry point of the `trainyard` command.

It finds the command, and turns an error into a message and an exit status.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from pipeline_ops.cli.stop_signals import Stopped
from pipeline_ops.errors import ExitCode, TrainyardError

_COMMANDS = {
    "init": "Look at a data set, and write the YAML of a pipeline for it.",
    "run": "Run a pipeline once and show its progress.",
    "ui": "Start an embedded Airflow with its UI, until Ctrl-C.",
    "validate": "Check configs.",
    "doctor": "Check this machine, and all that a pipeline needs.",
    "explain": "Show which tasks a run would execute, which are cached, and why.",
    "runs": "List the runs of a pipeline, the newest first, with what has become of each.",
    "models": "List, promote, roll back, alias, retire and fetch published models.",
    "gc": "Remove runs and artifacts that nothing needs.",
    "serve": "Serve a published model over HTTP.",
    "tensorboard": "Open TensorBoard over the trainings of pipelines, until Ctrl-C.",
    "stages": "List the preprocessing stages, or describe one.",
    "reference": "Print every key of a pipeline's YAML and of a hosts file as Markdown.",
    "schema": "Print the JSON Schema of a pipeline's YAML, for editors.",
    "new": "Create a preprocessing stage or a source of raw data, with a test.",
    "preview": "Draw raw examples before and after the stages, with labels and boxes.",
    "import-od-api": "Convert a pipeline.config of the TensorFlow Object Detection API.",
}
"""The first line of the help of each command, which `trainyard --help` lists.

A command is the function of its name, in the module of its name unless `_MODULES` has another.
"""
_MODULES = {"stages": "reference"}
_BROKEN_PIPE_EXIT_STATUS = 141


class _LazyCommand(TyperCommand):
    """A command that imports its module when it is called, because all modules take a second."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        name = str(self.name).replace("-", "_")
        module = import_module(f"pipeline_ops.cli.commands.{_MODULES.get(name, name)}")
        app = command = getattr(module, name)
        if not isinstance(command, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command()(command)
        found = get_command(app)
        for parameter in found.params:
            if parameter.nargs == -1:  # the help would have `<list[Path]>`, Python's words
                vars(parameter)["display_type"] = lambda ctx: "..."
        return found.make_context(info_name, args, *more, **extra)

    def get_short_help_str(self, limit: int = 0) -> str:
        return self.help or ""  # all of it, on two lines if need be


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Runs one command, and ends with its exit status or that of its error."""
        from pipeline_ops.orchestration.airflow_connections import use_airflow_connections
        from pipeline_ops.storage.store_options import fail_soon
        from pipeline_ops.system.temp_dirs import use_temporary_folder

        use_airflow_connections()
        try:
            with use_temporary_folder("command"), fail_soon():
                status = super().invoke(ctx)
        except TrainyardError as error:
            print(error, file=sys.stderr)
            status = error.exit_code
        except Stopped as stopped:
            status = stopped.exit_status
        except BrokenPipeError:  # `trainyard ... | head`: the reader has exited
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = _BROKEN_PIPE_EXIT_STATUS
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            print(f"cannot write the output: {error.strerror}. Free disk space.", file=sys.stderr)
            status = ExitCode.RETRY
        ctx.exit(status)


COMMANDS = _Commands(
    commands={name: _LazyCommand(name, help=line) for name, line in _COMMANDS.items()},
    help="Retrain TensorFlow models with Airflow. One YAML file describes a pipeline.",
    epilog="`trainyard COMMAND --help` describes a command.",
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
)


def main(command_line: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of the process, and returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A terminal or a pipe may not have the characters of a path or of a class.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        COMMANDS.main(command_line, prog_name="trainyard")
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
