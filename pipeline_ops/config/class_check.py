"""Checks a class that a config names by its module: whether it exists and takes these arguments.

The check runs no line of the class. Airflow reads DAG files every few seconds, and importing a
provider would cost as much each time as all pipelines together. So the module is found as `import`
would find it, and its source is read. A class that is made at run time and the arguments of a base
class cannot be checked in this way. They pass.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pipeline_ops.config.yaml_source import nearest


def check_class(path: str, arguments: Collection[str]) -> None:
    """Raises ValueError with the reason if the class cannot be called like this.

    Args:
      path: `package.module.Class`.
      arguments: the names of the arguments that it will be called with.
    """
    module, _, name = path.rpartition(".")
    source = _find(module)
    if source is None:
        raise ValueError(
            f"there is no module {module}; install what it belongs to where Airflow runs, "
            "or put its folder into PYTHONPATH"
        )
    if source.suffix == ".py":
        _check_source(source, name, frozenset(arguments))


@functools.lru_cache(maxsize=64)  # many pipelines name the same few classes
def _check_source(source: Path, name: str, arguments: frozenset[str]) -> None:
    tree = ast.parse(source.read_bytes())
    bound = dict(_bound(tree.body))
    if name not in bound and not {"*", "__getattr__"} & bound.keys():
        classes = [found for found, node in bound.items() if isinstance(node, ast.ClassDef)]
        raise ValueError(
            f"{source} has no {name}; "
            f"{nearest(name, classes) if classes else 'it defines no class'}"
        )
    if isinstance(bound.get(name), ast.ClassDef):
        _check_call(name, bound[name], arguments)


def _check_call(name: str, found: ast.ClassDef, given: frozenset[str]) -> None:
    own = next(
        (
            node.args
            for node in found.body
            if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        ),
        None,
    )
    if own is None:
        return
    positional = [*own.posonlyargs, *own.args][1:]  # without self
    known = {argument.arg for argument in (*positional, *own.kwonlyargs)}
    if own.kwarg is None and (unknown := sorted(given - known)):
        raise ValueError(
            f"{name} has no argument {unknown[0]!r}; "
            f"{nearest(unknown[0], known) if known else 'it takes none'}"
        )
    required = {argument.arg for argument in positional[: len(positional) - len(own.defaults)]}
    required |= {
        argument.arg
        for argument, default in zip(own.kwonlyargs, own.kw_defaults, strict=True)
        if default is None
    }
    if missing := sorted(required - given):
        raise ValueError(f"{name} needs the argument {missing[0]!r}, which is not given")


def _bound(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The names that a module's statements bind, each with its statement.

    Statements below `if` and `try` are included.
    """
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                yield node.name, node
            case ast.Import() | ast.ImportFrom():
                yield from (
                    ((alias.asname or alias.name).partition(".")[0], node) for alias in node.names
                )
            case ast.Assign():
                yield from (
                    (target.id, node) for target in node.targets if isinstance(target, ast.Name)
                )
            case ast.If() | ast.Try():
                for part in (
                    node.body,
                    node.orelse,
                    *(handler.body for handler in getattr(node, "handlers", ())),
                ):
                    yield from _bound(part)


def _find(module: str) -> Path | None:
    """The file of a module, or None.

    Imports no package. `importlib.util.find_spec` would import the packages around the module.
    """
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without one, such as __main__
        spec = None
    if spec is None or (rest and not spec.submodule_search_locations):
        return None
    if not rest:
        return Path(spec.origin) if spec.has_location else None
    folders = list(
        getattr(sys.modules.get(top), "__path__", spec.submodule_search_locations)
    )  # an imported package knows its folders best
    for part in rest[:-1]:
        folders = [str(inner) for folder in folders if (inner := Path(folder, part)).is_dir()]
    return next(
        (file for folder in folders for file in _files(Path(folder), rest[-1]) if file.is_file()),
        None,
    )


def _files(folder: Path, part: str) -> Iterator[Path]:
    """The possible files of the module, in the order in which Python looks for them."""
    yield folder / part / "__init__.py"
    yield from (folder / f"{part}{suffix}" for suffix in importlib.machinery.all_suffixes())
