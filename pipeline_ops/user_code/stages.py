"""Stages in packages of other authors: the place and the fingerprint of their code.

    - my_package.my_module:my_stage: {...}     a module path, as Python's entry points write it
    - my_stage: {...}                          an entry point of that name in `trainyard.stages`

The second form needs an installed package with the entry point. This module imports none of that
code, except for the packages around a module. `beam_jobs.stages` imports it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import CODE_ROOT, digest_code, versions_of
from pipeline_ops.errors import ConfigError

GROUP = "trainyard.stages"
"""The group of entry points in which stages are published."""


def module_path(name: str) -> str | None:
    """Returns `module:attribute` of a stage that is none of ours, or None for an unknown name.

    Raises:
      ConfigError: two installed packages offer a stage of this name.
    """
    if ":" in name:
        return name
    found = {
        entry.value: entry.dist.name if entry.dist else "?"
        for entry in importlib.metadata.entry_points(group=GROUP, name=name)
    }
    if len(found) > 1:
        raise ConfigError(
            f"several installed packages have a stage {name} "
            f"({', '.join(sorted(found.values()))}); name one by its module path: "
            f"{' or '.join(sorted(found))}"
        )
    return next(iter(found), None)


def published_names() -> list[str]:
    """Returns the names of all stages in installed packages."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=GROUP)})


def code_of(names: Iterable[str]) -> dict[str, str]:
    """Returns digests of the source files of foreign stages, by module.

    The check of the config reports a module that cannot be found.
    """
    found = {}
    for module in _modules_of(names):
        origin = _origin_of(module)
        if origin is not None and origin.suffix == ".py":
            found[module] = digest_code([origin.name], root=origin.parent)[origin.name]
    return found


def distributions_of(names: Iterable[str]) -> dict[str, str]:
    """Returns versions of the installed distributions that foreign stages come with."""
    names = _foreign(names)
    published = [
        entry.dist.name
        for name in names
        for entry in importlib.metadata.entry_points(group=GROUP, name=name)
        if entry.dist
    ]
    modules = _modules_of(name for name in names if ":" in name)
    by_package = importlib.metadata.packages_distributions() if modules else {}
    return versions_of(
        sorted(
            {
                *published,
                *(
                    name
                    for module in modules
                    for name in by_package.get(module.partition(".")[0], ())
                ),
            }
        )
    )


def _foreign(names: Iterable[str]) -> list[str]:
    return [
        name
        for name in names
        if ":" in name or not (CODE_ROOT / "beam_jobs" / "stages" / f"{name}.py").exists()
    ]


def _modules_of(names: Iterable[str]) -> list[str]:
    paths = [module_path(name) for name in _foreign(names)]
    return sorted({path.partition(":")[0] for path in paths if path})


def _origin_of(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (
        Exception
    ):  # a package around it cannot be imported: the check of the config reports it, with its place
        return None
    return Path(spec.origin) if spec and spec.origin else None
