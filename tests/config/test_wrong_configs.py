"""Wrong pipeline configs: the message names file, line, key and rule.

`broken_yamls.py` has more, each with its line.
"""

from __future__ import annotations

import re

import pytest
from config.cases import parse_cases
from config_files import write_config

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError

WRONG = r"""
pipeline: small -> pipeline: small\nzzz: 1
    small.yaml:2: zzz: unknown key; valid names are description, evaluate,
digits_cnn -> digits_cnn\n  epochs: 2.0
    small.yaml:8: train.epochs: input should be a valid integer, got 2.0
digits_cnn -> digits_cnn\n  epochs: 0
    small.yaml:8: train.epochs: input should be greater than or equal to 1, got 0
digits_cnn -> digits_cnn\n  optimizer: {learning_rate: .nan}
    train.optimizer.learning_rate: input should be a valid number, got '.nan'
stages: [decode] -> stages: []
    small.yaml:4: preprocess.stages: list should have at least 1 item
stages: [decode] -> stages: [decode: 28]
    small.yaml:4: preprocess.stages.0.parameters: must be a section ('key: value'), got 28
{metric: accuracy, at_least: 0.9} -> {metric: accuracy}
    small.yaml:10: evaluate.gate.0: a rule needs at_least, max_regression
at_least: 0.9 -> at_least: 90
    small.yaml:10: evaluate.gate.0: at_least of accuracy lies between 0 and 1, got 90
metric: accuracy -> metric: my_f1
    small.yaml:10: evaluate.gate.0.metric: unknown name 'my_f1'; the nearest valid name is
    'macro_f1', and a metric of your own is named as my_package.my_module:metric
metric: accuracy -> metric: macro
    unknown name 'macro'; valid names are macro_average_precision, macro_f1, macro_precision,
    macro_recall, macro_roc_auc, and a metric of your own is named as
metric: accuracy, at_least: 0.9 -> metric: "my_metrics:brier", at_most: 0.4, mode: max
    my_metrics:brier is higher-is-better (its mode). Use at_least, not at_most.
metric: accuracy, at_least: 0.9 -> metric: "my_metrics:brier_error", max_regression: 0.1
    small.yaml:10: evaluate.gate.0.mode: a comparison with the champion needs it. Nothing says
    whether my_metrics:brier_error is better when it is lower or when it is higher. Write
    {my_metrics:brier_error: {mode: min}} (lower is better) or {my_metrics:brier_error: {mode: max}}
    into train.metrics, or mode: min or mode: max into this rule.
metric: accuracy -> metric: accuracy, mode: min
    evaluate.gate.0.mode: is for a metric of your own, and accuracy is one of ours. Remove it.
digits_cnn -> digits_cnn\n  metrics: [{"my:brier": {mode: low}}]
    small.yaml:8: train.metrics.0: a metric is `my_module:metric`, or with its better direction
    `my_module:metric: {mode: min}` (min or max), got {'my:brier': {'mode': 'low'}}
digits_cnn -> digits_cnn\n  metrics: ["my:brier"]\n  early_stopping: {monitor: validation_brier}
    small.yaml:9: train.early_stopping.monitor: is validation_brier. Nothing says whether my:brier
    is better when it is lower or when it is higher. Write {my:brier: {mode: min}}
digits_cnn -> digits_cnn\n  metrics: ["my:error"]\n  best_checkpoint: {monitor: validation_error}
    train.best_checkpoint.monitor: is validation_error. Nothing says whether my:error is
digits_cnn -> digits_cnn\n  metrics: ["my:a"]\n  reduce_learning_rate: {monitor: validation_a}
    train.reduce_learning_rate.monitor: is validation_a. Nothing says whether my:a is better
digits_cnn -> digits_cnn\n  metrics: ["my:a", "other:a"]
    train.metrics: two figures would have the name a. Give the function another name.
digits_cnn -> digits_cnn\n  metrics: ["my:loss"]
    small.yaml:8: train.metrics: two figures would have the name loss. Give the function
digits_cnn -> digits_cnn\n  metrics: ["my:accuracy"]
    train.metrics: two figures would have the name accuracy. Give the function another name.
digits_cnn -> digits_cnn\n  callbacks: [EarlyStopping]
    train.callbacks.0: write keras.callbacks:EarlyStopping, if it is Keras's, or
    module:EarlyStopping
digits_cnn -> digits_cnn\n  callbacks: [{class: EarlyStopping, monitor: val_loss}]
    train.callbacks.0: a callback is `my_module:MyCallback`, or with arguments
    `keras.callbacks:CSVLogger: {filename: log.csv}`, got {'class': 'EarlyStopping',
digits_cnn -> digits_cnn\n  callbacks: [{keras.callbacks.CSVLogger: {filename: a.csv}}]
    got 'keras.callbacks.CSVLogger'. Write keras.callbacks:CSVLogger
metric: accuracy -> metric: mAR
    evaluate.gate.0.metric: unknown name 'mAR'; valid names are accuracy, average_precision,
    calibration_error, drift, f1, latency_milliseconds, macro_average_precision, macro_f1,
    macro_precision, macro_recall, macro_roc_auc, model_bytes, precision, recall, roc_auc,
    serving_skew, top_k_accuracy, worst_class_recall, and a metric of your own is named as
digits_cnn -> digits_cnn\n  strategy: one_device\n  workers: 2
    small.yaml:9: train.workers: 2 is not for the strategy one_device, which has exactly 1 worker.
    Use multi_worker_mirrored.
digits_cnn -> digits_cnn\n  min_workers: 2
    train: need min_workers <= workers <= max_workers, got 2, 1, 1
digits_cnn -> digits_cnn\n  optimizer: {name: adam, momentum: 0.9}
    momentum is for the optimizers sgd and rmsprop, got it with adam
pipeline: small -> pipeline: small\nschedule: {asset: [a]}
    small.yaml:2: schedule.asset: unknown key; the nearest valid name is 'assets'
pipeline: small -> pipeline: small\nschedule: {assets: [{uri: a}]}
    schedule.assets.0.name: required, but not given
pipeline: small -> pipeline: small\nstorage: {root: 'hdfs://name/folder'}
    small.yaml:2: storage.root: must be a folder, or a URI that begins with s3://, gs://, az://,
    got hdfs://name/folder
pipeline: small -> pipeline: small\nstorage: {root: 'file:///srv/folder'}
    small.yaml:2: storage.root: must be a folder, or a URI that begins with
pipeline: small -> pipeline: small\nstorage: {root: 's3://bucket/../other'}
    small.yaml:2: storage.root: 'bucket/../other' is not a usable relative path: it has a part
    that is empty, '.' or '..'
pipeline: small -> pipeline: small\nstorage: {root: 's3://key:secret@bucket/folder'}
    small.yaml:2: storage.root: a s3:// URI must not hold a user name or a password, which all
    readers of this file can see
pipeline: small -> pipeline: small\nstorage: {root: 's3://bucket', endpoint: 'minio:9000'}
    small.yaml:2: storage.endpoint: must begin with https:// or http://, got minio:9000
type: image_folder -> type: zip
    preprocess.source.type: unknown type 'zip'; valid names are coco, csv, cvat, image_folder,
    jsonl, label_studio, labelme, npz, parquet, tfds, tfrecord, via, voc, webdataset, yolo
type: image_folder -> type: [voc]
    small.yaml:3: preprocess.source.type: unknown type
{type: image_folder, path: raw} -> {path: raw}
    small.yaml:3: preprocess.source.type: required, but not given
type: image_folder, path -> type: image_folder, pth
    small.yaml:3: preprocess.source.path: required, but not given
type: image_folder, path -> type: image_folder, pth
    small.yaml:3: preprocess.source.pth: unknown key; the nearest valid name is 'path'
type: image_folder -> type: voc, unlistd: ignore
    preprocess.source.unlistd: unknown key; the nearest valid name is 'unlisted'
type: image_folder -> type: voc, image_sets: {trian: x}
    source.image_sets.trian: must be one of train, validation, test, got 'trian'
{type: image_folder, path: raw} -> \n   type: coco\n   path: raw\n   parts:\n   - {annotation: a}
    small.yaml:7: preprocess.source.parts.0.annotation: unknown key; the nearest valid name is
    'annotations'
type: image_folder -> type: coco, parts: [{annotations: a, split: val}]
    preprocess.source.parts.0.split: must be one of train, validation, test, got 'val'
type: image_folder -> type: voc, class_names: [a, b, a]
    preprocess.source.class_names: must name each class once, got a more than once
path: raw -> path: 'gz://bucket/raw'
    preprocess.source.path: must be a local folder, or a URI with s3, gs, az, http, https, such
    as s3://bucket/folder, got gz://bucket/raw
type: image_folder -> type: tfds, parts: [{name: train}], builder: 'voc==1'
    preprocess.source.builder: must match the pattern
"""
"""Replacements in the small config, and the message below each."""


@pytest.mark.parametrize("change, message", parse_cases(WRONG))
def test_a_wrong_config_is_told_file_line_key_and_rule(complaint, change, message):
    old, new = change.replace("\\n", "\n").split(" ->")
    assert message in complaint(old, new.removeprefix(" "))


def test_an_unknown_metric_of_a_detector_gets_those_of_coco(complaint):
    found = complaint("metric: accuracy", "metric: mAR", train__model="retinanet")
    names = "mar_1, mar_10, mar_100, mar_large, mar_medium, mar_small"
    assert found.endswith(f"metric: unknown name 'mAR'; valid names are {names}")


@pytest.mark.parametrize(
    "strategy, nearest",
    [
        ("MirroredStrategy", "mirrored"),
        ("tf.distribute.MultiWorkerMirroredStrategy", "multi_worker_mirrored"),
        ("ParameterServerStrategy", "parameter_server"),
        ("TPUStrategy", "tpu"),
        ("OneDeviceStrategy", "one_device"),
    ],
)
def test_a_strategy_named_as_in_tensorflow_gets_our_name(complaint, strategy, nearest):
    found = complaint("digits_cnn", f"digits_cnn\n  strategy: {strategy}")
    rule = f"unknown name '{strategy}'; the nearest valid name is '{nearest}'"
    assert found.endswith(f"small.yaml:8: train.strategy: {rule}")


RATE = "train.optimizer.learning_rate"


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"min": 0.1, "max": 1, "log": True}, "min: unknown key; "),
        ({"low": 2, "high": 1}, "low must be less than high, got 2 and 1"),
        ({"low": 2}, "high: required, but not given"),
        (0.1, "must be a list"),
    ],
)
def test_wrong_values_of_a_search_are_told_once_and_as_in_the_yaml(tmp_path, values, rule):
    search = {"method": "random", "trials": 2, "parameters": {RATE: values}}
    with pytest.raises(ConfigError) as error:
        load_config(write_config(tmp_path, {"search": search}))
    text = str(error.value)
    assert f": search.parameters.{RATE}" in text and rule in text
    assert not re.search(r"function-|list\[|\[range|Range", text)
    assert ("must be a list" in text) == (values == 0.1)


def test_an_unknown_key_is_told_before_what_is_missing(complaint):
    found = complaint("evaluate:", "evalute:").splitlines()
    assert "evalute: unknown key; the nearest valid name is 'evaluate'" in found[0]
    assert found[1].endswith("evaluate: required, but not given")
