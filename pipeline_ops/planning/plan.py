"""Plans of tasks: the job that a task would run, and the reason, without running it.

The operators act on these plans, and `trainyard explain` prints them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from pipeline_ops.artifacts.dataset import split_digest
from pipeline_ops.artifacts.fingerprint import Fingerprint, digest_code
from pipeline_ops.artifacts.input_names import BASE, RAW_FILES, WARM_START
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import NAME, Input, Manifest, find_damage, read_manifest
from pipeline_ops.artifacts.results import LAST_EVALUATION, TEST_SPLIT, ModelFigures
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import DataError
from pipeline_ops.jobs.request import Request
from pipeline_ops.planning.base_dataset import choose_base
from pipeline_ops.planning.dataset_lookup import find_dataset
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.reference_dataset import find_reference
from pipeline_ops.planning.warm_start import find_warm_start, with_warm_start
from pipeline_ops.raw_data.folder import find_raw_folder, list_folder, refuse_interval
from pipeline_ops.registry.registry import Registry
from pipeline_ops.user_code import models as user_models
from pipeline_ops.user_code import stages as stage_plugins
from pipeline_ops.user_code.callbacks import callback_code
from pipeline_ops.user_code.interpreter import versions_in

_ONNX = ("onnx", "onnxruntime", "tf2onnx")


@dataclasses.dataclass(frozen=True)
class JobPlan:
    """One job of one run: its request, whether the artifact exists already, and the reason."""

    request: Request
    manifest: Path
    is_cached: bool
    reason: str
    damage: tuple[str, ...] = ()
    """The damage of an existing artifact, which is set aside before the job starts."""
    python: Path | None = None
    """The interpreter to start the job with, or None for that of the caller."""


def plan_job(
    job: str, config: PipelineConfig, run_id: str, manifests: Mapping[str, str]
) -> JobPlan:
    """Plans one job.

    Args:
      job: one of JOBS.
      config: the checked config.
      run_id: the run. It does not influence the fingerprint.
      manifests: URIs of the manifests that earlier jobs left, by job.

    Raises:
      DataError: an input is missing or is not what its manifest says.
      ConfigError: the config asks for a data set, a version or a file that does not exist.
    """
    if job == "preprocess" and config.preprocess.dataset:
        return _plan_given(config, run_id, config.preprocess.dataset)
    if job == "preprocess":
        refuse_interval(config)
    kind, section = KINDS[job], getattr(config, job)
    layout = Layout(config.root, config.pipeline)
    inputs = {name: _as_input(manifests[name]) for name in kind.reads}
    digests = {name: entry.digest for name, entry in inputs.items()}
    if job == "preprocess":
        digests[RAW_FILES] = list_folder(find_raw_folder(config), layout.listings).digest
    if job == "evaluate":
        digests[TEST_SPLIT] = split_digest(read_manifest(manifests["preprocess"]), "test")
        if champion := _baseline(config, inputs["train"]):
            inputs["champion"] = champion
            digests["champion"] = champion.digest
    foreign_code, foreign_versions = _foreign(job, config)
    fingerprint = Fingerprint(
        config=section.fingerprinted() | _hosts_of(job, config),
        inputs=digests,
        code=digest_code(kind.code(config)) | foreign_code,
        versions=versions_in(config.interpreter(job), _packages(job, config)) | foreign_versions,
    )
    if job == "train":
        code = fingerprint.code | callback_code(config.train.callbacks, config.file.parent)
        fingerprint = fingerprint.model_copy(update={"code": code})
    if job == "train" and (warm_start := find_warm_start(config, fingerprint)):
        fingerprint = with_warm_start(fingerprint, warm_start)
        inputs[WARM_START] = warm_start
    if job == "preprocess":
        reference = find_reference(config, layout, fingerprint)
        fingerprint = _with_inputs(fingerprint, reference.digests)
        base = choose_base(layout.artifacts(job), fingerprint)
        fingerprint = _with_inputs(fingerprint, {BASE: base.digest} if base else {})
        inputs |= reference.inputs | ({BASE: base} if base else {})
    if job == "evaluate" and (before := _evaluation_before(layout, fingerprint)):
        inputs[LAST_EVALUATION] = before  # only reported, so no part of the fingerprint
    resolved = (
        {"registry": config.registry, "signing_key": _signing_key(config)}
        if job == "export"
        else {}
    )
    request = Request(
        job=job,
        pipeline=config.pipeline,
        run_id=run_id,
        config_file=str(config.file),
        config=section.model_dump(mode="json") | resolved,
        hosts=config.hosts.model_dump(mode="json") if job == "train" and config.hosts else None,
        inputs=inputs,
        root=str(config.root),
        artifact=str(layout.artifact(job, fingerprint.digest)),
        fingerprint=fingerprint,
        deadline_seconds=section.timeout_seconds,
    )
    return dataclasses.replace(_decide(request, layout), python=config.interpreter(job))


def _signing_key(config: PipelineConfig) -> str | None:
    return config.export.signing_key and str(config.path(config.export.signing_key))


def _plan_given(config: PipelineConfig, run_id: str, version: str) -> JobPlan:
    """Plans a run with an existing data set, regardless of its inputs and code."""
    path = find_dataset(Layout(config.root, config.pipeline), version)
    manifest = read_manifest(path)
    request = Request(
        job="preprocess",
        pipeline=config.pipeline,
        run_id=run_id,
        config_file=str(config.file),
        config=config.preprocess.model_dump(mode="json"),
        inputs=manifest.inputs,
        root=str(config.root),
        artifact=str(path.parent),
        fingerprint=manifest.fingerprint,
        deadline_seconds=config.preprocess.timeout_seconds,
    )
    return JobPlan(request, path, True, f"preprocess.dataset asks for the data set {version}")


def _foreign(job: str, config: PipelineConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Digests of the code, and versions of the packages, that do not belong to Trainyard.

    They come from stages, models, losses and metrics.
    """
    if job == "preprocess":
        stages = [stage.name for stage in config.preprocess.stages]
        return stage_plugins.code_of(stages), stage_plugins.distributions_of(stages)
    if job == "train":
        return user_models.code_of(config.train, config.file.parent), user_models.versions_of_own(
            config.train
        )
    return {}, {}


def _hosts_of(job: str, config: PipelineConfig) -> dict[str, dict[str, str]]:
    """The code that the hosts of a training select, as part of its config."""
    program = config.hosts.program if job == "train" and config.hosts else {}
    return {"hosts": program} if program else {}


def _packages(job: str, config: PipelineConfig) -> tuple[str, ...]:
    """The packages of a job, with optional ones only if the config asks for them.

    Another pipeline may have installed them. That changes no fingerprint here.
    """
    return KINDS[job].packages + (
        _ONNX if job == "export" and "onnx" in config.export.formats else ()
    )


def _with_inputs(fingerprint: Fingerprint, digests: Mapping[str, str]) -> Fingerprint:
    return fingerprint.model_copy(update={"inputs": fingerprint.inputs | digests})


def _decide(request: Request, layout: Layout) -> JobPlan:
    manifest = layout.manifest(request.job, request.fingerprint.digest)
    if not manifest.exists():
        return JobPlan(request, manifest, False, _why_anew(request, layout))
    damage = tuple(
        find_damage(manifest, read_manifest(manifest))
        or _find_unpublished(request, read_manifest(manifest))
    )
    if damage:
        return JobPlan(request, manifest, False, f"the artifact was damaged: {damage[0]}", damage)
    return JobPlan(
        request, manifest, True, "unchanged: same inputs, config, code and package versions"
    )


def _evaluation_before(layout: Layout, fingerprint: Fingerprint) -> Input | None:
    """The newest readable evaluation of the pipeline, except this one."""
    others = [
        path
        for path in layout.artifacts("evaluate").glob(f"*/{NAME}")
        if path.parent.name != fingerprint.digest
    ]
    for path in sorted(others, key=lambda path: (path.stat().st_mtime_ns, path), reverse=True):
        with contextlib.suppress(DataError):
            return _as_input(str(path))
    return None


def _find_unpublished(request: Request, manifest: Manifest) -> list[str]:
    """The damage of an export whose published version was removed from the registry."""
    if request.job != "export":
        return []
    figures = ModelFigures.model_validate(manifest.figures)
    published = {version.number for version in Registry(request.config["registry"]).versions()}
    return (
        []
        if figures.version in published
        else [f"version {figures.version} of the model {figures.name} is gone"]
    )


def _why_anew(request: Request, layout: Layout) -> str:
    """The reason to run a job: the changes since its newest artifact."""
    made = sorted(
        layout.artifacts(request.job).glob("*/manifest.json"), key=lambda path: path.stat().st_mtime
    )
    if not made:
        return "never made before"
    changes = request.fingerprint.changes_since(read_manifest(made[-1]).fingerprint)
    changes = [
        change for change in changes if not change.startswith(f"inputs {BASE} ")
    ]  # the base is no reason to run
    return "; ".join(changes) or "the last artifact is gone"


def _as_input(manifest: str) -> Input:
    return Input(uri=manifest, digest=read_manifest(manifest).digest)


def _baseline(config: PipelineConfig, challenger: Input) -> Input | None:
    """Returns the model that the challenger has to beat.

    If the challenger itself is the champion by now, that is the model that it was compared with
    when it was published. An unchanged second run then asks the same question as the first, and
    finds it answered.
    """
    registry = Registry(config.registry)
    champion = registry.champion()
    if champion and champion.manifest().inputs["train"].digest == challenger.digest:
        compared_with = champion.manifest().figures["compared_with"]
        champion = next((v for v in registry.versions() if v.number == compared_with), None)
    return Input(uri=champion.uri, digest=champion.manifest().digest) if champion else None
