"""Names that installed packages publish as entry points, for stages and for sources.

    [project.entry-points."trainyard.sources"]
    patients = "my_package.my_module:patients"

No code of those packages is imported here.
"""

from __future__ import annotations

import importlib.metadata

from pipeline_ops.errors import ConfigError


def find_module_path(group: str, name: str) -> str | None:
    """Returns `module:attribute` for a module path or a published name, or None for another name.

    Args:
      group: the group of entry points, `trainyard.stages` or `trainyard.sources`.
      name: the name in the config.

    Raises:
      ConfigError: two installed packages publish this name.
    """
    if ":" in name:
        return name
    found = {
        entry.value: entry.dist.name if entry.dist else "?"
        for entry in importlib.metadata.entry_points(group=group, name=name)
    }
    if len(found) > 1:
        kind = group.rpartition(".")[2].removesuffix("s")
        raise ConfigError(
            f"several installed packages have a {kind} {name} "
            f"({', '.join(sorted(found.values()))}). Name one by its module path: "
            f"{' or '.join(sorted(found))}."
        )
    return next(iter(found), None)


def list_published_names(group: str) -> list[str]:
    """Returns the names that all installed packages publish in a group."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def find_publishers(group: str, name: str) -> set[str]:
    """Returns the installed distributions that publish a name."""
    found = importlib.metadata.entry_points(group=group, name=name)
    return {entry.dist.name for entry in found if entry.dist}
