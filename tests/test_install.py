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
SETTINGS = {
    "UV_DEFAULT_INDEX": ("INDEX_URL", "https://packages.example/pypi"),
    "UV_INDEX": ("EXTRA_INDEX_URL", "https://more.example/pypi https://other.example/pypi"),
    "UV_FIND_LINKS": ("FIND_LINKS", "wheels"),
    "UV_INSECURE_HOST": ("TRUSTED_HOST", "more.example"),
    "SSL_CERT_FILE": ("CERT", "company.pem"),
    "ALL_PROXY": ("PROXY", "http://proxy.example:3128"),
}
"""The variables of uv, and the settings of pip by their names in the environment."""


@pytest.mark.parametrize("variable", [{}, {"PIP_INDEX_URL": "https://mine.example/pypi"}])
def test_uv_gets_the_settings_of_pip_and_those_of_the_environment_win(tmp_path, variable):
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("python", PYTHON), ("uv", UV)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    lines = ["[global]"]
    for setting, value in SETTINGS.values():  # several values are on lines of their own
        lines.append(f"{setting.lower().replace('_', '-')} = " + value.replace(" ", "\n    "))
    (tmp_path / "pip.conf").write_text("\n".join(lines))
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
    for name, (setting, value) in SETTINGS.items():
        assert found[name] == variable.get(f"PIP_{setting}", value)
