"""`trainyard new-stage NAME`: writes a working stage, its test and its line in the catalogue.

You then change them. In this repository the stage goes to `beam_jobs/stages/`. With `--package` it
goes into your own package, and is published as an entry point in the `pyproject.toml` next to it.
No existing file is overwritten.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import write_whole

_CATALOGUE = Path("beam_jobs") / "stages" / "__init__.py"
_MAX_LINE = 100

_STAGE = '''\
"""Multiplies all pixels by a factor. (`trainyard stages` shows this line: say what it does.)"""

from __future__ import annotations

from pydantic import Field

from beam_jobs.stages.stage import Example, parameters


@parameters
class {class_name}:
    factor: float = Field(1.0, gt=0, le=10)
    """What all pixels are multiplied by. (Say what a parameter means, and in which unit.)"""


def {name}(example: Example, parameters: {class_name}) -> Example:
    """A stage is this function; `beam_jobs/README.md` says what it may do."""
    import numpy as np

    if parameters.factor == 1:
        return example  # an example that needs no change keeps the bytes of its file
    brightened = np.clip(np.rint(example.image * parameters.factor), 0, 255).astype(np.uint8)
    return example.with_image(brightened)
'''

_TEST = '''\
"""The stage {name}."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from beam_jobs.stages.stage import Example
from {module} import {class_name}, {name}

EXAMPLE = Example("cat/1.png", "cat", b"the file", np.full((4, 6, 3), 100, np.uint8))


@pytest.mark.parametrize("factor, wanted", [(0.5, 50), (2.0, 200), (3.0, 255)])
def test_pixels_are_multiplied(factor, wanted):
    after = {name}(EXAMPLE, {class_name}(factor=factor))
    assert (after.image == wanted).all()
    assert after.image.dtype == np.uint8
    assert not after.is_original


def test_an_example_that_needs_no_change_keeps_its_own_bytes():
    assert {name}(EXAMPLE, {class_name}()) is EXAMPLE


def test_a_factor_of_zero_is_refused():
    with pytest.raises(ValidationError):
        {class_name}(factor=0)
'''


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "new-stage",
        help="write a new stage with its test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", metavar="NAME", help="as it will stand in the YAML: small letters, digits and _"
    )
    parser.add_argument(
        "--package",
        metavar="PACKAGE",
        help="a Python package of yours, in this folder or in src/, that gets the stage",
    )
    parser.set_defaults(command=new_stage)


def new_stage(arguments: argparse.Namespace) -> int:
    name, package = arguments.name, arguments.package
    files = (
        _files_in_package(Path(), package, name) if package else _files_in_repository(Path(), name)
    )
    for path, text in files.items():
        write_whole(path, text.encode())
        print(f"wrote {path}")
    test = next(path for path in files if path.name.startswith("test_"))
    in_yaml = f"{package}.{name}:{name}" if package else name
    print(
        f"\nIt multiplies all pixels by a factor; make it do what you want.\n"
        f"Test it:     {_as_typed(sys.executable)} -m pytest {test}\n"
        f"List it:     - {in_yaml}: {{factor: 1.5}}     (in preprocess.stages of a config)\n"
        f"Look at it:  {_as_typed(sys.argv[0])} preview CONFIG --stage {in_yaml}"
    )
    return 0


def _as_typed(program: str) -> str:
    """The path of a program as a user would type it here."""
    path = Path(program)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else program


def _files_in_repository(root: Path, name: str) -> dict[Path, str]:
    """The texts to write, by path."""
    if not (root / _CATALOGUE).exists():
        raise ConfigError(
            f"there is no {_CATALOGUE} here; go to the root of the repository, "
            "or give the stage to a package of yours: --package PACKAGE"
        )
    _check_name(name)
    files = _texts(
        root / "beam_jobs" / "stages" / f"{name}.py",
        root / "tests" / "beam_jobs" / "stages" / f"test_{name}.py",
        f"beam_jobs.stages.{name}",
        name,
    )
    return files | {root / _CATALOGUE: add_to_catalogue((root / _CATALOGUE).read_text(), name)}


def _files_in_package(root: Path, package: str, name: str) -> dict[Path, str]:
    folder = next(
        (
            folder
            for folder in (
                root / package.replace(".", "/"),
                root / "src" / package.replace(".", "/"),
            )
            if folder.is_dir()
        ),
        None,
    )
    if folder is None:
        raise ConfigError(
            f"there is no package {package} here, nor in src/; "
            "go to the folder that holds it, or make it"
        )
    _check_name(name)
    files = _texts(
        folder / f"{name}.py", root / "tests" / f"test_{name}.py", f"{package}.{name}", name
    )
    project = root / "pyproject.toml"
    if project.exists():
        files[project] = add_entry_point(project.read_text(), name, f"{package}.{name}:{name}")
    return files


def _check_name(name: str) -> None:
    from beam_jobs.stages import CATALOGUE

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name}: a stage's name is a word of small letters, digits and _ that Python has no "
            "other use for, such as sharpen_edges"
        )
    if name in CATALOGUE or name in ("stage", "boxes", "checks", "foreign"):
        raise ConfigError(
            f"{name}: there is a stage or a module of this name already; choose another name"
        )


def _texts(stage: Path, test: Path, module: str, name: str) -> dict[Path, str]:
    for path in (stage, test):
        if path.exists():
            raise ConfigError(f"{path}: is there already; choose another name, or remove it")
    words: Mapping[str, str] = {
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "module": module,
    }
    return {stage: _STAGE.format(**words), test: _sorted_imports(_TEST.format(**words), module)}


def _sorted_imports(test: str, module: str) -> str:
    """Sorts the imports for the linter.

    It wants `beam_jobs.stages.<a name before "stage">` above `beam_jobs.stages.stage`.
    """
    ours = "from beam_jobs.stages.stage import Example\n"
    if module.startswith("beam_jobs.") and module < "beam_jobs.stages.stage":
        line = next(
            line for line in test.splitlines(keepends=True) if line.startswith(f"from {module} ")
        )
        return test.replace(ours + line, line + ours)
    return test


def add_to_catalogue(text: str, name: str) -> str:
    """The catalogue's source with one more stage.

    Raises:
      ConfigError: the source does not look as expected.
    """
    found = re.search(r"^from beam_jobs\.stages import (\([^)]*\)|[^\n]*)\n", text, re.MULTILINE)
    end = re.search(r"^CATALOGUE\b.*?^}", text, re.MULTILINE | re.DOTALL)
    if not found or not end:
        raise ConfigError(
            f"{_CATALOGUE}: its import of the stages or its CATALOGUE can't be found; "
            "add the line by hand"
        )
    modules = sorted({*re.findall(r"\w+", found[1]), name})
    line = f"from beam_jobs.stages import {', '.join(modules)}\n"
    if len(line) > _MAX_LINE:
        line = (
            "from beam_jobs.stages import (\n"
            + "".join(f"    {module},\n" for module in modules)
            + ")\n"
        )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    entry = f'    "{name}": Stage({name}.{class_name}, {name}.{name}),\n'
    return (
        text[: found.start()]
        + line
        + text[found.end() : end.end() - 1]
        + entry
        + text[end.end() - 1 :]
    )


def add_entry_point(text: str, name: str, path: str) -> str:
    """A pyproject.toml with one more entry point for stages.

    Raises:
      ConfigError: it has an entry point of that name.
    """
    header = '[project.entry-points."trainyard.stages"]\n'
    if re.search(rf'^{name}\s*=\s*"[\w.]+:\w+"', text, re.MULTILINE):
        raise ConfigError(f"pyproject.toml: has an entry point {name} already; choose another name")
    line = f'{name} = "{path}"\n'
    return (
        text.replace(header, header + line, 1)
        if header in text
        else f"{text.rstrip()}\n\n{header}{line}"
    )
