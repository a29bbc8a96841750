"""The elements of the Beam graph. Each travels as a row with typed fields, so none can run code.

There is no `from __future__ import annotations` here: Beam reads the types of the fields, and would
serialise a field whose type is a text as Python code.
"""

from typing import NamedTuple


class ShardTask(NamedTuple):
    """A plan to work on: its name, and its bytes in the file of all plans."""

    name: str
    start: int
    num_bytes: int


class ShardReport(NamedTuple):
    """A finished shard. `num_rejected` counts records. `measurements` is JSON, if there are any."""

    name: str
    num_examples: int
    num_rejected: int
    split: str
    measurements: str
