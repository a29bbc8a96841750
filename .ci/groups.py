"""Says which groups of heavy tests a run of CI adds to `make test`, and prints their names.

    python .ci/groups.py            those whose turn it is, by the number in .ci/turn
    python .ci/groups.py touched    those whose paths were changed in the last hours

The groups take turns: five runs in a row run each of them. Who submits raises the number.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TURN_FILE = ROOT / ".ci" / "turn"
MAX_MINUTES = 45
RECENT_HOURS = 12
"""The commits that count as one change."""


class Group(NamedTuple):
    """The minutes that a group takes on two cores, and the paths whose changes touch it."""

    minutes: int
    """With what it builds once, 20 minutes for `kubernetes`."""
    paths: tuple[str, ...]


GROUPS = {
    "airflow": Group(
        23,
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
        13,
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
        17,
        (
            "pipeline_ops/contract",
            "pipeline_ops/job/",
            "pipeline_ops/launch",
            "pipeline_ops/places",
            "pipeline_ops/user_code",
        ),
    ),
    "kubernetes": Group(37, ("docker/kubernetes", "pipeline_ops/places")),
    "containers": Group(
        19,
        (
            "docker",
            "pipeline_ops/places",
            "pyproject",
            "requirements",
        ),
    ),
    "engines": Group(17, ("beam_jobs", "pipeline_ops/raw_data")),
    "faults": Group(
        24,
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
    "training": Group(
        22,
        ("pipeline_ops/card", "pipeline_ops/input", "pipeline_ops/models", "pipeline_ops/training"),
    ),
    "models": Group(
        21,
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
        6, ("beam_jobs", "pipeline_ops/evaluation", "pipeline_ops/input", "pipeline_ops/training")
    ),
}


TURNS = (
    ("airflow", "models"),
    ("faults", "hosts"),
    ("kubernetes", "scale"),
    ("containers", "training"),
    ("engines", "tutorials", "stores"),
)


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


def choose_groups(turn: int) -> tuple[str, ...]:
    return TURNS[turn % len(TURNS)]


def _git(*words: str) -> list[str]:
    command = ["git", *words]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> None:
    turn = int(TURN_FILE.read_text())
    if sys.argv[1:] == ["touched"]:
        [last] = _git("log", "-1", "--format=%ct")
        since = int(last) - RECENT_HOURS * 3600
        changed = _git("log", f"--since={since}", "--format=", "--name-only", "-m")
        print(*sorted(find_touched({*changed})))
        return
    print(*choose_groups(turn))
    later = "; ".join(", ".join(choose_groups(turn + number)) for number in range(1, len(TURNS)))
    print(f"Turn {turn}. The next ones: {later}.", file=sys.stderr)


if __name__ == "__main__":
    main()
