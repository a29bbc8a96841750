"""`notify` of a pipeline config: the events that Airflow's notifiers report.

    notify:
      - notifier: airflow.providers.smtp.notifications.smtp.SmtpNotifier
        arguments:
          to: team@example.org
          subject: "{{ notification.title }}"
          html_content: "{{ notification.html }}"
        events: [failed, gate_not_passed, drift]

The check of a notifier runs no line of its class. Airflow reads DAG files every few seconds, and
importing a provider would cost as much each time as all pipelines together. So the module is found
as `import` would find it, and its source is read. A class that is made at run time and the
arguments of a base class cannot be checked in this way. They pass.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline_ops.config.fields import Section
from pipeline_ops.config.reading import locate_in_file, suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.system.host import parse_python


def check_class(path: str, arguments: Collection[str]) -> None:
    """Raises ValueError with the reason if the class cannot be called like this.

    Args:
      path: `package.module.Class`.
      arguments: the names of the arguments that it will be called with.
    """
    module, _, name = path.rpartition(".")
    source = _find_module_file(module)
    if source is None:
        raise ValueError(
            f"there is no module {module}. Install its package where Airflow runs, "
            "or put its folder into PYTHONPATH."
        )
    if source.suffix == ".py":
        _check_source(source, name, frozenset(arguments))


@functools.lru_cache(maxsize=64)  # many pipelines name the same few classes
def _check_source(source: Path, name: str, arguments: frozenset[str]) -> None:
    bound = collect_bindings(parse_python(source))
    if bound is None:
        return
    if name not in bound:
        classes = [each for each, node in bound.items() if isinstance(node, ast.ClassDef)]
        raise ValueError(
            f"{source} has no {name}; "
            f"{suggest_name(name, classes) if classes else 'it defines no class'}"
        )
    if isinstance(found := bound[name], ast.ClassDef):
        _check_call(name, found, arguments)


def _check_call(name: str, found: ast.ClassDef, given: frozenset[str]) -> None:
    constructor = next(
        (
            node.args
            for node in found.body
            if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        ),
        None,
    )
    if constructor is None:
        return
    positional = [*constructor.posonlyargs, *constructor.args][1:]  # without self
    known = {argument.arg for argument in (*positional, *constructor.kwonlyargs)}
    if constructor.kwarg is None and (unknown := sorted(given - known)):
        raise ValueError(
            f"{name} has no argument {unknown[0]!r}; "
            f"{suggest_name(unknown[0], known) if known else 'it takes none'}"
        )
    required = {
        argument.arg for argument in positional[: len(positional) - len(constructor.defaults)]
    }
    required |= {
        argument.arg
        for argument, default in zip(constructor.kwonlyargs, constructor.kw_defaults, strict=True)
        if default is None
    }
    if missing := sorted(required - given):
        raise ValueError(f"{name} needs the argument {missing[0]!r}. Add it to arguments.")


def collect_bindings(tree: ast.Module) -> dict[str, ast.AST] | None:
    """The names that a module binds, each with its outermost statement.

    Names of inner scopes are included, because an additional name is better than a wrong refusal.
    None if the names are not known without running the module.
    """
    found: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                found.setdefault(name, node)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    found.setdefault((alias.asname or alias.name).partition(".")[0], node)
    return None if {"*", "__getattr__"} & found.keys() else found


def _find_module_file(module: str) -> Path | None:
    """The file of a module, or None.

    Imports no package. `importlib.util.find_spec` would import the packages around the module.
    """
    name, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without one, such as __main__
        return None
    for part in rest:
        # An imported package knows its folders best.
        known = spec.submodule_search_locations if spec else None
        folders = list(getattr(sys.modules.get(name), "__path__", known or []))
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(part, folders)
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


Event = Literal["failed", "gate_not_passed", "drift", "late"]


class NotifierConfig(Section):
    """One notifier of Airflow, and the events that it gets, each once per run."""

    notifier: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    """The class, by its module: one of a provider of Airflow, or your own that derives from
    `airflow.sdk.BaseNotifier`."""
    arguments: dict[str, Any] = {}
    """Arguments of the class. In its templates, `{{ notification.title }}`,
    `{{ notification.text }}` and `{{ notification.html }}` stand for the message, and
    `{{ notification.link }}` for the report in Airflow's UI. Its `notify` finds the whole
    notification in the context."""
    events: list[Event] = Field(min_length=1)
    """`failed`: the run has failed for good. `gate_not_passed`: the run publishes no model. `late`:
    the run has not ended by the pipeline's `deadline_seconds`. `drift`: the data is further from
    the champion's than `preprocess.drift` allows. With `action: fail` the run fails by it, which is
    `failed`."""


def check_notifiers(notifiers: Sequence[NotifierConfig], file: Path) -> None:
    """Checks the classes of all notifiers, when a DAG is made or checked.

    Raises:
      ConfigError: a class does not exist, or does not take its arguments.
    """
    problems = []
    for index, notify in enumerate(notifiers):
        try:
            check_class(notify.notifier, notify.arguments)
        except ValueError as problem:
            problems.append(
                f"{locate_in_file(file, ('notify', index, 'notifier'))}: "
                f"notify.{index}.notifier: {problem}"
            )
    if problems:
        raise ConfigError("\n".join(problems))
