"""Imports of an author's modules, as a request has planned them, in the process of a job.

The modules beside the config are imported from the copy that travels with the request, whatever
happens to the originals. Every other module of the author is compared with its digest in the
fingerprint when it is imported. The digest is that of the bytes that are compiled, so neither an
edit at that moment nor a cache of compiled code can differ from it. The source stays in memory,
where AutoGraph and tracebacks read it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import linecache
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from pipeline_ops.contract.source_code import PACKAGES, digest_tree
from pipeline_ops.errors import ConfigError
from pipeline_ops.system.host import parse_source
from pipeline_ops.user_code.code_location import LOCATION, find_location

FOLDER = "user_code"
"""The folder of the copies, beside the request of a job."""


class PlannedCode(NamedTuple):
    """The code of a request.

    Attributes:
      folder: that of the copies.
      original: the folder of the config, from which they were made.
      digests: those of the fingerprint, by path.
    """

    folder: Path
    original: Path
    digests: Mapping[str, str]


@contextlib.contextmanager
def import_as_planned(code: PlannedCode) -> Iterator[None]:
    """Has modules of the author imported as planned while the block runs.

    The message of an error names the files that the author knows, and not their copies.
    """
    finder = _PlannedFinder(code)
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if finder.has_copy(name)}
    sys.meta_path.insert(0, finder)
    try:
        yield
    except Exception as error:
        attach_location(error, code)
        error.args = tuple(
            _name_originals(each, code) if isinstance(each, str) else each for each in error.args
        )
        raise
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.has_copy(name)]:
            del sys.modules[name]
        sys.modules.update(hidden)


def attach_location(error: Exception, code: PlannedCode | None) -> None:
    """Adds the line of the author's code to an error, if that code has caused it."""
    if code and (found := find_location(error, code.folder, code.original, code.digests)):
        setattr(error, LOCATION, found)


def get_planned_code() -> PlannedCode | None:
    """Returns the code that this process imports from, or None if nothing is planned."""
    finder = _get_finder()
    return finder.code if finder else None


def is_planned(module: ModuleType) -> bool:
    """Returns whether a module was imported as planned."""
    return isinstance(getattr(module, "__loader__", None), _PlannedLoader)


def raise_fault() -> None:
    """Raises the ConfigError of a module that was not imported, which its importer may suppress."""
    if (finder := _get_finder()) and finder.faults:
        raise finder.faults[0]


def _name_originals(text: str, code: PlannedCode) -> str:
    """Returns a message with the names of the originals, also of files that have no copy."""
    found = re.findall(re.escape(str(code.folder)) + r"/[^\s'\",;:)\]]+", text)
    gone = [os.path.relpath(path, code.folder) for path in found if not os.path.exists(path)]
    text = text.replace(str(code.folder), str(code.original))
    if gone and all((code.original / path).is_file() for path in gone):
        text += f". {gone[0]} has not travelled with the job: name it in `files` of its section"
    return text


def _get_finder() -> _PlannedFinder | None:
    return next((each for each in sys.meta_path if isinstance(each, _PlannedFinder)), None)


class _PlannedFinder(MetaPathFinder):
    """Finds the copies before Python does, and has all planned modules compared."""

    def __init__(self, code: PlannedCode):
        self.code = code
        self.faults: list[ConfigError] = []
        self._digests = {
            path: digest
            for path, digest in code.digests.items()
            if path.partition("/")[0] not in PACKAGES
        }
        copies = code.folder.iterdir() if code.folder.is_dir() else ()
        self._tops = {
            entry.name.removesuffix(".py")
            for entry in copies
            if entry.suffix == ".py" or (entry.is_dir() and next(entry.rglob("*.py"), None))
        }

    def has_copy(self, name: str) -> bool:
        return name.partition(".")[0] in self._tops

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        key = name.replace(".", "/")
        is_own = self.has_copy(name)
        if not is_own and self._digests.keys().isdisjoint((f"{key}.py", f"{key}/__init__.py")):
            return None
        if is_own and path is None:
            spec = PathFinder.find_spec(name, [str(self.code.folder)])
            if spec and spec.origin is None:
                spec = self._extend_package(name)
        else:
            others = (each for each in sys.meta_path if each is not self)
            specs = (each.find_spec(name, path, target) for each in others)
            spec = next(filter(None, specs), None)
        if spec is None or not spec.has_location or not spec.origin:
            return spec
        if not spec.origin.endswith(".py"):
            return spec
        key += "/__init__.py" if os.path.basename(spec.origin) == "__init__.py" else ".py"
        spec.loader = _PlannedLoader(name, spec.origin, self._digests.get(key), self.faults)
        return spec

    def _extend_package(self, name: str) -> ModuleSpec:
        """Returns a package without a file, of the copies and of all folders with parts of it."""
        spec, found = ModuleSpec(name, None, is_package=True), PathFinder.find_spec(name)
        original = os.path.realpath(self.code.original / name)
        parts = (found and found.origin is None and found.submodule_search_locations) or ()
        spec.submodule_search_locations = [
            str(self.code.folder / name),
            *(part for part in parts if os.path.realpath(part) != original),
        ]
        return spec


class _PlannedLoader(SourceFileLoader):
    """Compiles a module if its digest is the planned one."""

    def __init__(self, name: str, path: str, digest: str | None, faults: list[ConfigError]):
        super().__init__(name, path)
        self._digest, self._faults = digest, faults

    def get_code(self, fullname: str) -> CodeType:
        path = str(self.path)
        try:
            content = bytes(self.get_data(path))
            tree = parse_source(content, path)
            code: CodeType = compile(tree, path, "exec", dont_inherit=True)
            found = digest_tree(tree)
        except (OSError, SyntaxError, ValueError):
            found = None
        if found is None or found != self._digest:
            fault = ConfigError(
                f"{path} on {platform.node()} is not the file that this task was planned with. It "
                "was changed in the meantime, or this host has another version. Clear the task, "
                "which then takes the file as it is now, or restore the file. Modules beside the "
                "config travel with a task and may be changed at any time."
            )
            self._faults.append(fault)
            raise fault
        lines = importlib.util.decode_source(content).splitlines(keepends=True)
        linecache.cache[path] = (len(content), None, lines, path)  # is never compared with the disk
        return code
