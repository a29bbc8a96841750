"""Plans the job of a task, with the reason to run it. `trainyard explain` prints the plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from pipeline_ops.config.hosts import Hosts
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.dataset import compute_split_digest
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout, iterate_manifests
from pipeline_ops.contract.manifest import (
    BASE,
    NAME,
    RAW_FILES,
    WARM_START,
    Input,
    Maker,
    find_damage,
    read_manifest,
)
from pipeline_ops.contract.planned_training import UserCode
from pipeline_ops.contract.request import Request
from pipeline_ops.contract.results import (
    LAST_EVALUATION,
    SERVING_STATISTICS,
    TEST_SPLIT,
    ModelFigures,
)
from pipeline_ops.contract.serving_statistics import ServingStatistics
from pipeline_ops.errors import ConfigError
from pipeline_ops.places.open_place import open_place
from pipeline_ops.places.place import Place, make_hosts_variable
from pipeline_ops.planning.inputs import (
    choose_base,
    find_baseline,
    find_champion_dataset,
    find_dataset,
    find_previous_evaluation,
    find_reference,
    find_serving_statistics,
    find_warm_start,
)
from pipeline_ops.planning.job_kinds import KINDS, find_job_code
from pipeline_ops.raw_data.folder import check_interval, find_raw_folder, list_folder
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import list_numbers
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.open_store import open_near
from pipeline_ops.storage.request_cache import cache_requests, prefetch
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.user_code.models import find_user_versions, read_user_code
from pipeline_ops.user_code.sources import find_source_versions, read_source_code
from pipeline_ops.user_code.stages import find_stage_versions, read_stage_code

_ONNX = ("onnx", "onnxruntime", "tf2onnx")


@dataclasses.dataclass(frozen=True)
class JobPlan:
    """One job of one run: its request, whether the artifact exists already, and the reason."""

    request: Request
    manifest: StorePath
    is_cached: bool
    reason: str
    made_by: Maker | None = None
    """The run that has made the artifact."""
    damage: tuple[str, ...] = ()
    """The damage of an existing artifact, whose manifest the job removes first."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of the job's process. They may be secret, so the request lacks them."""


@dataclasses.dataclass(frozen=True)
class _Run:
    """The run that a job is planned for."""

    config: PipelineConfig
    run_id: str
    manifests: Mapping[str, str]
    place: Place

    @property
    def layout(self) -> Layout:
        return Layout(self.config.root, self.config.pipeline)

    def inputs(self, job: str) -> dict[str, Input]:
        """Returns the artifacts of earlier jobs that a job reads, by job."""
        return {
            name: Input(uri=uri, digest=read_manifest(open_near(self.config.root, uri)).digest)
            for name, uri in self.manifests.items()
            if name in KINDS[job].reads
        }


def plan_job(
    job: str,
    config: PipelineConfig,
    run_id: str,
    manifests: Mapping[str, str],
    place: Place | None = None,
) -> JobPlan:
    """Plans one job. A plan only reads.

    Args:
      run_id: the run. It does not influence the fingerprint.
      manifests: URIs of the manifests that earlier jobs left, by job.
      place: the place where the job runs. None opens the config's.

    Raises:
      DataError: an input is missing or does not match its manifest.
      ConfigError: the config asks for a data set, a version or a file that does not exist.
    """
    with cache_requests():
        _read_ahead(job, config, manifests)
        place = place or open_place(config, job)
        return _PLANNERS[job](_Run(config, run_id, manifests, place))


def _plan_preprocess(run: _Run) -> JobPlan:
    config, layout = run.config, run.layout
    if config.preprocess.dataset:
        return _plan_given(run, config.preprocess.dataset)
    check_interval(config)
    source, stages = config.preprocess.source, [stage.name for stage in config.preprocess.stages]
    raw_files = list_folder(find_raw_folder(config), layout.listings, source.file_patterns)
    folder = config.file.parent
    own = read_source_code(source, config.preprocess.files, folder)
    own |= read_stage_code(stages, folder)
    fingerprint = _fingerprint(
        "preprocess",
        run,
        {RAW_FILES: raw_files.digest},
        code=own.digests,
        versions=find_stage_versions(stages) | find_source_versions(source),
    )
    inputs, digests = find_reference(config, layout, fingerprint)
    fingerprint = fingerprint.with_inputs(digests)
    base = choose_base(layout.artifacts("preprocess"), fingerprint)
    if base:
        inputs[BASE] = base
        fingerprint = fingerprint.with_inputs({BASE: base.digest})
    return _decide(_request("preprocess", run, fingerprint, inputs, own), run)


def _plan_search(run: _Run) -> JobPlan:
    if run.config.search is None:
        raise ConfigError(
            f"{run.config.file} has no search any longer, so there are no trials. "
            "Trigger a new run."
        )
    return _decide(_request("search", run, _fingerprint("search", run, {}), {}), run)


def _plan_train(run: _Run) -> JobPlan:
    config, inputs, hosts = run.config, run.inputs("train"), run.config.hosts
    own, stages = read_user_code(config.train, config.file.parent), config.preprocess.stages
    # The candidate serves the stages. Their code belongs to the data set's fingerprint.
    served = read_stage_code((stage.name for stage in stages), config.file.parent)
    fingerprint = _fingerprint(
        "train",
        run,
        _digests(inputs),
        config={"hosts": hosts.code_digests} if hosts and hosts.code_digests else {},
        code=own.digests,
        versions=find_user_versions(config.train),
    )
    if warm_start := find_warm_start(config, fingerprint):
        fingerprint = fingerprint.with_inputs({WARM_START: warm_start.digest})
        inputs[WARM_START] = warm_start
    plan = _decide(_request("train", run, fingerprint, inputs, served | own, hosts=hosts), run)
    return dataclasses.replace(plan, environment=make_hosts_variable(hosts))


def _plan_evaluate(run: _Run) -> JobPlan:
    inputs = run.inputs("evaluate")
    if champion := find_baseline(run.config, inputs["train"]):
        inputs["champion"] = champion
    dataset = read_manifest(open_near(run.config.root, run.manifests["preprocess"]))
    digests = _digests(inputs) | {TEST_SPLIT: compute_split_digest(dataset, "test")}
    if serving := find_serving_statistics(run.config):
        digests[SERVING_STATISTICS] = compute_digest(serving.model_dump(mode="json"))
    own = read_user_code(run.config.evaluate, run.config.file.parent)
    fingerprint = _fingerprint(
        "evaluate",
        run,
        digests,
        code=own.digests,
        versions=find_user_versions(run.config.evaluate),
    )
    _prefetch_artifact(run.layout.artifact("evaluate", fingerprint.digest))
    if previous := find_previous_evaluation(run.layout, fingerprint):
        inputs[LAST_EVALUATION] = previous  # only reported, so no part of the fingerprint
    return _decide(_request("evaluate", run, fingerprint, inputs, own, serving=serving), run)


def _plan_export(run: _Run) -> JobPlan:
    config, inputs = run.config, run.inputs("export")
    # Without the format, optional packages of another pipeline change no fingerprint.
    packages = _ONNX if "onnx" in config.export.formats else ()
    fingerprint = _fingerprint("export", run, _digests(inputs), packages=packages)
    resolved = {"registry": str(config.registry)}
    return _decide(_request("export", run, fingerprint, inputs, resolved=resolved), run)


_PLANNERS: Mapping[str, Callable[[_Run], JobPlan]] = {
    "preprocess": _plan_preprocess,
    "search": _plan_search,
    "train": _plan_train,
    "evaluate": _plan_evaluate,
    "export": _plan_export,
}


def _fingerprint(
    job: str,
    run: _Run,
    inputs: Mapping[str, str],
    config: Mapping[str, Any] = MappingProxyType({}),
    code: Mapping[str, str] = MappingProxyType({}),
    versions: Mapping[str, str] = MappingProxyType({}),
    packages: tuple[str, ...] = (),
) -> Fingerprint:
    """Makes the fingerprint of a job. The arguments add to the parts that each job has."""
    section = getattr(run.config, job)
    installed = run.place.find_versions(KINDS[job].packages + packages)
    hosts = run.config.find_job_hosts(job)
    runs_on = {"runs_on": hosts.code_digests} if hosts and hosts.code_digests else {}
    return Fingerprint(
        config={**section.to_fingerprint_dict(), **config, **runs_on},
        inputs=dict(inputs),
        code={**find_job_code(job, run.config), **code},
        versions={**installed, **versions},
    )


def _request(
    job: str,
    run: _Run,
    fingerprint: Fingerprint,
    inputs: Mapping[str, Input],
    own: UserCode | None = None,
    resolved: Mapping[str, Any] = MappingProxyType({}),
    hosts: Hosts | None = None,
    serving: ServingStatistics | None = None,
) -> Request:
    """Makes the request of a job.

    `own` is the author's code that the fingerprint covers. `resolved` replaces values of the job's
    section of the config.
    """
    config, section = run.config, getattr(run.config, job)
    return Request(
        job=job,
        pipeline=config.pipeline,
        run_id=run.run_id,
        config_file=str(config.file),
        config=section.model_dump(mode="json") | resolved,
        hosts=hosts.model_dump(mode="json", exclude={"environment"}) if hosts else None,
        inputs=inputs,
        root=str(config.root),
        artifact=str(run.layout.artifact(job, fingerprint.digest)),
        fingerprint=fingerprint,
        serving=serving,
        deadline_seconds=config.get_task_section(job).timeout_seconds,
        user_files=own.files if own else {},
    )


def _plan_given(run: _Run, version: str) -> JobPlan:
    """Plans the use of an existing data set, whatever its inputs and code."""
    path = find_dataset(run.layout, version)
    manifest = read_manifest(path)
    request = _request("preprocess", run, manifest.fingerprint, manifest.inputs)
    request = request.model_copy(update={"artifact": str(path.parent)})
    return JobPlan(request, path, True, f"preprocess.dataset asks for the data set {version}")


def _digests(inputs: Mapping[str, Input]) -> dict[str, str]:
    return {name: entry.digest for name, entry in inputs.items()}


def _decide(request: Request, run: _Run) -> JobPlan:
    path = open_near(run.config.root, request.artifact) / NAME
    _prefetch_artifact(path.parent)
    if not path.exists():
        return JobPlan(request, path, False, _why_new(request, run.layout))
    manifest = read_manifest(path)
    damage = find_damage(path, manifest)
    if request.job == "export" and not damage:
        figures = ModelFigures.model_validate(manifest.figures)
        versions = Registry(run.config.registry).list_versions()
        if figures.version not in (version.number for version in versions):
            damage = [f"version {figures.version} of the model {figures.name} is gone"]
    if damage:
        damaged = request.model_copy(update={"is_damaged": True})
        reason = f"the artifact was damaged: {damage[0]}"
        return JobPlan(damaged, path, False, reason, damage=tuple(damage))
    reason = "unchanged: same inputs, config, code and package versions"
    return JobPlan(request, path, True, reason, manifest.made_by)


def _why_new(request: Request, layout: Layout) -> str:
    """Returns the changes since the newest artifact of a job, or its damage.

    A damaged data set is named even if there are changes, because it explains a full rebuild.
    """
    path, newest = next(iterate_manifests(layout.artifacts(request.job)), (None, None))
    if path is None or newest is None:
        return "never made before"
    changes = [
        change
        for change in request.fingerprint.describe_changes_since(newest.fingerprint)
        if not change.startswith(f"inputs {BASE} ")  # the base is no reason to run
    ]
    if request.job == "preprocess" or not changes:
        damage = find_damage(path, newest)
        changes += [f"the last artifact is damaged: {problem}" for problem in damage[:1]]
    return "; ".join(changes) or "the last artifact is gone"


def _read_ahead(job: str, config: PipelineConfig, manifests: Mapping[str, str]) -> None:
    """Starts what a plan reads from a bucket in any case.

    The requests of a plan take most of the time of an unchanged run.
    """
    if not config.root.is_local:
        uris = (manifests[name] for name in KINDS[job].reads)
        prefetch(*(partial(read_manifest, open_near(config.root, uri)) for uri in uris))
    prefetch(*_list_certain_reads(job, config))


def _list_certain_reads(job: str, config: PipelineConfig) -> Iterator[Callable[[], object]]:
    if not config.root.is_local:
        if job in ("preprocess", "evaluate"):  # they compare with earlier ones
            yield partial(_read_newest, Layout(config.root, config.pipeline).artifacts(job))
        if job == "preprocess":
            yield partial(find_champion_dataset, config)
    if not config.registry.is_local:
        registry = Registry(config.registry)
        if job == "evaluate":
            yield partial(_read_champion, registry)
        if job not in ("search", "train") or (job == "train" and config.train.warm_start):
            yield registry.read_aliases
            yield partial(list_numbers, registry.folder)


def _prefetch_artifact(artifact: StorePath) -> None:
    if not artifact.is_local:
        prefetch((artifact / NAME).exists, partial(read_manifest, artifact / NAME), artifact.walk)


def _read_newest(artifacts: StorePath) -> None:
    path, _ = next(iterate_manifests(artifacts), (None, None))
    if path:
        _prefetch_artifact(path.parent)


def _read_champion(registry: Registry) -> None:
    if champion := registry.find_champion():
        champion.read_manifest()
