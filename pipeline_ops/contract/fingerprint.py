"""The fingerprint of a job: a digest that shows whether its work has been done already.

It covers everything that can change the result: the digests of the inputs, the job's section of the
config, the meaning of the source code that will run, and the versions of the packages that matter.
It never covers the clock, the run id, the number of workers of a Beam runner, or any storage
location.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ConfigDict, field_validator

from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import replace_non_finite
from pipeline_ops.storage.parsing import JsonModel

_MAX_CODE_LINES = 3


class Fingerprint(JsonModel):
    """The parts of a fingerprint, kept so that two fingerprints can be compared."""

    model_config = ConfigDict(frozen=True)

    config: dict[str, Any]
    inputs: dict[str, str]
    """Digests of the job's inputs, by name."""
    code: dict[str, str]
    """Digests of source files, by path relative to the code root."""
    versions: dict[str, str]

    @field_validator("config")
    @classmethod
    def _replace_non_finite(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Makes a value such as `.inf` the text that a file has, so that its digest is the same."""
        replaced: dict[str, Any] = replace_non_finite(config)
        return replaced

    @property
    def digest(self) -> str:
        """32 hex digits."""
        return compute_digest(self.model_dump())

    def with_inputs(self, digests: Mapping[str, str]) -> Fingerprint:
        """Returns this fingerprint with further inputs."""
        return self.model_copy(update={"inputs": {**self.inputs, **digests}})

    def without_inputs(self, *names: str) -> Fingerprint:
        """Returns this fingerprint without the inputs of these names."""
        kept = {name: digest for name, digest in self.inputs.items() if name not in names}
        return self.model_copy(update={"inputs": kept})

    def list_leaves(self) -> dict[str, Any]:
        """Returns all parts by name: `config train.epochs`, `versions keras`."""
        return _flatten(self.model_dump())

    def describe_changes_since(self, older: Fingerprint) -> list[str]:
        """The differences, one line each: `config train.epochs: 10 -> 15`.

        Of many source files, as after an upgrade, only the first ones are named.
        """
        before, after = older.list_leaves(), self.list_leaves()
        lines = [
            _describe_change(key, before.get(key), after.get(key))
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]
        code = [line for line in lines if line.startswith("code ")]
        if hidden := code[_MAX_CODE_LINES:]:
            lines = [line for line in lines if line not in hidden]
            lines.insert(lines.index(code[0]) + _MAX_CODE_LINES, f"code: {len(hidden)} more files")
        return lines


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions by package name. A package that is not installed is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            flat |= _flatten(inner, f"{prefix}{key}{'.' if prefix else ' '}")
        elif prefix or inner:  # an empty part is left out
            flat[f"{prefix}{key}"] = inner
    return flat


def _describe_change(key: str, before: Any, after: Any) -> str:
    if key.startswith(("code ", "inputs ")):
        return f"{key} changed" if before and after else f"{key} {'is new' if after else 'is gone'}"
    return f"{key}: {json.dumps(before)} -> {json.dumps(after)}"
