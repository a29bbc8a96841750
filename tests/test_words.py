"""Words that were retired stay retired, in code, configs, pages and documents."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RETIRED = (
    # config keys
    "js_above|linf_above|without_answer|global_batch|least_visible|sharded_layers|placed_layers",
    "not_worse_than_champion_by_more_than|better_than_champion_by_more_than|near_bits",
    # modules and classes
    r"shelf|object_shelf|custodian|keeper|trainee|own_code|callback_code|named_class",
    r"config_strategy|config_watching|config_text|contracts/|pipeline_ops\.contracts|preloaded",
    "Undecoded|DataSetBefore|Ruler|Meter|Taken|Seat|Fleet",
    # functions
    r"refuse_\w+|tell_\w+|terms_of_\w+|last_words|obituary|announce",
    # English
    "whoever|nobody|somebody|anew|in vain|where and how patiently|a stranger",
)
PATTERN = re.compile(rf"(?<![\w./-])(?:{'|'.join(RETIRED)})(?![\w-])")
HISTORY = ("CHANGELOG.md", "docs/decisions/", "tests/test_words.py")
"""These tell what something was called before, or hold this list."""


def test_no_retired_word_is_used():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = []
    for name in listed:
        file = ROOT / name
        if name.startswith(HISTORY) or name.startswith("requirements") or not file.is_file():
            continue
        try:
            lines = file.read_text().splitlines()
        except UnicodeDecodeError:  # a picture
            continue
        found += [
            f"{name}:{number}: {match.group()}"
            for number, line in enumerate(lines, 1)
            for match in PATTERN.finditer(line)
        ]
    assert found == []
