"""The fingerprint of a job: a digest that shows whether its work has been done already.

It covers everything that can change the result: the digests of the inputs, the job's section of the
config, the meaning of the source code that will run, and the versions of the packages that matter.
It never covers the clock, the run id, the number of workers of a Beam runner, or any storage
location.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.errors import TrainyardError
from pipeline_ops.storage.digest import digest_of

CODE_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds `pipeline_ops/` and `beam_jobs/`."""

_SOURCE_SUFFIXES = (".py", ".html", ".css")


class Fingerprint(BaseModel):
    """The parts of a fingerprint, kept so that two fingerprints can be compared."""

    model_config = ConfigDict(frozen=True)

    config: dict[str, Any]
    inputs: dict[str, str]
    """Digests of the job's inputs, by name."""
    code: dict[str, str]
    """Digests of source files, by path relative to the code root."""
    versions: dict[str, str]

    @property
    def digest(self) -> str:
        """32 hex digits."""
        return digest_of(self.model_dump())

    def changes_since(self, older: Fingerprint) -> list[str]:
        """The differences, one line each: `config train.epochs: 10 -> 15`."""
        before, after = _flatten(older.model_dump()), _flatten(self.model_dump())
        return [
            _change(key, before.get(key), after.get(key))
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]


def digest_code(paths: Iterable[str], root: Path = CODE_ROOT) -> dict[str, str]:
    """Digests of source files, or of all source files in folders, by path relative to the root.

    The digest of a Python file is over its syntax tree, so a comment or a line break changes
    nothing. The digest of a template is over its bytes.

    Raises:
      TrainyardError: a path does not exist, so the list of sources or the installation is wrong.
    """
    paths = list(paths)
    if missing := [path for path in paths if not (root / path).exists()]:
        raise TrainyardError(
            f"{root / missing[0]} is a source of this job and does not exist. "
            "Install Trainyard again."
        )
    files = [file for path in paths for file in _source_files(root / path)]
    return {
        str(file.relative_to(root)): _digest_source(file, file.stat().st_mtime_ns)
        for file in sorted(files)
    }


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions by package name. A package that is not installed is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _source_files(path: Path) -> list[Path]:
    return (
        [file for file in path.rglob("*") if file.suffix in _SOURCE_SUFFIXES]
        if path.is_dir()
        else [path]
    )


@functools.lru_cache(maxsize=1024)
def _digest_source(file: Path, _modified_ns: int) -> str:
    source = file.read_bytes()
    meaning = ast.dump(ast.parse(source)).encode() if file.suffix == ".py" else source
    return hashlib.blake2b(meaning, digest_size=8).hexdigest()


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            flat |= _flatten(inner, f"{prefix}{key}{'.' if prefix else ' '}")
        elif prefix or inner:  # an empty part is left out
            flat[f"{prefix}{key}"] = inner
    return flat


def _change(key: str, before: Any, after: Any) -> str:
    if key.startswith(("code ", "inputs ")):
        return f"{key} changed" if before and after else f"{key} {'is new' if after else 'is gone'}"
    return f"{key}: {json.dumps(before)} -> {json.dumps(after)}"
