"""User modules are found next to the config, and the files that they import count."""

from __future__ import annotations

import pytest

from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.modules import digest_module, find_module


@pytest.fixture
def workspace(tmp_path):
    for name, text in {
        "train_helpers.py": "import team.losses\n",
        "notes.py": "",
        "team/__init__.py": "",
        "team/losses.py": "from . import shared\n",
        "team/shared.py": "import numpy\n",
        "team/unused.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_a_module_imports_from_its_workspace_counts(workspace):
    origin = find_module("train_helpers", workspace)
    assert list(digest_module("train_helpers", origin)) == [
        "team/__init__.py",
        "team/losses.py",
        "team/shared.py",
        "train_helpers.py",
    ]


def test_the_whole_package_counts_on_request(workspace):
    origin = find_module("team.shared", workspace)
    assert "team/unused.py" not in digest_module("team.shared", origin)
    assert "team/unused.py" in digest_module("team.shared", origin, whole_package=True)


def test_an_installed_package_is_followed_only_within_itself():
    found = digest_module("yaml", find_module("yaml"))
    assert {path.partition("/")[0] for path in found} == {"yaml"}


def test_a_module_of_the_standard_library_is_alone():
    assert list(digest_module("statistics", find_module("statistics"))) == ["statistics.py"]


def test_files_of_a_package_that_no_import_can_name_do_not_count(workspace):
    for name in (".ipynb_checkpoints/losses-checkpoint.py", "losses.old.py", "has-dash.py"):
        (workspace / "team" / name).parent.mkdir(exist_ok=True)
        (workspace / "team" / name).write_text("not Python")
    found = digest_module("team.losses", workspace / "team" / "losses.py", whole_package=True)
    assert {path.partition("/")[2] for path in found} == {
        "__init__.py",
        "losses.py",
        "shared.py",
        "unused.py",
    }


@pytest.mark.parametrize("content", [b"def broken(:\n", b"x = 1\0\n", b"\xff\xfe"])
def test_an_imported_file_that_is_not_python_is_an_error_of_the_config(workspace, content):
    (workspace / "team" / "shared.py").write_bytes(content)
    with pytest.raises(ConfigError, match="train_helpers, or a module that it imports"):
        digest_module("train_helpers", workspace / "train_helpers.py")
