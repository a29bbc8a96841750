"""Chooses the groups of heavy tests that a run of CI adds to `make test`, and prints their names.

One group runs by turns: on eleven commits in a row, each group runs at least once. Then as many
others as the time allows, first those whose part of the product was changed. Those run first, too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MAX_MINUTES = 40
RECENT_HOURS = 12
"""The change that CI looks at: the last commit, and all commits of this time before it."""


class Group(NamedTuple):
    """The minutes that a group takes on two cores, and the paths whose changes touch it."""

    minutes: int
    paths: tuple[str, ...]


GROUPS = {
    "airflow": Group(
        18,
        (
            "dags",
            "pipeline_ops/cli",
            "pipeline_ops/config",
            "pipeline_ops/contract/pruning",
            "pipeline_ops/examples",
            "pipeline_ops/job/study",
            "pipeline_ops/orchestration",
            "pipeline_ops/pages",
            "pipeline_ops/planning",
        ),
    ),
    "stores": Group(
        18,
        (
            "beam_jobs/sources",
            "pipeline_ops/contract",
            "pipeline_ops/cli/commands/schema",
            "pipeline_ops/cli/first_config",
            "pipeline_ops/config/schema",
            "pipeline_ops/job/study",
            "pipeline_ops/raw_data",
            "pipeline_ops/registry",
            "pipeline_ops/retention",
            "pipeline_ops/storage",
            "pipeline_ops/system/lease",
        ),
    ),
    "hosts": Group(
        18,
        (
            "pipeline_ops/contract",
            "pipeline_ops/job/",
            "pipeline_ops/launch",
            "pipeline_ops/places",
            "pipeline_ops/user_code",
        ),
    ),
    "kubernetes": Group(20, ("docker/kubernetes", "pipeline_ops/places")),
    "containers": Group(
        20,
        (
            "docker",
            "pipeline_ops/places",
            "pyproject",
            "requirements",
        ),
    ),
    "engines": Group(20, ("beam_jobs", "pipeline_ops/raw_data")),
    "faults": Group(
        18,
        (
            "beam_jobs",
            "pipeline_ops/errors.py",
            "pipeline_ops/contract",
            "pipeline_ops/job/",
            "pipeline_ops/launch",
            "pipeline_ops/orchestration/orphan_reaper",
            "pipeline_ops/places",
            "pipeline_ops/system",
        ),
    ),
    "training": Group(20, ("pipeline_ops/input", "pipeline_ops/models", "pipeline_ops/training")),
    "models": Group(
        20,
        (
            "pipeline_ops/evaluation",
            "pipeline_ops/export",
            "pipeline_ops/models",
            "pipeline_ops/od_api",
            "pipeline_ops/precision_recall",
            "pipeline_ops/served",
            "pipeline_ops/training",
        ),
    ),
    "tutorials": Group(
        15,
        (
            "pipeline_ops/input/framework_internals",
            "pipeline_ops/models",
            "pipeline_ops/training",
        ),
    ),
    "scale": Group(
        18, ("beam_jobs", "pipeline_ops/evaluation", "pipeline_ops/input", "pipeline_ops/training")
    ),
}


def find_touched(changed: Iterable[str], root: Path = ROOT) -> set[str]:
    """The groups of the changed paths. A test touches the groups of the marks in its file."""
    found = set()
    for path in changed:
        found |= {name for name, group in GROUPS.items() if path.startswith(group.paths)}
        if path.startswith("tests/") and (root / path).is_file():
            marks = re.findall(
                rf"mark\.({'|'.join(GROUPS)})\b", (root / path).read_text("utf-8", "replace")
            )
            found |= set(marks)
    return found


def choose_groups(touched: set[str], number: int) -> list[str]:
    """The groups of one run, in their order.

    Args:
      touched: the groups whose part of the product was changed.
      number: the number of the commit, which decides whose turn it is.
    """
    names = list(GROUPS)
    start = number % len(names)
    in_turn = names[start:] + names[:start]
    chosen = in_turn[:1]
    for name in sorted(in_turn[1:], key=lambda name: name not in touched):
        if sum(GROUPS[each].minutes for each in [*chosen, name]) <= MAX_MINUTES:
            chosen.append(name)
    return sorted(chosen, key=lambda name: name not in touched)


def _git(*words: str) -> list[str]:
    command = ["git", *words]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> None:
    [last] = _git("log", "-1", "--format=%ct")
    since = int(last) - RECENT_HOURS * 3600
    changed = _git("log", f"--since={since}", "--format=", "--name-only", "-m")
    [number] = _git("rev-list", "--count", "HEAD")
    print(*choose_groups(find_touched({*changed}), int(number)))


if __name__ == "__main__":
    main()
