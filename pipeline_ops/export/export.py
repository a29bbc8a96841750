"""The export job: makes and checks every format, publishes a version and puts it in service.

Started as `python -m pipeline_ops.export.export --request <path>`, only for a challenger that has
passed the gate. The order of the steps makes a kill harmless. Outputs are staged next to the
artifact, a version appears whole or not at all, and the champion moves last. A retry finds the
results of the first try and goes on from there. A version that a person has rolled back is not put
in service again.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from pipeline_ops.config.export import Export
from pipeline_ops.contract.dataset import is_shard
from pipeline_ops.contract.manifest import (
    Maker,
    Manifest,
    check_files,
    list_files,
    read_input,
    write_manifest,
)
from pipeline_ops.contract.request import Request
from pipeline_ops.contract.results import (
    METRICS,
    PUBLICATION,
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    REPORT,
    SAVED_MODEL,
    EvaluationFigures,
    FileFigures,
    FormatFigures,
    ModelFigures,
    TrainingFigures,
    is_saved_model_file,
    list_saved_model_files,
)
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.export.check import check_format, check_serving
from pipeline_ops.export.formats import FORMAT_PATHS, run_converter
from pipeline_ops.export.model_card import write_card
from pipeline_ops.export.warmup import write_warmup
from pipeline_ops.job.local_inputs import fetch_input, use_local_inputs
from pipeline_ops.job.runner import Job, run_job
from pipeline_ops.pages.page import render_part
from pipeline_ops.registry.registry import Registry, check_origin
from pipeline_ops.registry.versions import Version
from pipeline_ops.served.references import References
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import (
    copy_file,
    link_file,
    read_json,
    remove_own_folder,
    write_atomically,
    write_json,
)
from pipeline_ops.storage.open_store import open_path


def export(job: Job) -> ExitCode:
    """Publishes, promotes, and writes an artifact that names the version.

    Raises DataError if the challenger may not be published, and OutOfDate if another model was put
    in service during the export. In the second case the version exists, but is not in service.
    """
    request, progress = job.request, job.progress
    config, model = Export.model_validate(request.config), _read_trained_model(request)
    registry = Registry(request.config["registry"])
    if champion := registry.find_champion():  # before the work, and again when it is replaced
        check_origin(champion, request.pipeline, config.shared_with)
    staged = _stage_version(job, config, model)
    checks = [
        f"{each.name}: {each.num_checked} images checked, "
        f"largest difference {each.max_difference:.2g}, {each.num_bytes:,} bytes, "
        f"{1000 * each.latency_seconds:.2g} ms an image"
        for each in staged.formats
    ]
    progress.report("publish", message="; ".join(checks))
    version = registry.publish(model.training.digest, staged.write, staged.contents_digest)
    version.fetch()  # compares what was published with its manifest
    not_in_service = _promote(registry, version, request, model.evaluation)
    state = f"is not in service: {not_in_service}" if not_in_service else "is in service"
    progress.report("promote", message=f"version {version.number} {state}")
    if keep := config.keep_versions:
        retired = registry.retire(keep, f"export.keep_versions is {keep}")
        if retired:
            progress.report("retire", message=f"removed version {', '.join(map(str, retired))}")
    with job.artifact() as draft:
        figures = staged.build_figures(version.number)
        figures = figures.model_copy(update={"not_in_service": not_in_service})
        _write_report(draft.folder, model, figures)
        draft.figures = figures.model_dump(mode="json")
    return ExitCode.SUCCESS


@dataclasses.dataclass(frozen=True)
class _TrainedModel:
    """The trained model and its evaluation, checked against their manifests."""

    folder: Path
    training: Manifest
    figures: TrainingFigures
    evaluation: EvaluationFigures
    evaluation_folder: Path


def _read_trained_model(request: Request) -> _TrainedModel:
    """Raises DataError if an artifact is damaged, or if the model may not be published."""
    request = use_local_inputs(request, {"train": _is_needed, "evaluate": lambda path: True})
    train, evaluate = request.inputs["train"], request.inputs["evaluate"]
    training, evaluation = read_input(train), read_input(evaluate)
    figures = EvaluationFigures.model_validate(evaluation.figures)
    if evaluation.inputs["train"].digest != train.digest:
        raise DataError(
            f"{evaluate.uri} is the evaluation of another model than {train.uri}. Start a new run."
        )
    if not figures.gate_passed:
        raise DataError(f"{evaluate.uri}: the gate was not passed, so nothing is published.")
    needed = [file for file in training.files if _is_needed(file.path)]
    check_files(open_path(train.uri), training, needed)
    check_files(open_path(evaluate.uri), evaluation, evaluation.files)
    return _TrainedModel(
        Path(train.uri).parent,
        training,
        TrainingFigures.model_validate(training.figures),
        figures,
        Path(evaluate.uri).parent,
    )


def _is_needed(path: str) -> bool:
    """Returns whether an export reads a file of its training."""
    return is_saved_model_file(path) or path in (REFERENCE_EXAMPLES, REFERENCE_OUTPUTS)


@dataclasses.dataclass(frozen=True)
class _StagedVersion:
    """A version that is complete except for its number, and the results of its checks."""

    request: Request
    config: Export
    model: _TrainedModel
    folder: Path
    formats: list[FormatFigures]
    files: FileFigures

    @property
    def contents_digest(self) -> str:
        """A digest of the settings that make another version of the same model."""
        settings = {"formats", "int8", "card"}
        return compute_digest(self.config.model_dump(mode="json", include=settings))

    def build_figures(self, number: int) -> ModelFigures:
        saved_model, evaluation = self.formats[0], self.model.evaluation
        return ModelFigures(
            name=self.config.model,
            version=number,
            compared_with=evaluation.champion_version,
            metrics=evaluation.challenger.metrics,
            num_checked=saved_model.num_checked,
            max_difference=saved_model.max_difference,
            top1_agreement=saved_model.top1_agreement,
            class_names=self.model.figures.class_names,
            formats=self.formats,
            files=self.files,
            contents=self.contents_digest,
        )

    def write(self, folder: Path, number: int) -> None:
        """Writes the version.

        The SavedModel is as TensorFlow Serving expects it, with `saved_model.pb` at the top. The
        other files are next to it, and the manifest is written after them.
        """
        for file in sorted(file for file in self.folder.rglob("*") if file.is_file()):
            copy_file(file, folder / file.relative_to(self.folder))
        model, request = self.model, self.request
        training, evaluation = model.training, model.evaluation
        write_card(
            folder, self.config, number, request, training, evaluation, self.formats, self.files
        )
        files = list_files(folder)
        found = {file.path: (file.crc32c, file.sha256) for file in files}
        for trained in list_saved_model_files(training):
            path = trained.path.removeprefix(f"{SAVED_MODEL}/")
            if found.get(path) != (trained.crc32c, trained.sha256):
                raise DataError(
                    f"{model.folder}: {trained.path} was changed during its publication, so "
                    "nothing was published. Train again."
                )
        write_manifest(
            folder,
            Manifest(
                job=request.job,
                pipeline=request.pipeline,
                fingerprint=request.fingerprint,
                fingerprint_digest=request.fingerprint.digest,
                inputs=request.inputs,
                files=files,
                figures=self.build_figures(number).model_dump(mode="json"),
                made_by=Maker.of(request.run_id),
            ),
        )


def _stage_version(job: Job, config: Export, model: _TrainedModel) -> _StagedVersion:
    """Makes and checks all contents of a version, next to the artifact of the export.

    The converter starts first, because most of its time is an import.
    """
    folder, progress = job.work / "staged", job.progress
    job.make_work()
    remove_own_folder(folder)
    for file in list_saved_model_files(model.training):
        path = folder / Path(file.path).relative_to(SAVED_MODEL)
        path.parent.mkdir(parents=True, exist_ok=True)
        link_file(model.folder / file.path, path)
    converted = [name for name in config.formats if name in FORMAT_PATHS]
    num_classes = len(model.figures.class_names)
    dataset = model.training.inputs["preprocess"]
    if "tflite_int8" in config.formats:
        dataset = fetch_input(dataset, lambda path: is_shard(path, "train"))
    with run_converter(folder, dataset.uri, converted, num_classes) as wait:
        progress.report("check", message="comparing the SavedModel with the trained model")
        references = References(model.folder, folder, num_classes, model.figures.task)
        formats = [check_format("saved_model", references, folder, config)]
        progress.report("check", message="comparing what is made of raw test files")
        files = references.check_files()
        seconds = wait()
        for name in converted:
            progress.report("check", message=f"comparing {name} with the trained model")
            formats.append(check_format(name, references, folder, config, seconds[name]))
    progress.report("serve", message="predicting as a server does")
    check_serving(folder, references, config)
    write_warmup(folder, config.model, references)
    return _StagedVersion(job.request, config, model, folder, formats, files)


def _promote(
    registry: Registry, version: Version, request: Request, evaluation: EvaluationFigures
) -> str:
    """Puts the version in service. Returns "", or why it stays out of service.

    A version stays out of service if it was in service before and has been replaced.
    """
    champion = registry.find_champion()
    if champion and champion.number == version.number:
        return ""
    same_model_versions = {
        each.number for each in registry.find_by_training(request.inputs["train"].digest)
    }
    expected = evaluation.champion_version
    if champion and champion.number in same_model_versions:
        expected = champion.number
    elif champion and (earlier := registry.find_earlier_services(same_model_versions)):
        return (
            f"this model was in service before, as version {earlier[-1]}, and was replaced by "
            f"version {champion.number}. A person may put it in service again, a run does not"
        )
    reason = (
        f"run {request.run_id} of {request.pipeline}: "
        f"{'; '.join(rule.text for rule in evaluation.rules)}"
    )
    shared_with = Export.model_validate(request.config).shared_with
    check = functools.partial(check_origin, pipeline=request.pipeline, shared_with=shared_with)
    registry.promote(version.number, reason, expected, check)
    return ""


def _write_report(folder: Path, model: _TrainedModel, figures: ModelFigures) -> None:
    """Writes the page and the figures of the evaluation again, with the published version.

    The evaluation's own page is part of an artifact that never changes. It has a place for the
    section on the version and its formats, so a run has one page, which is complete at any time.
    """
    evaluation = model.evaluation_folder
    page = (evaluation / REPORT).read_text(encoding="utf-8")
    if page.count(PUBLICATION) != 1:
        raise DataError(
            f"{evaluation / REPORT} has no place for the publication. Run the evaluation again."
        )
    reason = figures.not_in_service
    state = f"was not put in service: {reason}" if reason else "came into service"
    outcome = f"version {figures.version} {state}"
    section = render_part(
        Path(__file__).with_name("publication.html"),
        model=figures,
        outcome=outcome,
        is_detector=model.figures.task == "detection",
    )
    write_atomically(folder / REPORT, page.replace(PUBLICATION, section).encode())
    publication = {"outcome": outcome, **figures.model_dump(mode="json")}
    write_json(folder / METRICS, {**read_json(evaluation / METRICS), "publication": publication})


if __name__ == "__main__":
    run_job(export)
