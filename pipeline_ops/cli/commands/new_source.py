"""`trainyard new-source NAME`: writes a working source and its test.

You then change them. The source goes next to the configs, and its test with it. With `--package` it
goes into your own package, and is published as an entry point in the `pyproject.toml` next to it.
No existing file is overwritten.
"""

from __future__ import annotations

import argparse
import importlib.util
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
from pipeline_ops.config.sources import CATALOGUE_TYPES, ENTRY_POINT_GROUP
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import write_atomically

_SOURCE_TEMPLATE = '''\
"""Images whose class is the first part of their name, such as cat_17.png.

Describe your source here.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from beam_jobs.sources.source import Reject, SourceEntry, SourceFiles, parameters

_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png")


@parameters
class {class_name}:
    """The keys of the YAML next to `type` and `path`. One without a default is required."""

    separator: str = Field("_", min_length=1)
    """The text between the class and the rest of the name."""


def {name}(files: SourceFiles, parameters: {class_name}) -> Iterator[SourceEntry]:
    """Yields an entry for each image. docs/add-a-source.md describes what a source may do."""
    for path in files:  # paths below the folder `path`, such as "day 1/cat_17.png"
        if not path.lower().endswith(_SUFFIXES):
            continue  # a file that is not part of the data set
        with files.entry(path):  # a Reject in this block goes to the quarantine
            label, separator, _ = path.rpartition("/")[2].partition(parameters.separator)
            if not separator:
                raise Reject("no_label", f"there is no {{parameters.separator!r}} in the name")
            # For detection: boxes=[Box(ymin, xmin, ymax, xmax, label), ...] instead of the label.
            yield SourceEntry(path, label)
'''

_TEST_TEMPLATE = '''\
"""The source {name}."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.sources.testing import check_source
from pipeline_ops.errors import ConfigError

SOURCE, CONFIGS = "{path}", Path(__file__).parent
"""The `type` in the YAML, and the folder of the configs, next to which the module may be."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder of raw data. A source reads no pixels, so the files need not be images."""
    for name in ("cat_1.png", "dog_1.png", "day 2/cat_2.png", "unnamed.png", "readme.txt"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    return tmp_path


def test_the_class_is_the_first_part_of_the_name(raw):
    records, rejects = check_source({{"type": SOURCE, "path": str(raw)}}, CONFIGS)
    labels = {{path: record.label for path, record in records.items()}}
    assert labels == {{"cat_1.png": "cat", "dog_1.png": "dog", "day 2/cat_2.png": "cat"}}
    assert rejects == {{"unnamed.png": "no_label"}}


def test_an_empty_separator_is_refused(raw):
    with pytest.raises(ConfigError, match="separator"):
        check_source({{"type": SOURCE, "path": str(raw), "separator": ""}}, CONFIGS)
'''


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "new-source",
        new_source,
        "Create a source of raw data, with a test.",
        "Writes a working source that you then change. It goes next to the configs. With\n"
        "--package, it goes into your own package, and an entry point is added to\n"
        "pyproject.toml. Overwrites no existing file.",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="Name of the source: lowercase letters, digits and _.",
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--folder",
        metavar="FOLDER",
        type=Path,
        default=Path("configs"),
        help="Folder of the configs. The default is configs.",
    )
    place.add_argument(
        "--package",
        metavar="PACKAGE",
        help="Your own Python package, in the current folder or in src/.",
    )


def new_source(arguments: argparse.Namespace) -> int:
    name, package = arguments.name, arguments.package
    validate_new_name("source", name)
    if name in CATALOGUE_TYPES:
        raise ConfigError(f"{name}: a source of this name already exists. Choose another name.")
    module = f"{package}.{name}" if package else name
    files = (
        _build_package_files(package, name)
        if package
        else _build_config_files(arguments.folder, name)
    )
    for path, text in files.items():
        write_atomically(path, text.encode())
        print(f"Wrote {path}")
    test = next(path for path in files if path.name.startswith("test_"))
    print(
        "\nThe class of an image is the first part of its name. Change the source to your needs.\n"
        f"Test:     {shorten_path(sys.executable)} -m pytest {test}\n"
        f'Use:      source: {{type: "{module}:{name}", path: FOLDER}}     (in preprocess)\n'
        f"Check:    {shorten_path(sys.argv[0])} validate --deep CONFIG"
    )
    return 0


def _build_config_files(folder: Path, name: str) -> dict[Path, str]:
    """The texts to write, by path, for a source next to the configs."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: there is no such folder. Give the folder of your configs with --folder, "
            "or add the source to your own package with --package PACKAGE."
        )
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name}: there is a Python module of this name. Choose another name.")
    return _render_files(folder / f"{name}.py", folder / f"test_{name}.py", name, name)


def _build_package_files(package: str, name: str) -> dict[Path, str]:
    """The texts to write, by path, for a source in a package."""
    source, test = find_package(package) / f"{name}.py", Path("tests") / f"test_{name}.py"
    files = _render_files(source, test, f"{package}.{name}", name)
    project = Path("pyproject.toml")
    if project.exists():
        path = f"{package}.{name}:{name}"
        files[project] = add_entry_point(project.read_text(), ENTRY_POINT_GROUP, name, path)
    return files


def _render_files(source: Path, test: Path, module: str, name: str) -> dict[Path, str]:
    validate_unused(source, test)
    fields = {"name": name, "class_name": make_class_name(name), "path": f"{module}:{name}"}
    return {source: _SOURCE_TEMPLATE.format(**fields), test: _TEST_TEMPLATE.format(**fields)}
