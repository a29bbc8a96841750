"""Python source files as syntax trees, also in processes with several threads."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

_lock = threading.Lock()
"""CPython before 3.11.9 and 3.12.3 counts the recursion of all threads together, and then raises a
SystemError (python/cpython#106905)."""


def parse_python(file: Path) -> ast.Module:
    """Parses a file. Raises SyntaxError or ValueError if it is not valid Python."""
    content = file.read_bytes()
    with _lock:
        return ast.parse(content, filename=str(file))
