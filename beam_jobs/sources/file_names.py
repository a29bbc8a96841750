"""Pairs of files that belong together by their names, such as an image and its annotation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


def match_without_case(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Pairs each name with the other one that differs in case only, where both are the only ones.

    Windows and macOS take such names as equal, and copies to Linux keep both.
    """
    found: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for index, group in enumerate((names, others)):
        for name in group:
            found[name.casefold()][index].append(name)
    return {one[0]: two[0] for one, two in found.values() if len(one) == len(two) == 1}
