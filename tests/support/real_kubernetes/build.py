"""The programs of Kubernetes and of its DNS server. Go builds them once for each user.

Both are built as their own `go.mod` and `go.sum` say. Parts of Kubernetes are modules of their own,
which `go.mod` expects in folders that the published module does not have, so it gets their
versions. What they add to `go.sum` has a checksum here. Go uses the settings of this machine.

    python tests/support/real_kubernetes/build.py
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline_ops.system.locks import exclusive_lock

_BUILD_SECONDS = 3600
_PARTS = re.compile(r"^(\s*(k8s\.io/\S+) =>) \./staging/.*$", re.MULTILINE)
_DNS = """package main

import (
\t"github.com/coredns/coredns/core/dnsserver"
\t"github.com/coredns/coredns/coremain"
\t_ "github.com/coredns/coredns/plugin/errors"
\t_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
\tdnsserver.Directives = []string{"errors", "kubernetes"}
\tcoremain.Run()
}
"""
"""CoreDNS with no more plugins than a cluster needs, a tenth of all."""


class BuildError(Exception):
    """A program can't be built. The message has the output of Go."""


@dataclass(frozen=True)
class Module:
    """A module of Go and the programs in it.

    Attributes:
      checksum: of its files, as in `go.sum`.
      sums: the SHA-256 of all lines of `go.sum` after the build.
      programs: the packages of the programs.
      parts: the version of the modules that are parts of it.
      files: more files, with their texts.
    """

    path: str
    version: str
    checksum: str
    sums: str
    programs: tuple[str, ...]
    parts: str = ""
    files: tuple[tuple[str, str], ...] = ()


MODULES = (
    Module(
        path="k8s.io/kubernetes",
        version="v1.37.2",
        checksum="h1:A2VDEiObzkYqFTKhSsn0ZEb0RlLEXpHWj93gi2HqEwE=",
        sums="3f551321b4ef5cb7262c868c32171bb2cb0aa1448e5aeb3a63c5525aa642077f",
        programs=tuple(
            f"k8s.io/kubernetes/cmd/kube{name}"
            for name in ("-apiserver", "-controller-manager", "-scheduler", "let", "-proxy")
        ),
        parts="v0.37.2",
    ),
    Module(
        path="github.com/coredns/coredns",
        version="v1.15.0",
        checksum="h1:OBT+OEyHVdUiVxPhrNlC5XZVq3RkSxzQXfZQ76gm5ck=",
        sums="ef201ec1d93bc8a186e91f9411a2aa8676970284aa543da90357b2b3d392c099",
        programs=("tests/dns",),
        files=(("dns/main.go", _DNS),),
    ),
)


def build_programs() -> Path:
    """The folder of the programs, built if this user does not have them yet.

    It takes twenty minutes of one core, and 3 GB of disk, most of it in the caches of Go.

    Raises:
      BuildError: a module is not the expected one, or Go has failed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard-tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"kubernetes-{'-'.join(module.version for module in MODULES)}"
    lock = cache / "kubernetes-build.lock"
    with exclusive_lock(lock, "the build of Kubernetes", wait_seconds=_BUILD_SECONDS):
        if not folder.is_dir():
            staging = cache / "kubernetes-staging"
            shutil.rmtree(staging, ignore_errors=True)
            for module in MODULES:
                _build(module, staging, staging / Path(module.path).name)
            staging.rename(folder)
    return folder


def _build(module: Module, target: Path, scratch: Path) -> None:
    """Builds the programs in a module that requires what theirs requires."""
    scratch.mkdir(parents=True)
    name = f"{module.path}@{module.version}"
    found = json.loads(_run(["go", "mod", "download", "-json", name], scratch))
    _compare(name, found["Sum"], module.checksum)
    source = Path(found["Dir"])
    text = (source / "go.mod").read_text().replace(f"module {module.path}\n", "module tests\n")
    text = _PARTS.sub(rf"\1 \2 {module.parts}", text)
    (scratch / "go.mod").write_text(f"{text}\nrequire {module.path} {module.version}\n")
    (scratch / "go.sum").write_bytes((source / "go.sum").read_bytes())
    for file, content in module.files:
        (scratch / file).parent.mkdir()
        (scratch / file).write_text(content)
    options = ["-mod=mod", "-trimpath", "-ldflags=-s -w", "-buildvcs=false", f"-o={target}/"]
    _run(["go", "build", *options, *module.programs], scratch)
    lines = sorted((scratch / "go.sum").read_text().splitlines())
    sums = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    _compare(f"{name} with all that it requires", sums, module.sums)
    shutil.rmtree(scratch)


def _compare(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise BuildError(f"{what} has the checksum {found}, and {expected} is expected")


def _run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"GOWORK": "off"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} has failed: {(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    print(build_programs())
