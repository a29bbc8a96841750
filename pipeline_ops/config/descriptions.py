"""The texts below the fields of a class, for the trigger form, the reference and the stages.

pydantic's `use_attribute_docstrings` reads them when a class is made, which takes a third of the
time in which Airflow parses a DAG file. Here a file is parsed when one of its texts is needed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline_ops.system.python_source import parse_python


@functools.cache
def read_descriptions(section: type) -> Mapping[str, str]:
    """Returns the text below each field of a class, and of the classes that it is derived from.

    Fields without a text are left out. So are those of a class without a source file.
    """
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        texts |= _read_module(base.__module__).get(base.__qualname__, {})
    return texts


@functools.cache
def _read_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """The texts in the file of a module, by class and field."""
    file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    if file.suffix != ".py" or not file.is_file():
        return {}
    return {
        path: dict(_iterate_texts(found)) for path, found in _iterate_classes(parse_python(file))
    }


def _iterate_classes(
    tree: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _iterate_classes(node, f"{prefix}{node.name}.")


def _iterate_texts(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in itertools.pairwise(found.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(value))),
            ):
                yield name, inspect.cleandoc(value)
