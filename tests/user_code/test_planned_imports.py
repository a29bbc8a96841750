"""A job imports the code that its fingerprint names, whatever is edited after the plan."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path

import pytest

from pipeline_ops.contract.planned_training import UserCode
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.job_code import write_user_files
from pipeline_ops.user_code.modules import (
    find_module,
    import_module,
    load_object,
    read_module,
)
from pipeline_ops.user_code.planned_imports import PlannedCode, import_as_planned


class Author:
    """An author with a folder of the config, and with a folder on Python's path."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.beside, self.path, self.job = (folder / name for name in ("beside", "path", "job"))
        for each in (self.beside, self.path, self.job):
            each.mkdir()
        monkeypatch.syspath_prepend(str(self.path))
        monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def write(self, folder: Path, **modules: str | bytes) -> None:
        for name, text in modules.items():
            file = folder / f"{name}.py"
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def plan(self, module: str) -> UserCode:
        importlib.invalidate_caches()
        before = set(sys.modules)
        code = read_module(module, find_module(module, self.beside), self.beside, True)
        for name in set(sys.modules) - before:  # the job is another process
            del sys.modules[name]
        return code

    @contextlib.contextmanager
    def process(self, code: UserCode):
        """A process of the job that is planned."""
        folder, before = write_user_files(code.files, self.job), set(sys.modules)
        try:
            with import_as_planned(PlannedCode(folder, self.beside, code.digests)):
                yield
        finally:
            for name in set(sys.modules) - before:
                del sys.modules[name]

    def load(self, path: str, code: UserCode) -> object:
        with self.process(code):
            return load_object(path, "train.model", "Install it")


@pytest.fixture
def author(tmp_path, monkeypatch):
    return Author(tmp_path, monkeypatch)


@pytest.mark.parametrize("edit", ["value = 2\n", "import nothing_like_that\n", "def broken(:\n"])
def test_an_edit_beside_the_config_changes_nothing_in_a_planned_job(author, edit):
    author.write(author.beside, net="from helper import value\n", helper="value = 1\n")
    code = author.plan("net")
    author.write(author.beside, net=edit, helper=edit)
    assert author.load("net:value", code) == 1
    (author.beside / "net.py").unlink()
    assert author.load("net:value", code) == 1


def test_a_package_beside_the_config_is_whole_in_its_copy(author):
    author.write(
        author.beside,
        **{
            "nets/__init__": "from .deep import layers\nvalue = layers.value\n",
            "nets/deep/__init__": "",
            "nets/deep/layers": "from ..numbers_ import value\n",
            "nets/numbers_": "value = 1\n",
        },
    )
    code = author.plan("nets")
    author.write(author.beside, **{"nets/numbers_": "value = 2\n"})
    assert author.load("nets:value", code) == 1


def test_the_copy_counts_where_the_folder_of_the_config_is_on_the_path(author, monkeypatch):
    monkeypatch.syspath_prepend(str(author.beside))
    author.write(author.beside, net="value = 1\n")
    code = author.plan("net")
    assert code.files == {"net.py": b"value = 1\n"}
    author.write(author.beside, net="value = 2\n")
    assert author.load("net:value", code) == 1


def test_a_namespace_of_several_folders_has_its_parts_from_both(author):
    author.write(author.beside, **{"team/net": "from team.common import value\n"})
    author.write(author.path, **{"team/common": "value = 1\n"})
    code = author.plan("team.net")
    assert set(code.digests) == {"team/net.py", "team/common.py"}
    assert set(code.files) == {"team/net.py"}
    author.write(author.beside, **{"team/net": "value = 2\n"})
    assert author.load("team.net:value", code) == 1
    author.write(author.path, **{"team/common": "value = 2\n"})
    with pytest.raises(ConfigError, match=r"path/team/common\.py on \S+ is not the file"):
        author.load("team.net:value", code)


def test_a_module_beside_the_config_does_not_hide_one_of_python(author):
    author.write(author.beside, net="import random, yaml\nvalue = random.random, yaml.dump\n")
    author.write(author.beside, random="value = 2\n", yaml="value = 2\n")
    code = author.plan("net")
    assert set(code.digests) == {"net.py"}
    assert author.load("net:value", code)


@pytest.mark.parametrize("text", ["word = 'żółw'\n", "word = 'żółw'\r\nelse_ = 1\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-2"])
def test_any_source_that_python_reads_travels_to_the_byte(author, text, encoding):
    content = text.encode(encoding)
    if encoding == "iso-8859-2":
        content = b"# -*- coding: iso-8859-2 -*-\n" + content
    author.write(author.beside, net=content)
    code = author.plan("net")
    assert code.files == {"net.py": content}
    assert author.load("net:word", code) == "żółw"


@pytest.mark.parametrize("edit", ["value = 2\n", "def broken(:\n", None])
def test_an_edit_on_pythons_path_ends_the_job_with_the_name_of_the_file(author, edit):
    author.write(author.path, net="from helper import value\n", helper="value = 1\n")
    code = author.plan("net")
    assert not code.files and author.load("net:value", code) == 1
    if edit is None:
        (author.path / "helper.py").unlink()
    else:
        author.write(author.path, helper=edit)
    with pytest.raises(ConfigError, match=r"helper(\.py on \S+ is not the file.*Clear the task)?"):
        author.load("net:value", code)


def test_a_comment_is_no_edit(author):
    author.write(author.path, net="value = 1\n")
    code = author.plan("net")
    author.write(author.path, net='"""Now with words."""\nvalue = 1  # one\n')
    assert author.load("net:value", code) == 1


def test_compiled_code_of_an_earlier_text_is_not_run(author):
    """Python takes it if size and second of the source are the same."""
    author.write(author.path, net="value = 'tanh'\n")
    file = author.path / "net.py"
    os.utime(file, (1e9, 1e9))
    code = author.plan("net")
    assert import_module("net", "").value == "tanh"  # writes the cache
    del sys.modules["net"]
    author.write(author.path, net="value = 'relu'\n")
    os.utime(file, (1e9, 1e9))
    assert author.load("net:value", author.plan("net")) == "relu"
    with pytest.raises(ConfigError, match=r"net\.py on \S+ is not the file"):
        author.load("net:value", code)


def test_an_author_who_suppresses_errors_of_imports_is_told_too(author):
    author.write(
        author.path,
        net="try:\n    from helper import value\nexcept Exception:\n    value = 3\n",
        helper="value = 1\n",
    )
    code = author.plan("net")
    author.write(author.path, helper="value = 2\n")
    with pytest.raises(ConfigError, match=r"helper\.py on \S+ is not the file"):
        author.load("net:value", code)


def test_a_module_that_a_function_imports_later_is_compared_then(author):
    author.write(
        author.path,
        net="def build():\n    from helper import value\n    return value\n",
        helper="value = 1\n",
    )
    code = author.plan("net")
    with author.process(code):
        build = load_object("net:build", "train.model", "")
        author.write(author.path, helper="value = 2\n")
        with pytest.raises(ConfigError, match=r"helper\.py on \S+ is not the file"):
            build()


def test_the_source_of_an_imported_module_stays_as_it_was(author):
    """AutoGraph translates it when a function is traced, which is later."""
    author.write(author.path, net="def loss():\n    return 1\n")
    code = author.plan("net")
    with author.process(code):
        loss = load_object("net:loss", "train.loss", "")
        author.write(author.path, net="def loss():\n    return 22\n")
        assert inspect.getsource(loss) == "def loss():\n    return 1\n"


def test_an_import_of_another_folder_of_the_author_counts(author):
    author.write(author.beside, net="from shared.layers import value\n")
    author.write(
        author.path, **{"shared/__init__": "", "shared/layers": "from beside import value\n"}
    )
    author.write(author.beside, beside="value = 1\n")
    code = author.plan("net")
    found = {"net.py", "shared/__init__.py", "shared/layers.py", "beside.py"}
    assert set(code.digests) == found
    assert set(code.files) == {"net.py", "beside.py"}
    assert author.load("net:value", code) == 1


def test_a_dict_named_as_a_catalogue_of_ours_counts_whole(author):
    author.write(author.beside, net="CATALOGUE = {'small': 8}\n")
    before = author.plan("net").digests
    author.write(author.beside, net="CATALOGUE = {'small': 16}\n")
    assert author.plan("net").digests != before


def test_a_message_names_the_file_that_the_author_knows(author):
    author.write(author.beside, net="def build():\n    raise ValueError(__file__)\n")
    code = author.plan("net")
    place = f"^{author.beside / 'net.py'}$"
    with pytest.raises(ValueError, match=place) as error, author.process(code):
        load_object("net:build", "train.model", "")()
    lines = traceback.extract_tb(error.value.__traceback__)
    assert lines[-1].filename == str(author.job / "user_code" / "net.py")
    with pytest.raises(ConfigError, match=rf"{author.beside}/net.py:1\)"):
        author.write(author.beside, net="1 / 0\n")
        author.load("net:build", author.plan("net"))


def test_a_second_config_with_a_module_of_the_same_name_is_not_confused(author, tmp_path):
    author.write(author.beside, net="value = 1\n")
    first = author.plan("net")
    author.write(author.beside, net="value = 2\n")
    second = author.plan("net")
    with author.process(first):
        assert load_object("net:value", "train.model", "") == 1
    author.job = tmp_path / "second"
    with author.process(second):
        assert load_object("net:value", "train.model", "") == 2
