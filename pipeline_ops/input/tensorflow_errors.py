"""What TensorFlow's errors say, without the graph that they say it about."""

from __future__ import annotations

_PLACE = "[[{{node"
"""Comes after the reason; what comes before it are headings and Python stacks."""


def reason_of(error: Exception) -> str:
    """One line: the reason of an error in a graph, or the first line of any other message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = next((index for index, line in enumerate(lines) if line.startswith(_PLACE)), 0)
    return lines[max(0, place - 1)] if lines else type(error).__name__
