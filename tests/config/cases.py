"""Tables of wrong input as text: lines of input, and the message indented below them."""

from __future__ import annotations

import re


def parse_cases(text: str) -> list[tuple[str, str]]:
    """Returns pairs of input and message. The lines of a message are joined to one."""
    found = re.findall(r"((?:^\S.*\n)+)((?:^ .+\n)+)", text, re.MULTILINE)
    return [(given.strip(), " ".join(message.split())) for given, message in found]
