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


def find(tmp_path: Path, version: str, affected: dict, **advisory) -> list[str]:
    export = tmp_path / "all.zip"
    content = {"id": "PYSEC-1", "summary": "bad", "affected": [affected], **advisory}
    with zipfile.ZipFile(export, "w") as archive:
        archive.writestr("PYSEC-1.json", json.dumps(content))
    return list(audit.find_advisories([audit.Pin("some-package", version)], export))


@pytest.mark.parametrize(
    ("events", "affected"),
    [
        ([{"introduced": "0"}, {"fixed": "1.10.0"}], True),
        ([{"introduced": "0"}, {"fixed": "1.9"}], False),
        ([{"introduced": "0"}, {"last_affected": "1.9.0"}], True),
        ([{"introduced": "0"}, {"last_affected": "1.8"}], False),
        ([{"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.9"}], True),
        ([{"introduced": "2.0"}], False),
    ],
)
def test_an_advisory_of_a_range_of_versions_is_found(tmp_path, events, affected):
    ranges = [{"type": "ECOSYSTEM", "events": events}]
    found = find(tmp_path, "1.9.0", {"package": PYPI, "ranges": ranges})
    assert found == (["some-package 1.9.0: PYSEC-1 bad"] if affected else [])


def test_an_advisory_of_listed_versions_is_found_unless_it_is_of_others_or_withdrawn(tmp_path):
    listed = {"package": PYPI, "versions": ["1.9.0"]}
    assert find(tmp_path, "1.9.0", listed)
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
