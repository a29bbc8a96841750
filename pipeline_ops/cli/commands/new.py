"""`trainyard new stage NAME` and `new source NAME`: each writes a working example and its test."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline_ops.cli.templates import render_template
from pipeline_ops.config import sources
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_files import write_atomically
from pipeline_ops.user_code import stages as user_stages

_CATALOGUE = Path("beam_jobs") / "stages" / "__init__.py"
_TAKEN = "{name}: a {kind} or a module of this name already exists. Choose another name."
_Package = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE", help="Your own Python package, in the current folder or in src/."
    ),
]

new = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Create a preprocessing stage or a source of raw data, with a test.

    Both work as they are. Change them to your needs.
    """,
)


@new.command("stage")
def new_stage(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the stage in the YAML: lowercase letters, digits and _."
        ),
    ],
    package: _Package = None,
) -> int:
    """Create a preprocessing stage, with a test.

    Writes a working stage that you then change. It goes into beam_jobs/stages/, or with --package
    into your own package. Prints the lines for the catalogue or for pyproject.toml. Overwrites no
    existing file.
    """
    from beam_jobs import stages

    _validate_name("stage", name)
    if name == "serve":
        raise ConfigError(
            "serve: the name of the function by which a stage is served. Use another."
        )
    if Path(stages.__path__[0], f"{name}.py").exists():
        raise ConfigError(_TAKEN.format(name=name, kind="stage"))
    if package:
        test = _write_to_package("stage", name, package)
        lines = _describe_entry_point(name, package, user_stages.ENTRY_POINT_GROUP)
    elif _CATALOGUE.exists():
        folder, module = _CATALOGUE.parent, f"beam_jobs.stages.{name}"
        test = _write_files("stage", name, module, folder, "tests" / folder)
        functions = f"{name}.{_make_class_name(name)}, {name}.{name}, serve={name}.serve"
        lines = (
            f"\nAdd to {_CATALOGUE}, the second line at the end of CATALOGUE:\n\n"
            f'from beam_jobs.stages import {name}\n    "{name}": Stage({functions}),\n'
        )
    else:
        raise ConfigError(
            f"{_CATALOGUE}: not found in the current folder. Run the command in the root of the "
            "repository, or add the stage to your own package with --package PACKAGE."
        )
    in_yaml = f"{package}.{name}:{name}" if package else name
    print(lines)
    print(
        "The stage multiplies all pixels by a factor, and its function `serve` does so in a "
        "published model. Change both to your needs.\n"
        f"Test:     {_shorten_path(sys.executable)} -m pytest {test}\n"
        f"Use:      - {in_yaml}: {{factor: 1.5}}     (in preprocess.stages of a config)\n"
        f"Preview:  {'PYTHONPATH=. ' if package else ''}{_shorten_path(sys.argv[0])} "
        f"preview CONFIG --stage {in_yaml}"
    )
    return 0


@new.command("source")
def new_source(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the source: lowercase letters, digits and _."),
    ],
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the configs. Default: configs."),
    ] = None,
    package: _Package = None,
) -> int:
    """Create a source of raw data, with a test.

    Writes a working source that you then change. It goes next to the configs, or with --package
    into your own package. Then it also prints the lines for pyproject.toml. Overwrites no existing
    file.
    """
    if folder and package:
        raise typer.BadParameter("not allowed with --package", param_hint="--folder")
    folder = folder or Path("configs")
    _validate_name("source", name)
    is_taken = not package and importlib.util.find_spec(name) is not None
    if is_taken or name in sources.CATALOGUE_TYPES or name == sources.BEAM_TAG:
        raise ConfigError(_TAKEN.format(name=name, kind="source"))
    if package:
        test = _write_to_package("source", name, package)
        lines = _describe_entry_point(name, package, sources.ENTRY_POINT_GROUP)
    elif folder.is_dir():
        test, lines = _write_files("source", name, name, folder, folder), ""
    else:
        raise ConfigError(
            f"{folder}: there is no such folder. Give the folder of your configs with --folder, "
            "or add the source to your own package with --package PACKAGE."
        )
    module = f"{package}.{name}" if package else name
    print(lines)
    print(
        "The class of an image is the first part of its name. Change the source to your needs.\n"
        f"Test:     {_shorten_path(sys.executable)} -m pytest {test}\n"
        f'Use:      source: {{type: "{module}:{name}", path: FOLDER}}     (in preprocess)\n'
        f"Check:    {_shorten_path(sys.argv[0])} validate --deep CONFIG"
    )
    return 0


def _validate_name(kind: str, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name}: not a valid {kind} name. Use lowercase letters, digits and _, and no Python "
            "keyword, for example sharpen_edges."
        )


def _write_to_package(kind: str, name: str, package: str) -> Path:
    """Writes the code and its test. Returns the path of the test."""
    folder = Path(package.replace(".", "/"))
    folder = folder if folder.is_dir() else "src" / folder
    if not folder.is_dir():
        raise ConfigError(
            f"--package {package}: not found in the current folder or in src/. "
            "Run the command in the folder that contains the package, or create it."
        )
    return _write_files(kind, name, f"{package}.{name}", folder, Path("tests"))


def _describe_entry_point(name: str, package: str, group: str) -> str:
    return (
        "\nAdd to pyproject.toml, to use the name alone once the package is installed:\n\n"
        f'[project.entry-points."{group}"]\n'
        f'{name} = "{package}.{name}:{name}"\n'
    )


def _write_files(kind: str, name: str, module: str, folder: Path, test_folder: Path) -> Path:
    """Writes the code and its test. Returns the path of the test."""
    code, test = folder / f"{name}.py", test_folder / f"test_{name}.py"
    for path in (code, test):
        if path.exists():
            raise ConfigError(f"{path}: already exists. Choose another name, or remove the file.")
    values = {"name": name, "class_name": _make_class_name(name), "module": module}
    _write(code, render_template(f"{kind}.py", **values))
    _write(test, render_template(f"test_{kind}.py", **values))
    return test


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    print(f"Wrote {path}")


def _make_class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _shorten_path(program: str) -> str:
    """The path of a program as a user would type it here."""
    path = Path(program)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else program
