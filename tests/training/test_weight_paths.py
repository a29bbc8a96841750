"""Weights belong to their paths, not to their places, which differ between processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError
from pipeline_ops.system.processes import JOB_PYTHON
from pipeline_ops.training.checkpoints import Checkpoints
from pipeline_ops.training.training_state import TrainingState
from pipeline_ops.training.weight_files import Paths, number_paths, read_arrays, write_arrays

PROGRAM = """
import json, sys
from pathlib import Path
import pipeline_ops.input.keras_start
import numpy as np
import tensorflow as tf
from training.branches import KINDS
from pipeline_ops.config.train import Train
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.checkpoints import Checkpoints
from pipeline_ops.training.training_state import TrainingState
from pipeline_ops.training.loop import SynchronousLoop

folder, kind, step = sys.argv[1:]
config = Train(model="m:m", epochs=1, early_stopping=None, optimizer={"name": "adam"})
strategy, task = tf.distribute.OneDeviceStrategy("/cpu:0"), Classification((8, 8, 1))
with strategy.scope():
    model = KINDS[kind]((8, 8, 1), 5)
loop = SynchronousLoop(strategy, model, task, config)
checkpoints = Checkpoints(Path(folder), paths=loop.paths)
draw = np.random.default_rng(1)
images = draw.integers(0, 256, (8, 32, 8, 8, 1)).astype(np.uint8)
labels = draw.integers(0, 5, (8, 32)).astype(np.int64)
batches = iter(tf.data.Dataset.from_tensor_slices((images[int(step):], labels[int(step):])))
if step == "0":
    loop.train(batches, 0, [0.01] * 3)
    checkpoints.save(TrainingState(step=3, learning_rate=0.01), *loop.get_views())
    checkpoints.wait()
else:
    restored = checkpoints.restore(print)
    loop.assign(restored.weights, restored.optimizer)
before = model(images[0].astype("float32")).numpy()
loop.train(batches, 3, [0.01] * 3)
after = model(images[0].astype("float32")).numpy()
print(json.dumps([[v.path for v in model.weights], before.tolist(), after.tolist()]))
"""


def run(folder: Path, kind: str, step: int, seed: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Trains in a process of its own. Returns the paths, and the answers after 3 and 6 steps."""
    path = os.pathsep.join(map(str, (CODE_ROOT, Path(__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, kind, str(step)],
        env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": str(seed)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    paths, before, after = json.loads(done.stdout.splitlines()[-1])
    return paths, np.array(before), np.array(after)


@pytest.mark.parametrize(
    "kind",
    [
        "set of names",
        pytest.param("names of the environment", marks=pytest.mark.training),
        pytest.param("nested", marks=pytest.mark.training),
    ],
)
@pytest.mark.training
def test_a_training_goes_on_where_another_process_makes_the_layers_in_another_order(tmp_path, kind):
    first_paths, before, after = run(tmp_path, kind, 0, seed=1)
    paths, again, later = run(tmp_path, kind, 3, seed=2)
    assert sorted(paths) == sorted(first_paths) and paths != first_paths
    np.testing.assert_allclose(again, before, atol=1e-6)
    np.testing.assert_allclose(later, after, atol=1e-5)


def test_the_processes_of_a_job_walk_a_set_in_one_order():
    program = "print(*{'edges', 'texture', 'colour', 'shape', 'corner', 'shade'})"
    orders = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | JOB_PYTHON,
            check=True,
            capture_output=True,
        ).stdout
        for _ in range(4)
    }
    assert len(orders) == 1


ARRAYS = [np.float32([1]), np.float32([2, 3]), np.float32([4])]


def test_a_checkpoint_is_read_in_the_order_of_the_reader(tmp_path):
    written = Checkpoints(tmp_path, paths=Paths(["a", "b", "c"], ["m_a", "m_b", "m_c"]))
    best = [array * 10 for array in ARRAYS]
    written.save(TrainingState(step=1, learning_rate=0.1, best_epoch=0), ARRAYS, ARRAYS, best)
    written.wait()
    read = Checkpoints(tmp_path, paths=Paths(["c", "a", "b"], ["m_b", "m_c", "m_a"]))
    restored = read.restore(pytest.fail)
    assert [w.tolist() for w in restored.weights] == [[4], [1], [2, 3]]
    assert [w.tolist() for w in restored.optimizer] == [[2, 3], [4], [1]]
    assert [w.tolist() for w in restored.best] == [[40], [10], [20, 30]]


def test_a_model_with_other_weights_does_not_resume(tmp_path):
    written = Checkpoints(tmp_path, paths=Paths(["a", "b", "c"], []))
    written.save(TrainingState(step=1, learning_rate=0.1), ARRAYS, [])
    written.wait()
    with pytest.raises(ConfigError, match="the file lacks d, and the model lacks c. The function"):
        Checkpoints(tmp_path, paths=Paths(["a", "b", "d"], [])).restore(pytest.fail)


def test_weights_without_paths_keep_their_places(tmp_path):
    write_arrays(tmp_path / "w.npz", ARRAYS)
    assert [w.tolist() for w in read_arrays(tmp_path / "w.npz", ["c", "a", "b"])] == [
        [1],
        [2, 3],
        [4],
    ]


def test_weights_of_one_name_are_numbered():
    assert number_paths(["a/w", "b/w", "a/w", "a/w"]) == ["a/w", "b/w", "a/w#2", "a/w#3"]


@pytest.mark.parametrize(
    "second, named",
    [
        (["a", "c", "b"], "b and c at"),
        (["a", "b", "other"], "c and other at"),
        (["a", "b"], "2 and 3 weights in all at"),
    ],
)
def test_workers_that_build_different_models_do_not_begin(tmp_path, second, named):
    rows, barrier = [b"", b""], threading.Barrier(2, timeout=60)

    def begin(worker: int) -> str:
        def gather(message: bytes) -> list[bytes]:
            rows[worker] = message
            barrier.wait()
            found = list(rows)
            barrier.wait()
            return found

        paths = Paths([["a", "b", "c"], second][worker], [])
        with pytest.raises(ConfigError) as refused:
            Checkpoints(tmp_path, gather=gather, paths=paths).restore_common(pytest.fail)
        return str(refused.value)

    with ThreadPoolExecutor(2) as pool:
        messages = set(pool.map(begin, range(2)))
    assert len(messages) == 1
    assert named in messages.pop()
