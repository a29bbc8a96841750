"""The list of packages that `make sbom` writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)", re.MULTILINE)


@pytest.mark.containers
def test_the_sbom_lists_every_locked_package_with_its_hashes(tmp_path):
    locked = set(_PINNED.findall((REPOSITORY / "requirements.txt").read_text()))
    file = tmp_path / "sbom.json"
    command = [
        str(Path(sys.executable).with_name("cyclonedx-py")),
        "requirements",
        "requirements.txt",
        "--pyproject",
        "pyproject.toml",
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        str(file),
    ]
    assert " ".join(command[1:-1]) in (REPOSITORY / "Makefile").read_text()
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    found = json.loads(file.read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "airflow-provider-trainyard"
    assert {(each["name"], each["version"]) for each in found["components"]} == locked
    for each in found["components"]:
        hashes = [one for place in each["externalReferences"] for one in place["hashes"]]
        assert {one["alg"] for one in hashes} == {"SHA-256"}
