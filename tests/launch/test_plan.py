from __future__ import annotations

import json
from pathlib import Path

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.layout import Attempt
from pipeline_ops.launch.plan import build_launch_plan, free_ports


def plan(workers: int = 2, cores: int = 2):
    config = Train(model="digits_cnn", workers=workers, global_batch=64)
    return build_launch_plan(config, range(4000, 4000 + workers), Attempt(Path("/run")), Path("/work"), incarnation=1, cores=cores)


def test_every_worker_knows_all_addresses_and_its_own_place():
    assert [w.addresses for w in plan().workers] == [["127.0.0.1:4000", "127.0.0.1:4001"]] * 2
    assert [w.worker for w in plan().workers] == [0, 1]


def test_workers_share_the_cores_and_none_goes_without():
    assert [w.threads for w in plan(2, 8).workers] == [4, 4]
    assert [w.threads for w in plan(4, 2).workers] == [1, 1, 1, 1]


def test_a_plan_can_be_printed_and_read_back():
    text = plan().model_dump_json()
    assert type(plan()).model_validate_json(text) == plan()
    assert json.loads(text)["incarnation"] == 1


def test_free_ports_are_all_different():
    assert len(set(free_ports(20))) == 20


def test_tf_config_is_what_tensorflow_documents():
    from pipeline_ops.training.strategy import tf_config

    assert json.loads(tf_config(plan().workers[1])) == {"cluster": {"worker": ["127.0.0.1:4000", "127.0.0.1:4001"]},
                                                        "task": {"type": "worker", "index": 1}}
