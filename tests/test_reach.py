"""How many functions of the project the three paths of docs/architecture.md can reach.

Only calls that the text of a module decides count: of its own functions, of imported ones, of
imported modules, and of methods of the same object. What pydantic, Airflow or a place calls does
not.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from test_names import ROOT, module_name

LIMITS = {
    "pipeline_ops.orchestration.dags:make_dags": 110,
    "pipeline_ops.orchestration.tasks:JobOperator.execute": 155,
    "pipeline_ops.config.run_conf:apply_conf": 20,
}
"""Lower them with the code. Raise one for a reason only: `execute` also tells how a run ended."""


class Function(NamedTuple):
    module: str
    owner: str
    """Its class, or ""."""
    name: str


class Graph:
    """The functions of some modules, by their syntax trees, and what each of them calls."""

    def __init__(self, trees: dict[str, ast.Module]):
        self._trees = trees
        self.functions: dict[Function, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self._classes: dict[tuple[str, str], ast.ClassDef] = {}
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}
        for module, tree in trees.items():
            self._collect(module, tree.body, "")
            self._imports[module] = {
                alias.asname or alias.name: (node.module, alias.name)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
            }

    def _collect(self, module: str, body: list[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions[Function(module, owner, node.name)] = node
            elif isinstance(node, ast.ClassDef):
                self._classes[module, node.name] = node
                self._collect(module, node.body, node.name)

    def reach(self, start: Function) -> set[Function]:
        found: set[Function] = set()
        waiting = [start]
        while waiting:
            if (function := waiting.pop()) not in found:
                found.add(function)
                waiting += self._list_called(function)
        return found

    def _list_called(self, function: Function) -> Iterator[Function]:
        module, imports = function.module, self._imports[function.module]
        for node in ast.walk(self.functions[function]):
            called = None
            match node:
                case ast.Name(id=name):
                    called = Function(*self._resolve(module, name))
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                    called = self._find_method(module, function.owner, name)
                case ast.Attribute(value=ast.Name(id=base), attr=name) if base in imports:
                    package, imported = imports[base]
                    called = self._find_method(package, imported, name)
                    called = called or Function(f"{package}.{imported}", "", name)
            if called in self.functions:
                yield called

    def _resolve(self, module: str, name: str) -> tuple[str, str, str]:
        if (module, "", name) in self.functions:
            return module, "", name
        package, imported = self._imports[module].get(name, ("", name))
        return package, "", imported

    def _find_method(self, module: str, owner: str, name: str) -> Function | None:
        if (found := Function(module, owner, name)) in self.functions and owner:
            return found
        known = self._classes.get((module, owner))
        for base in known.bases if known else ():
            if isinstance(base, ast.Name):
                is_here = (module, base.id) in self._classes
                place = (module, base.id) if is_here else self._imports[module].get(base.id)
                if place in self._classes and (method := self._find_method(*place, name)):
                    return method
        return None


@functools.cache
def make_graph() -> Graph:
    files = [
        file
        for top in ("pipeline_ops", "beam_jobs", "dags")
        for file in sorted((ROOT / top).rglob("*.py"))
    ]
    return Graph({module_name(file, ROOT): ast.parse(file.read_bytes()) for file in files})


@pytest.mark.parametrize(("path", "limit"), LIMITS.items())
def test_a_path_reaches_no_more_functions_than_it_is_allowed(path, limit):
    module, _, name = path.partition(":")
    owner, _, name = name.rpartition(".")
    found = make_graph().reach(Function(module, owner, name))
    assert len(found) <= limit, sorted(found)
    assert len(found) > limit - 15, f"lower the limit: {len(found)}"


def test_functions_of_imports_modules_and_bases_are_found():
    """So that the test above can fail."""
    texts = {
        "a": "from b import Base, f\nimport b\nclass A(Base):\n def m(self):\n  self.n(); f()\n",
        "b": "from c import d\nfrom p import q\nclass Base:\n def n(self): d()\ndef f(): q.g()\n",
        "c": "def d(): pass\ndef unused(): pass\n",
        "p.q": "def g(): pass\n",
    }
    graph = Graph({module: ast.parse(text) for module, text in texts.items()})
    names = {function.name for function in graph.reach(Function("a", "A", "m"))}
    assert names == {"m", "n", "f", "d", "g"}
