"""The digests of source files: what changes them, and which files an import leads to."""

from __future__ import annotations

import inspect
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_ops.contract.source_code import (
    CODE_ROOT,
    _dump,
    _is_docstring,
    digest_sources,
    digest_tree,
)
from pipeline_ops.errors import TrainyardError


@pytest.fixture
def write(tmp_path):
    """Writes a file below tmp_path. Each one is newer than the one before."""
    times = itertools.count(1)

    def write_file(name: str, text: str = "") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (0, next(times)))
        return file

    return write_file


@pytest.fixture
def digest_text(write, tmp_path):
    """The digest of a module with a text."""

    def digest(text: str) -> str:
        write("code.py", text)
        return digest_sources(["code"], tmp_path, None)["code.py"]

    return digest


def test_comments_docstrings_and_line_breaks_are_no_change_of_code(digest_text):
    assert (
        digest_text("x = [1, 2]\n")
        == digest_text('"""A module."""\n# why\nx = [\n    1,  # one\n    2,\n]\n"""An x."""\n')
        != digest_text("x = [1, 3]\n")
    )


def test_a_string_that_is_a_value_is_code(digest_text):
    assert digest_text("def f():\n    return 'a'\n") != digest_text("def f():\n    return 'b'\n")


@pytest.mark.parametrize(
    "line",
    [
        "import a.b",
        "import a.b as other",
        "from a import b",
        "from a.b import name",
        "from a.b import *",
        "def f():\n    from a import b",
        "try:\n    import a.b\nexcept ImportError:\n    pass",
        "if not TYPE_CHECKING:\n    import no_such\nelse:\n    import a.b",
    ],
)
def test_each_form_of_import_leads_to_the_module_and_its_packages(write, tmp_path, line):
    write("start.py", line + "\n")
    write("a/__init__.py")
    write("a/b.py", "import c\n")
    write("c.py")
    write("a/d.py")
    found = digest_sources(["start"], tmp_path, None)
    assert list(found) == ["a/__init__.py", "a/b.py", "c.py", "start.py"]


@pytest.mark.parametrize("line", ["from . import b", "from .b import x", "from ..a.b import x"])
def test_relative_imports_are_followed(write, tmp_path, line):
    write("p/a/__init__.py", line + "\n")
    write("p/a/b.py")
    write("p/__init__.py")
    found = digest_sources(["p.a"], tmp_path, None)
    assert list(found) == ["p/__init__.py", "p/a/__init__.py", "p/a/b.py"]


def test_an_import_for_the_type_checker_is_none(write, tmp_path):
    write(
        "start.py",
        "if TYPE_CHECKING:\n    import other\nif typing.TYPE_CHECKING:\n    import other\n",
    )
    write("other.py")
    assert list(digest_sources(["start"], tmp_path, None)) == ["start.py"]


def test_circles_of_imports_end(write, tmp_path):
    write("a.py", "import b\n")
    write("b.py", "import a\n")
    assert list(digest_sources(["a"], tmp_path, None)) == ["a.py", "b.py"]


def test_only_the_given_packages_are_followed(write, tmp_path):
    write("ours/__init__.py", "import installed\n")
    write("installed/__init__.py")
    assert list(digest_sources(["ours"], tmp_path, {"ours"})) == ["ours/__init__.py"]


def test_templates_next_to_a_module_count_by_their_bytes(write, tmp_path):
    write("page/__init__.py")
    write("other/page.html")
    write("page/notes.txt")
    write("page/page.html", "<p>{{ x }}</p>")
    before = digest_sources(["page"], tmp_path, None)
    assert list(before) == ["page/__init__.py", "page/page.html"]
    write("page/page.html", "<p> {{ x }}</p>")
    assert digest_sources(["page"], tmp_path, None) != before


CATALOGUE = """
from entries import one, two
CATALOGUE: dict[str, object] = {
    "one": one.run,
    "two": two.run,
}
"""


def test_of_a_catalogue_only_the_entries_in_use_count(write, tmp_path):
    write("entries/__init__.py", CATALOGUE)
    write("entries/one.py")
    write("entries/two.py")

    def digest() -> dict[str, str]:
        return digest_sources(["entries"], tmp_path, None, used=["two"])

    before = digest()
    assert list(before) == ["entries/__init__.py", "entries/two.py"]
    write("entries/three.py")
    three = CATALOGUE.replace("one, two", "one, three, two").replace(
        "}", '    "three": three.run,\n}'
    )
    write("entries/__init__.py", three)
    assert digest() == before
    write("entries/__init__.py", three.replace("two.run", "two.run_twice"))
    assert digest() != before


def test_a_module_that_is_missing_is_an_error_that_names_it():
    with pytest.raises(TrainyardError, match="no source file of the module pipeline_ops.gone"):
        digest_sources(["pipeline_ops.errors", "pipeline_ops.gone"])


def test_code_is_named_from_the_root_so_that_its_place_is_no_difference():
    found = digest_sources(["pipeline_ops.errors"])
    assert "pipeline_ops/errors.py" in found and (CODE_ROOT / "pipeline_ops/errors.py").is_file()


OTHER_PYTHONS = [
    python
    for version in ("3.11", "3.12", "3.13")
    if (python := shutil.which(f"python{version}"))
    and subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0
]


@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_each_release_of_python_computes_the_same_digest(python):
    """A job may run in another one than Airflow. Newer ones have other fields and parts."""
    functions = [inspect.getsource(each) for each in (_dump, digest_tree, _is_docstring)]
    code = (
        "from __future__ import annotations\nimport ast, sys\n"
        "digest_bytes = lambda content: content\n"
        + "\n".join(functions)
        + "\nfor file in sys.argv[1:]: print(digest_tree(ast.parse(open(file, 'rb').read())))\n"
    )
    files = [*map(str, sorted((CODE_ROOT / "pipeline_ops").rglob("*.py")))]
    found = [
        subprocess.run([each, "-c", code, *files], capture_output=True, check=True).stdout
        for each in (sys.executable, python)
    ]
    assert found[0] == found[1] and len(found[0]) > 1_000_000
