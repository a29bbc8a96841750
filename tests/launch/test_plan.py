from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_ops.config.train import Train
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError
from pipeline_ops.launch.plan import LaunchPlan, build_launch_plan, compute_gang_size
from pipeline_ops.places.launcher import Host

HERE = Host(name="here", address="127.0.0.1", workers=4, cores=8)
THREE = [
    Host(name=f"h{i}", address=f"10.0.0.{i}", workers=2, cores=4, gpus=("0", "1", "2", "3"))
    for i in (1, 2, 3)
]


def train(**values) -> Train:
    return Train(**{"model": "digits_cnn", "workers": 2, "global_batch_size": 64} | values)


def plan(config: Train, hosts=(HERE,)) -> LaunchPlan:
    made = build_launch_plan(config, hosts, Attempt(Path("/run")), Path("/work"))
    return made.with_ports({host.name: range(4000, 4100) for host in hosts})


def test_every_worker_knows_all_addresses_and_its_own_place():
    workers = plan(train()).workers
    assert [w.cluster for w in workers] == [{"worker": ["127.0.0.1:4000", "127.0.0.1:4001"]}] * 2
    assert [(w.name, w.is_chief) for w in workers] == [("worker 0", True), ("worker 1", False)]


def test_tf_config_is_what_tensorflow_documents():
    assert json.loads(plan(train()).workers[1].tf_config) == {
        "cluster": {"worker": ["127.0.0.1:4000", "127.0.0.1:4001"]},
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize(
    ("workers", "hosts"),
    [
        (1, ["h1"]),
        (2, ["h1", "h2"]),
        (3, ["h1", "h2", "h3"]),
        (4, ["h1", "h1", "h2", "h3"]),
        (6, ["h1", "h1", "h2", "h2", "h3", "h3"]),
    ],
)
def test_workers_are_spread_and_numbered_in_the_order_of_the_hosts(workers, hosts):
    assert [worker.host for worker in plan(train(workers=workers), THREE).workers] == hosts


def test_a_gang_with_parameter_servers_has_a_chief_workers_and_servers():
    made = plan(train(strategy="parameter_server", workers=3, parameter_servers=2), THREE)
    assert made.workers[0].cluster == {
        "chief": ["10.0.0.1:4000"],
        "worker": ["10.0.0.1:4001", "10.0.0.2:4000", "10.0.0.3:4000"],
        "ps": ["10.0.0.1:4002", "10.0.0.2:4001"],
    }
    assert [w.name for w in made.workers] == [
        "chief",
        "worker 0",
        "worker 1",
        "worker 2",
        "ps 0",
        "ps 1",
    ]
    assert [w.name for w in made.workers if not w.is_server] == ["chief"]
    assert [w.name for w in made.workers if w.is_chief] == ["chief"]


def test_workers_share_the_cores_of_their_host_and_none_goes_without():
    assert [w.threads for w in plan(train(), [HERE]).workers] == [4, 4]
    assert [w.threads for w in plan(train(), [HERE.model_copy(update={"cores": 1})]).workers] == [
        1,
        1,
    ]
    assert [w.threads for w in plan(train(workers=4), THREE).workers] == [2, 2, 4, 4]


def test_workers_of_one_host_have_devices_of_their_own():
    made = plan(train(workers=4, devices_per_worker=2), THREE)
    assert [made.environment[w.name]["CUDA_VISIBLE_DEVICES"] for w in made.workers] == [
        "0,1",
        "2,3",
        "0,1",
        "0,1",
    ]
    assert [w.devices for w in made.workers] == [2] * 4
    served = plan(train(strategy="parameter_server", workers=1, parameter_servers=1), THREE)
    assert served.environment["ps 0"] == {"CUDA_VISIBLE_DEVICES": ""}, (
        "a process that does not train must not hold a device"
    )


def test_all_workers_get_as_many_gpus_as_the_host_with_the_fewest_for_each():
    hosts = [THREE[0], THREE[1].model_copy(update={"gpus": ("0", "1", "2")})]
    made = plan(train(workers=2, strategy="auto"), hosts)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in made.environment.values()] == ["0,1,2"] * 2


@pytest.mark.parametrize(("gpus", "strategy"), [((), "auto"), (("0",), "multi_worker_mirrored")])
def test_no_worker_trains_without_a_gpu_beside_others_with_one(gpus, strategy):
    hosts = [THREE[0], THREE[1].model_copy(update={"gpus": gpus})]
    config = train(workers=2, strategy=strategy, devices_per_worker=1 + len(gpus))
    with pytest.raises(ConfigError, match=f"host h2 has {len(gpus)} GPUs for 1 workers"):
        plan(config, hosts)


@pytest.mark.parametrize(
    ("workers", "fewest", "most", "hosts", "size"),
    [
        (2, None, None, 3, 2),
        (2, None, None, 1, 2),
        (4, None, None, 1, 0),
        (4, 2, None, 1, 2),
        (4, 3, None, 1, 0),
        (2, 1, 6, 3, 6),
        (2, 1, 5, 2, 4),
        (2, 1, None, 0, 0),
    ],
)
def test_a_gang_is_as_large_as_its_hosts_and_its_bounds_allow(workers, fewest, most, hosts, size):
    assert (
        compute_gang_size(
            train(workers=workers, min_workers=fewest, max_workers=most), THREE[:hosts]
        )
        == size
    )


def test_a_plan_can_be_printed_and_read_back():
    made = plan(train(), THREE)
    assert LaunchPlan.model_validate_json(made.model_dump_json()) == made
    assert str(made).splitlines()[2].split() == [
        "worker",
        "1",
        "h2",
        "10.0.0.2:4000",
        "4",
        "1",
        "CUDA_VISIBLE_DEVICES=0",
    ]
