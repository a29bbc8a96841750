"""Names of the whole tree, read from every file."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def module_name(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """The syntax tree of each module of the product, by dotted name."""
    files = [
        file
        for top in ("pipeline_ops", "beam_jobs", "dags")
        for file in sorted((root / top).rglob("*.py"))
    ]
    return {module_name(file, root): ast.parse(file.read_bytes()) for file in files}


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The modules that each module imports at any place, also for type checkers only."""
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[name] = (found & trees.keys()) - {name}
    return graph


def class_names_twice(trees: dict[str, ast.Module]) -> set[str]:
    """Public classes that have the name of another one."""
    places = collections.defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    return {
        f"{name}: {', '.join(sorted(found))}" for name, found in places.items() if len(found) > 1
    }


def module_names_twice(trees: dict[str, ast.Module]) -> set[str]:
    """Modules of one package and the packages below it that have the same name."""
    places = collections.defaultdict(list)
    for module in trees:
        parts = module.split(".")
        layer = ".".join(parts[:2] if parts[0] == "pipeline_ops" else parts[:1])
        if len(parts) > len(layer.split(".")):
            places[layer, parts[-1]].append(module)
    return {", ".join(sorted(found)) for found in places.values() if len(found) > 1}


RULES: list[Callable[[dict[str, ast.Module]], set[str]]] = [
    class_names_twice,
    module_names_twice,
]


@pytest.mark.parametrize("rule", RULES)
def test_no_file_breaks_a_rule(rule):
    assert rule(modules()) == set()


def test_no_module_imports_itself_through_others():
    assert list(graphlib.TopologicalSorter(import_graph(modules())).static_order())


@pytest.fixture
def wrong(tmp_path) -> dict[str, ast.Module]:
    """Two modules with every violation."""
    for number, other in ((1, 2), (2, 1)):
        folder = tmp_path / "pipeline_ops" / "launch" / f"part_{number}"
        folder.mkdir(parents=True)
        (folder / "same.py").write_text(
            f"class Same:\n    def method(self):\n"
            f"        from pipeline_ops.launch.part_{other} import same\n"
        )
    return modules(tmp_path)


def test_each_violation_can_be_seen(wrong):
    first, second = "pipeline_ops.launch.part_1.same", "pipeline_ops.launch.part_2.same"
    assert class_names_twice(wrong) == {f"Same: {first}, {second}"}
    assert module_names_twice(wrong) == {f"{first}, {second}"}
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(import_graph(wrong)).static_order())
