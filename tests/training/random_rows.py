"""Trains, kills, resumes and exports the models of `random_models`, in forks of one process.

    python -m training.random_rows FOLDER SEED ...

The folder has a request of a train job for each model (`FOLDER/SEED/request.json`), and images. As
the product's fork server does, the process has imported TensorFlow and run no operation. It forks

- `keras`, which trains all models with Keras alone, and checks those that the check must refuse,
- two workers of a gang, which save a checkpoint of each model, and are killed in a later step,
- two other workers, which resume all models and train them to their end,
- `candidate`, which exports them.

The last three make the layers of some models in the reverse order. Of each model, the folder then
has weights and answers, or `<process>.txt` with the message of a ConfigError or a traceback.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pipeline_ops.input.keras_start  # noqa: F401  # isort: skip  (before other imports of Keras)
import keras
import numpy as np
import tensorflow as tf
from training.keras_rows import (
    BATCH,
    IMAGE_SHAPE,
    NUM_CLASSES,
    RATE,
    make_task,
    take_steps,
    train_with_keras,
)
from training.random_models import FAULTS, ORDER, draw

from pipeline_ops.cli.embedded_airflow import find_free_port
from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import (
    TRAINED,
    CandidateSpec,
    WorkerSpec,
    format_worker_digest_name,
)
from pipeline_ops.contract.request import read_request
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import ModelCheckRequest
from pipeline_ops.models import build_model
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.system.host import die_with_parent
from pipeline_ops.training.check import check_model
from pipeline_ops.training.checkpoints import Checkpoints
from pipeline_ops.training.loop import Loop
from pipeline_ops.training.saved_model_export import export_saved_model
from pipeline_ops.training.strategy import configure_threads, make_gather, make_strategy
from pipeline_ops.training.training_state import TrainingState
from pipeline_ops.training.weight_files import compute_weights_digest, number_paths, write_arrays
from pipeline_ops.training.worker import make_loop
from pipeline_ops.user_code.models import read_user_code

EXPECTED, ANSWERS, IMAGES = "expected.npz", "answers.npy", "images.npy"
BEFORE, LOST, AFTER = (1, 1), (1,), (2,)
"""The steps of the calls before the checkpoint, of those that the kill loses, and the rest."""
REVERSED = {ORDER: "backwards"}
GROUP = 40
"""The number of models of a gang, whose memory grows with each."""
_POLL_SECONDS = 0.05


def read_config(folder: Path) -> Train:
    return Train.model_validate(read_request(open_path(folder / "request.json")).config)


def build_for_training(config: Train) -> keras.Model:
    return build_model(config, IMAGE_SHAPE, NUM_CLASSES, Path("/nowhere"), for_training=True)


@contextlib.contextmanager
def recording(folder: Path, process: str) -> Iterator[None]:
    """Writes the message of a ConfigError, or the traceback of another error, into the folder."""
    keras.backend.clear_session()
    try:
        yield
    except ConfigError as error:
        (folder / f"{process}.txt").write_text(str(error))
    except Exception:
        (folder / f"{process}.txt").write_text(f"failed: {traceback.format_exc()}")


def train_alone(folders: Sequence[Path]) -> None:
    """Writes the weights that a training with Keras alone ends with, by path."""
    configure_threads(make_spec(folders[0], [], 0))
    for folder in folders:
        config, drawn = read_config(folder), draw(int(folder.name))
        if drawn.fault in FAULTS:
            with recording(folder, "check"):
                (folder / "check").mkdir()
                check_model(make_question(config), work=folder / "check")
            continue
        with recording(folder, "keras"):
            keras.utils.set_random_seed(config.seed)
            model = build_for_training(config)
            weights = train_with_keras(drawn.row, model, sum(BEFORE + AFTER))
            paths = number_paths(each.path for each in model.weights)
            # The averages, if there are any, as in the trained weights of a gang.
            write_arrays(folder / EXPECTED, weights[-len(paths) :], paths)


def make_question(config: Train) -> ModelCheckRequest:
    return ModelCheckRequest(
        config_file="/nowhere/models.yaml",
        train=config.model_dump(mode="json"),
        task="classification",
        image_shape=IMAGE_SHAPE,
        num_classes=NUM_CLASSES,
        code=read_user_code(config, Path(__file__).parent),
    )


def make_spec(folder: Path, addresses: list[str], index: int) -> WorkerSpec:
    return WorkerSpec(
        request=str(folder / "request.json"),
        cluster={"worker": addresses},
        index=index,
        host="127.0.0.1",
        work=str(folder / "work"),
        progress=os.devnull,
        threads=1,
    )


class Member:
    """A worker of a gang of two, which trains one model after the other."""

    def __init__(self, folder: Path, addresses: list[str], index: int):
        self.index, self._addresses = index, addresses
        self.shard = slice(index * BATCH // 2, (index + 1) * BATCH // 2)
        spec = make_spec(folder, addresses, index)
        self._chosen = make_strategy(read_config(folder), spec)
        self._gather = make_gather(self._chosen.strategy, spec)

    def open(self, folder: Path) -> tuple[Loop, Checkpoints]:
        """Makes the loop of a model, and its checkpoints."""
        config, work = read_config(folder), folder / "work"
        build = functools.partial(build_for_training, config)
        loop = make_loop(config, self._chosen, make_task(), build)
        checkpoints = Checkpoints(
            work, gather=self._gather, is_chief=self.index == 0, paths=loop.paths
        )
        return loop, checkpoints


def begin(folders: Sequence[Path], member: Member) -> None:
    """Saves a checkpoint of each model, and goes on. Trains the last one until it is killed."""
    last = None
    for folder in folders:
        if draw(int(folder.name)).fault in FAULTS:
            continue
        with recording(folder, f"begun-{member.index}"):
            loop, checkpoints = member.open(folder)
            if checkpoints.restore_common(print):
                raise ValueError(f"{folder} has a checkpoint")
            take_steps(loop, member.shard, BEFORE)
            state = TrainingState(step=sum(BEFORE), learning_rate=RATE)
            checkpoints.save(state, *loop.get_views())
            take_steps(loop, member.shard, LOST, state.step)
            checkpoints.wait()
            last = loop
    (folders[0] / f"begun-{member.index}").touch()
    while True:
        if last:
            take_steps(last, member.shard, LOST)


def finish(folders: Sequence[Path], member: Member) -> None:
    """Resumes each model. Writes its trained weights, and its answers to the images."""
    images = np.load(folders[0].parent / IMAGES).astype(np.float32)
    for folder in folders:
        if not [*folder.glob("work/checkpoint-*.npz")]:
            continue
        with recording(folder, f"finished-{member.index}"):
            loop, checkpoints = member.open(folder)
            restored = checkpoints.restore_common(print)
            if restored is None:
                raise ValueError(f"{folder} has no checkpoint")
            loop.assign(restored.weights, restored.optimizer)
            take_steps(loop, member.shard, AFTER, restored.state.step)
            weights = loop.get_best_weights()
            digest = folder / "work" / format_worker_digest_name(member.index)
            digest.write_text(compute_weights_digest(weights))
            if member.index == 0:
                loop.assign(weights)
                logits = tf.cast(loop.model(images, training=False), tf.float32)
                np.save(folder / ANSWERS, tf.nn.softmax(logits))
                write_arrays(folder / "work" / TRAINED, weights, loop.paths.weights)


def export(folders: Sequence[Path]) -> None:
    """Writes the candidate of each trained model."""
    for folder in folders:
        if (folder / "work" / TRAINED).exists():
            with recording(folder, "candidate"):
                spec, candidate = make_spec(folder, [], 0), folder / "candidate"
                candidate.mkdir()
                export_saved_model(
                    CandidateSpec(request=spec.request, work=spec.work, folder=str(candidate))
                )


def fork(log: Path, work: Callable[[], None], **environment: str) -> int:
    """Forks a process that does the work and ends. Returns its id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        die_with_parent()
        os.environ.update(environment)
        opened = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(opened, 1), os.dup2(opened, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def fork_gang(
    folders: Sequence[Path], work: Callable[[Sequence[Path], Member], None], **environment: str
) -> list[int]:
    addresses = [f"127.0.0.1:{find_free_port()}" for _ in range(2)]

    def run(index: int) -> None:
        work(folders, Member(folders[0], addresses, index))

    logs = (folders[0] / f"{work.__name__}-{index}.log" for index in range(2))
    return [
        fork(log, functools.partial(run, index), **environment) for index, log in enumerate(logs)
    ]


def wait(pids: Sequence[int]) -> None:
    """Waits for the ends of forks. Raises ValueError if one has failed."""
    if failed := [pid for pid in pids if os.waitpid(pid, 0)[1]]:
        raise ValueError(f"processes {failed} have failed, see the logs")


def main(arguments: Sequence[str]) -> None:
    folder, rest = Path(arguments[0]), []
    folders = [folder / seed for seed in arguments[1:]]
    gc.freeze()
    for number in range(0, len(folders), GROUP):
        group = folders[number : number + GROUP]
        rest.append(fork(group[0] / "keras.log", functools.partial(train_alone, group)))
        kill_when_begun(fork_gang(group, begin), group)
        wait(fork_gang(group, finish, **REVERSED))
        rest.append(fork(group[0] / "export.log", functools.partial(export, group), **REVERSED))
    wait(rest)


def kill_when_begun(pids: Sequence[int], folders: Sequence[Path]) -> None:
    """Kills the workers of a gang in a step, once all models have a checkpoint."""
    while not all((folders[0] / f"begun-{index}").exists() for index in range(len(pids))):
        if ended := [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0]]:
            raise ValueError(f"processes {ended} have ended, see the logs")
        time.sleep(_POLL_SECONDS)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
