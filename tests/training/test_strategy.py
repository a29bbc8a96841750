"""The strategy that `auto` selects, and the errors of a host that lacks what a strategy needs."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from gangs import ALONE, QUICK, run_gang

from pipeline_ops.config.train import Train
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError


@pytest.mark.parametrize(
    "workers, devices_per_worker, gpus, strategy, reason",
    [
        (1, 1, 0, "one_device", "there is one worker, and its host has no GPU"),
        (1, 1, 1, "one_device", "there is one worker, and its host has one GPU"),
        (1, 1, 4, "mirrored", "there is one worker, and its host has 4 GPUs"),
        (1, 2, 0, "mirrored", "there is one worker with 2 devices"),
        (2, 1, 0, "multi_worker_mirrored", "the gang has 2 workers"),
        (2, 4, 4, "multi_worker_mirrored", "the gang has 2 workers"),
    ],
)
def test_auto_takes_what_the_hosts_have_and_says_why(
    workers, devices_per_worker, gpus, strategy, reason
):
    from pipeline_ops.training.strategy import choose_strategy

    config = Train(
        model="digits_cnn", strategy="auto", workers=workers, devices_per_worker=devices_per_worker
    )
    assert choose_strategy(config, workers, gpus) == (strategy, reason)


@pytest.mark.training
@pytest.mark.parametrize(
    ("row", "options"),
    [
        ("`one_device`", ALONE),
        ("`mirrored`", ALONE | {"train__strategy": "mirrored", "train__devices_per_worker": 2}),
        (
            "`multi_worker_mirrored` with one worker",
            ALONE | {"train__strategy": "multi_worker_mirrored"},
        ),
        (
            "`multi_worker_mirrored` with several workers",
            {"train__strategy": "multi_worker_mirrored", "train__workers": 2},
        ),
        (
            "`parameter_server`",
            ALONE | {"train__strategy": "parameter_server", "train__parameter_servers": 1},
        ),
    ],
)
def test_each_worker_trains_under_the_class_that_the_page_of_strategies_names(
    make_job, host_pool, row, options
):
    page = (CODE_ROOT / "docs" / "strategies.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith(f"| {row} | `")]
    job = make_job("classes", **QUICK | options)
    gang = run_gang(job, host_pool, steps_limit=2)
    log = (job.attempt.folder / "gang.log").read_text()
    messages = [line for line in log.splitlines() if "  building  " in line]
    assert len(messages) == (1 if gang.config.parameter_servers else gang.config.workers)
    assert all(f"({line.split(' | ')[1].strip('` |')})" in message for message in messages)


THREADS = """
import json, sys
from pipeline_ops.contract.gang_protocol import WorkerSpec
from pipeline_ops.training.strategy import configure_threads
from tensorflow.python.eager import context
configure_threads(WorkerSpec.model_construct(threads=int(sys.argv[1])))
config = context.context().config  # the one that creates TensorFlow's threads
print(json.dumps([
    config.intra_op_parallelism_threads,
    config.inter_op_parallelism_threads,
    config.experimental.disable_thread_spinning,
]))
"""


@pytest.mark.training
@pytest.mark.parametrize("cores, threads", [(1, [1, 2, True]), (3, [3, 3, False])])
def test_idle_threads_of_a_worker_with_one_core_sleep_at_once(cores, threads):
    output = subprocess.run(
        [sys.executable, "-c", THREADS, str(cores)], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(output) == threads


def test_without_a_tpu_the_message_says_where_to_name_one():
    from pipeline_ops.training.strategy import connect_tpu

    with pytest.raises(
        ConfigError,
        match=(
            r"train.strategy is tpu, but no TPU was found: .*\. "
            r"Set its name in train.tpu, or choose another strategy\."
        ),
    ):
        connect_tpu(Train(model="digits_cnn", strategy="tpu"))


@pytest.mark.parametrize(
    ("communication", "gpus", "expected"),
    [("auto", 0, "RING"), ("auto", 2, "NCCL"), ("ring", 2, "RING"), ("ring", 0, "RING")],
)
def test_workers_with_gpus_add_up_by_nccl_unless_the_config_says_otherwise(
    communication, gpus, expected
):
    from pipeline_ops.training.strategy import choose_communication

    config = Train(model="digits_cnn", communication=communication)
    assert choose_communication(config, gpus).value == expected


REPLICAS = {
    "equal": ([1.0, 2.0, 2.0, 4.0, 1.0], ""),
    "other numbers": ([1.0, 2.0, 2.0, 4.0, 0.0], "of the numbers of 2 replicas is 0.0"),
    "not a number": ([1.0, 2.0, float("nan"), 4.0, 1.0], "their sums over 2 are [nan  4.]"),
    "another gradient": ([1.0, 2.0, 2.0, 4.1, 1.0], "their sums over 2 are [2.  4.1]"),
}


@pytest.mark.parametrize(("values", "problem"), REPLICAS.values(), ids=REPLICAS)
def test_gpus_that_compute_otherwise_are_refused(values, problem):
    import tensorflow as tf

    from pipeline_ops.training.strategy import check_replicas, check_replicas_agree

    strategy = SimpleNamespace(
        num_replicas_in_sync=2,
        run=lambda compute: None,
        experimental_local_results=lambda _: [
            tf.constant(REPLICAS["equal"][0]),
            tf.constant(values),
        ],
    )
    assert problem in check_replicas(strategy)
    if problem:
        with pytest.raises(ConfigError, match="#90686 .* Set train.communication to ring"):
            check_replicas_agree(strategy)


def test_a_host_whose_gpus_tensorflow_does_not_use_is_refused(monkeypatch):
    from pipeline_ops.training import strategy

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(strategy, "configure_threads", lambda spec: None)
    monkeypatch.setattr(strategy, "find_package_problem", lambda: None)
    monkeypatch.setattr(strategy, "find_gpu_problem", lambda: ("no libcufft", "Install it."))
    with pytest.raises(ConfigError, match="a.example has GPUs.* none: no libcufft. Install it."):
        strategy.make_strategy(Train(model="digits_cnn"), SimpleNamespace(host="a.example"))


def test_a_worker_asks_for_no_more_gpus_than_it_sees():
    from pipeline_ops.training.strategy import configure_devices

    assert configure_devices(2, gpus=2) == ["/gpu:0", "/gpu:1"]
    with pytest.raises(
        ConfigError, match="train.devices_per_worker is 3, but a worker here sees 2 GPUs"
    ):
        configure_devices(3, gpus=2)


@pytest.mark.parametrize(
    "sharding, problem",
    [
        (
            {"*/kernel": 2},
            (
                r"the weight net/dense/kernel of shape \(9, 4\) "
                "cannot be divided among 2 devices along axis 2"
            ),
        ),
        (
            {"*/kernel": 0},
            (
                r"the weight net/dense/kernel of shape \(9, 4\) "
                "cannot be divided among 2 devices along axis 0"
            ),
        ),
        (
            {"*/bias": 0, "conv*": 1},
            r"no weight matches conv\*\. The weights are net/dense/kernel, net/dense/bias\.",
        ),
    ],
)
def test_weights_that_cannot_be_divided_are_refused_by_name(sharding, problem):
    from pipeline_ops.training.sharded_loop import build_sharding_specs

    with pytest.raises(ConfigError, match=f"train.sharding: {problem}"):
        build_sharding_specs(
            {"net/dense/kernel": (9, 4), "net/dense/bias": (4,)}, sharding, num_devices=2
        )


def test_the_first_pattern_that_matches_a_weight_counts():
    from pipeline_ops.training.sharded_loop import build_sharding_specs

    specs = build_sharding_specs(
        {"a/kernel": (8, 4), "b/kernel": (8, 4), "b/bias": (4,)},
        {"a/*": 0, "*/kernel": 1},
        num_devices=2,
    )
    assert specs == {
        "a/kernel": ["devices", "unsharded"],
        "b/kernel": ["unsharded", "devices"],
        "b/bias": ["unsharded"],
    }


# Logical devices can only be set in a process that has not used TensorFlow yet.
ON_DEVICES = """
import json
import numpy as np
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.classification import Classification
from pipeline_ops.models.dense import build
from pipeline_ops.training.loop import SynchronousLoop
from pipeline_ops.training.strategy import build_placed
from pipeline_ops.training.sharded_loop import DTensorLoop
from pipeline_ops.training.strategy import configure_devices

devices, placement, task = (
    configure_devices(2, gpus=0),
    {"hidden*": "CPU:1", "logits": "CPU:0"},
    Classification((4, 4, 1)),
)
report = {}
model = build_placed(lambda: build((4, 4, 1), 2), placement)
loop = SynchronousLoop(
    tf.distribute.get_strategy(),
    model,
    task,
    Train(model="dense", strategy="device_placement", devices_per_worker=2, placement=placement),
)
short = lambda variable: variable.value.device.rpartition("device:")[2]
report["variables"] = {
    variable.path.partition("/")[2]: short(variable) for variable in model.weights
}
report["slots"] = sorted(
    f"{variable.path.partition('/')[2]} {short(variable)}"
    for variable in loop.optimizer.variables
    if "hidden" in variable.path
)
graph = tf.function(lambda x: model(x)).get_concrete_function(tf.zeros([1, 4, 4, 1])).graph
report["matmuls"] = [
    node.device.rpartition("device:")[2]
    for node in graph.get_operations()
    if node.type == "MatMul"
]
for wrong in ({"dense": "CPU:0"}, {"hidden*": "GPU:7"}):
    try:
        build_placed(lambda: build((4, 4, 1), 2), wrong)
    except ConfigError as error:
        report.setdefault("refused", []).append(str(error))
config = Train(
    model="dense",
    strategy="dtensor",
    devices_per_worker=2,
    sharding={"*hidden_0/kernel": 1},
)
model = build((4, 4, 1), 2)
sharded = DTensorLoop(model, task, config, devices)
from tensorflow.experimental import dtensor
kernel = next(
    shards[0]
    for variable, shards in zip(model.weights, sharded._weights)
    if variable.path.endswith("hidden_0/kernel")
)
report["pieces"] = [piece.shape.as_list() for piece in dtensor.unpack(kernel.read_value())]
print(json.dumps(report))
"""


def test_layers_and_pieces_lie_where_the_config_says():
    output = subprocess.run(
        [sys.executable, "-c", ON_DEVICES], capture_output=True, text=True, check=True
    ).stdout
    report = json.loads(output.splitlines()[-1])
    assert report["variables"] == {
        "hidden_0/kernel": "CPU:1",
        "hidden_0/bias": "CPU:1",
        "logits/kernel": "CPU:0",
        "logits/bias": "CPU:0",
    }
    assert len(report["slots"]) == 4
    assert all(slot.endswith("CPU:1") for slot in report["slots"])
    assert report["matmuls"] == ["CPU:1", "CPU:0"]
    assert report["pieces"] == [[16, 32], [16, 32]]
    assert report["refused"][0].startswith(
        "train.placement: no layer matches dense. The layers are "
    )
    assert report["refused"][1].startswith(
        "train.placement: there is no device GPU:7. This worker has CPU:0, CPU:1 "
    )
