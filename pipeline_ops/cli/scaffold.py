"""The parts that `trainyard new-stage` and `trainyard new-source` have in common."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from pipeline_ops.errors import ConfigError


def validate_new_name(kind: str, name: str) -> None:
    """Raises ConfigError if a name cannot be that of a new `kind`, a stage or a source."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name}: not a valid {kind} name. Use lowercase letters, digits and _, and no Python "
            "keyword, for example sharpen_edges."
        )


def validate_unused(*paths: Path) -> None:
    """Raises ConfigError if one of the files exists."""
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path}: already exists. Choose another name, or remove the file.")


def find_package(package: str) -> Path:
    """Returns the folder of a package. Raises ConfigError if it is not in the current folder."""
    path = Path(package.replace(".", "/"))
    folder = path if path.is_dir() else "src" / path
    if not folder.is_dir():
        raise ConfigError(
            f"--package {package}: not found in the current folder or in src/. "
            "Run the command in the folder that contains the package, or create it."
        )
    return folder


def make_class_name(name: str) -> str:
    """Returns the CamelCase of a name."""
    return "".join(part.capitalize() for part in name.split("_"))


def shorten_path(program: str) -> str:
    """Returns the path of a program as a user would type it here."""
    path = Path(program)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else program


def add_entry_point(text: str, group: str, name: str, path: str) -> str:
    """Returns a pyproject.toml with one more entry point.

    Args:
      text: the present content.
      group: the group, `trainyard.stages` or `trainyard.sources`.
      name: the name of the entry point.
      path: its value, `module:function`.

    Raises:
      ConfigError: the file has an entry point of that name.
    """
    header = f'[project.entry-points."{group}"]\n'
    if re.search(rf'^{name}\s*=\s*"[\w.]+:\w+"', text, re.MULTILINE):
        raise ConfigError(
            f"pyproject.toml: the entry point {name} already exists. Choose another name."
        )
    line = f'{name} = "{path}"\n'
    if header in text:
        return text.replace(header, header + line, 1)
    return f"{text.rstrip()}\n\n{header}{line}"
