"""The report on a host before any training starts there, and its comparison with this host's."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import time
from pathlib import Path

from pipeline_ops.artifacts.source_code import digest_all_sources
from pipeline_ops.jobs.gang_protocol import AgentSpec, HostReport
from pipeline_ops.system.cores import count_cores
from pipeline_ops.system.gpus import find_gpus
from pipeline_ops.system.host_check import check_host, describe_problems

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pydantic")
_MAX_SKEW_SECONDS = 120.0


def describe_host(spec: AgentSpec) -> HostReport:
    token, versions = Path(spec.token_file), {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return HostReport(
        python=platform.python_version(),
        versions=versions,
        code=digest_all_sources(),
        token=token.read_text() if token.exists() else None,
        cores=count_cores(),
        gpus=find_gpus(),
        time=time.time(),
        problems=list(describe_problems(check_host({}))),
    )


def describe_incompatibility(local: HostReport, other: HostReport, token: str) -> str:
    """Returns why a host cannot train with this one, and what to do; empty if it can."""
    if other.token != token and not other.own_attempt:
        return (
            "it does not see the storage root: a file that was written here is missing there. "
            "Mount the same file system at the same path, or keep the storage root in a bucket"
        )
    if abs(skew_seconds := other.time - time.time()) > _MAX_SKEW_SECONDS:
        return (
            f"its clock differs from this host's by {skew_seconds:.0f} s, so a bucket "
            "would refuse its requests. Set its clock, as with chrony"
        )
    if other.code != local.code:
        return (
            f"its copy of this project (digest {other.code}) differs from this host's "
            f"({local.code}). Update its copy"
        )
    if other.problems:
        return "; ".join(other.problems)
    ours, theirs = ({"Python": report.python} | report.versions for report in (local, other))
    differing = [
        f"{name} {theirs.get(name, 'missing')} and not {ours.get(name, 'missing')}"
        for name in sorted(ours | theirs)
        if ours.get(name) != theirs.get(name)
    ]
    return (
        f"it has {', '.join(differing)}. Install the same requirements there" if differing else ""
    )
