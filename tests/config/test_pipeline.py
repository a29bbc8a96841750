"""The pipeline config: defaults, overrides, and the part of it that fingerprints cover."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.preprocess import Rejects
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.open_store import open_near

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"


def test_the_digits_example_is_valid():
    config = load_config(DIGITS)
    assert config.pipeline == "digits"
    assert config.root.local == DIGITS.parents[1] / ".trainyard"


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_the_root_may_be_a_bucket(load, scheme):
    config = load(
        "pipeline: small", f"pipeline: small\nstorage: {{root: '{scheme}://bucket/folder/'}}"
    )
    assert not config.root.is_local
    assert str(config.root / "models") == f"{scheme}://bucket/folder/models"
    assert str(config.registry) == f"{scheme}://bucket/folder/models/small"


@pytest.mark.parametrize(
    "registry, endpoint",
    [
        ("s3://own-bucket/folder/published", "http://127.0.0.1:9"),
        ("s3://own-bucket/published", None),
        ("gs://bucket/folder/published", None),
    ],
)
def test_a_registry_in_the_bucket_of_the_root_is_reached_like_it_and_others_by_the_environment(
    load, registry, endpoint
):
    storage = "{root: 's3://own-bucket/folder', endpoint: 'http://127.0.0.1:9'}"
    config = load(
        "export:\n  model: small\n",
        f"export: {{model: small, registry: '{registry}'}}\nstorage: {storage}\n",
    )
    assert str(config.registry) == f"{registry}/small"
    assert config.registry.options.endpoint == endpoint


@pytest.mark.parametrize("root", ["s3://b/prod", "s3://b/prod/models/digits", "s3://b"])
def test_a_yaml_does_not_change_how_the_store_of_another_pipeline_is_reached(load, root):
    """N1."""

    def load_root(storage: str):
        return load("pipeline: small", f"pipeline: small\nstorage: {storage}")

    ours = load_root("{root: 's3://b/prod', endpoint: 'http://127.0.0.1:8'}")
    places = [ours.root, ours.registry]
    theirs = load_root(f"{{root: '{root}', endpoint: 'http://127.0.0.1:9'}}")
    assert theirs.root.options.endpoint == "http://127.0.0.1:9"
    places += [ours.root, ours.registry, open_near(ours.root, f"{ours.root}/artifacts/x")]
    assert {place.options.endpoint for place in places} == {"http://127.0.0.1:8"}


def test_the_workers_of_an_engine_see_the_raw_data_and_the_storage_root(load):
    spark = {"name": "spark", "endpoint": "jobs:8099"}
    assert load(preprocess__runner=spark | {"shared_disk": True}).preprocess.runner.shared_disk
    for bucket, key in (("storage__root", "source.path"), ("preprocess__source__path", "root")):
        with pytest.raises(ConfigError, match=f"{key}: is .*, a folder of this host, which the"):
            load(preprocess__runner=spark, **{bucket: "s3://bucket/a"})
    buckets = {"storage__root": "s3://bucket/root", "preprocess__source__path": "gs://other/raw"}
    assert load(preprocess__runner=spark, **buckets).preprocess.runner.name == "spark"


def test_what_is_left_out_has_a_default(load):
    config = load()
    assert (config.train.workers, config.train.batch_size) == (1, 64)
    assert (config.preprocess.shards, config.preprocess.duplicates) == (8, "remove_exact")
    assert config.schedule.cron is None


def test_paths_are_relative_to_the_file(load, tmp_path):
    config = load()
    expected = {"raw": tmp_path / "raw", "/raw": Path("/raw"), "~/raw": Path.home() / "raw"}
    assert {path: config.resolve_path(path) for path in expected} == expected


def test_an_override_replaces_a_value_and_may_be_the_first_of_its_section(load):
    config = load(
        train__epochs=3,
        train__optimizer__learning_rate=0.01,
        evaluate__gate=[{"metric": "accuracy", "at_least": 0.1}],
    )
    assert (config.train.epochs, config.train.optimizer.learning_rate) == (3, 0.01)
    assert config.evaluate.gate[0].at_least == 0.1
    assert load(evaluate__gate__0__at_least=0.25).evaluate.gate[0].at_least == 0.25, "in a list"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            {"train__epochs": 0},
            "override train.epochs: train.epochs: input should be greater than or equal to 1, "
            "got 0",
        ),
        (
            {"train__epoch": 1},
            "override train.epoch: train.epoch: unknown key; the nearest valid name is 'epochs'",
        ),
        (
            {"evaluate__gate__5__at_least": 1},
            "override evaluate.gate.5.at_least: there is no evaluate.gate.5",
        ),
        ({"evaluate__gate__5": 1}, "override evaluate.gate.5: there is no such key"),
        ({"evaluate__gate__²": 1}, "override evaluate.gate.²: there is no such key"),
        ({"pipeline__x": 1}, "override pipeline.x: pipeline is a value, not a section"),
    ],
)
def test_a_wrong_override_is_named(complaint, overrides, message):
    assert message in complaint(**overrides)


def test_numbers_are_read_as_in_yaml_1_2(load):
    config = load("  model: digits_cnn", "  model: digits_cnn\n  optimizer: {learning_rate: 1e-3}")
    assert config.train.optimizer.learning_rate == 0.001


def test_a_stage_is_a_name_or_a_name_with_parameters(load):
    stages = load(
        "stages: [decode]",
        "stages: [decode, resize: {height: 28}, {name: crop, parameters: {size: 3}}, {blur: }]",
    ).preprocess.stages
    assert [(stage.name, stage.parameters) for stage in stages] == [
        ("decode", {}),
        ("resize", {"height": 28}),
        ("crop", {"size": 3}),
        ("blur", {}),
    ]


def test_a_checked_config_can_not_be_changed(load):
    with pytest.raises(ValueError, match="frozen"):
        load().train.epochs = 5


def test_what_is_operational_is_not_fingerprinted(load):
    patient = load(
        train__timeout_seconds=5,
        train__retries=7,
        train__max_restarts=9,
        preprocess__runner={"workers": 1},
    )
    assert patient.train.to_fingerprint_dict() == load().train.to_fingerprint_dict()
    assert patient.preprocess.to_fingerprint_dict() == load().preprocess.to_fingerprint_dict()


@pytest.mark.parametrize(
    "overrides",
    [
        {"train__epochs": 3},
        {"train__seed": 5},
        {"train__optimizer__learning_rate": 0.5},
        {"train__early_stopping": {"patience_epochs": 3}},
        {"train__best_checkpoint": None},
        {"train__workers": 2},
    ],
)
def test_what_changes_the_outcome_is_fingerprinted(load, overrides):
    assert load(**overrides).train.to_fingerprint_dict() != load().train.to_fingerprint_dict()


@pytest.mark.parametrize(
    "max_count, max_fraction, num_records, budget",
    [(5, 0.0, 1000, 5), (0, 0.01, 1000, 10), (5, 0.01, 100, 5), (0, 0.0, 9, 0)],
)
def test_the_larger_budget_for_rejects_counts(max_count, max_fraction, num_records, budget):
    rejects = Rejects(max_count=max_count, max_fraction=max_fraction)
    assert rejects.compute_budget(num_records) == budget


@pytest.mark.parametrize(
    "builder, folder",
    [
        ("voc", "data/voc"),
        ("voc/2007:4.0.0", "data/voc"),
        ("my_package.sets.MyCells", "data/my_cells"),
        ("sets.COCOLike2:1.0.0", "data/coco_like2"),
    ],
)
def test_a_tfds_source_lists_the_folder_of_its_data_set(load, builder, folder):
    source = load(
        "type: image_folder, path: raw",
        f"type: tfds, path: data, parts: [{{name: train}}], builder: '{builder}'",
    ).preprocess.source
    assert source.folder == folder


def test_where_the_raw_files_are_is_not_fingerprinted_and_what_they_mean_is(load):
    here, there, named = (
        load("type: image_folder, path: raw", f"type: voc, path: {path}").preprocess
        for path in ("here", "there", "here, class_names: [a]")
    )
    assert here.to_fingerprint_dict() == there.to_fingerprint_dict()
    assert here.to_fingerprint_dict() != named.to_fingerprint_dict()


@pytest.mark.parametrize(
    "key, value, reason",
    [
        (
            "export.formats",
            ["saved_model", "tflite_int8"],
            "tflite_int8 is for classifiers, because eight bits",
        ),
        (
            "evaluate.gate",
            [{"metric": "accuracy", "at_least": 0.5}],
            "accuracy is not for detection",
        ),
        (
            "evaluate.gate",
            [{"metric": "my_metrics:top_2", "at_least": 0.5}],
            "my_metrics:top_2 is not for detection",
        ),
    ],
)
def test_what_is_for_classifiers_is_refused_with_a_detector(key, value, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config(DIGITS.with_name("digit_scenes.yaml"), {key: value})


def test_a_detector_has_other_formats_and_rules_on_latency_and_slices():
    overrides = {
        "evaluate.slices": [{"by": "folder"}],
        "export.formats": ["saved_model", "tflite", "onnx"],
        "evaluate.gate": [
            {"metric": "latency_milliseconds", "at_most": 50},
            {"metric": "mar_10", "at_least": 0.1, "of_slice": "folder"},
            {"metric": "map", "max_regression": 0.01, "confidence": 0.95},
        ],
    }
    assert load_config(DIGITS.with_name("digit_scenes.yaml"), overrides).evaluate.needs_latency
