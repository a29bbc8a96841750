"""`trainyard new-stage NAME`: writes a working stage, its test and its line in the catalogue.

You then change them. In this repository the stage goes to `beam_jobs/stages/`. With `--package` it
goes into your own package, and is published as an entry point in the `pyproject.toml` next to it.
No existing file is overwritten.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.cli.scaffold import (
    add_entry_point,
    find_package,
    make_class_name,
    shorten_path,
    validate_new_name,
    validate_unused,
)
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import write_atomically
from pipeline_ops.user_code.stages import ENTRY_POINT_GROUP

_CATALOGUE = Path("beam_jobs") / "stages" / "__init__.py"
_MAX_LINE_LENGTH = 100

_STAGE_TEMPLATE = '''\
"""Multiplies all pixels by a factor. (Shown by `trainyard stages`. Describe your stage here.)"""

from __future__ import annotations

from pydantic import Field

from beam_jobs.stages.stage import Example, parameters


@parameters
class {class_name}:
    factor: float = Field(1.0, gt=0, le=10)
    """Factor for all pixels. (Describe what a parameter means, and its unit.)"""


def {name}(example: Example, parameters: {class_name}) -> Example:
    """The stage function. `docs/add-a-stage.md` describes what it may do."""
    import numpy as np

    if parameters.factor == 1:
        return example  # an example that needs no change keeps the bytes of its file
    brightened = np.clip(np.rint(example.image * parameters.factor), 0, 255).astype(np.uint8)
    return example.with_image(brightened)
'''

_TEST_TEMPLATE = '''\
"""The stage {name}."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

{imports}

EXAMPLE = Example("cat/1.png", "cat", b"the file", np.full((4, 6, 3), 100, np.uint8))


@pytest.mark.parametrize("factor, expected", [(0.5, 50), (2.0, 200), (3.0, 255)])
def test_pixels_are_multiplied(factor, expected):
    after = {name}(EXAMPLE, {class_name}(factor=factor))
    assert (after.image == expected).all()
    assert after.image.dtype == np.uint8
    assert not after.is_original


def test_an_unchanged_example_keeps_its_bytes():
    assert {name}(EXAMPLE, {class_name}()) is EXAMPLE


def test_a_factor_of_zero_is_rejected():
    with pytest.raises(ValidationError):
        {class_name}(factor=0)
'''


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "new-stage",
        new_stage,
        "Create a preprocessing stage, with a test.",
        "Writes a working stage that you then change. It goes into beam_jobs/stages/ and\n"
        "its catalogue. With --package, it goes into your own package, and an entry point\n"
        "is added to pyproject.toml. Overwrites no existing file.",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="Name of the stage in the YAML: lowercase letters, digits and _.",
    )
    parser.add_argument(
        "--package",
        metavar="PACKAGE",
        help="Your own Python package, in the current folder or in src/.",
    )


def new_stage(arguments: argparse.Namespace) -> int:
    name, package = arguments.name, arguments.package
    files = _build_package_files(package, name) if package else _build_repository_files(name)
    for path, text in files.items():
        write_atomically(path, text.encode())
        print(f"Wrote {path}")
    test = next(path for path in files if path.name.startswith("test_"))
    in_yaml = f"{package}.{name}:{name}" if package else name
    print(
        f"\nThe stage multiplies all pixels by a factor. Change it to your needs.\n"
        f"Test:     {shorten_path(sys.executable)} -m pytest {test}\n"
        f"Use:      - {in_yaml}: {{factor: 1.5}}     (in preprocess.stages of a config)\n"
        f"Preview:  {shorten_path(sys.argv[0])} preview CONFIG --stage {in_yaml}"
    )
    return 0


def _build_repository_files(name: str) -> dict[Path, str]:
    """The texts to write, by path."""
    if not _CATALOGUE.exists():
        raise ConfigError(
            f"{_CATALOGUE}: not found in the current folder. Run the command in the root of the "
            "repository, or add the stage to your own package with --package PACKAGE."
        )
    _validate_name(name)
    files = _render_files(
        Path("beam_jobs") / "stages" / f"{name}.py",
        Path("tests") / "beam_jobs" / "stages" / f"test_{name}.py",
        f"beam_jobs.stages.{name}",
        name,
    )
    return files | {_CATALOGUE: add_to_catalogue(_CATALOGUE.read_text(), name)}


def _build_package_files(package: str, name: str) -> dict[Path, str]:
    folder = find_package(package)
    _validate_name(name)
    files = _render_files(
        folder / f"{name}.py", Path("tests") / f"test_{name}.py", f"{package}.{name}", name
    )
    project = Path("pyproject.toml")
    if project.exists():
        files[project] = add_entry_point(
            project.read_text(), ENTRY_POINT_GROUP, name, f"{package}.{name}:{name}"
        )
    return files


def _validate_name(name: str) -> None:
    from beam_jobs import stages

    validate_new_name("stage", name)
    if Path(stages.__path__[0], f"{name}.py").exists():
        raise ConfigError(
            f"{name}: a stage or a module with this name already exists. Choose another name."
        )


def _render_files(stage: Path, test: Path, module: str, name: str) -> dict[Path, str]:
    validate_unused(stage, test)
    class_name = make_class_name(name)
    imports = [
        "from beam_jobs.stages.stage import Example",
        f"from {module} import {class_name}, {name}",
    ]  # sorted, for the linter
    fields = {"name": name, "class_name": class_name, "imports": "\n".join(sorted(imports))}
    return {stage: _STAGE_TEMPLATE.format(**fields), test: _TEST_TEMPLATE.format(**fields)}


def add_to_catalogue(text: str, name: str) -> str:
    """The catalogue's source with one more stage.

    Raises:
      ConfigError: the source does not look as expected.
    """
    found = re.search(r"^from beam_jobs\.stages import (\([^)]*\)|[^\n]*)\n", text, re.MULTILINE)
    end = re.search(r"^CATALOGUE\b.*?^}", text, re.MULTILINE | re.DOTALL)
    if not found or not end:
        raise ConfigError(
            f"{_CATALOGUE}: cannot find the import of the stages or CATALOGUE. "
            f"Add the stage {name} manually."
        )
    modules = sorted({*re.findall(r"\w+", found[1]), name})
    line = f"from beam_jobs.stages import {', '.join(modules)}\n"
    if len(line) > _MAX_LINE_LENGTH:
        lines = "".join(f"    {module},\n" for module in modules)
        line = f"from beam_jobs.stages import (\n{lines})\n"
    entry = f'    "{name}": Stage({name}.{make_class_name(name)}, {name}.{name}),\n'
    last = end.end() - 1
    return text[: found.start()] + line + text[found.end() : last] + entry + text[last:]
