"""`make install`: uv gets the settings that pip has for an index, certificates and a proxy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = f"""#!/bin/sh
case "$*" in *"config list"*) exec {sys.executable} "$@";; esac
"""
UV = '#!/bin/sh\nenv > "$(dirname "$0")/environment"\n'
SETTINGS = """[global]
index-url = https://packages.example/simple
extra-index-url = https://more.example/simple
find-links = /srv/wheels
cert = /etc/company.pem
proxy = http://proxy.example:3128
"""


@pytest.mark.parametrize("variable", [{}, {"PIP_INDEX_URL": "https://mine.example/simple"}])
def test_uv_gets_the_settings_of_pip_and_those_of_the_environment_win(tmp_path, variable):
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("python", PYTHON), ("uv", UV)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "pip.conf").write_text(SETTINGS)
    others = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = others | {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")} | variable
    subprocess.run(
        ["make", "-s", f"VENV={tmp_path}/venv", f"{tmp_path}/venv/installed"],
        cwd=ROOT,
        env=environment,
        check=True,
        timeout=60,
    )
    found = dict(
        line.partition("=")[::2] for line in (programs / "environment").read_text().splitlines()
    )
    assert {
        "UV_DEFAULT_INDEX": variable.get("PIP_INDEX_URL", "https://packages.example/simple"),
        "UV_INDEX": "https://more.example/simple",
        "UV_FIND_LINKS": "/srv/wheels",
        "SSL_CERT_FILE": "/etc/company.pem",
        "ALL_PROXY": "http://proxy.example:3128",
    }.items() <= found.items()
