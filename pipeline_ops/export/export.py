"""The export job: checks the challenger's SavedModel, publishes it as a new version, and puts it in service.

Started as `python -m pipeline_ops.export.export --request <path>`, only for a challenger that has passed the gate. The
steps are in an order that a kill can't hurt: a version appears whole or not at all, the champion moves last, and a
second try finds what the first one did and goes on from there. What a person has rolled back is not put in service
again. There is no warm-up and no format but the SavedModel.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.contracts.aliases import CHAMPION
from pipeline_ops.contracts.config_export import Export
from pipeline_ops.contracts.errors import DataError, ExitCode
from pipeline_ops.contracts.figures import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    EvaluationFigures,
    ModelFigures,
    TrainingFigures,
    files_of_saved_model,
)
from pipeline_ops.contracts.files import copy_file
from pipeline_ops.contracts.job import Job, run_job
from pipeline_ops.contracts.manifest import NAME, Manifest, list_files, read_input, refuse_damage, write_manifest
from pipeline_ops.contracts.registry import Registry, Version
from pipeline_ops.contracts.request import Request
from pipeline_ops.export.check import Agreement, check_candidate


@dataclasses.dataclass(frozen=True)
class Challenger:
    """The trained model and what the evaluation says of it."""

    folder: Path
    training: Manifest
    class_names: list[str]
    evaluation: EvaluationFigures


def export(job: Job) -> ExitCode:
    """Publishes, promotes, and leaves an artifact that names the version.

    Raises:
      DataError: the challenger may not be published, and nothing was; or another model was put in service meanwhile, and
        then the version is there, but not in service.
    """
    config, challenger = Export.model_validate(job.request.config), _read_challenger(job.request)
    job.progress.report("check", message="comparing the SavedModel with the trained model")
    agreement = check_candidate(challenger.folder, len(challenger.class_names), config.tolerance)
    registry = Registry(config.registry)
    job.progress.report("publish", message=f"{agreement.num_checked} images checked, largest difference {agreement.max_difference:.2g}")
    version = registry.publish(challenger.training.digest, lambda folder, number: _fill(folder, number, job.request, config, challenger, agreement))
    local = version.fetch(Path(job.request.root) / "fetched" / config.model)
    refuse_damage(local / NAME, version.manifest(), version.manifest().files)
    job.progress.report("promote", message=_promote(registry, version, job.request, challenger.evaluation))
    if config.keep_versions and (retired := registry.retire(config.keep_versions, f"export.keep_versions is {config.keep_versions}")):
        job.progress.report("retire", message=f"removed version {', '.join(map(str, retired))}")
    with job.artifact() as draft:
        draft.figures = _figures(version.number, config, challenger, agreement).model_dump(mode="json")
    return ExitCode.SUCCESS


def _read_challenger(request: Request) -> Challenger:
    train, evaluate = request.inputs["train"], request.inputs["evaluate"]
    training, evaluation = read_input(train), read_input(evaluate)
    figures = EvaluationFigures.model_validate(evaluation.figures)
    if evaluation.inputs["train"].digest != train.digest:
        raise DataError(f"{evaluate.uri}: this is the evaluation of another model than {train.uri}")
    if not figures.gate_passed:
        raise DataError(f"{evaluate.uri}: the gate was not passed, so nothing is published")
    references = [file for file in training.files if file.path in (REFERENCE_EXAMPLES, REFERENCE_OUTPUTS)]
    refuse_damage(train.uri, training, [*files_of_saved_model(training), *references])
    return Challenger(Path(train.uri).parent, training, TrainingFigures.model_validate(training.figures).class_names, figures)


def _fill(folder: Path, number: int, request: Request, config: Export, challenger: Challenger, agreement: Agreement) -> None:
    """Writes a version: the SavedModel as TensorFlow Serving wants it, with `saved_model.pb` on top, and the manifest."""
    wanted = {file.path.removeprefix(f"{SAVED_MODEL}/"): file.crc32c for file in files_of_saved_model(challenger.training)}
    for path in wanted:
        copy_file(challenger.folder / SAVED_MODEL / path, folder / path)
    files = list_files(folder)
    if {file.path: file.crc32c for file in files} != wanted:
        raise DataError(f"{challenger.folder}: the SavedModel was changed while it was being published; nothing was published")
    write_manifest(folder, Manifest(
        job=request.job, pipeline=request.pipeline, fingerprint=request.fingerprint, fingerprint_digest=request.fingerprint.digest,
        inputs=request.inputs, files=files, figures=_figures(number, config, challenger, agreement).model_dump(mode="json")))


def _figures(number: int, config: Export, challenger: Challenger, agreement: Agreement) -> ModelFigures:
    return ModelFigures(
        name=config.model, version=number, compared_with=challenger.evaluation.champion_version, metrics=challenger.evaluation.challenger.metrics,
        num_checked=agreement.num_checked, max_difference=agreement.max_difference, top1_agreement=agreement.top1_agreement,
        class_names=challenger.class_names)


def _promote(registry: Registry, version: Version, request: Request, evaluation: EvaluationFigures) -> str:
    """Puts the version in service, unless it is, or was and somebody has replaced it. Returns what was done, for a person."""
    champion = registry.champion()
    if champion and champion.number == version.number:
        return f"version {version.number} is in service already"
    if any(move.alias == CHAMPION and move.version == version.number for move in registry.history()):
        return (f"version {version.number} was in service before and was replaced by version {champion.number}; "
                "a person may put it in service again, a run does not")
    reason = f"run {request.run_id} of {request.pipeline}: {'; '.join(rule.text for rule in evaluation.rules)}"
    registry.promote(version.number, reason, expected=evaluation.champion_version)
    return f"version {version.number} is in service"


if __name__ == "__main__":
    run_job(export)
