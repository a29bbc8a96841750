"""The digest of a JSON value. Different values have different digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def compute_digest(value: Any) -> str:
    """32 hex digits over a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
