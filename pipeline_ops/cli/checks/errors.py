"""Errors that a check meets, as findings with a cure."""

from __future__ import annotations

from pipeline_ops.errors import TrainyardError
from pipeline_ops.system.host_check import Finding


def make_finding(check: str, error: Exception, cure: str) -> Finding:
    """Makes the finding for an error. `cure` is for an error that has none of its own."""
    if isinstance(error, TrainyardError) and error.cure:
        return Finding(check=check, problem=error.problem, cure=error.cure)
    return Finding(check=check, problem=str(error), cure=cure)
