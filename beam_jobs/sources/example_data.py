"""The command line of the modules that write example data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.errors import TrainyardError


def run_writer(write: Callable[[Path], bool], content: str) -> None:
    """Writes example data into the folder on the command line, and prints the result.

    Args:
      write: writes into a folder. Returns False if the data are there already.
      content: the data, for messages.
    """
    parser = argparse.ArgumentParser(description=f"Writes {content} into a folder.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    try:
        is_new = write(folder)
    except TrainyardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{folder}: {content} {'written' if is_new else 'exist, nothing to do'}")
