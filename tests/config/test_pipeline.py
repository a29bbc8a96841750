"""The pipeline config: what a wrong one is told, and what is left out of fingerprints."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.preprocess import Rejects
from pipeline_ops.config.yaml_source import nearest, parse_value
from pipeline_ops.errors import ConfigError

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"

SMALL = """\
pipeline: small
preprocess:
  source: {type: image_folder, path: raw}
  stages: [decode]
  split: {train: 0.8, validation: 0.1, test: 0.1}
train:
  model: digits_cnn
evaluate:
  gate:
    - {metric: accuracy, at_least: 0.9}
export:
  model: small
"""


@pytest.fixture
def load(tmp_path):
    """Loads SMALL after a replacement of some of its text, or any other text."""

    def load(old: str = "", new: str = "", text: str = SMALL, **overrides) -> PipelineConfig:
        assert old in text
        file = tmp_path / "small.yaml"
        file.write_text(text.replace(old, new) if old else text)
        return load_config(
            file, {key.replace("__", "."): value for key, value in overrides.items()}
        )

    return load


def complaint(load, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as raised:
        load(*args, **kwargs)
    return str(raised.value)


def test_the_digits_example_is_valid():
    config = load_config(DIGITS)
    assert config.pipeline == "digits" and config.root == DIGITS.parents[1] / ".trainyard"


def test_what_is_left_out_has_a_default(load):
    config = load()
    assert (
        config.train.workers,
        config.train.global_batch,
        config.preprocess.shards,
        config.schedule.cron,
    ) == (1, 64, 8, None)
    assert config.preprocess.duplicates == "remove_exact"


def test_paths_are_relative_to_the_file(load, tmp_path):
    config = load()
    assert (
        config.path("raw") == tmp_path / "raw"
        and config.path("/raw") == Path("/raw")
        and config.path("~/raw") == Path.home() / "raw"
    )


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  epoch: 3",
            "small.yaml:8: train.epoch: unknown key; the nearest valid name is 'epochs'",
        ),
        (
            "pipeline: small",
            "pipeline: small\nzzz: 1",
            (
                "small.yaml:2: zzz: unknown key; "
                "valid names are deadline_seconds, description, evaluate, "
            ),
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  epochs: many",
            "small.yaml:8: train.epochs: input should be a valid integer, got 'many'",
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  epochs: 2.0",
            "small.yaml:8: train.epochs: input should be a valid integer, got 2.0",
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  epochs: 0",
            "small.yaml:8: train.epochs: input should be greater than or equal to 1, got 0",
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  optimizer: {learning_rate: .nan}",
            "small.yaml:8: .nan is not a finite number",
        ),
        (
            "  model: digits_cnn",
            "  epochs: 3",
            "small.yaml:6: train.model: required, but not given",
        ),
        ("pipeline: small\n", "", "small.yaml:1: pipeline: required, but not given"),
        (
            "pipeline: small",
            "pipeline: Small Model",
            "small.yaml:1: pipeline: must match the pattern",
        ),
        (
            "train: 0.8",
            "train: 0.7",
            "small.yaml:5: preprocess.split: train + validation + test must be 1, got 0.9",
        ),
        (
            "stages: [decode]",
            "stages: []",
            "small.yaml:4: preprocess.stages: list should have at least 1 item",
        ),
        (
            "stages: [decode]",
            "stages: [decode: 28]",
            (
                "small.yaml:4: preprocess.stages.0.parameters: must be a section ('key: value'), "
                "got 28"
            ),
        ),
        (
            "{metric: accuracy, at_least: 0.9}",
            "{metric: accuracy}",
            "small.yaml:10: evaluate.gate.0: a rule needs at_least, not_worse_than",
        ),
        (
            "metric: accuracy",
            "metric: acuracy",
            (
                "small.yaml:10: evaluate.gate.0.metric: unknown name 'acuracy'; "
                "the nearest valid name is 'accuracy'"
            ),
        ),
        (
            "at_least: 0.9",
            "at_least: 90",
            "small.yaml:10: evaluate.gate.0: at_least of accuracy lies between 0 and 1, got 90",
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  strategy: one_device\n  workers: 2",
            "small.yaml:6: train: strategy one_device has",
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  workers: 3\n  global_batch: 2",
            "global_batch must be at least workers x devices_per_worker x micro_batches (3), got 2",
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  min_workers: 2",
            "train: min_workers (2), workers (1) and max_workers (1) must not go down",
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  parameter_servers: 1",
            (
                "strategy multi_worker_mirrored has no use for parameter_servers (1), "
                "which is for parameter_server"
            ),
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  workers: 16",
            (
                "small.yaml:2: preprocess.shards: "
                "must be at least the number of training workers (16), got 8"
            ),
        ),
        (
            "  model: digits_cnn",
            "  model: digits_cnn\n  optimizer: {name: adam, momentum: 0.9}",
            "momentum is for the optimizer sgd, got it with adam",
        ),
        (
            "pipeline: small",
            "pipeline: small\nschedule: hourly",
            "small.yaml:2: schedule.cron: must be five fields",
        ),
        (
            "pipeline: small",
            "pipeline: small\nschedule: {asset: [a]}",
            "small.yaml:2: schedule.asset: unknown key; the nearest valid name is 'assets'",
        ),
        (
            "pipeline: small",
            "pipeline: small\nschedule: {assets: [{uri: a}]}",
            "schedule.assets.0.name: required, but not given",
        ),
        (
            "pipeline: small",
            "pipeline: small\nstorage: {root: 's3://bucket'}",
            "small.yaml:2: storage.root: storage.root must be a local folder",
        ),
        (
            "type: image_folder",
            "type: image_foldr",
            (
                "small.yaml:3: preprocess.source.type: unknown type 'image_foldr'; "
                "the nearest valid name is 'image_folder'"
            ),
        ),
        (
            "type: image_folder",
            "type: zip",
            (
                "preprocess.source.type: unknown type 'zip'; "
                "valid names are coco, csv, image_folder, jsonl, tfds, tfrecord, voc"
            ),
        ),
        ("type: image_folder", "type: [voc]", "small.yaml:3: preprocess.source.type: unknown type"),
        (
            "{type: image_folder, path: raw}",
            "{path: raw}",
            "small.yaml:3: preprocess.source.type: required, but not given",
        ),
        (
            "type: image_folder, path",
            "type: image_folder, pth",
            "small.yaml:3: preprocess.source.path: required, but not given",
        ),
        (
            "type: image_folder, path",
            "type: image_folder, pth",
            "small.yaml:3: preprocess.source.pth: unknown key; the nearest valid name is 'path'",
        ),
        (
            "type: image_folder",
            "type: voc, unlistd: ignore",
            "preprocess.source.unlistd: unknown key; the nearest valid name is 'unlisted'",
        ),
        (
            "type: image_folder",
            "type: voc, image_sets: {trian: x}",
            "source.image_sets.trian: unknown key; the nearest valid name is 'train'",
        ),
        (
            "{type: image_folder, path: raw}",
            "\n    type: coco\n    path: raw\n    parts:\n      - {annotation: a.json}",
            (
                "small.yaml:7: preprocess.source.parts.0.annotation: unknown key; "
                "the nearest valid name is 'annotations'"
            ),
        ),
        (
            "type: image_folder",
            "type: coco, parts: [{annotations: a, split: val}]",
            "preprocess.source.parts.0.split: must be one of train, validation, test, got 'val'",
        ),
        (
            "type: image_folder",
            "type: voc, class_names: [a, b, a]",
            "preprocess.source.class_names: must name each class once, got a more than once",
        ),
        (
            "path: raw",
            "path: 'gz://bucket/raw'",
            "preprocess.source.path: must be a local folder, or a URI of an object store such as "
            "s3://bucket/folder, got gz://bucket/raw",
        ),
        (
            "type: image_folder",
            "type: tfds, parts: [{name: train}], builder: 'voc==1'",
            "preprocess.source.builder: must match the pattern",
        ),
        (
            "pipeline: small",
            "pipeline: small\ntrain: {}",
            "small.yaml:7: train stands twice, first in line 2",
        ),
        (
            "stages: [decode]",
            "stages: [decode",
            "small.yaml:4: not valid YAML: the bracket [ is not closed",
        ),
    ],
)
def test_a_wrong_config_is_told_file_line_key_and_rule(load, old, new, message):
    assert message in complaint(load, old, new)


def test_everything_that_is_wrong_is_told_at_once(load):
    lines = complaint(
        load, "  model: digits_cnn", "  model: digits_cnn\n  epochs: 0\n  epoch: 3"
    ).splitlines()
    assert ["train.epochs" in lines[0], "train.epoch:" in lines[1]] == [True, True]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty; a config is a mapping of keys to values"),
        ("- a", "got a list"),
        ("a: \x07", "not valid YAML"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("a: &x [*x]", "an alias (*name) stands inside the value that it names"),
    ],
)
def test_what_is_no_mapping_is_told(load, text, message):
    assert message in complaint(load, text=text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nothing.yaml: no such file"):
        load_config(tmp_path / "nothing.yaml")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "file.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="file.yaml:1: is not UTF-8"):
        load_config(tmp_path / "file.yaml")


def test_an_override_replaces_a_value_and_may_be_the_first_of_its_section(load):
    config = load(
        train__epochs=3,
        train__optimizer__learning_rate=0.01,
        evaluate__gate=[{"metric": "accuracy", "at_least": 0.1}],
    )
    assert (
        config.train.epochs,
        config.train.optimizer.learning_rate,
        config.evaluate.gate[0].at_least,
    ) == (3, 0.01, 0.1)


def test_an_override_reaches_into_a_list(load):
    assert load(evaluate__gate__0__at_least=0.25).evaluate.gate[0].at_least == 0.25


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            {"train__epochs": 0},
            (
                "override train.epochs: train.epochs: input should be greater than or equal to 1, "
                "got 0"
            ),
        ),
        (
            {"train__epoch": 1},
            "override train.epoch: train.epoch: unknown key; the nearest valid name is 'epochs'",
        ),
        (
            {"evaluate__gate__5__at_least": 1},
            "override evaluate.gate.5.at_least: there is no evaluate.gate.5",
        ),
        ({"evaluate__gate__5": 1}, "override evaluate.gate.5: there is no such place"),
        ({"evaluate__gate__²": 1}, "override evaluate.gate.²: there is no such place"),
        ({"pipeline__x": 1}, "override pipeline.x: pipeline is a value, not a section"),
    ],
)
def test_a_wrong_override_is_named(load, overrides, message):
    assert message in complaint(load, **overrides)


def test_numbers_are_read_as_in_yaml_1_2(load):
    assert (
        load(
            "  model: digits_cnn", "  model: digits_cnn\n  optimizer: {learning_rate: 1e-3}"
        ).train.optimizer.learning_rate
        == 0.001
    )
    assert [parse_value(text) for text in ("1e-3", "3", "null", "[1, a]", "yes please")] == [
        0.001,
        3,
        None,
        [1, "a"],
        "yes please",
    ]


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
        preprocess__runner={"mode": "in_memory"},
    )
    assert patient.train.fingerprinted() == load().train.fingerprinted()
    assert patient.preprocess.fingerprinted() == load().preprocess.fingerprinted()


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
    assert load(**overrides).train.fingerprinted() != load().train.fingerprinted()


@pytest.mark.parametrize(
    "max_count, max_fraction, num_records, budget",
    [(5, 0.0, 1000, 5), (0, 0.01, 1000, 10), (5, 0.01, 100, 5), (0, 0.0, 9, 0)],
)
def test_the_larger_budget_for_rejects_counts(max_count, max_fraction, num_records, budget):
    assert Rejects(max_count=max_count, max_fraction=max_fraction).budget(num_records) == budget


def test_the_nearest_name_is_told_and_otherwise_all():
    assert nearest("epoch", ["epochs", "seed"]) == "the nearest valid name is 'epochs'"
    assert nearest("zzz", ["epochs", "seed"]) == "valid names are epochs, seed"


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
    here, there = (
        load("type: image_folder, path: raw", f"type: voc, path: {path}").preprocess.fingerprinted()
        for path in ("here", "there")
    )
    assert here == there
    assert (
        load(
            "type: image_folder, path: raw", "type: voc, path: here, class_names: [a]"
        ).preprocess.fingerprinted()
        != here
    )


@pytest.mark.parametrize(
    "key, value, reason",
    [
        (
            "export.formats",
            ["saved_model", "tflite_int8"],
            "tflite_int8 is for classifiers: in eight bits",
        ),
        ("evaluate.slices", [{"by": "folder"}], "evaluate.slices: are for classifiers"),
        (
            "evaluate.gate",
            [{"metric": "accuracy", "at_least": 0.5}],
            "accuracy is not for detection",
        ),
    ],
)
def test_what_is_for_classifiers_is_refused_with_a_detector(key, value, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config(DIGITS.with_name("digit_scenes.yaml"), {key: value})


def test_a_detector_has_other_formats_and_rules_on_latency():
    overrides = {
        "export.formats": ["saved_model", "tflite", "onnx"],
        "evaluate.gate": [{"metric": "latency_milliseconds", "at_most": 50}],
    }
    assert load_config(DIGITS.with_name("digit_scenes.yaml"), overrides).evaluate.measures_latency
