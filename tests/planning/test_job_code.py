"""The fingerprint of a job covers each file of the project that the job imports."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from job_chain import run_jobs

from beam_jobs import sources, stages
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.source_code import CODE_ROOT, PACKAGES, digest_sources
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.planning import job_kinds
from pipeline_ops.planning.job_kinds import JOBS, digest_job_code, find_job_code

DIGITS = CODE_ROOT / "configs" / "digits.yaml"


@pytest.fixture(scope="module")
def copied_code(tmp_path_factory) -> Path:
    """A copy of the project's source files."""
    root = tmp_path_factory.mktemp("code")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CODE_ROOT / package, root / package, ignore=ignored)
    return root


@pytest.fixture
def config() -> PipelineConfig:
    return load_config(DIGITS)


@pytest.mark.parametrize("job", JOBS)
def test_a_change_of_any_imported_file_changes_the_fingerprint(copied_code, config, job):
    before = digest_job_code(job, config, copied_code)
    assert len(before) > 50
    contents = {path: (copied_code / path).read_bytes() for path in before}
    for path, content in contents.items():
        change = b"\nCHANGED = 1\n" if path.endswith(".py") else b"<!-- -->"
        (copied_code / path).write_bytes(content + change)
        os.utime(copied_code / path, (0, 0))
    after = digest_job_code(job, config, copied_code)
    assert [path for path in before if after[path] == before[path]] == []
    for path, content in contents.items():
        (copied_code / path).write_bytes(content)
    assert digest_job_code(job, config, copied_code) == before


@pytest.mark.parametrize("job", JOBS)
def test_an_imported_file_that_is_gone_changes_the_fingerprint(copied_code, config, job):
    before = digest_job_code(job, config, copied_code)
    moved = (copied_code / "pipeline_ops/storage/parsing.py").rename(copied_code / "parsing.py")
    try:
        assert digest_job_code(job, config, copied_code) != before
    finally:
        moved.rename(copied_code / "pipeline_ops/storage/parsing.py")


@pytest.mark.airflow
def test_each_module_that_a_real_job_loads_is_in_its_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # each process lists its imports in its log
    write_digits(tmp_path / "raw")
    used = {"preprocess__source__path": str(tmp_path / "raw"), "train__workers": 2}
    manifests = run_jobs(DIGITS, tmp_path, "export", train__epochs=6, **used)
    for job, manifest in manifests.items():
        covered = read_manifest(manifest).fingerprint.code.keys()
        loaded = _loaded_modules([tmp_path / f"{job}.log", tmp_path / f"attempt-{job}"])
        files = {path for module in loaded for path in _files(module)}
        assert files and files - covered <= _unused_entries(load_config(DIGITS), job), job
        if job == "train":
            assert "pipeline_ops.training.worker" in loaded


def _unused_entries(config, job) -> set[str]:
    """The files of unused catalogue entries, which are loaded with their catalogues.

    The fingerprint of a data set has the stages. Later jobs compare them with those installed.
    """
    preprocess, used = config.preprocess, set()
    if job == "preprocess":
        used = {preprocess.source.type, *(stage.name for stage in preprocess.stages)}
    modules = [f"beam_jobs.sources.{n}" for n in sources.CATALOGUE.keys() - used]
    modules += [f"beam_jobs.stages.{n}" for n in stages.CATALOGUE.keys() - used]
    return set(digest_sources(modules, used=[]))


def _loaded_modules(places: list[Path]) -> set[str]:
    found: set[str] = set()
    for place in places:
        for file in [place] if place.is_file() else place.rglob("*"):
            if file.is_file():
                text = file.read_text(errors="replace")
                found |= set(re.findall(r"^import time:.*\| +([\w.]+)$", text, re.MULTILINE))
    return {module for module in found if module.partition(".")[0] in PACKAGES}


def _files(module: str) -> list[str]:
    path = module.replace(".", "/")
    names = (f"{path}.py", f"{path}/__init__.py")
    return [name for name in names if (CODE_ROOT / name).is_file()]


@pytest.fixture
def count(monkeypatch, tmp_path):
    """The number of times that files were parsed, with a cache of their digests."""
    calls = []
    real = job_kinds.digest_sources
    monkeypatch.setattr(
        job_kinds, "digest_sources", lambda *a, **k: calls.append(a) or real(*a, **k)
    )
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path))
    return lambda: len(calls)


def test_files_are_parsed_again_after_any_of_them_has_changed(copied_code, config, count):
    first = find_job_code("train", config, copied_code)
    assert find_job_code("train", config, copied_code) == first and count() == 1
    changed = copied_code / "pipeline_ops/training/trainer.py"
    content = changed.read_text()
    changed.write_text(f"{content}\nADDED = 1\n")
    second = find_job_code("train", config, copied_code)
    assert count() == 2
    assert second == digest_job_code("train", config, copied_code)
    assert {path for path in first if first[path] != second[path]} == {
        "pipeline_ops/training/trainer.py"
    }
    changed.write_text(content)


def test_each_job_and_choice_has_its_own_digests(copied_code, config, count):
    other = config.with_overrides({"train.model": "mobilenet_v2"})
    asked = [("train", config), ("evaluate", config), ("train", other), ("preprocess", config)]
    for _ in range(2):
        for job, chosen in asked:
            found = find_job_code(job, chosen, copied_code)
            assert found == digest_job_code(job, chosen, copied_code)
    assert count() == 3 * len(asked)


def test_digests_of_files_that_change_meanwhile_are_not_kept(
    copied_code, config, count, monkeypatch, tmp_path
):
    states = iter(["before", "after"])
    monkeypatch.setattr(job_kinds, "digest_all_sources", lambda *_: next(states))
    assert find_job_code("export", config, copied_code)
    assert not list(tmp_path.rglob("digests.json"))


@pytest.mark.parametrize("obstacle", ["no folder", "no home", "dangling link"])
def test_a_host_that_cannot_keep_digests_parses_each_time(
    copied_code, config, count, monkeypatch, tmp_path, obstacle
):
    if obstacle == "no folder":
        (tmp_path / "trainyard-cache").write_text("")
    elif obstacle == "no home":
        monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", "~nobody-has-this-name/cache")
    else:
        link = copied_code / "pipeline_ops/.#trainer.py"
        link.symlink_to(tmp_path / "nowhere")
    try:
        for _ in range(2):
            assert find_job_code("export", config, copied_code)
    finally:
        (copied_code / "pipeline_ops/.#trainer.py").unlink(missing_ok=True)
    assert count() == 2


def test_a_damaged_entry_is_not_believed(copied_code, config, count, tmp_path):
    first = find_job_code("export", config, copied_code)
    (kept,) = tmp_path.rglob("digests.json")
    kept.write_text("[]")
    assert find_job_code("export", config, copied_code) == first
