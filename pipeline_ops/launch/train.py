"""The train job: runs the gang to its end, exports the candidate and writes the manifest.

It imports no TensorFlow. The fork servers do. SIGTERM saves the state and ends the job with
an exit code that is retried.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.card.items import CardContent
from pipeline_ops.card.page import MAX_CARD_PAGE_BYTES, write_card_page
from pipeline_ops.config.hosts import Hosts, parse_hosts
from pipeline_ops.config.model_data_rules import check_train_split
from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.gang_protocol import (
    CARD,
    STATE,
    AgentSpec,
    CandidateSpec,
    Command,
    Event,
    Fork,
    Isolation,
    StoredWork,
    format_worker_digest_name,
)
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader, read_last_event
from pipeline_ops.contract.remarks import describe_small_splits
from pipeline_ops.contract.request import Status
from pipeline_ops.contract.results import (
    CALLBACKS,
    DIVERGED,
    SEEN_PICTURES,
    TENSORBOARD,
    TrainingFigures,
)
from pipeline_ops.errors import (
    ConfigError,
    ExitCode,
    MachineError,
    Pruned,
    TrainyardError,
    make_error,
)
from pipeline_ops.job.local_inputs import fetch_files, open_host_cache, open_host_dataset
from pipeline_ops.job.model_check import check_training
from pipeline_ops.job.runner import Job, run_job
from pipeline_ops.job.workspace import REQUEST_VARIABLE
from pipeline_ops.launch.gang import Gang, StopRequest
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.plan import LaunchPlan, get_status_path
from pipeline_ops.places.launcher import Host
from pipeline_ops.places.open_place import as_section
from pipeline_ops.places.place import collect_store_environment, read_hosts_variable
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import empty_folder, open_folder, read_json
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.parsing import read_json_as

_CANDIDATE = "candidate"


def train(job: Job) -> ExitCode:
    """Trains, or continues the training where an earlier try stopped."""
    config, started_at = Train.model_validate(job.request.config), time.monotonic()
    with StopRequest().handle_sigterm() as stop:
        dataset = check_dataset(job, config)
        check_model(job, dataset)
        check_shards(job, config)
        stop.check()
        job.make_work()
        checkpoints = work_folder(job.folder)
        stored = StoredWork(uri=str(checkpoints), token=job.lease.token)
        report: Callable[[ProgressEvent], None] = job.progress.forward
        if job.request.trial:
            from pipeline_ops.job.study import TrialReport

            last_epoch = config.count_epochs(dataset.num_examples["train"])
            report = TrialReport(job.request.trial, last_epoch, report)
        with contextlib.closing(open_host_pool(job, config)) as host_pool:
            gang = Gang(
                config,
                job.attempt,
                job.work,
                host_pool,
                report,
                stop=stop,
                stored=None if checkpoints.is_local else stored,
                check_lease=job.lease.check,
            )
            try:
                plan = gang.run()
            except Pruned:
                host_pool.send_all(Command(action="clean"))
                job.remove_work()
                raise
            host_pool.wait_for(lambda: fetch_results(plan, job.work))
            with job.artifact() as draft:
                export_candidate(job, config, host_pool, plan, stop, draft.folder)
                host_pool.send_all(Command(action="clean"))
                host_pool.close()
                shutil.copytree(job.work / TENSORBOARD, draft.folder / TENSORBOARD)
                for name in (CALLBACKS, DIVERGED):
                    if (job.work / name).exists():
                        shutil.copytree(job.work / name, draft.folder / name)
                if (job.work / SEEN_PICTURES).exists():
                    shutil.copyfile(job.work / SEEN_PICTURES, draft.folder / SEEN_PICTURES)
                card = open_path(str(job.work / CARD))
                shown = read_json_as(CardContent, card, MAX_CARD_PAGE_BYTES)
                write_card_page(draft.folder, job.request.job, shown or CardContent())
                draft.seeds["train"] = config.seed
                seconds = time.monotonic() - started_at
                figures = summarize_training(job, config, dataset, plan, gang, seconds)
                draft.figures.update(figures.model_dump(mode="json"))
    return ExitCode.SUCCESS


def fetch_results(plan: LaunchPlan, work: Path) -> None:
    """Fetches the results of workers on other disks from the bucket."""
    for worker in plan.workers:
        if worker.stored and worker.stored.is_shared and not worker.is_server:
            fetch_files(open_root(worker.stored.locate_results(worker.name)), work)


def check_dataset(job: Job, config: Train) -> DatasetFigures:
    """Rejects a data set that would train a wrong model, or none. Returns its figures.

    Only its manifest is read. Raises ConfigError if the data are for another task than the model,
    and DataError if they are too few.
    """
    uri = job.request.inputs["preprocess"].uri
    dataset = DatasetFigures.model_validate(read_manifest(open_path(uri)).figures)
    model_task = config.task
    if dataset.task != model_task:
        raise ConfigError(
            f"the data set is for {dataset.task}, and train.model {config.model} is for "
            f"{model_task}. Choose a model for {dataset.task}. The data set is {uri}"
        )
    num_epochs = config.count_epochs(dataset.num_examples["train"])
    if config.freeze_epochs >= num_epochs and not config.dataset:
        raise ConfigError(
            f"train.freeze_epochs must be smaller than the number of epochs ({num_epochs}), got "
            f"{config.freeze_epochs}. Raise train.steps. The data set is {uri}"
        )
    max_boxes = config.model_parameters.get("max_boxes")
    if max_boxes is not None and dataset.most_boxes > max_boxes:
        raise ConfigError(
            f"train.model_parameters.max_boxes is {max_boxes}, and an image has "
            f"{dataset.most_boxes} boxes. Set it to that or more, or to null. The data set is {uri}"
        )
    check_train_split(config, dataset.num_examples["train"], uri)
    for warning in warn_of_validation(dataset):
        job.progress.report("input", message=warning)
    return dataset


def check_model(job: Job, dataset: DatasetFigures) -> None:
    """Checks what the author wrote, such as the model, in the interpreter of this job.

    A warning replaces the check if TensorFlow is missing here, because other hosts train. Raises
    ConfigError if the model can't be trained.
    """
    if training := job.request.training:
        job.progress.report("model", message="checks the model")
        check_training(
            training.model_copy(update={"python": ""}),
            dataset.task,
            dataset.image_shape,
            len(dataset.class_names),
        )


def check_shards(job: Job, config: Train) -> None:
    """Raises MachineError if shards do not match their manifest, which preprocessing can repair."""
    open_host_dataset(
        job.request.inputs["preprocess"].uri,
        config.input,
        open_host_cache(config.input),
        lambda message: job.progress.report("input", message=message),
    )


def open_host_pool(job: Job, config: Train) -> HostPool:
    """Opens the pool of the hosts that the request names."""
    hosts = parse_hosts(job.request.hosts or {"launcher": "local"})
    spec = AgentSpec(
        host="",
        run=str(job.attempt.folder),
        lock=build_lock_name(job),
        token_file=str(job.attempt.folder / "hosts.token"),
        stored_attempt=str(job.stored_attempt or ""),
        stored_work=str(work_folder(job.folder)) if job.stored_attempt else "",
        silence_timeout_seconds=config.heartbeat_timeout_seconds,
        ports=hosts.ports,
        environment=build_host_environment(job, hosts),
        isolation=choose_isolation(config, hosts),
    )
    return HostPool(as_section(hosts).make_launcher(job), spec, config.start_timeout_seconds)


def build_host_environment(job: Job, hosts: Hosts) -> dict[str, str]:
    """Returns the secret variables of the gang. Processes on this host inherit the others."""
    own = read_hosts_variable(os.environ)
    if job.stored_attempt is None or hosts.is_this_host:
        return own
    digest = {name: os.environ[name] for name in (REQUEST_VARIABLE,) if name in os.environ}
    return collect_store_environment(os.environ) | digest | own


def choose_isolation(config: Train, hosts: Hosts) -> Isolation:
    """A gang on a single host gets its own network namespace, if it has TensorFlow's servers."""
    is_alone = config.effective_max_workers == 1 and config.strategy != "parameter_server"
    if is_alone or hosts.num_hosts > 1 or hosts.network == "trusted":
        return "never"
    return "always" if hosts.network == "isolated" else "where possible"


def build_lock_name(job: Job) -> str:
    """Returns the name of the lock that keeps a second gang from training the same artifact.

    The same training below another storage root has another lock.
    """
    return f"{job.request.pipeline}-{compute_digest(str(job.folder))}"


def export_candidate(
    job: Job,
    config: Train,
    host_pool: HostPool,
    plan: LaunchPlan,
    stop: StopRequest,
    folder: Path,
) -> None:
    """Lets a fork on a ready host write the trained weights as a SavedModel into a folder.

    Another fork takes over from one that hangs, and from one whose host is lost.
    """
    job.progress.report(_CANDIDATE, message="writing the SavedModel")
    code, spec = _run_candidate(job, config, host_pool, plan, stop, folder)
    if code != 0:
        log, status = job.attempt.worker_log(_CANDIDATE), get_status_path(job.attempt, _CANDIDATE)
        outcome = read_json_as(Status, open_path(status))
        if outcome is None:
            raise MachineError(
                f"the process that writes the candidate ended with {code} and left no "
                f"{status.name}",
                f"See {log}.",
            )
        problem = f"cannot write the candidate: {outcome.problem.rstrip('.')}"
        cures = [outcome.cure]
        if outcome.exit_code is not ExitCode.CONFIG:
            cures.append(f"See {log}.")
        cure = " ".join(filter(None, cures))
        raise make_error(outcome.exit_code, problem, cure, outcome.location)
    if target := spec.target:
        host_pool.wait_for(lambda: fetch_files(open_root(target), folder))


class _CandidateClock:
    """The times since the last progress and the last heartbeat of the fork for the candidate."""

    def __init__(self, job: Job, config: Train):
        self._config = config
        self._reader = ProgressReader(open_path(job.attempt.worker_progress(_CANDIDATE)))
        self.restart()

    def restart(self) -> None:
        self._last_progress = self._last_running = time.monotonic()

    def record_event(self, event: Event) -> None:
        if event.event == "alive" and _CANDIDATE in event.names:
            self._last_running = time.monotonic()

    def find_hang(self) -> str | None:
        """Describes the limit that is exceeded. Returns None if the fork does not hang."""
        now, config = time.monotonic(), self._config
        if self._reader.read_new():
            self._last_progress = now
        for seconds, key in (
            (now - self._last_running, "heartbeat_timeout_seconds"),
            (now - self._last_progress, "phase_timeout_seconds"),
        ):
            if seconds > (limit := getattr(config, key)):
                return (
                    f"has reported no progress for {now - self._last_progress:.0f} s in the phase "
                    f"{_CANDIDATE} (train.{key} is {limit})"
                )
        return None


def _run_candidate(
    job: Job,
    config: Train,
    host_pool: HostPool,
    plan: LaunchPlan,
    stop: StopRequest,
    folder: Path,
) -> tuple[int, CandidateSpec]:
    """Forks the process. Returns its exit code and its specification.

    A fork that hangs is killed, and another one takes over, `train.max_restarts` times.
    """
    host, spec, tries, hangs, is_killed = None, None, 0, 0, False
    clock, had_host = _CandidateClock(job, config), time.monotonic()
    while time.monotonic() - had_host < config.start_timeout_seconds:
        stop.check()
        for name, event in host_pool.poll():
            if host and name == host.name:
                clock.record_event(event)
            if spec and event.event == "ended" and event.name == _CANDIDATE:
                if not is_killed:
                    return event.code, spec
                host = None
        if host and host_pool.hosts[host.name].is_ready:
            had_host = time.monotonic()
            if problem := clock.find_hang():
                message = f"the process that writes the candidate on {host.name} {problem}"
                if is_killed or hangs == config.max_restarts:
                    log = job.attempt.worker_log(_CANDIDATE)
                    raise MachineError(message, f"See {log}.")
                hangs, is_killed = hangs + 1, True
                kill = Command(action="signal", name=_CANDIDATE, signal=signal.SIGKILL)
                host_pool.send(host.name, kill)
                clock.restart()
                job.progress.report("restart", message=f"{message}. Restart {hangs}")
        elif host_pool.ready:
            host, tries = host_pool.ready[0], tries + 1
            spec, is_killed = _specify_candidate(job, plan, host, folder, tries), False
            clock.restart()
            with open_folder(folder) as partial_folder:
                empty_folder(partial_folder)
            get_status_path(job.attempt, _CANDIDATE).unlink(missing_ok=True)
            there = host.get_attempt(job.attempt)
            fork = Fork(
                name=_CANDIDATE,
                entry="candidate",
                argument=spec.model_dump_json(),
                status=str(get_status_path(there, _CANDIDATE)),
                log=str(there.worker_log(_CANDIDATE)),
            )
            host_pool.send(host.name, Command(action="fork", fork=fork))
    problems = host_pool.describe_problems()
    raise MachineError(
        f"no host was ready to write the {_CANDIDATE} for {config.start_timeout_seconds} s "
        f"(train.start_timeout_seconds){f': {problems}' if problems else ''}"
    )


def _specify_candidate(
    job: Job, plan: LaunchPlan, host: Host, folder: Path, number: int
) -> CandidateSpec:
    attempt, work = host.get_attempt(job.attempt), str(host.get_work(job.work))
    progress = str(attempt.worker_progress(_CANDIDATE))
    stored = plan.chief.stored
    if stored is None or not stored.is_shared:
        return CandidateSpec(
            request=str(attempt.request), work=work, folder=str(folder), progress=progress
        )
    # Some hosts have disks of their own: weights and candidate go through the bucket.
    return CandidateSpec(
        request=str(attempt.request),
        work=work,
        folder=str(attempt.folder / _CANDIDATE),
        progress=progress,
        source=stored.locate_results(plan.chief.name),
        target=stored.locate_results(f"{_CANDIDATE} {number}"),
    )


def summarize_training(
    job: Job,
    config: Train,
    dataset: DatasetFigures,
    plan: LaunchPlan,
    gang: Gang,
    seconds: float,
) -> TrainingFigures:
    """Returns the figures of the job. Raises TrainyardError if the final weights differ."""
    workers = len(plan.cluster["worker"])
    digests = [
        (job.work / format_worker_digest_name(worker)).read_text()
        for worker in range(workers if plan.workers[0].is_peer else 1)
    ]
    if len(set(digests)) != 1:
        raise TrainyardError(
            f"the workers ended with different weights: {', '.join(digests)}. "
            "This is a bug of Trainyard"
        )
    state = read_json(job.work / STATE)
    ends = {
        worker.name: event
        for worker in plan.workers
        if (event := read_last_event(open_path(str(job.attempt.worker_progress(worker.name)))))
    }
    return TrainingFigures.model_validate(
        state
        | {
            "workers": workers,
            "batch": config.batch_description,
            "steps": state["step"],
            "restarts": gang.restarts,
            "warnings": [
                *state["warnings"],
                *warn_of_parts(config, gang.config),
                *([config.dataset_remark] if config.dataset else []),
                *warn_of_validation(dataset),
            ],
            "weights_digest": digests[0],
            "worker_weights_digests": digests,
            "step_shares": {name: end.shares for name, end in ends.items() if end.shares},
            "gpus": {name: end.gpus for name, end in ends.items() if end.gpus},
            "best_monitor": config.best_monitor,
            "early_stop": describe_early_stop(config, state, dataset),
            "seconds": round(seconds, 2),
            "class_names": dataset.class_names,
            "image_shape": dataset.image_shape,
            "task": dataset.task,
        }
    )


def describe_early_stop(config: Train, state: Mapping[str, Any], dataset: DatasetFigures) -> str:
    """Says at which epoch a training has stopped early, and by which rule. "" if it has not."""
    if not state["stopped_early"]:
        return ""
    rule, waited = config.early_stopping, state["patience"].get("early_stopping", 0)
    reason = "a callback has stopped it"
    if rule and waited >= rule.patience_epochs:
        epochs = f"{waited} epoch{'s' * (waited > 1)}"
        reason = f"no better {rule.monitor.replace('_', ' ')} for {epochs}"
    # Of a data set of the author's own, the number of examples is not known here.
    count = config.count_epochs(dataset.num_examples["train"])
    total = "" if config.dataset else f" of {count}"
    return f"stopped early at epoch {len(state['history'])}{total}: {reason}"


def warn_of_validation(dataset: DatasetFigures) -> list[str]:
    """Warns of a validation split that is too small to choose an epoch by."""
    return describe_small_splits({"validation": dataset.num_examples["validation"]})


def warn_of_parts(asked: Train, taken: Train) -> list[str]:
    """Warns of a batch that was divided for lack of memory."""
    if taken.micro_batches == asked.micro_batches:
        return []
    return [
        f"A device had no memory for a step, so each replica computed its share of a batch in "
        f"{taken.micro_batches} parts (train.micro_batches). Batch normalization uses the "
        "statistics of each part"
    ]


if __name__ == "__main__":
    run_job(train)
