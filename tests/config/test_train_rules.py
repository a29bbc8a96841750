"""Options of training that can't go together are refused with their reason,
before any process starts."""

from __future__ import annotations

import re
import string
from typing import Any

import pytest
import yaml
from config.cases import parse_cases
from pydantic import ValidationError

from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.train import Train
from pipeline_ops.config.train_rules import REFUSALS

SHARED = {
    "DTENSOR": "strategy: dtensor, devices_per_worker: 2, sharding: {'*': 0}",
    "SERVER": "strategy: parameter_server, parameter_servers: 1",
}


def make_train(options: str) -> Train:
    """Returns the section with some options, in YAML's flow style."""
    given = string.Template(options).substitute(SHARED)
    return Train.model_validate({"model": "digits_cnn"} | yaml.safe_load(f"{{{given}}}"))


def describe(problem: dict[str, Any]) -> str:
    """Returns key and rule, as the message about a file has them."""
    error = problem.get("ctx", {}).get("error")
    key = [*problem["loc"], *getattr(error, "key_path", ())]
    return f"{'.'.join(map(str, key))}: {problem['msg'].removeprefix('Value error, ')}"


REFUSED = """
model: resnet5
    there is no model 'resnet5'; the nearest valid name is 'resnet50', and a model of your own
    is named as
model: 'my package:build'
    a function of your own is named as my_package.my_module:function, got 'my package:build'
model: dense, model_parameters: {unit: 3}
    the model dense has no parameter unit. It has units, hidden_layers
strategy: mirrored
    devices_per_worker: 1 is not for the strategy mirrored, which is for several devices. Use
    one_device.
strategy: mirrored, workers: 2, devices_per_worker: 2
    workers: 2 is not for the strategy mirrored, which has exactly 1 worker. Use
    multi_worker_mirrored.
strategy: mirrored, max_workers: 2, devices_per_worker: 2
    max_workers: 2 is not for the strategy mirrored
strategy: one_device, devices_per_worker: 2
    devices_per_worker: 2 is not for the strategy one_device, which uses 1 device of each worker
strategy: parameter_server
    parameter_servers: 0 is not for the strategy parameter_server, which needs at least one. Give
    one.
freeze_epochs: 2
    freeze_epochs: 2 keeps the weights that warm_start sets, and there are none. Set warm_start,
    or freeze_epochs: 0
freeze_epochs: 3, epochs: 3, warm_start: champion
    freeze_epochs must be smaller than epochs (3), got 3
freeze_epochs: 1, warm_start: champion, $SERVER
    freeze_epochs: 1 is not for the strategy parameter_server, whose weights are sharded
freeze_epochs: 1, warm_start: champion, $DTENSOR
    freeze_epochs: 1 is not for the strategy dtensor, whose weights are sharded
freeze: {'*conv*': 3}, epochs: 3
    freeze: *conv* must thaw before the end of the training (epochs: 3), got 3. Use null
freeze: {'*conv*': null}, $SERVER
    freeze: {"*conv*": null} is not for the strategy parameter_server, whose weights are sharded.
    Use multi_worker_mirrored, or leave it out.
freeze: {'*conv*': 0}
    greater than or equal to 1
seed: 4294967296
    less than or equal to 4294967295
input: {local_folder: cache}
    must begin with / or ~, because it is on the hosts' own disks, got cache
parameter_servers: 2
    parameter_servers: 2 is not for the strategy multi_worker_mirrored, which has no use for it. Use
    parameter_server, or leave it out.
strategy: device_placement, devices_per_worker: 2
    placement: {} is not for the strategy device_placement, which needs at least one. Give one.
strategy: dtensor, devices_per_worker: 2
    sharding: {} is not for the strategy dtensor, which needs at least one
sharding: {dense/kernel: 1}
    which has no use for it. Use dtensor
tpu: my-tpu
    tpu: my-tpu is not for the strategy multi_worker_mirrored, which has no use for it
workers: 2, micro_batches: 4, global_batch_size: 6
    global_batch_size must be at least workers x devices_per_worker x micro_batches (8), got 6
strategy: tpu, devices_per_worker: 8, global_batch_size: 60
    must be a multiple of devices_per_worker x micro_batches (8) for tpu
workers: 2, max_workers: 4, micro_batches: 4, batch_size_per_replica: 3
    the global batch must be at least max_workers x devices_per_worker x micro_batches (16), got 6
global_batch_size: 64, batch_size_per_replica: 32
    exactly one of global_batch_size and batch_size_per_replica may be given, got 64 and 32
scale_learning_rate: sqrt, global_batch_size: 64
    scale_learning_rate: sqrt needs batch_size_per_replica
$SERVER, batch_size_per_replica: 8
    batch_size_per_replica: 8 is not for the strategy parameter_server, which does not divide a
    batch between replicas. Use global_batch_size.
strategy: auto, batch_size_per_replica: 8
    auto takes as many replicas as its host has GPUs
synchronized_batch_normalization: true
    the model digits_cnn has no batch normalisation
model: 'a:b', $SERVER, synchronized_batch_normalization: true
    synchronized_batch_normalization: true is not for the strategy parameter_server, whose workers
    do not wait for one another
model: 'a:b', synchronized_batch_normalization: true, xla: gradients
    cannot compile the exchange between replicas
xla: step
    xla: step is not for the strategy multi_worker_mirrored, whose steps exchange gradients between
    replicas, which XLA cannot compile here. Use xla: gradients, or the strategy one_device or tpu.
xla: gradients, workers: 2, micro_batches: 3, global_batch_size: 64
    64 is no multiple of workers x devices_per_worker x micro_batches (6)
xla: gradients, debug: [numerics]
    debug: numerics looks at single operations
strategy: tpu, xla: gradients
    the whole step is always compiled
strategy: device_placement, devices_per_worker: 2, placement: {'*': 'GPU:0'}, xla: gradients
    and XLA compiles for one. Leave it out.
communication: ring, strategy: mirrored, devices_per_worker: 2
    communication: ring is not for the strategy mirrored, which has another exchange
$SERVER, precision: float16
    whose workers would all change its loss scale at once. Use bfloat16.
$DTENSOR, precision: float16
    has no loss scale
$DTENSOR, micro_batches: 2
    micro_batches: 2 is not for the strategy dtensor, which needs all shapes
loss: 'a:b', label_smoothing: 0.1
    label_smoothing belongs to the cross-entropy
class_weights: true, weights_by_class: {cat: 2}
    class_weights: true computes the weights, and weights_by_class gives them
weights_by_class: {cat: -1}
    greater than or equal to 0
loss_arguments: {gamma: 2}
    loss_arguments are for a loss
optimizer: {name: lion}
    must be one of adam, adamw, rmsprop, sgd, or a class such as keras.optimizers:Lion
optimizer: {arguments: {beta_1: 0.8}}
    arguments are for an optimizer by class, got them with adam
optimizer: {class: 'keras.optimizers:Lion', momentum: 0.5}
    belongs into arguments, because keras.optimizers:Lion is a class
optimizer: {class: 'keras.optimizers:Lion', name: adam}
    name (adam) and class (keras.optimizers:Lion) say the same
optimizer: {class: keras.optimizers.Adam, arguments: {clipnorm: 1.0}}
    has a key of its own: write train.optimizer: {clip: {norm: 1.0}}
optimizer: {class: keras.optimizers.Adam, arguments: {use_ema: true}}
    has a key of its own: write train.optimizer: {average_weights: 0.999}
$SERVER, optimizer: {class: keras.optimizers.Lion}
    optimizer.name: keras.optimizers:Lion is not for the strategy parameter_server, which divides
    weights, and so has optimizers of its own. Use adam, adamw, rmsprop or sgd.
optimizer: {schedule: {type: own, function: 'keras.optimizers.schedules:CosineDecay'}}
    must be 1, because keras.optimizers.schedules:CosineDecay gives the learning rate itself
input: {augment: {mosaic: 0.5}}
    input.augment.mosaic: 0.5 is not for the classifier digits_cnn, which gives one label, and four
    images have four. Leave it out, or use a detector.
model: center_detector, input: {augment: {mixup: 0.2}}
    input.augment.mixup: 0.2 is not for the detector center_detector, which gives boxes, and the key
    mixes the classes of two images. Leave it out, or use mosaic.
model: center_detector, input: {augment: {cutmix: 1.0}}
    input.augment.cutmix: 1.0 is not for the detector center_detector, which gives boxes
input: {augment: {own: jitter}}
    a function of your own is named as my_package.my_module:function, got 'jitter'
loss: sparse_categorical_crossentropy
    got 'sparse_categorical_crossentropy'. Leave train.loss out, because the cross-entropy of
metrics: [accuracy]
    got 'accuracy'. Leave it out, because every training reports the accuracy
loss: keras.losses.poisson
    got 'keras.losses.poisson'. Write keras.losses:poisson
input: {augment: {min_visible: 0.5}}
    input.augment.min_visible: 0.5 is not for the classifier digits_cnn, which gives no boxes. Leave
    it out.
model: center_detector, label_smoothing: 0.1
    label_smoothing: 0.1 is not for the detector center_detector, and the key is for classification
model: center_detector, $SERVER
    model: center_detector is not for the strategy parameter_server, whose loop does not divide the
    loss by the number of boxes. Use one_device, mirrored or multi_worker_mirrored.
model: center_detector, strategy: tpu
    model: center_detector is not for the strategy tpu, whose shapes are fixed
input: {repeat_threshold: 0.001, shuffle: shards}
    repeat_threshold needs shuffle: examples
input: {augment: {scale: {min: 1.5}}}
    less than or equal to 1
model: center_detector, best_checkpoint: {monitor: validation_accuracy}
    best_checkpoint.monitor must be one of validation_loss
metrics: ['my:a'], callbacks: ['keras.callbacks:EarlyStopping': {monitor: val_a}]
    is val_a. Nothing says whether my:a is better when it is lower
early_stopping: {monitor: validation_top3}
    validation_worst_class_recall, validation_top_3_accuracy, got validation_top3
reduce_learning_rate: {monitor: validation_map}
    monitor must be one of validation_loss, validation_accuracy, validation_macro_precision
best_checkpoint: {monitor: validation_top_k_accuracy}
    validation_top_3_accuracy, got validation_top_k_accuracy
model: center_detector, best_checkpoint: {monitor: validation_top_3_accuracy}
    validation_mar_large, got
optimizer: {clip: {norm: 1.0, value: 1.0}}
    exactly one of global_norm, norm and value must be given, got norm and value
optimizer: {schedule: {type: piecewise, boundaries_steps: [5], factors: [1.0, 2.0]}}
    as boundaries_steps (1), got 2
optimizer: {schedule: {type: piecewise, boundaries_steps: [5, 5], factors: [1.0, 2.0]}}
    must be positive and ascending
optimizer: {name: adam, weight_decay: 0.1}
    weight_decay is for the optimizers adamw, rmsprop and sgd, got it with adam
model: retinanet, synchronized_batch_normalization: true,
model_parameters: {frozen_batch_normalization: true}, best_checkpoint: null
    there are no statistics to synchronise
model: retinanet, model_parameters: {backbones: A}, best_checkpoint: null
    the model retinanet has no parameter backbones
"""
TAKEN = """
optimizer: {class: keras.optimizers.Lion, arguments: {beta_1: 0.95}, clip: {norm: 1}}
optimizer: {name: 'my_module:make', average_weights: 0.99}
optimizer: {learning_rate: 1, schedule: {type: own, function: 'my_module:Schedule'}}
loss: {'keras.losses:CategoricalFocalCrossentropy': {gamma: 3}}, class_weights: {cat: 2}
loss: 'a:b', class_weights: true
metrics: ['a:b', {'keras.metrics:SparseTopKCategoricalAccuracy': {k: 3, mode: max}}]
strategy: mirrored, devices_per_worker: 2
strategy: parameter_server, parameter_servers: 2, workers: 3, global_batch_size: 2, micro_batches: 2
strategy: device_placement, devices_per_worker: 2, placement: {conv*: 'GPU:1'}
strategy: dtensor, devices_per_worker: 2, sharding: {'*/kernel': 1}
strategy: tpu, tpu: my-tpu, devices_per_worker: 8, global_batch_size: 64
model: resnet50, synchronized_batch_normalization: true, workers: 2
model: retinanet, synchronized_batch_normalization: true, workers: 2,
    best_checkpoint: {monitor: validation_box_iou}
optimizer: {name: sgd, momentum: 0.9, weight_decay: 0.001}
metrics: ['my:a'], callbacks: ['keras.callbacks:EarlyStopping': {monitor: val_a, mode: min}]
metrics: ['a.b:top3': {mode: max}], best_checkpoint: {monitor: validation_top3}
best_checkpoint: {monitor: validation_macro_recall}
early_stopping: {monitor: validation_top_3_accuracy}
model: retinanet, best_checkpoint: {monitor: validation_mar_10}
workers: 3, global_batch_size: 64
strategy: auto, workers: 2, batch_size_per_replica: 1, scale_learning_rate: linear
strategy: tpu, devices_per_worker: 8, batch_size_per_replica: 3
freeze_epochs: 2, epochs: 3, warm_start: champion
freeze: {'*conv1*': 2, '*bn*': null}, epochs: 3
input: {augment: {flip_top_bottom: true, scale: {max: 1.5}, saturation: 0.2}}
model: center_detector, input: {augment: {mosaic: 0.5, min_visible: 0.5}}
"""


@pytest.mark.parametrize("options, reason", parse_cases(REFUSED))
def test_what_cannot_work_is_refused_with_the_reason(options, reason):
    with pytest.raises(ValidationError) as refused:
        make_train(options)
    assert reason in "\n".join(map(describe, refused.value.errors()))


def test_every_refusal_is_about_keys_of_the_section():
    keys = {key for rule in REFUSALS for key in rule.keys}
    assert keys - collect_fields(Train).keys() == set()


@pytest.mark.parametrize("options", re.findall(r"^\S.*\n(?: .+\n)*", TAKEN, re.MULTILINE))
def test_what_works_is_taken(options):
    assert make_train(options)


@pytest.mark.parametrize(
    "options, monitor",
    [
        ("model: digits_cnn", "validation_accuracy"),
        ("model: center_detector", "validation_map_50"),
        (
            "model: center_detector, best_checkpoint: {monitor: validation_box_iou}",
            "validation_box_iou",
        ),
        ("model: center_detector, best_checkpoint: null", None),
    ],
)
def test_the_best_epoch_of_a_classifier_goes_by_accuracy_and_that_of_a_detector_by_map_50(
    options, monitor
):
    assert make_train(options).best_monitor == monitor


@pytest.mark.parametrize(
    "options, batch_size, rate, sentence",
    [
        ("optimizer: {learning_rate: 0.01}", 64, 0.01, ""),
        (
            "workers: 2, devices_per_worker: 2, batch_size_per_replica: 32, "
            "scale_learning_rate: linear",
            128,
            0.004,
            "4 replicas x 32 = a global batch of 128, at a learning rate of 0.004 (0.001 x 4). "
            "Another number of workers or devices_per_worker changes both, and so the model",
        ),
        (
            "workers: 4, min_workers: 1, max_workers: 8, batch_size_per_replica: 32, "
            "scale_learning_rate: sqrt",
            128,
            0.002,
            "4 replicas x 32 = a global batch of 128, at a learning rate of 0.002 "
            "(0.001 x the square root of 4). "
            "Another number of workers or devices_per_worker changes both, and so the model",
        ),
        (
            "batch_size_per_replica: 32",
            32,
            0.001,
            "1 replica x 32 = a global batch of 32, at a learning rate of 0.001. "
            "Another number of workers or devices_per_worker changes the batch, and so the model",
        ),
    ],
)
def test_batch_and_learning_rate_follow_the_replicas_only_if_asked(
    options, batch_size, rate, sentence
):
    train = make_train(options)
    assert (train.batch_size, train.batch_description) == (batch_size, sentence)
    assert train.learning_rate == pytest.approx(rate, rel=1e-12)
