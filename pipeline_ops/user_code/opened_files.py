"""Files that functions of the author open by themselves while they build a model.

They change the model, so they must be in the fingerprint, and they must be where the job runs. The
keys `files` of a config name them. Here those are found that nobody has named.

Python reports each file that it opens, also for libraries such as NumPy. Files that h5py, OpenCV
and TensorFlow open in C++ are seen only where an author calls these. The calls are wrapped once per
process, because a hook of Python's audit cannot be removed either.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline_ops.contract.source_code import CODE_ROOT, PACKAGES
from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.modules import is_installed
from pipeline_ops.user_code.planned_imports import get_planned_code, is_planned, raise_fault

_SYSTEM = tuple(map(Path, ("/proc", "/sys", "/dev", "/etc", "/usr/lib", "/usr/share", "/lib")))
_WRITES = os.O_WRONLY | os.O_CREAT
_READERS = {"h5py": "File.__init__", "cv2": "imread", "tensorflow": "io.read_file"}
_thread = threading.local()
_watched: set[str] = set()


@contextlib.contextmanager
def explain_unnamed_files(folder: Path, key: str) -> Iterator[None]:
    """Watches the files that the author's code in the block opens.

    Args:
      folder: that of the author's modules.
      key: the key of the config that names the code, for messages.

    Raises:
      ConfigError: a file is not named in the config, or a module is another than planned.
    """
    if getattr(_thread, "watch", None):  # the outer one sees everything
        yield
        return
    _install()
    watch, before = _Watch(folder), set(sys.modules)
    _thread.watch = watch
    try:
        yield
    except Exception as error:
        raise_fault()
        if missing := watch.find_missing(error):
            raise ConfigError(_explain_missing(missing, key, folder)) from error
        raise
    finally:
        _thread.watch = None
    raise_fault()
    if get_planned_code():
        watch.add_modules(set(sys.modules) - before)
    if watch.opened:
        raise ConfigError(_explain(watch.opened, key))


class _Watch:
    """The files that a thread opens. `opened` are those that are neither named nor excepted."""

    def __init__(self, folder: Path):
        self.opened: list[str] = []
        self._folder, self._missing = folder, list[str]()
        self._written = set[str]()
        keras_home = os.environ.get("KERAS_HOME", "~/.keras")
        caches = (os.environ.get("XDG_CACHE_HOME", "~/.cache"), "~/.config", keras_home)
        allowed = [*(CODE_ROOT / name for name in PACKAGES), folder, *_SYSTEM]
        allowed += [Path(cache).expanduser() for cache in caches]
        self._allowed = [Path(os.path.realpath(each)) for each in allowed]

    def record(self, path: Any, is_written: bool) -> None:
        """Records an open file. A descriptor is one that was recorded before."""
        if not isinstance(path, str | bytes | os.PathLike):
            return
        text = os.fsdecode(path)
        real = os.path.realpath(text)
        if is_written:
            self._written.add(real)
        elif not os.path.exists(real):
            self._missing.append(text)
        elif os.path.isfile(real) and real not in self._written and not self._is_allowed(real):
            self.opened += [real] if real not in self.opened else []

    def rename(self, source: str, target: str) -> None:
        if os.path.realpath(source) in self._written:
            self._written.add(os.path.realpath(target))

    def add_modules(self, names: set[str]) -> None:
        """Adds the files of modules that were imported and that no fingerprint covers."""
        for module in filter(None, map(sys.modules.get, names)):
            file = os.path.realpath(getattr(module, "__file__", None) or "/proc")
            is_known = is_planned(module) or file in self._written or self._is_under(file)
            if file.endswith(".py") and not is_known:
                self.opened.append(file)

    def find_missing(self, error: BaseException) -> str:
        """Returns the file that the author has not found and that may be there, or ""."""
        text = f"{error} {getattr(error, 'filename', '')}"
        named = re.findall(re.escape(str(self._folder)) + r"/[^\s'\",;:)\]]+", text)
        for path in [*reversed(self._missing), *named]:
            is_relative = not os.path.isabs(path)
            if os.path.basename(path) in text and (
                is_relative or Path(path).is_relative_to(self._folder)
            ):
                return "" if os.path.exists(path) else path
        return ""

    def _is_allowed(self, real: str) -> bool:
        if real.endswith(".pyc"):
            return True
        if real.endswith(".py"):  # of a module, which is checked when it has been imported
            files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
            if any(file and os.path.realpath(file) == real for file in files):
                return True
        return self._is_under(real)

    def _is_under(self, real: str) -> bool:
        file = Path(real)
        return is_installed(file) or any(file.is_relative_to(each) for each in self._allowed)


def _explain(opened: list[str], key: str) -> str:
    code, section = get_planned_code(), key.partition(".")[0]
    first = Path(opened[0])
    name = first.name
    if code and first.is_relative_to(os.path.realpath(code.original)):
        name = first.relative_to(os.path.realpath(code.original)).as_posix()
    kind = "imports" if first.suffix == ".py" else "opens"
    others = f" and {len(opened) - 1} more" if opened[1:] else ""
    return (
        f"{key}: it {kind} {first}{others}, which the fingerprint does not cover, so a change "
        "would not be noticed, and which other hosts may not have. Put it below the folder of the "
        f'config, name it there (`{section}.files: ["{name}"]`), and find it by the path of the '
        f'module: Path(__file__).parent / "{Path(name).name}".'
    )


def _explain_missing(path: str, key: str, folder: Path) -> str:
    section = key.partition(".")[0]
    if not os.path.isabs(path):
        return (
            f"{key}: it opens {path}, relative to the current directory, which is {os.getcwd()} "
            f'here. Open Path(__file__).parent / "{Path(path).name}", and name the file in '
            f"{section}.files."
        )
    name = Path(path).relative_to(folder).as_posix()
    return (
        f"{key}: it opens {name} beside the config, and no such file belongs to the job. Name it: "
        f'`{section}.files: ["{name}"]`.'
    )


def _install() -> None:
    """Begins to watch, and wraps the functions of libraries that are imported by now."""
    if "open" not in _watched:
        _watched.add("open")
        sys.addaudithook(_audit)
    for name, path in _READERS.items():
        if (module := sys.modules.get(name)) and name not in _watched:
            _watched.add(name)
            *owners, function = path.split(".")
            _wrap(functools.reduce(getattr, owners, module), function)
            if name == "tensorflow":
                _wrap(module.io.gfile.GFile.__mro__[1], "__init__")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and (watch := getattr(_thread, "watch", None)):
        path, mode, flags = arguments
        watch.record(path, bool((flags or 0) & _WRITES) or _is_writing(mode))
    elif event == "os.rename" and (watch := getattr(_thread, "watch", None)):
        watch.rename(os.fsdecode(arguments[0]), os.fsdecode(arguments[1]))


def _is_writing(mode: Any) -> bool:
    return isinstance(mode, str) and not {"w", "x", "a"}.isdisjoint(mode)


def _wrap(owner: Any, name: str) -> None:
    """Has calls of a function recorded. Its arguments are a path and, for some, a mode."""
    function: Callable[..., Any] = getattr(owner, name)
    place = int(isinstance(owner, type))  # behind `self`

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if watch := getattr(_thread, "watch", None):
            given = [*args[place:], *kwargs.values()]
            watch.record(given[0] if given else None, any(map(_is_writing, given[1:2])))
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)
