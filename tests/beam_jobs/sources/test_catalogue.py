"""The catalogue of sources, the config and the fingerprint know the same sources."""

from __future__ import annotations

import ast
import shutil
from typing import get_args

import pytest
import yaml

from beam_jobs.sources import CATALOGUE
from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.sources import AnySource
from pipeline_ops.planning.job_kinds import KINDS

TYPES = {get_args(member.model_fields["type"].annotation)[0] for member in get_args(AnySource)}
MORE = {
    "coco": {"parts": [{"annotations": "a.json"}]},
    "csv": {"manifest": "m", "task": "detection"},
    "jsonl": {"manifest": "m", "task": "detection"},
    "tfds": {"builder": "voc", "parts": [{"name": "train"}]},
    "tfrecord": {"task": "detection", "parts": [{"files": "*"}]},
}


def test_every_source_of_the_config_has_a_reader():
    assert set(CATALOGUE) == TYPES


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_the_fingerprint_covers_every_file_of_ours_that_a_source_imports(pipeline, kind):
    config = yaml.safe_load(pipeline.config_file.read_text())
    config["preprocess"]["source"] = {"type": kind, "path": "../raw", **MORE.get(kind, {})}
    pipeline.config_file.write_text(yaml.safe_dump(config))
    covered = {
        file
        for path in KINDS["preprocess"].code(load_config(pipeline.config_file))
        for file in files_of(path)
    }
    assert imported_by(f"beam_jobs/sources/{kind}.py") <= covered


def files_of(path: str) -> set[str]:
    file = CODE_ROOT / path
    assert file.exists(), path
    return (
        {str(inner.relative_to(CODE_ROOT)) for inner in file.rglob("*.py")}
        if file.is_dir()
        else {path}
    )


def imported_by(path: str) -> set[str]:
    """A file of beam_jobs with all that it imports from there, and so on."""
    found, open_ends = set(), [path]
    while open_ends:
        path = open_ends.pop()
        if path not in found:
            found.add(path)
            modules = [
                node.module
                for node in ast.walk(ast.parse((CODE_ROOT / path).read_bytes()))
                if isinstance(node, ast.ImportFrom)
            ]
            open_ends += [
                f"{module.replace('.', '/')}.py"
                for module in modules
                if module.startswith("beam_jobs.")
            ]
    return found


def test_an_annotation_that_changed_makes_the_data_set_anew(pipeline, encode):
    for name in "ab":
        pipeline.add(f"JPEGImages/{name}.png", encode())
        pipeline.add(f"Annotations/{name}.xml", b"<annotation/>")
    source = {"type": "voc", "path": "../raw"}
    before = pipeline.plan(source=source).request.fingerprint
    moved = shutil.copytree(pipeline.raw, pipeline.folder / "elsewhere")
    assert pipeline.plan(source=source | {"path": str(moved)}).request.fingerprint == before
    pipeline.add("Annotations/b.xml", b"<annotation><size/></annotation>")
    assert pipeline.plan(source=source).request.fingerprint.changes_since(before) == [
        "inputs raw files changed"
    ]
