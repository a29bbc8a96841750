"""The findings of `make audit` about the locked packages, without the network."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_specification = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
audit = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(audit)

PYPI = {"ecosystem": "PyPI", "name": "Some.Package"}


def read(tmp_path: Path, version: str, content: object) -> object:
    export = tmp_path / "all.zip"
    with zipfile.ZipFile(export, "w") as archive:
        archive.writestr("readme.txt", "")
        archive.writestr("PYSEC-1.json", json.dumps(content))
    return audit.read_export([audit.Pin("some-package", version)], export)


def find(tmp_path: Path, version: str, affected: dict, **advisory) -> list[str]:
    content = {"id": "PYSEC-1", "summary": "bad", "affected": [affected], **advisory}
    return read(tmp_path, version, {"modified": "2026-01-02", **content}).findings


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([{"introduced": "0"}, {"fixed": "1.10.0"}], "fixed in 1.10.0"),
        ([{"introduced": "0"}, {"fixed": "1.9"}], None),
        ([{"introduced": "0"}, {"last_affected": "1.9.0"}], "no fixed version is known"),
        ([{"introduced": "0"}, {"last_affected": "1.8"}], None),
        ([{"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.9"}], "no fixed version"),
        ([{"introduced": "2.0"}], None),
        ([{"fixed": "1.8"}, {"introduced": "0"}], None),
        ([{"introduced": "0"}, {"limit": "*"}, {"fixed": "2"}], "fixed in 2"),
        ([{"introduced": "0"}, {"fixed": "unknown"}], "no fixed version is known"),
        ([{"introduced": "unknown"}, {"fixed": "2"}], "bounds unknown cannot be compared"),
    ],
)
def test_an_advisory_of_a_range_of_versions_is_found(tmp_path, events, told):
    ranges = [{"type": "ECOSYSTEM", "events": events}]
    found = find(tmp_path, "1.9.0", {"package": PYPI, "ranges": ranges}, aliases=["CVE-1"])
    assert len(found) == bool(told)
    assert not told or found[0].startswith("some-package 1.9.0: PYSEC-1 CVE-1, ")
    assert not told or told in found[0]


def test_an_old_range_does_not_end_another_one(tmp_path):
    ranges = [
        {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "5"}]},
        {"type": "ECOSYSTEM", "events": [{"introduced": "1"}, {"fixed": "1.2"}]},
    ]
    assert find(tmp_path, "1.9.0", {"package": PYPI, "ranges": ranges})


@pytest.mark.parametrize("content", [{}, [], {"id": "X", "affected": 3, "modified": "2026"}])
def test_an_export_without_advisories_is_no_clean_result(tmp_path, content):
    with pytest.raises(audit.Unreadable, match=r"all.zip.* (no advisory)"):
        read(tmp_path, "1", content)
    for path in (tmp_path, tmp_path / "missing.zip", Path(__file__)):
        with pytest.raises(audit.Unreadable, match="is no export of OSV"):
            audit.read_export([], path)


def test_an_advisory_of_listed_versions_is_found_unless_it_is_of_others_or_withdrawn(tmp_path):
    listed = {"package": PYPI, "versions": ["1.9.0"]}
    assert find(tmp_path, "1.9.0", listed)
    assert find(tmp_path, "1.9.0", {"package": PYPI, "versions": ["2004b", "1.9"]})
    assert find(tmp_path, "2.21.0", {"package": PYPI, "versions": ["2004b", "v2.21.0"]})
    assert not find(tmp_path, "1.9.1", listed)
    assert not find(tmp_path, "1.9.0", listed, withdrawn="2026-01-01T00:00:00Z")
    assert not find(tmp_path, "1.9.0", listed | {"package": PYPI | {"ecosystem": "npm"}})


def test_the_locked_versions_are_listed_with_the_day_of_their_pin(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    for day, pins in (("2026-01-02", "A_b==1\n"), ("2026-03-04", "A_b==1\nc[x]==2 ; x \\\n")):
        (tmp_path / "requirements.txt").write_text(pins)
        subprocess.run([*git, "add", "-A"], cwd=tmp_path, check=True)
        when = {"GIT_COMMITTER_DATE": f"{day}T12:00:00Z", "PATH": "/usr/bin:/bin:/usr/local/bin"}
        commit = [*git, "commit", "-q", "-m", "pins"]
        subprocess.run(commit, cwd=tmp_path, env=when, check=True)
    assert audit.find_pins(tmp_path) == {("a-b", "1"): "2026-01-02", ("c", "2"): "2026-03-04"}


def test_every_locked_package_of_this_repository_is_looked_at():
    names = {pin.name for pin in audit.find_pins(ROOT)}
    assert {"tensorflow", "apache-airflow-core", "h5py", "tf-slim", "uv", "moto"} <= names
