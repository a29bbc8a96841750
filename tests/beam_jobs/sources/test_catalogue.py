"""The catalogue of sources, the config and the fingerprint know the same sources."""

from __future__ import annotations

import shutil
from typing import get_args

import pytest
import yaml

from beam_jobs.sources import CATALOGUE
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.sources import AnySource
from pipeline_ops.planning.job_kinds import digest_job_code

TYPES = {get_args(member.model_fields["type"].annotation)[0] for member in get_args(AnySource)}
MORE = {
    "coco": {"parts": [{"annotations": "a.json"}]},
    "csv": {"manifest": "m", "task": "detection"},
    "jsonl": {"manifest": "m", "task": "detection"},
    "label_studio": {"export": "a.json"},
    "tfds": {"builder": "voc", "parts": [{"name": "train"}]},
    "tfrecord": {"task": "detection", "parts": [{"files": "*"}]},
    "parquet": {"task": "detection"},
    "webdataset": {"task": "detection"},
    "via": {"parts": [{"manifest": "a.json"}]},
}


def test_every_source_of_the_config_has_a_reader():
    assert set(CATALOGUE) == TYPES


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_the_fingerprint_covers_the_file_of_the_source_and_of_no_other(pipeline, kind):
    config = yaml.safe_load(pipeline.config_file.read_text())
    config["preprocess"]["source"] = {"type": kind, "path": "../raw", **MORE.get(kind, {})}
    pipeline.config_file.write_text(yaml.safe_dump(config))
    covered = digest_job_code("preprocess", load_config(pipeline.config_file))
    assert {name for name in TYPES if f"beam_jobs/sources/{name}.py" in covered} == {kind}


def test_an_annotation_that_changed_makes_the_data_set_anew(pipeline, encode):
    for name in "ab":
        pipeline.add(f"JPEGImages/{name}.png", encode())
        pipeline.add(f"Annotations/{name}.xml", b"<annotation/>")
    source = {"type": "voc", "path": "../raw"}
    before = pipeline.plan(source=source).request.fingerprint
    moved = shutil.copytree(pipeline.raw, pipeline.folder / "elsewhere")
    assert pipeline.plan(source=source | {"path": str(moved)}).request.fingerprint == before
    pipeline.add("Annotations/b.xml", b"<annotation><size/></annotation>")
    assert pipeline.plan(source=source).request.fingerprint.describe_changes_since(before) == [
        "inputs raw files changed"
    ]
