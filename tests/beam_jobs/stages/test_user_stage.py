"""Stages of another package: they are found, run, distinguished by their code,
and complained about by their module."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs.stages import bind_stages, find_stage, load_stage, map_class_names
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.user_code.stages import (
    digest_stage_code,
    find_stage_versions,
    list_published_names,
)

BLACKEN = '''\
"""Paints every image black."""
from __future__ import annotations

from pydantic import Field

from beam_jobs.stages.stage import Example, Stage, parameters


@parameters
class Blacken:
    level: int = Field(0, ge=0, le=255)
    """What is called black."""


def blacken(example: Example, parameters: Blacken) -> Example:
    return example.with_image(example.image * 0 + parameters.level)


def serve(image, parameters: Blacken):
    return image * 0 + parameters.level


def without_parameters(example: Example) -> Example:
    return example


STAGE = Stage(Blacken, blacken, map_class=lambda name, parameters: name.upper())
'''
SERVED = """\
from __future__ import annotations
from typing import TYPE_CHECKING

from beam_jobs.stages.stage import Example, parameters

if TYPE_CHECKING:
    import tensorflow as tf


@parameters
class Invert:
    pass


@parameters
class Mirror:
    pass


def invert(example: Example, parameters: Invert) -> Example:
    return example.with_image(255 - example.image)


def mirror(example: Example, parameters: Mirror) -> Example:
    return example.with_image(example.image[:, ::-1])


def serve(image: tf.Tensor, parameters: Invert) -> tf.Tensor:
    return 255 - image
"""
BESIDE = '''\
"""Notes the processes that it runs in, and fails on one record."""
import os
from pathlib import Path

from beam_jobs.stages.stage import Example, parameters


@parameters
class Note:
    folder: str
    broken: str = ""


def note(example: Example, parameters: Note) -> Example:
    Path(parameters.folder, str(os.getpid())).touch()
    if example.key == parameters.broken:
        raise KeyError("level")
    return example


def serve(image, parameters: Note):
    return image
'''


@pytest.fixture
def acme(tmp_path: Path, monkeypatch) -> Path:
    """The package `acme_stages` in a folder of its own, where Python finds it;
    its distribution is `acme` 1.4."""
    folder = tmp_path / "site"
    (folder / "acme_stages").mkdir(parents=True)
    (folder / "acme_stages" / "__init__.py").touch()
    (folder / "acme_stages" / "black.py").write_text(BLACKEN)
    (folder / "acme_stages" / "served.py").write_text(SERVED)
    (folder / "acme_stages" / "broken.py").write_text("import no_such_package\n")
    info = folder / "acme-1.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.4\n")
    (info / "top_level.txt").write_text("acme_stages\n")
    (info / "entry_points.txt").write_text(
        "[trainyard.stages]\nacme_black = acme_stages.black:blacken\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    importlib.invalidate_caches()
    load_stage.cache_clear()
    yield folder
    load_stage.cache_clear()
    for module in [name for name in sys.modules if name.startswith("acme_stages")]:
        del sys.modules[module]


@pytest.mark.parametrize("name", ["acme_stages.black:blacken", "acme_black"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stage_of_another_package_runs_like_ours(acme, animals, name, workers):
    outcome = animals.run(
        stages=[{"decode": {"channels": 1}}, {name: {"level": 7}}], runner={"workers": workers}
    )
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert name in outcome.manifest.figures["seconds_by_stage"]
    assert outcome.manifest.fingerprint.versions["acme"] == "1.4"


@pytest.fixture
def beside(animals, tmp_path, monkeypatch):
    """A stage in a file next to the YAML, whose folder is in PYTHONPATH of Airflow and the job.

    Returns the file, and a function that runs the job in a process of its own, with two workers. It
    returns the outcome, the id of the job's process, and those of the stage's processes."""
    file, notes = animals.config_file.parent / "own_stage.py", tmp_path / "notes"
    file.write_text(BESIDE)
    notes.mkdir()
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.setenv("PYTHONPATH", str(file.parent), prepend=":")

    def run(**parameters):
        stage = {"own_stage:note": {"folder": str(notes), **parameters}}
        plan = animals.plan(stages=["decode", stage], runner={"workers": 2})
        process, attempt = animals.start(plan)
        process.wait(timeout=120)
        ids = {int(each.name) for each in notes.iterdir()}
        return animals.outcome(plan, attempt), process.pid, ids

    return file, run


def test_a_stage_next_to_the_yaml_runs_in_worker_processes(beside):
    _, run = beside
    outcome, job, found = run()
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert 1 <= len(found) <= 2 and job not in found


def test_a_stage_next_to_the_yaml_may_be_edited_while_the_job_runs(beside):
    """The first process that imports it edits it, so the worker processes come later."""
    file, run = beside
    edit = "import multiprocessing\nif multiprocessing.parent_process() is None:\n    "
    file.write_text(f"{BESIDE}\n{edit}Path({str(file)!r}).write_text('<<<<<<< HEAD')\n")
    outcome, job, found = run()
    assert file.read_text() == "<<<<<<< HEAD"
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert found and job not in found


@pytest.mark.parametrize("workers", [1, 2])
def test_an_edit_of_a_stage_elsewhere_ends_the_job_with_the_name_of_the_file(
    acme, animals, workers
):
    stages = ["decode", {"acme_stages.black:blacken": {"level": 7}}]
    plan = animals.plan(stages=stages, runner={"workers": workers})
    file = acme / "acme_stages" / "black.py"
    file.write_text(BLACKEN.replace("* 0 +", "* 0 + 1 +"))
    process, attempt = animals.start(plan)
    assert process.wait(timeout=120) == ExitCode.CONFIG
    assert f"{file} on " in animals.outcome(plan, attempt).message


def test_an_edit_of_a_stage_elsewhere_is_seen_in_worker_processes(acme, animals):
    file = acme / "acme_stages" / "black.py"
    edit = "import multiprocessing\nif multiprocessing.parent_process() is None:\n    "
    text = f"{BLACKEN}\n{edit}open(__file__, 'a').write('LEVEL = 3')\n"
    file.write_text(text)
    stages = ["decode", {"acme_stages.black:blacken": {"level": 7}}]
    plan = animals.plan(stages=stages, runner={"workers": 2})
    process, attempt = animals.start(plan)
    assert process.wait(timeout=120) == ExitCode.CONFIG
    assert f"{file} on " in animals.outcome(plan, attempt).message


def test_a_bug_in_a_worker_process_names_stage_record_file_and_line(beside):
    file, run = beside
    outcome, *_ = run(broken="cat/007.png")
    line = 1 + BESIDE.splitlines().index('        raise KeyError("level")')
    assert outcome.exit_code is ExitCode.BUG
    assert outcome.message == (
        f"stage own_stage:note failed on cat/007.png, in {file}:{line}: KeyError: 'level'. "
        "Correct the stage, then retry."
    )
    assert outcome.status.cure == "Correct the stage, then retry."
    where = outcome.status.location
    assert (where.file, where.line, where.folder) == (file.name, line, str(file.parent))
    assert where.source[line - where.first_line] == '        raise KeyError("level")'


LOOKING = """
import functools
import sys
from beam_jobs.stages.stage import Example, Reject, parameters

CLIENTS = {"boto3", "google.cloud.bigquery", "google.cloud.storage", "pymongo"}

@parameters
class Look:
    pass

@functools.cache
def find_loaded() -> set[str]:
    loaded = CLIENTS & sys.modules.keys()
    import bson
    return loaded

def look(example: Example, parameters: Look) -> Example:
    if loaded := find_loaded():
        raise Reject("loaded", str(loaded))
    return example

def serve(image, parameters: Look):
    return image
"""


def test_beams_clients_of_clouds_are_not_imported_but_a_stage_may_do_so(
    animals, tmp_path, monkeypatch
):
    """The stage runs in the process of Beam. It imports a module that was hidden from Beam."""
    (tmp_path / "looking.py").write_text(LOOKING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    plan = animals.plan(stages=["decode", "looking:look"], runner={"workers": 1})
    process, attempt = animals.start(plan)
    process.wait(timeout=120)
    outcome = animals.outcome(plan, attempt)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message


def test_another_packages_parameters_are_checked_too(acme, animals):
    outcome = animals.run(stages=["decode", {"acme_stages.black:blacken": {"levle": 7}}])
    assert outcome.exit_code is ExitCode.CONFIG
    assert (
        "preprocess.stages.1.acme_stages.black:blacken.levle: unknown parameter; "
        "the nearest valid name is 'level'"
    ) in outcome.message


@pytest.mark.parametrize("name", ["acme_stages.black:blacken", "acme_black"])
def test_the_meaning_of_its_code_and_its_version_are_in_the_fingerprint(acme, name):
    before = digest_stage_code(["decode", name])
    assert list(before) == ["acme_stages/__init__.py", "acme_stages/black.py"]
    assert find_stage_versions(["decode", name]) == {"acme": "1.4"}
    file = acme / "acme_stages" / "black.py"
    file.write_text(BLACKEN + "# a comment\n")
    assert digest_stage_code([name]) == before
    file.write_text(BLACKEN.replace("example.image * 0", "example.image * 1"))
    assert digest_stage_code([name]) != before


def test_our_own_stages_have_no_foreign_code():
    assert digest_stage_code(["decode", "resize"]) == {}
    assert find_stage_versions(["decode", "resize"]) == {}


def test_a_module_can_give_a_whole_line_of_the_catalogue(acme):
    assert map_class_names(
        bind_stages([StageConfig(name="acme_stages.black:STAGE")]), ["cat", "dog"]
    ) == ["CAT", "DOG"]


def test_serve_of_the_module_is_the_served_form_of_the_stage_with_its_parameters(acme):
    for name, module in (("acme_stages.served:invert", "served"), ("acme_black", "black")):
        assert find_stage(name).serve.__module__ == f"acme_stages.{module}"
    assert find_stage("acme_stages.served:mirror").serve is None


@pytest.mark.parametrize("wrong", ["image, parameters", "image", "image, parameters: Inver"])
def test_a_serve_without_the_parameters_of_a_stage_is_refused(acme, wrong):
    file = acme / "acme_stages" / "served.py"
    file.write_text(SERVED.replace("image: tf.Tensor, parameters: Invert", wrong))
    with pytest.raises(ConfigError) as error:
        find_stage("acme_stages.served:invert")
    assert "acme_stages.served.serve, by which a published model" in str(error.value)
    assert "`def serve(image, parameters: Invert)`" in str(error.value)


@pytest.mark.parametrize(
    "name, complaint",
    [
        (
            "acme_stages.no:blacken",
            "cannot import the module acme_stages.no: ModuleNotFoundError",
        ),
        (
            "acme_stages.broken:blacken",
            (
                "cannot import the module acme_stages.broken: ModuleNotFoundError: "
                "No module named 'no_such_package'"
            ),
        ),
        ("acme_stages.black:whiten", "the module acme_stages.black has no function 'whiten'"),
        ("acme_stages.black:BLACK", "has no function 'BLACK'"),
        (
            "acme_stages.black:without_parameters",
            "acme_stages.black:without_parameters must take an Example and its parameters",
        ),
        ("acme_blakc", "unknown stage; the nearest valid name is 'acme_black'"),
    ],
)
def test_a_complaint_names_the_module(acme, name, complaint):
    with pytest.raises(ConfigError) as error:
        find_stage(name)
    assert complaint in str(error.value)


def test_two_packages_with_one_name_are_told_apart_by_their_paths(acme):
    info = acme / "other-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[trainyard.stages]\nacme_black = other.black:blacken\n")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError) as error:
        find_stage("acme_black")
    assert "several installed packages have a stage acme_black (acme, other)" in str(error.value)
    assert "acme_stages.black:blacken or other.black:blacken" in str(error.value)


def test_published_stages_are_known_by_name(acme):
    assert "acme_black" in list_published_names()


def test_planning_imports_no_module_of_a_stage(acme):
    code = (
        "import sys; from pipeline_ops.user_code.stages import digest_stage_code; "
        "assert digest_stage_code(['acme_black']); print('acme_stages.black' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "False"
    )
