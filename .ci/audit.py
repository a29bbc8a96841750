"""Looks at the locked packages without the network: `audit.py [ADVISORIES.zip]`.

With an export of the Open Source Vulnerabilities database for PyPI (`all.zip` of the data dumps
that osv.dev describes, fetched where the network allows it), lists each locked version that an
advisory names, and ends with 1 if there is one. Without it, lists the locked versions by the day of
their pin in git, the oldest first: what has not changed for long is what to look up first. Ends
with 2 if it cannot read the export or the history.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

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


class Unreadable(Exception):
    """The export or the history of the locks cannot be read."""


class Export(NamedTuple):
    """`findings` has a line for each advisory that names a locked version."""

    findings: list[str]
    newest: str
    """The time of the newest change of an advisory."""


def read_export(pins: Iterable[Pin], export: Path) -> Export:
    """Looks the locked versions up. Withdrawn advisories do not count. Raises Unreadable."""
    versions: dict[str, list[str]] = {}
    for pin in pins:
        versions.setdefault(pin.name, []).append(pin.version)
    findings, newest, name = set(), "", ""
    try:
        with zipfile.ZipFile(export) as archive:
            for name in filter(lambda name: name.endswith(".json"), archive.namelist()):
                advisory = json.loads(archive.read(name))
                newest = max(newest, advisory.get("modified", ""))
                if "withdrawn" not in advisory:
                    findings.update(_find(advisory, versions))
    except (OSError, zipfile.BadZipFile) as error:
        raise Unreadable(f"{export} is no export of OSV: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"{export}: {name} is no advisory: {error!r}") from None
    if not newest:
        raise Unreadable(f"{export} has no advisory in it")
    return Export(sorted(findings), newest)


def _find(advisory: Mapping[str, Any], versions: Mapping[str, Sequence[str]]) -> Iterator[str]:
    words = [advisory["id"], *advisory.get("aliases", ())]
    for affected in advisory.get("affected", ()):
        package = affected.get("package", {})
        name = canonicalize_name(package.get("name", ""))
        for version in versions.get(name, ()) if package.get("ecosystem") == "PyPI" else ():
            if found := _describe_match(Version(version), affected):
                summary = advisory.get("summary", "")
                yield f"{name} {version}: {' '.join(words)}, {found}. {summary}".rstrip()


def _describe_match(version: Version, affected: Mapping[str, Any]) -> str:
    """Says that a version is affected and what mends it, or that nobody can tell. Else ""."""
    is_affected = version in map(_parse, affected.get("versions", ()))
    fixes, unread = [], []
    for each in affected.get("ranges", ()):
        if each["type"] != "ECOSYSTEM":
            continue
        events = []
        for kind, text in (pair for event in each["events"] for pair in event.items()):
            if bound := _parse(text):
                events.append((bound, kind))
            elif kind != "limit":
                unread.append(text)
        is_affected |= _is_in_range(version, events)
        fixes += [bound for bound, kind in events if kind == "fixed" and bound > version]
    if is_affected:
        return f"fixed in {min(fixes)}" if fixes else "no fixed version is known"
    return f"whose bounds {', '.join(unread)} cannot be compared: look it up" * bool(unread)


def _parse(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:  # from before PEP 440
        return None


def _is_in_range(version: Version, events: Iterable[tuple[Version, str]]) -> bool:
    """Follows OSV's schema, in which events have no order."""
    is_in = False
    for bound, kind in sorted(events):
        if kind == "introduced" and version >= bound:
            is_in = True
        elif (kind == "fixed" and version >= bound) or (
            kind == "last_affected" and version > bound
        ):
            is_in = False
    return is_in


def main(words: list[str]) -> int:
    try:
        pins = find_pins(ROOT)
        if words:
            export = read_export(pins, Path(words[0]))
    except (Unreadable, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    if words:
        print("\n".join(export.findings) or "No advisory names a locked version.")
        told = f"{len(pins)} locked versions, advisories up to {export.newest}"
        print(told, file=sys.stderr)
        return 1 if export.findings else 0
    for pin, day in sorted(pins.items(), key=lambda item: (item[1], item[0])):
        print(day, pin.name, pin.version)
    print("No advisories were looked up: make audit ADVISORIES=all.zip", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
