"""Errors of an author's code: their cause in one line, with the file and line of that code.

Messages of TensorFlow and Keras fill pages and do not begin with the cause. For an error in a
graph, only the text of the message says which code made the operation.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from traceback import FrameSummary

import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.storage.local_files import DISK_ERRORS
from pipeline_ops.storage.read_errors import has_disk_error_message, summarize_error
from pipeline_ops.user_code.code_location import FRAME, list_frames
from pipeline_ops.user_code.models import collect_paths
from pipeline_ops.user_code.modules import is_installed

_log = logging.getLogger(__name__)

_CALL = re.compile(
    r"Exception encountered when calling (\S+)\.call\(\)\.\s+(?:\x1b\[1m)?"
    r"(?:Could not automatically infer.*?Error encountered:\s+)?([^\n\x1b]+)",
    re.S,
)
"""The layer and the cause in a message of Keras."""
_NUMBER = re.compile(r"^\s*\(\d+\) [A-Z_]+:\s+", re.M)
"""The beginning of each error, where a graph has several."""
_OURS = str(Path(__file__).parents[1])
_NO_FILE = ("<", "__autograph_generated_file")
_MAX_CAUSE = 500
RETRIED = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
    tf.errors.ResourceExhaustedError,
    tf.errors.FailedPreconditionError,
)
"""TensorFlow's errors whose cause is a machine, its network or memory, or another worker."""


def describe_call(error: Exception) -> str:
    """Returns type, layer and cause of an error in the call of a model, in one line."""
    return ": ".join(filter(None, explain(error)))


def explain(error: Exception) -> tuple[str, str]:
    """Returns the type of an error, with the layer that Keras names, and the cause in one line."""
    kind, text = type(error).__name__, str(error)
    # The text of a KeyError is its message in quotes. The last call is the innermost one.
    message = str(error.args[0]) if isinstance(error, KeyError) else text
    if found := _CALL.search(message, max(message.rfind("Exception encountered when"), 0)):
        kind, text = f"{kind} in {found[1]}", found[2].rstrip(".")
    elif "in user code:" in text and (frames := [*FRAME.finditer(text)]):  # of AutoGraph
        # It ends with the type and the cause, after a line of code.
        text = text[frames[-1].end() :].partition("\n\n")[2].strip().removeprefix(f"{kind}: ")
    cause = summarize_error(Exception(_NUMBER.sub("", text))) if text.strip() else ""
    return kind, cause.replace("] [", " ")[:_MAX_CAUSE]


def locate(frames: Iterable[FrameSummary]) -> str:
    """Returns file and line of the innermost frame, in brackets after a blank, or nothing."""
    return "".join([f" ({frame.filename}:{frame.lineno})" for frame in frames][-1:])


def list_own_frames(error: BaseException, paths: Iterable[str] = ()) -> list[FrameSummary]:
    """Returns the frames of an author's code behind an error, as `list_own` does."""
    return list_own(list_frames(error), paths)


def list_own(frames: Iterable[FrameSummary], paths: Iterable[str] = ()) -> list[FrameSummary]:
    """Returns the frames of an author's code, the innermost one last.

    That code is neither installed nor ours, or it is in the package of one of the `paths`,
    `module:name`.
    """
    tops = (_find_file(re.split("[.:]", path)[0]) for path in paths)
    packages = tuple(top.removesuffix("__init__.py") for top in tops if top)
    return [
        frame
        for frame in frames
        if not (
            frame.filename.startswith(_OURS) or any(part in frame.filename for part in _NO_FILE)
        )
        and (frame.filename.startswith(packages) or not is_installed(frame.filename))
    ]


def _find_file(module: str) -> str:
    """Returns the file of an imported module, or an empty text."""
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _is_of_machine(error: Exception) -> bool:
    """Returns whether an error is due to the machine, and not to the code that raised it.

    TensorFlow wraps errors of Python code in a graph into its own types, with a traceback in the
    text.
    """
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return True  # of Python's exceptions, MemoryError alone becomes this one
    if isinstance(error, RETRIED):
        return "\nTraceback (most recent" not in str(error)
    is_disk_error = isinstance(error, OSError) and error.errno in DISK_ERRORS
    return is_disk_error or isinstance(error, MemoryError) or has_disk_error_message(error)


@contextlib.contextmanager
def convert_user_errors(subject: str, is_user_code: bool, suffix: str = "") -> Iterator[None]:
    """Turns any error of user code into a ConfigError that names the key, and file and line."""
    try:
        yield
    except (TrainyardError, MemoryError, tf.errors.ResourceExhaustedError):
        raise  # the last two are for the machine
    except Exception as error:
        if not is_user_code:
            raise
        place, cure = locate(list_own_frames(error)), "Correct it."
        if "URL fetch failure" in str(error):
            cure = "Nothing is downloaded: leave weights out, and name a file in train.warm_start."
        raise ConfigError(
            f"{subject} raised {describe_call(error)}{place}{suffix}", cure
        ) from error


@contextlib.contextmanager
def convert_training_errors(config: Train) -> Iterator[None]:
    """Turns an error of the author's code in a training into a ConfigError, and logs it.

    An error without a line of that code is not changed, and neither is an error of the machine.
    """
    paths = collect_paths(config)
    try:
        yield
    except TrainyardError:
        raise
    except Exception as error:
        frames = list_own_frames(error, paths.values())
        if not frames or _is_of_machine(error):
            raise
        _log.exception("the author's code has failed")
        raise ConfigError(
            f"{_name_keys(paths, frames)} raised {describe_call(error)}{locate(frames)}",
            "Correct it, then retry.",
        ) from error


def _name_keys(paths: Mapping[str, str], frames: Iterable[FrameSummary]) -> str:
    """Returns the config's entries whose function was running, or else whose module was."""
    files, functions = {each.filename for each in frames}, {each.name for each in frames}
    entries = {
        f"{key}: {path}": path.partition(":")[2]
        for key, path in paths.items()
        if _find_file(path.partition(":")[0]) in files
    }
    running = [entry for entry, name in entries.items() if name in functions]
    return " or ".join(running or entries) or "train: the author's code"
