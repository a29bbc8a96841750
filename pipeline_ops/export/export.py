"""The export job: makes and checks every format, publishes a version and puts it in service.

Started as `python -m pipeline_ops.export.export --request <path>`, only for a challenger that has
passed the gate. The order of the steps makes a kill harmless. Outputs are staged next to the
artifact, a version appears whole or not at all, and the champion moves last. A retry finds the
results of the first try and goes on from there. A version that a person has rolled back is not put
in service again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from pipeline_ops.artifacts.manifest import (
    NAME,
    SIGNATURE,
    Input,
    Manifest,
    list_files,
    read_input,
    refuse_damage,
    write_manifest,
)
from pipeline_ops.artifacts.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    EvaluationFigures,
    FormatFigures,
    ModelFigures,
    TrainingFigures,
    files_of_saved_model,
)
from pipeline_ops.config.export import Export
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.export.card import make_card, write_card
from pipeline_ops.export.check import References, check_format, check_saved_model
from pipeline_ops.export.conversion import Conversion
from pipeline_ops.export.formats import PATHS
from pipeline_ops.export.publication import write_report
from pipeline_ops.export.serving_check import check_serving
from pipeline_ops.export.warmup import write_warmup
from pipeline_ops.jobs.request import Request
from pipeline_ops.jobs.runner import Job, run_job
from pipeline_ops.registry.aliases import CHAMPION
from pipeline_ops.registry.minisign import read_secret_key
from pipeline_ops.registry.registry import Registry, Version, fetched
from pipeline_ops.storage.atomic import copy_file, link_file, remove_own, write_whole
from pipeline_ops.storage.digest import digest_of

_WARMUP_BATCHES = (1, 8)
"""The numbers of images in the requests that TensorFlow Serving warms a version up with."""


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """The trained model and its evaluation."""

    folder: Path
    training: Manifest
    class_names: list[str]
    evaluation: EvaluationFigures

    @property
    def task(self) -> Task:
        return TrainingFigures.model_validate(self.training.figures).task

    @property
    def dataset(self) -> Input:
        return self.training.inputs["preprocess"]


@dataclasses.dataclass(frozen=True)
class Staged:
    """A version that is complete except for its number, and the results of its checks."""

    folder: Path
    formats: list[FormatFigures]


def export(job: Job) -> ExitCode:
    """Publishes, promotes, and writes an artifact that names the version.

    Raises:
      DataError: the challenger may not be published, and nothing was published. Or another model
        was put in service during the export. Then the version exists, but is not in service.
    """
    config, challenger = Export.model_validate(job.request.config), _read_challenger(job.request)
    if config.signing_key:
        read_secret_key(Path(config.signing_key))  # a wrong key fails before anything is made
    registry = Registry(config.registry)
    staged = _stage(job, config, challenger)
    job.progress.report("publish", message="; ".join(_describe(each) for each in staged.formats))
    version = registry.publish(
        challenger.training.digest,
        lambda folder, number: _fill(folder, number, job.request, config, challenger, staged),
        _contents(config),
    )
    manifest = version.manifest()
    refuse_damage(
        fetched(Input(uri=version.uri, digest=manifest.digest), Path(job.request.root)).uri,
        manifest,
        manifest.files,
    )
    outcome = _promote(registry, version, job.request, challenger.evaluation)
    job.progress.report("promote", message=outcome)
    if config.keep_versions and (
        retired := registry.retire(
            config.keep_versions, f"export.keep_versions is {config.keep_versions}"
        )
    ):
        job.progress.report("retire", message=f"removed version {', '.join(map(str, retired))}")
    with job.artifact() as draft:
        figures = _figures(version.number, config, challenger, staged)
        write_report(
            draft.folder,
            Path(job.request.inputs["evaluate"].uri).parent,
            challenger.task,
            figures,
            outcome,
        )
        draft.figures = figures.model_dump(mode="json")
    return ExitCode.SUCCESS


def _read_challenger(request: Request) -> TrainedModel:
    train, evaluate = request.inputs["train"], request.inputs["evaluate"]
    training, evaluation = read_input(train), read_input(evaluate)
    figures = EvaluationFigures.model_validate(evaluation.figures)
    if evaluation.inputs["train"].digest != train.digest:
        raise DataError(f"{evaluate.uri}: this is the evaluation of another model than {train.uri}")
    if not figures.gate_passed:
        raise DataError(f"{evaluate.uri}: the gate was not passed, so nothing is published")
    references = [
        file for file in training.files if file.path in (REFERENCE_EXAMPLES, REFERENCE_OUTPUTS)
    ]
    refuse_damage(train.uri, training, [*files_of_saved_model(training), *references])
    refuse_damage(evaluate.uri, evaluation, evaluation.files)
    return TrainedModel(
        Path(train.uri).parent,
        training,
        TrainingFigures.model_validate(training.figures).class_names,
        figures,
    )


def _stage(job: Job, config: Export, challenger: TrainedModel) -> Staged:
    """Makes and checks all contents of a version.

    The converter starts first, because most of its time is an import.
    """
    folder = job.work / "staged"
    remove_own(folder)
    for file in files_of_saved_model(challenger.training):
        path = folder / Path(file.path).relative_to(SAVED_MODEL)
        path.parent.mkdir(parents=True, exist_ok=True)
        link_file(challenger.folder / file.path, path)
    others = [name for name in config.formats if name in PATHS]
    with Conversion(
        folder, challenger.dataset.uri, config, others, len(challenger.class_names)
    ) as conversion:
        job.progress.report("check", message="comparing the SavedModel with the trained model")
        references = References(
            challenger.folder, folder, len(challenger.class_names), challenger.task
        )
        formats = [check_saved_model(references, folder, config)]
        seconds = conversion.wait()
        for name in others:
            job.progress.report("check", message=f"comparing {name} with the trained model")
            formats.append(check_format(name, references, folder, config, seconds[name]))
    job.progress.report("serve", message="asking a server for predictions")
    check_serving(folder, references, config)
    write_warmup(folder, config.model, _warmup_requests(references))
    return Staged(folder, formats)


def _warmup_requests(references: References) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Returns requests for each signature that answers, with one image and with several."""
    images, found = references.images(), []
    for count in (count for count in _WARMUP_BATCHES if count <= len(images)):
        found += [
            ("serving_default", {"image_bytes": np.array(references.encoded[:count], object)}),
            ("images", {"images": images[:count]}),
            ("examples", {"examples": np.array(references.serialized[:count], object)}),
        ]
    return found


def _fill(
    folder: Path,
    number: int,
    request: Request,
    config: Export,
    challenger: TrainedModel,
    staged: Staged,
) -> None:
    """Writes a version.

    The SavedModel is as TensorFlow Serving expects it, with `saved_model.pb` at the top. The other
    files are next to it, and the manifest is written after them.
    """
    for file in sorted(file for file in staged.folder.rglob("*") if file.is_file()):
        copy_file(file, folder / file.relative_to(staged.folder))
    write_card(
        folder,
        make_card(
            config,
            number,
            request.pipeline,
            challenger.training,
            challenger.evaluation,
            staged.formats,
            request.inputs,
        ),
    )
    files = list_files(folder)
    found = {file.path: (file.crc32c, file.sha256) for file in files}
    trained = {
        file.path.removeprefix(f"{SAVED_MODEL}/"): (file.crc32c, file.sha256)
        for file in files_of_saved_model(challenger.training)
    }
    if any(found.get(path) != checksums for path, checksums in trained.items()):
        raise DataError(
            f"{challenger.folder}: the SavedModel was changed while it was being published; "
            "nothing was published"
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
            figures=_figures(number, config, challenger, staged).model_dump(mode="json"),
        ),
    )
    if config.signing_key:
        key = read_secret_key(Path(config.signing_key))
        write_whole(
            folder / SIGNATURE,
            key.sign((folder / NAME).read_bytes(), f"{config.model}/{number}/{NAME}"),
        )


def _figures(number: int, config: Export, challenger: TrainedModel, staged: Staged) -> ModelFigures:
    saved_model = staged.formats[0]
    return ModelFigures(
        name=config.model,
        version=number,
        compared_with=challenger.evaluation.champion_version,
        metrics=challenger.evaluation.challenger.metrics,
        num_checked=saved_model.num_checked,
        max_difference=saved_model.max_difference,
        top1_agreement=saved_model.top1_agreement,
        class_names=challenger.class_names,
        formats=staged.formats,
        contents=_contents(config),
    )


def _contents(config: Export) -> str:
    """Returns the digest of the settings that make another version of the same model.

    They are the formats and the texts of the card.
    """
    return digest_of(config.model_dump(mode="json", include={"formats", "int8", "card"}))


def _describe(checked: FormatFigures) -> str:
    return (
        f"{checked.name}: {checked.num_checked} images checked, "
        f"largest difference {checked.max_difference:.2g}, {checked.num_bytes:,} bytes, "
        f"{1000 * checked.latency_seconds:.2g} ms an image"
    )


def _promote(
    registry: Registry, version: Version, request: Request, evaluation: EvaluationFigures
) -> str:
    """Puts the version in service. Returns the outcome as a text for people.

    A version stays out of service if it was in service before and has been replaced.
    """
    champion = registry.champion()
    if champion and champion.number == version.number:
        return f"version {version.number} is in service already"
    same = {each.number for each in registry.made_from(request.inputs["train"].digest)}
    before = [
        move.version
        for move in registry.history()
        if move.alias == CHAMPION and move.version in same
    ]
    if before and champion and champion.number not in same:
        return (
            f"version {before[-1]} was in service before "
            f"and was replaced by version {champion.number}; "
            "a person may put it in service again, a run does not"
        )
    expected = (
        champion.number if champion and champion.number in same else evaluation.champion_version
    )  # the same model in another form
    reason = (
        f"run {request.run_id} of {request.pipeline}: "
        f"{'; '.join(rule.text for rule in evaluation.rules)}"
    )
    registry.promote(version.number, reason, expected=expected)
    return f"version {version.number} is in service"


if __name__ == "__main__":
    run_job(export)
