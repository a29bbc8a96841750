"""The trigger form: the fields that a run may set, the frequent ones first, each with type, bounds
and help."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import ParamValidationError
from config_files import DIGITS, write_config

from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.run_conf import apply_conf
from pipeline_ops.orchestration.form import make_form_params


def test_a_field_has_the_type_the_bounds_and_the_help_of_the_config():
    params = make_form_params(load_config(DIGITS))
    epochs = params["train.epochs"]
    assert (epochs.value, epochs.schema["type"]) == (20, ["null", "integer"])
    assert epochs.description.endswith("At least 1, at most 100000.")
    rate = params["train.optimizer.learning_rate"]
    described = rate.value, rate.schema["type"], rate.schema["title"]
    assert described == (1e-3, "number", "Learning rate")
    assert {"float32", "bfloat16", "float16"} == set(params["train.precision"].schema["enum"])
    patience = params["train.early_stopping.patience_epochs"].schema
    assert patience["section"] == "Train: early stopping"
    assert patience["title"] == "Patience (epochs)"
    assert params["train.global_batch_size"].description.endswith(
        "It never follows the number of workers. At least 1, at most 1000000."
    )
    assert params["train.warm_start"].description.endswith(
        "For a run: champion, or a published version such as version 3."
    )


def test_the_frequent_fields_are_in_the_open_part_at_the_top():
    params = make_form_params(load_config(DIGITS))
    frequent = {
        "train.epochs": "Epochs",
        "train.optimizer.learning_rate": "Learning rate",
        "train.global_batch_size": "Batch size",
        "preprocess.dataset": "Data set (version)",
        "train.warm_start": "Initial weights",
    }
    assert list(params)[:5] == [*frequent]
    top = {key: param.schema for key, param in params.items() if "section" not in param.schema}
    assert {key: schema["title"] for key, schema in top.items()} == frequent


def test_the_fields_that_few_pipelines_need_are_in_the_last_section():
    params = make_form_params(load_config(DIGITS))
    assert [*params.values()][-1].schema["section"] == "Advanced"
    batch_size = params["evaluate.batch_size"].schema
    assert (batch_size["section"], batch_size["title"]) == ("Advanced", "Evaluate: Batch size")


def test_the_form_has_only_fields_that_a_run_may_set():
    params, leaves = make_form_params(load_config(DIGITS)), collect_fields(PipelineConfig)
    assert [key for key in params if not leaves[key].is_per_run] == []
    assert len(params) < 40


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.epochs", 0),
        ("train.epochs", 100_001),
        ("train.optimizer.learning_rate", 0),
        ("train.seed", "a"),
        ("train.optimizer.momentum", 1),
        ("train.precision", "int4"),
        ("train.warm_start", "/models/foreign"),
        ("train.warm_start", "version 0"),
        ("train.warm_start", "weights resnet50"),
        ("preprocess.dataset", "newest"),
    ],
)
def test_a_value_out_of_range_is_refused_and_the_form_has_no_bounds_to_clamp_it_to(key, value):
    params = make_form_params(load_config(DIGITS))
    assert not {"minimum", "maximum"} & set(params[key].schema)
    with pytest.raises(ParamValidationError):
        params[key].resolve(value)


@pytest.mark.parametrize("value", ["champion", "version 3", None])
def test_a_run_may_begin_with_a_published_model(value):
    assert make_form_params(load_config(DIGITS))["train.warm_start"].resolve(value) == value


def test_a_version_is_proposed_and_a_wrong_one_is_refused_in_one_line(tmp_path):
    own = load_config(write_config(tmp_path, {"train.warm_start": "weights/first+1.npz"}))
    for config in (load_config(DIGITS), own):
        param = make_form_params(config)["train.warm_start"]
        assert param.schema["examples"] == ["champion"]
        with pytest.raises(ParamValidationError) as refused:
            param.resolve("versoin 1")
        line = str(refused.value).splitlines()[0]
        assert "'versoin 1' does not match '^(champion|version " in line and "anyOf" not in line
    assert param.resolve() == "weights/first+1.npz"


def test_no_field_of_the_form_is_empty_and_required():
    """Airflow's form cannot be sent with an empty required field, and gives no reason."""
    params = make_form_params(load_config(DIGITS))
    assert [
        key
        for key, param in params.items()
        if param.value == "" or (param.value is None and "null" not in param.schema["type"])
    ] == []


def test_what_the_author_opens_is_in_the_open_part_with_the_choices_that_he_gives(tmp_path):
    opened = {
        "train.workers": [1, 4],
        "preprocess.source.path": ["/data/daily/"],
        "train.seed": [],
        "train.epochs": [5],
    }
    params = make_form_params(load_config(write_config(tmp_path, {"per_run": opened})))
    assert params["train.workers"].schema["enum"] == [2, 1, 4]
    assert "section" not in params["train.workers"].schema
    assert params["train.epochs"].schema["enum"] == [20, 5]
    assert params["preprocess.source.path"].description.endswith("For a run: /data/daily/.")
    assert "train.seed" not in params


@pytest.mark.parametrize(
    "author",
    [
        {},
        {"train.warm_start": "weights/first.npz"},
        {"train.warm_start": {"path": "weights/first.npz", "sha256": "0" * 64}},
        {"per_run": {"train.workers": [1], "train.seed": []}},
        {"train.early_stopping": None, "train.input": {"augment": {"scale": {"min": 0.5}}}},
    ],
)
def test_what_the_form_sends_untouched_is_the_config_itself(tmp_path, author):
    config = load_config(write_config(tmp_path, author))
    values = {key: param.resolve() for key, param in make_form_params(config).items()}
    sent = json.loads(json.dumps(values))
    assert apply_conf(config, sent).model_dump() == config.model_dump()
