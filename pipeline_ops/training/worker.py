"""A worker: joins the gang, resumes from the last checkpoint, trains, and writes its results.

All workers run the same code on the same state. Only the chief writes checkpoints and results.
`fork_server.py` forks the workers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline_ops.card.collection import CardCollection, collect_card
from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import CLASS_WEIGHTS
from pipeline_ops.contract.gang_protocol import (
    CARD,
    JOINING_PHASE,
    STATE,
    TRAINED,
    WAITING_PHASE,
    WorkerSpec,
    format_worker_digest_name,
)
from pipeline_ops.contract.manifest import WARM_START
from pipeline_ops.contract.progress import ProgressWriter
from pipeline_ops.contract.request import Request, read_request
from pipeline_ops.contract.results import CALLBACKS, DIVERGED, SEEN_PICTURES, TENSORBOARD
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.augment import OwnChange
from pipeline_ops.input.framework_internals import list_layers
from pipeline_ops.input.streaming import raise_read_errors
from pipeline_ops.job.job_code import use_user_code
from pipeline_ops.job.local_inputs import (
    HostDataset,
    open_host_cache,
    open_host_dataset,
    store_files,
)
from pipeline_ops.models import (
    build_model,
    has_own_step,
    load_function,
    load_per_example,
    make_head,
)
from pipeline_ops.models.classification import Classification, PerExample
from pipeline_ops.models.detection import Detection
from pipeline_ops.models.task import Task
from pipeline_ops.models.user_errors import convert_training_errors
from pipeline_ops.registry.weights import fetch_weights
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import write_atomically, write_json
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.training.callbacks import KerasCallbacks
from pipeline_ops.training.checkpoint_store import CheckpointStore
from pipeline_ops.training.checkpoints import KEEP, Checkpoints
from pipeline_ops.training.input_pipeline import InputPipeline
from pipeline_ops.training.loop import Loop
from pipeline_ops.training.optimizer import load_schedule, make_optimizer
from pipeline_ops.training.own_dataset import OwnInputPipeline, open_own_dataset
from pipeline_ops.training.own_step import (
    OwnStepLoop,
    make_synchronous_loop,
    refuse_options,
)
from pipeline_ops.training.seen_pictures import NUM_SEEN, draw_seen
from pipeline_ops.training.self_consistency import NUM_ANSWERS, list_images, trace_own_change
from pipeline_ops.training.sharded_loop import DTensorLoop, ParameterServerLoop
from pipeline_ops.training.stop_signal import StopSignal
from pipeline_ops.training.strategy import (
    ChosenStrategy,
    Gather,
    build_placed,
    check_matches,
    configure_threads,
    describe_devices,
    make_cluster_resolver,
    make_gather,
    make_strategy,
)
from pipeline_ops.training.tensorboard import TensorboardWriter
from pipeline_ops.training.trainer import Trainer, describe_model
from pipeline_ops.training.training_state import TrainingState
from pipeline_ops.training.usage import GpuMonitor
from pipeline_ops.training.warm_start import read_warm_start
from pipeline_ops.training.weight_files import Paths, compute_weights_digest, write_arrays
from pipeline_ops.user_code.opened_files import explain_unnamed_files

BuildModel = Callable[[], keras.Model]
_TELL_SECONDS = 1.0
_DETECTED = re.compile(r"Detected Infinity or NaN.*? op \S+", re.S)
_UNSETTLED = 0.01
_NOT_REPEATABLE = re.compile(r"^.*determinis.*$", re.M | re.I)
_FRAME = re.compile(r"\+ (\S+ \(L\d+\) \S+)")


def run_worker(spec: WorkerSpec) -> Trainer:
    """Trains to the end, as one worker of the gang.

    The caller must hold the result until the process exits. Its destruction exchanges messages with
    peers that may have left already, and then blocks for the ten seconds of TensorFlow's timeout.
    """
    progress = ProgressWriter(Path(spec.progress), spec.index)
    progress.report(JOINING_PHASE, message=f"{spec.name} of {spec.workers} joins")
    if spec.is_server:
        _serve(spec, progress)
    request = read_request(open_path(spec.request))
    config = Train.model_validate(request.config | {"micro_batches": spec.micro_batches})
    with (
        use_user_code(request, Path(spec.request).parent) as code_folder,
        convert_training_errors(config),
        _enable_debugging(config.debug),
        raise_read_errors(),
        collect_card() as card,
    ):
        # Before TensorFlow opens a GPU, so that its other processes are those of others.
        monitor = GpuMonitor(lambda message: progress.report("warning", message=message))
        if others := monitor.list_processes():
            message = f"others use the memory and time of the GPUs: {', '.join(others)}"
            progress.report("warning", message=message)
        chosen = make_strategy(config, spec)
        reason = f", because {chosen.reason}" if chosen.reason else ""
        message = f"strategy {chosen.name} ({chosen.class_name}){reason}, on {describe_devices()}"
        if chosen.communication:
            message += f". Gradients are added up by {chosen.communication}"
        progress.report("building", message=message)
        trainer = build_trainer(spec, request, code_folder, config, chosen, progress, monitor, card)
        trainer.run()
        _write_results(trainer, chosen)
        progress.report(
            "trained",
            trainer.state.step,
            trainer.input.total_steps,
            "steps",
            shares=trainer.times.compute_shares(),
            gpus=trainer.gpu_monitor.gpus,
        )
    return trainer


@contextlib.contextmanager
def _enable_debugging(switches: Sequence[str]) -> Iterator[None]:
    """Enables the switches that `config/train.py` documents while the block runs.

    Raises ConfigError if the numerics check stopped an operation, or if an operation has no
    repeatable form.
    """
    if "determinism" in switches:
        tf.config.experimental.enable_op_determinism()
    if "numerics" in switches:
        tf.debugging.enable_check_numerics()
    if "eager" in switches:
        tf.config.run_functions_eagerly(True)
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        detected = _DETECTED.search(str(error))
        if "numerics" not in switches or detected is None:
            raise
        user_frames = [frame for frame in _FRAME.findall(str(error)) if "packages/" not in frame]
        raise ConfigError(
            f"train.debug: numerics: {' '.join(detected.group(0).split())}, "
            f"computed in {' > '.join(user_frames)}. See the log for the whole message."
        ) from error
    except tf.errors.UnimplementedError as error:
        refused = _NOT_REPEATABLE.search(str(error))
        if "determinism" not in switches or refused is None:
            raise
        raise ConfigError(
            f"train.debug: determinism: {refused.group(0).strip()} Leave out determinism, or "
            "train.xla if it is set: fewer operations are repeatable under XLA."
        ) from error


def _serve(spec: WorkerSpec, progress: ProgressWriter) -> None:
    """Serves the chief of a gang with parameter servers. Never returns.

    It reports the first SIGTERM and serves on, until the chief has saved. The main thread stays
    inside TensorFlow, where no Python signal handler runs. A thread therefore waits for the byte
    that the interpreter writes when a signal comes.
    """
    configure_threads(spec)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def report_sigterm() -> None:
        os.read(read_end, 1)
        message = "received SIGTERM. The chief will save the state."
        progress.report("preempted", message=message)

    threading.Thread(target=report_sigterm, daemon=True).start()
    resolver = make_cluster_resolver(spec)
    tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
    ).join()


def build_trainer(
    spec: WorkerSpec,
    request: Request,
    code_folder: Path,
    config: Train,
    chosen: ChosenStrategy,
    progress: ProgressWriter,
    monitor: GpuMonitor,
    card: CardCollection,
) -> Trainer:
    """Builds the parts of a training."""
    stop = StopSignal()

    def report_input(message: str) -> None:
        progress.report("input", message=message)

    def report_waiting(message: str) -> None:
        progress.report(WAITING_PHASE, message=message)

    cache = open_host_cache(config.input, report_waiting)
    dataset = open_host_dataset(request.inputs["preprocess"].uri, config.input, cache, report_input)
    image_shape, num_classes = dataset.figures.image_shape, len(dataset.figures.class_names)
    build = functools.partial(build_model, config, image_shape, num_classes, code_folder)
    build_for_serving = functools.partial(build, for_training=False)
    # A module of functions may also hold layers, which draw their weights when it is imported.
    keras.utils.set_random_seed(config.seed)
    with chosen.scope():
        task = make_task(config, code_folder, dataset)
    progress.report("model", message="builds the model")
    loop = make_loop(config, chosen, task, functools.partial(build, for_training=True), code_folder)
    if isinstance(loop, OwnStepLoop):
        progress.report("model", message=loop.describe())
    gather = make_gather(chosen.strategy, spec)
    own_input = _open_input(spec, request, config, code_folder, dataset, task, gather, progress)
    return Trainer(
        spec=spec,
        config=config,
        task=loop.task,
        loop=loop,
        input=own_input,
        checkpoints=_open_checkpoints(spec, gather, progress, loop.paths),
        initialize=lambda: initialize_training(
            config, request, loop, build_for_serving, progress, own_input.total_steps
        ),
        schedule=load_schedule(config.optimizer, code_folder),
        callbacks=_open_callbacks(spec, config, code_folder, loop, build, own_input),
        tensorboard=_open_tensorboard(spec, config, own_input, task, build_for_serving),
        stop=stop,
        progress=progress,
        gpu_monitor=monitor,
        card=card,
        gather=gather,
    )


def _open_input(
    spec: WorkerSpec,
    request: Request,
    config: Train,
    code_folder: Path,
    dataset: HostDataset,
    task: Task,
    gather: Gather,
    progress: ProgressWriter,
) -> InputPipeline:
    """Opens this worker's batches, of the data set or of the author's own examples."""
    told_at, image_shape = -math.inf, dataset.figures.image_shape

    def report(message: str) -> None:
        progress.report("input", message=message)

    def tell(done: int, total: int, unit: str) -> None:
        nonlocal told_at
        if done in (0, total) or time.monotonic() - told_at > _TELL_SECONDS:
            told_at = time.monotonic()
            progress.report("input", done, total, unit)

    shard = (spec.index, spec.workers) if spec.is_peer else (0, 1)
    if config.dataset:
        part = open_own_dataset(config, image_shape, code_folder, *shard)
        return OwnInputPipeline(config, dataset, task, shard, part, gather, report)
    own_change = load_own_change(config, image_shape, code_folder)
    code = compute_digest(request.fingerprint.code)
    return InputPipeline(config, dataset, task, shard, code, report, tell, own_change)


def _open_callbacks(
    spec: WorkerSpec,
    config: Train,
    code_folder: Path,
    loop: Loop,
    build: Callable[..., keras.Model],
    own_input: InputPipeline,
) -> KerasCallbacks:
    folder = CALLBACKS if spec.is_chief else f".{CALLBACKS}-{spec.index}"
    return KerasCallbacks(
        config,
        code_folder,
        loop,
        build_for_callbacks(config, loop, build, code_folder) if config.callbacks else None,
        Path(spec.work) / folder,
        spec.is_chief,
        {
            "epochs": own_input.num_epochs,
            "steps": own_input.compute_epoch_end(0),
            "verbose": 1,
        },
    )


def _open_tensorboard(
    spec: WorkerSpec,
    config: Train,
    own_input: InputPipeline,
    task: Task,
    build: Callable[[], keras.Model],
) -> TensorboardWriter | None:
    """Opens the chief's event files. Other workers have none."""
    if not spec.is_chief:
        return None
    folder = Path(spec.work) / TENSORBOARD
    return TensorboardWriter(folder, config.tensorboard, own_input, task, build)


def _open_checkpoints(
    spec: WorkerSpec, gather: Gather, progress: ProgressWriter, paths: Paths
) -> Checkpoints:
    work, store = Path(spec.work), None
    if spec.stored:
        work.mkdir(parents=True, exist_ok=True)
        root = open_root(spec.stored.uri)
        store = CheckpointStore(root, spec.stored.token, KEEP, spec.stored.is_shared)
    return Checkpoints(
        work,
        KEEP,
        store,
        lambda message: progress.report("warning", message=message),
        gather,
        spec.is_chief,
        paths,
    )


def _write_results(trainer: Trainer, chosen: ChosenStrategy) -> None:
    """Writes this worker's digest of the weights, and as the chief the weights and the state."""
    spec, weights = trainer.spec, trainer.get_trained_weights()
    work, paths = Path(spec.work), [format_worker_digest_name(spec.index)]
    write_atomically(work / paths[0], compute_weights_digest(weights).encode())
    images = list_images((NUM_ANSWERS, *trainer.input.figures.image_shape))
    answers = trainer.loop.answer(images, weights)
    if spec.is_chief:
        write_arrays(work / TRAINED, weights, trainer.loop.paths.weights, answers)
        facts = {
            "num_parameters": trainer.loop.model.count_params(),
            "model_summary": describe_model(trainer.loop.model),
            "strategy": chosen.name,
            "strategy_reason": chosen.reason,
        }
        state = trainer.state.model_dump(mode="json", exclude={"callbacks", "card"})
        write_json(work / STATE, state | facts)
        write_json(work / CARD, trainer.state.card.model_dump(mode="json"))
        folders = (work / name for name in (CALLBACKS, TENSORBOARD, DIVERGED))
        files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
        if seen := trainer.input.read_first_examples(NUM_SEEN):
            content = draw_seen(*seen, trainer.input.figures.class_names)
            write_atomically(work / SEEN_PICTURES, content)
            paths.append(SEEN_PICTURES)
        paths += [TRAINED, STATE, CARD, *(str(file.relative_to(work)) for file in files)]
    if spec.stored and spec.stored.is_shared:  # for a launcher on another host
        store_files(work, paths, open_root(spec.stored.locate_results(spec.name)))


def make_task(config: Train, folder: Path, dataset: HostDataset) -> Task:
    """Makes the task of the data set. Raises ConfigError if the data set has no class weights."""
    figures, weights = dataset.figures, None
    if config.class_weights:
        content = dataset.read_file(CLASS_WEIGHTS)
        if content is None:
            raise ConfigError(
                f"train.class_weights: the data set {dataset.uri} has no {CLASS_WEIGHTS}. "
                "Set preprocess.balance: by_class."
            )
        by_class = json.loads(content)
        weights = [by_class[name] for name in figures.class_names]
    elif config.weights_by_class:
        if unknown := config.weights_by_class.keys() - set(figures.class_names):
            raise ConfigError(
                f"train.class_weights: the data set has no class {min(unknown)}. It has "
                f"{', '.join(figures.class_names[:20])}."
            )
        weights = [config.weights_by_class.get(name, 1.0) for name in figures.class_names]
    if figures.task == "detection":
        most_boxes = figures.most_boxes_to_answer
        head = make_head(config, figures.image_shape, len(figures.class_names), most_boxes)
        return Detection(figures.image_shape, head, config.gate_metrics, weights, most_boxes)
    loss, metrics = load_user_functions(config, folder)
    return Classification(
        figures.image_shape,
        weights,
        config.label_smoothing,
        loss,
        metrics,
        config.gate_metrics,
        len(figures.class_names),
    )


def load_user_functions(
    config: Train, folder: Path
) -> tuple[PerExample | None, dict[str, PerExample]]:
    """Loads the user's loss, and the user's metrics by name."""
    metrics = {
        path.partition(":")[2]: load_per_example(path, "train.metrics", folder, arguments)
        for path, arguments in config.metric_arguments.items()
    }
    if not config.loss:
        return None, metrics
    return load_per_example(config.loss, "train.loss", folder, config.loss_arguments), metrics


def load_own_change(
    config: Train, image_shape: tuple[int, int, int], folder: Path
) -> OwnChange | None:
    """Loads and checks the function of `train.input.augment.own`."""
    path, key = config.input.augment.own, "train.input.augment.own"
    if path is None:
        return None
    function = load_function(path, key, folder)
    with explain_unnamed_files(folder, f"{key}: {path}"):
        return trace_own_change(function, f"{key}: {path}", image_shape)


def make_loop(
    config: Train,
    chosen: ChosenStrategy,
    task: Task,
    build: BuildModel,
    folder: Path = Path(),  # noqa: B008  (immutable)
) -> Loop:
    """Makes the model, and the loop that trains it. `folder` is that of the author's modules."""
    match chosen.name:
        case "dtensor" | "parameter_server":
            model = build()
            if has_own_step(model, config):
                refuse_options(config, 1)
            if chosen.name == "dtensor":
                return DTensorLoop(model, task, config, chosen.devices)
            return ParameterServerLoop(chosen.strategy, model, task, config)
        case "device_placement":
            model = build_placed(build, config.placement)
        case _:
            with chosen.strategy.scope():
                model = build()
    check_matches("train.freeze", config.freeze, "weight", [each.path for each in model.weights])
    return make_synchronous_loop(chosen.strategy, model, task, config, folder)


def build_for_callbacks(
    config: Train, loop: Loop, build: Callable[..., keras.Model], folder: Path
) -> tuple[keras.Model, Sequence[Any]]:
    """Builds the model that callbacks see, compiled. Returns it with its optimizer's variables."""
    task = loop.task
    with tf.device("CPU:0"):
        model = build(for_training=True)
        if isinstance(loop, OwnStepLoop):
            return model, loop.prepare(model).variables
        optimizer = make_optimizer(config.optimizer, config.precision == "float16", folder)
        optimizer.build(model.trainable_variables)
        is_default = task.counts_examples and not config.loss
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if is_default else None
        model.compile(optimizer, loss, metrics=["accuracy"] if is_default else None)
    return model, optimizer.variables


def initialize_training(
    config: Train,
    request: Request,
    loop: Loop,
    build: BuildModel,
    progress: ProgressWriter,
    total_steps: int,
) -> TrainingState:
    """Returns the state of a new training, whose initial weights the request may name."""
    state = TrainingState(learning_rate=loop.learning_rate or 0.0)
    if isinstance(loop, OwnStepLoop) and loop.remark:
        state.warnings.append(f"{loop.remark}.")
    if WARM_START in request.inputs:
        uri = fetch_weights(request.inputs[WARM_START])
        warm_start = read_warm_start(uri, loop.model, loop.get_weights(), build)
        loop.assign(warm_start.weights)
        left_out = set(warm_start.left_out)
        state.new_weights = [path for path in loop.paths.weights if path in left_out]
        message = f"starts from the weights of {request.inputs[WARM_START].uri}"
        if warm_start.taken:
            message += f", with {warm_start.taken}"
        if left_out:
            message += f". Randomly initialized: {', '.join(warm_start.left_out)}"
        if warm_start.taken:
            state.warnings.append(message)  # for the figures of the training
        if config.freeze_epochs and left_out:
            message += (
                f". The others are frozen at first (train.freeze_epochs: {config.freeze_epochs})"
            )
        elif config.freeze_epochs:
            message += ". They are all weights of the model, so none is frozen"
        progress.report("warm start", message=message)
    else:
        if config.warm_start:
            message = "there is no champion yet. Starts from random weights."
            progress.report("warm start", message=message)
        state.warnings += find_unsettled(loop.model, total_steps)
    return state


def find_unsettled(model: keras.Model, total_steps: int) -> list[str]:
    """Tells of moving statistics that are their initial values in part after a whole training.

    The model answers with them, and trains with those of a batch. Errors add up over the layers.
    """
    layers = [
        layer
        for layer in list_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    momentum = max((layer.momentum for layer in layers), default=0.0)
    share = momentum**total_steps
    if share < _UNSETTLED:
        return []
    return [
        f"After {total_steps} steps, {share:.0%} of the moving statistics of batch normalization "
        f"are their initial values (momentum {momentum:g}), so the model may answer far worse than "
        "it has learned. Train for longer, begin with trained weights, or lower the momentum."
    ]
