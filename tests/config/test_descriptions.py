"""The texts below fields, read from the source file."""

import importlib
import sys

import pytest

from pipeline_ops.config.fields import read_descriptions

SOURCE = '''
class Base:
    kept: int = 1
    """Of the base."""
    replaced: int = 1
    """Of the base."""

class Outer(Base):
    replaced: int = 2
    """Of the class,
    in two lines."""
    without: int = 3
    "no field" if without else None

    class Inner:
        name: str = ""
        """Of the inner class."""
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "described.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("described")
    del sys.modules["described"]


def test_a_class_has_the_texts_of_its_bases_and_its_own(module):
    assert read_descriptions(module.Outer) == {
        "kept": "Of the base.",
        "replaced": "Of the class,\nin two lines.",
    }
    assert read_descriptions(module.Outer.Inner) == {"name": "Of the inner class."}


def test_a_class_without_a_source_file_has_none():
    assert read_descriptions(type("Made", (), {"__module__": "in_no_file"})) == {}
