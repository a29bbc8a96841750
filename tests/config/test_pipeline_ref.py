"""The record of a pipeline's locations, which Airflow's database has."""

from __future__ import annotations

import json

import pytest
from config_files import write_config
from pydantic import ValidationError

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.pipeline_ref import PipelineRef

SECRET = {"notifier": "a.Mail", "events": ["failed"], "arguments": {"password": "hunter2"}}


@pytest.mark.parametrize(
    ("changes", "root", "registry"),
    [
        ({"storage.root": "store"}, "{folder}/store", "{folder}/store/models/digits"),
        (
            {"storage.root": "/a", "export.registry": "/b", "export.model": "m"},
            "/a",
            "/b/m",
        ),
        (
            {"storage": {"root": "s3://a/b/", "endpoint": "http://c:1", "connection": "d"}},
            "s3://a/b",
            "s3://a/b/models/digits",
        ),
        (
            {"storage.root": "s3://a/b", "export.registry": "gs://c"},
            "s3://a/b",
            "gs://c/digits",
        ),
    ],
)
def test_it_has_the_locations_of_the_config_and_nothing_else_of_it(
    tmp_path, changes, root, registry
):
    config = load_config(write_config(tmp_path, changes | {"notify": [SECRET]}))
    text = json.dumps(PipelineRef.from_config(config).to_json())
    ref = PipelineRef.model_validate_json(text)
    assert len(json.loads(text)) == 5 and "hunter2" not in text
    found = (ref.pipeline, ref.model, str(ref.root), str(ref.registry))
    assert found == (
        "digits",
        config.export.model,
        root.format(folder=tmp_path),
        registry.format(folder=tmp_path),
    )
    assert (ref.root.options, ref.registry.options) == (
        config.root.options,
        config.registry.options,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"pipeline": "../other"},
        {"model": "a/b"},
        {"storage_root": "s3://key:hunter2@bucket/a"},
        {"options": {"endpoint": 1}},
        {"more": 1},
    ],
)
def test_another_value_is_refused(tmp_path, wrong):
    config = load_config(write_config(tmp_path, {}))
    with pytest.raises(ValidationError):
        PipelineRef.model_validate(PipelineRef.from_config(config).to_json() | wrong)
