"""Stages in packages of other authors: the place and the fingerprint of their code.

    - my_package.my_module:my_stage: {...}     a module path, as Python's entry points write it
    - my_stage: {...}                          an entry point of that name in `trainyard.stages`

The second form needs an installed package with the entry point. This module imports none of that
code, except for the packages around a module. `beam_jobs.stages` imports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.config import sources
from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.contract.planned_training import UserCode
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.user_code.modules import (
    find_distributions,
    find_module,
    read_module,
)

ENTRY_POINT_GROUP = "trainyard.stages"
"""The group of entry points in which stages are published."""


def find_module_path(name: str) -> str | None:
    """Returns `module:attribute` of a stage that is none of ours, or None for an unknown name.

    Raises:
      ConfigError: two installed packages offer a stage of this name.
    """
    return sources.find_module_path(ENTRY_POINT_GROUP, name)


def list_published_names() -> list[str]:
    """Returns the names of all stages in installed packages."""
    return sources.list_published_names(ENTRY_POINT_GROUP)


def digest_stage_code(names: Iterable[str]) -> dict[str, str]:
    """Returns the digests of `read_stage_code`."""
    return read_stage_code(names).digests


def read_stage_code(names: Iterable[str], folder: Path | None = None) -> UserCode:
    """Reads the source files of user stages and of all that they import.

    The check of the config reports a module that cannot be found.

    Args:
      names: those of the stages.
      folder: that of the config. Its modules travel if Python finds them there.

    Raises:
      ConfigError: a file is not valid Python.
    """
    found = UserCode()
    for module in _modules(names):
        if origin := find_module(module):
            found |= read_module(module, origin, folder)
    return found


def find_stage_versions(names: Iterable[str]) -> dict[str, str]:
    """Returns versions of the installed distributions that user stages come from."""
    names = _select_user_stages(names)
    published = {
        publisher
        for name in names
        for publisher in sources.find_publishers(ENTRY_POINT_GROUP, name)
    }
    modules = _modules(name for name in names if ":" in name)
    return find_versions(sorted(published | find_distributions(modules)))


def _select_user_stages(names: Iterable[str]) -> list[str]:
    return [
        name
        for name in names
        if ":" in name or not (CODE_ROOT / "beam_jobs" / "stages" / f"{name}.py").exists()
    ]


def _modules(names: Iterable[str]) -> list[str]:
    paths = [find_module_path(name) for name in _select_user_stages(names)]
    return sorted({path.partition(":")[0] for path in paths if path})
