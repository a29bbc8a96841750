"""Looks at the locked packages without the network: `audit.py [ADVISORIES.zip]`.

With an export of the Open Source Vulnerabilities database for PyPI (its `all.zip`, fetched where
the network allows it), lists each locked version that an advisory names, and ends with 1 if there
is one. Without it, lists the locked versions by the day of their pin, the oldest first: what has
not changed for long is what to look up first.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
_LOCKS = ("requirements*.txt", "docker/locks/*.txt", "tests/docker/*.txt")
_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)")


class Pin(NamedTuple):
    name: str
    version: str


def find_pins(root: Path) -> dict[Pin, str]:
    """Returns the locked versions with the day of the commit that pinned them."""
    days: dict[Pin, str] = {}
    for pattern in _LOCKS:
        for file in sorted(root.glob(pattern)):
            for day, line in _read_with_days(file):
                if match := _PIN.match(line):
                    pin = Pin(canonicalize_name(match[1]), match[2])
                    days[pin] = min(day, days.get(pin, day))
    return days


def _read_with_days(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the lines of a file with their days. A line that is not committed is of today."""
    blame = ["git", "blame", "--line-porcelain", file.name]
    day = ""
    for line in subprocess.check_output(blame, cwd=file.parent, text=True).splitlines():
        if line.startswith("committer-time "):
            day = str(dt.datetime.fromtimestamp(int(line.split()[1]), dt.UTC).date())
        elif line.startswith("\t"):
            yield day, line[1:]


def find_advisories(pins: Iterable[Pin], export: Path) -> Iterator[str]:
    """Yields a line for each advisory that names a locked version."""
    versions: dict[str, list[str]] = {}
    for pin in pins:
        versions.setdefault(pin.name, []).append(pin.version)
    with zipfile.ZipFile(export) as archive:
        for file in archive.namelist():
            advisory = json.loads(archive.read(file))
            if "withdrawn" in advisory:
                continue
            for affected in advisory.get("affected", []):
                package = affected.get("package", {})
                name = canonicalize_name(package.get("name", ""))
                if package.get("ecosystem") == "PyPI":
                    for version in versions.get(name, []):
                        if _is_affected(version, affected):
                            summary = advisory.get("summary", "")
                            yield f"{name} {version}: {advisory['id']} {summary}"


def _is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Follows OSV's schema: listed versions, and ranges of versions."""
    if version in affected.get("versions", []):
        return True
    return any(
        _is_in_range(Version(version), each["events"])
        for each in affected.get("ranges", [])
        if each["type"] == "ECOSYSTEM"
    )


def _is_in_range(version: Version, events: Iterable[Mapping[str, str]]) -> bool:
    is_in = False
    for event in events:
        [(kind, text)] = event.items()
        bound = Version(text)
        if kind == "introduced" and version >= bound:
            is_in = True
        elif (kind == "fixed" and version >= bound) or (
            kind == "last_affected" and version > bound
        ):
            is_in = False
    return is_in


def main(words: list[str]) -> int:
    pins = find_pins(ROOT)
    if words:
        found = sorted(set(find_advisories(pins, Path(words[0]))))
        print("\n".join(found) or f"No advisory names one of {len(pins)} locked versions.")
        return 1 if found else 0
    for pin, day in sorted(pins.items(), key=lambda item: (item[1], item[0])):
        print(day, pin.name, pin.version)
    print("No advisories were looked up: make audit ADVISORIES=all.zip", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
